"""Tables of methods, at the evaluation and the point that a rule chooses."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from .grids import Entry, Grid, Paired, Published, published
from .load import Experiment
from .select import Chosen, Combination
from .values import VALUES, named, shown, text

BASELINE, AVERAGE = "erm", "average"


@dataclass(frozen=True, eq=False)
class Results:
    """Of an experiment under one rule: what was chosen, by combination of its axes and method."""

    experiment: Experiment
    rule: str
    chosen: Mapping[tuple[Combination, str], Chosen]

    @property
    def baseline(self) -> str | None:
        """The method that others are compared with: the first that is ERM, on the data that all have."""
        of = self.experiment.algorithm
        methods = [m for m in self.experiment.methods if of(m) == BASELINE or m.lower() == BASELINE]
        return min(methods, key=lambda method: method.lower() != BASELINE, default=None)

    def at(self, at: Mapping[str, Any], method: str) -> Chosen | None:
        return self.chosen.get(
            (tuple(at.get(axis, values[0]) for axis, values in self.experiment.axes.items()), method)
        )

    def entry(self, at: Mapping[str, Any], method: str, value: str) -> Entry:
        """At these values of the axes, of those that have several; a method that the plan does not have is missing."""
        found = self.at(at, method)
        if found is None:
            return Entry({}, 0, 0, VALUES[value].digits)
        return Entry(found.values[value], found.planned, found.done, VALUES[value].digits, point=found.point)

    def grid(self, panel: Mapping[str, Any], value: str, axis: str, average: bool, named: bool) -> Grid:
        """One value, methods against the values of an axis; `named`: the panel's title says which value it is."""
        at = self.experiment.axes[axis]
        keys = [*map(text, at), *([AVERAGE] if average else [])]
        places = [(value, {**panel, axis: x}) for x in at]
        columns = [*(shown(axis, x) for x in at), *keys[len(at) :]]
        return self._grid(panel, places, keys, columns, average, value if named else "")

    def grid_of_values(self, panel: Mapping[str, Any], values: Sequence[str]) -> Grid:
        columns = [VALUES[value].label for value in values]
        return self._grid(panel, [(value, panel) for value in values], values, columns, False, "")

    def _grid(
        self,
        panel: Mapping[str, Any],
        places: Sequence[tuple[str, Mapping[str, Any]]],
        keys: Sequence[str],
        columns: Sequence[str],
        average: bool,
        value: str,
    ) -> Grid:
        lines = {}
        names = [name for name, _ in places]
        for method in self.experiment.methods:
            entries = [self.entry(at, method, name) for name, at in places]
            lines[method] = [*entries, average_of(entries)] if average else entries
        lines = self._compared(lines)
        lines = {
            method: [
                replace(entry, published=self._published(method, key, ", ".join(map(text, panel.values())), value))
                if key != AVERAGE or self._has_all(method, panel, keys)
                else entry
                for key, entry in zip(keys, entries, strict=True)
            ]
            for method, entries in lines.items()
        }
        return Grid(
            title=", ".join(filter(None, [panel_title(panel), VALUES[value].label if value else ""])),
            corner="Method",
            keys=keys,
            columns=columns,
            lines=lines,
            less=[VALUES[name].less for name in [*names, *(names[:1] if average else [])]],
            apart=frozenset(filter(self.experiment.is_oracle, lines)),
            notes=self._points(panel),
        )

    def _compared(self, lines: Mapping[str, list[Entry]]) -> dict[str, list[Entry]]:
        """With differences to the baseline, seed by seed."""
        theirs = lines.get(self.baseline) if self.baseline is not None else None
        if theirs is None:
            return dict(lines)
        return {
            method: [
                replace(entry, against=None if method == self.baseline else Paired.of(entry.values, their.values))
                for entry, their in zip(entries, theirs, strict=True)
            ]
            for method, entries in lines.items()
        }

    def _published(self, method: str, key: str, panel: str, value: str) -> Published | None:
        keys = [", ".join(filter(None, names)) for names in ((panel, value, key), (panel, key), (value, key))]
        if not panel:
            keys.append(key)
        recipe = self.experiment.recipe
        return published(recipe.get("published", {}), self.rule, method, keys, self.experiment.name)

    def _has_all(self, method: str, panel: Mapping[str, Any], keys: Sequence[str]) -> bool:
        """Whether all columns that the paper's average is over are ours too."""
        table = self.experiment.recipe.get("published", {}).get(self.rule, {}).get(method, {})
        start = "".join(f"{text(value)}, " for value in panel.values())
        return {key.removeprefix(start) for key in table if key.startswith(start)} <= set(keys)

    def _points(self, panel: Mapping[str, Any]) -> list[str]:
        """Which point of its grid each method has, where it has one."""
        axes = list(self.experiment.axes)
        notes = []
        for method in self.experiment.methods:
            here = {
                ", ".join(
                    shown(axis, v)
                    for axis, v in zip(axes, combination, strict=True)
                    if axis not in panel and len(self.experiment.axes[axis]) > 1
                ): found
                for (combination, name), found in self.chosen.items()
                if name == method and found.points > 1 and found.done
                if all(combination[axes.index(axis)] == v for axis, v in panel.items())
            }
            if here:
                notes.append(_told(method, here))
        return notes


def _told(method: str, here: Mapping[str, Chosen]) -> str:
    """ "TRM, best of 4 points: a=1 at photo, sketch; a=2 at cartoon." """
    points, incomplete = (max(getattr(found, name) for found in here.values()) for name in ("points", "incomplete"))
    lacking = f", up to {incomplete} of which lack seeds" if incomplete else ""
    by_point: dict[str, list[str]] = {}
    for where, found in here.items():
        by_point.setdefault(found.point, []).append(where)
    told = [f"{point} at {', '.join(where)}" for point, where in by_point.items()]
    return f"{method}, best of {points} points{lacking}: {'; '.join(told) if len(told) > 1 else next(iter(by_point))}."


def average_of(entries: Sequence[Entry]) -> Entry:
    """Seed by seed, of the seeds that all entries have."""
    seeds = [seed for seed in entries[0].values if all(seed in entry.values for entry in entries)]
    values = {seed: math.fsum(entry.values[seed] for entry in entries) / len(entries) for seed in seeds}
    done = min(entry.done for entry in entries)
    return Entry(values, max(entry.planned for entry in entries), done, entries[0].digits)


def panel_title(panel: Mapping[str, Any]) -> str:
    return ", ".join(named(name, value) for name, value in panel.items())
