"""Views that compare methods: table, lines and curves. A rule selects evaluations of runs and points of grids."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, ClassVar, Literal

import numpy as np
import pandas as pd

from ..errors import InputError, choices
from ..results import VALUES, best_point, value_by_evaluation, values_at_selected
from ..results.records import RUN_COLUMN
from ..results.selection import HELD_OUT
from ..settings import Settings
from .elements import Curves
from .experiment import Experiment, mixed_words
from .tables import (
    AVERAGE,
    EDGE,
    Grid,
    Part,
    Published,
    Score,
    axis_text,
    axis_value,
    axis_words,
    column_label,
    find_published,
)  # fmt: skip

BASELINE = "erm"
SELECTED = "selected."  # prefix of columns of values, since an axis may have the name of a value
BAND = "In the figure, the band is one standard deviation over seeds to either side."
Scale = Literal["linear", "log"]


@dataclass(frozen=True, kw_only=True)
class View(Settings):
    """Base of views, which present results as a recipe's [show] asks.

    title    heading beside the recipe's title
    caption  sentences that explain the view's terms
    panels   axes (columns for kinds rows and xy) of which every combination of values has its own table or drawing
    """

    selects: ClassVar[bool] = True
    """Whether a rule selects among evaluations."""
    title: str = ""
    caption: str = ""
    panels: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "caption", " ".join(self.caption.split()))
        for name in ("value", "values") if self.selects else ():
            for value in getattr(self, name, ()):
                if value not in VALUES:
                    raise InputError(f"{name} must name values of a training, got {value!r}{choices(value, VALUES)}")

    own_axis: ClassVar[str] = ""
    """Key that names the axis of the columns or lines, "" if there is none."""

    @property
    def axis(self) -> str:
        """Axis that is not a panel, "" if there is none."""
        return str(getattr(self, self.own_axis)) if self.own_axis else ""

    def check(self, experiment: Experiment) -> None:
        """Raise InputError if this view has nothing to show of the experiment's plan."""
        if experiment.methods == [""]:
            raise InputError("kind must be rows or xy, since the recipe has no methods to compare")
        named = [*(("panels", name) for name in self.panels), (self.own_axis, self.axis)]
        for key, name in named:
            if name and name not in experiment.axes:
                raise InputError(
                    f"[show] {key} must name what varies, got {name!r}{choices(name, experiment.axes)}; or write "
                    "show = false for a plain table"
                )

    def part(self, experiment: Experiment, rule: str) -> Part:
        """Return the tables and drawings of an experiment under a rule."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class TableView(View):
    """Table of methods against the values of an axis, or against several values of a training.

    columns  axis of the columns; "" makes the values the columns
    average  whether to add a column with the mean of the others
    value    names of values, keys of `results.VALUES`
    """

    columns: str = ""
    average: bool = False
    value: tuple[str, ...] = ("accuracy",)

    own_axis: ClassVar[str] = "columns"

    def part(self, experiment: Experiment, rule: str) -> Part:
        results = MethodResults.of(experiment, rule, self.value)
        if not self.columns:
            grids = [results.grid_of_values(panel, self.value) for panel in _panels(experiment, self)]
            return results.part(self, grids)
        several, grids = len(self.value) > 1, []
        for panel, value in itertools.product(_panels(experiment, self), self.value):
            grids.append(results.grid(panel, value, self.columns, self.average, several))
        by = f" by {column_label(self.columns)}"
        where = " in the column's test environment" if self.columns == "test_env" else by
        return results.part(self, grids, notes=[] if several else [f"{_words(self.value[0])}{where}."])


@dataclass(frozen=True, kw_only=True)
class LinesView(View):
    """A value against an axis, with a line for each method.

    x        axis
    scale    scale of the axis
    y_scale  scale of the value
    """

    x: str
    value: tuple[str, ...] = ("accuracy",)
    scale: Scale = "linear"
    y_scale: Scale = "linear"
    x_label: str = ""

    own_axis: ClassVar[str] = "x"

    def part(self, experiment: Experiment, rule: str) -> Part:
        results = MethodResults.of(experiment, rule, self.value)
        several = len(self.value) > 1
        grids, drawn = [], []
        for panel, value in itertools.product(_panels(experiment, self), self.value):
            grids.append(results.grid(panel, value, self.x, False, several))
            if len(grids[-1].shown) > 1:
                drawn.append(self._curves(grids[-1], experiment.axes[self.x], value))
        notes = [] if several else [f"{_words(self.value[0])} against {self.x_label or column_label(self.x)}."]
        return results.part(self, grids, drawn, notes)

    def _curves(self, grid: Grid, at: Sequence[Any], value: str) -> Curves:
        """Return a drawing of the grid, in which words of the axis stand at 1, 2, ...

        It ranges from the first to the last column with a finished run.
        """
        ticks: dict[float, str] = {}
        drawn = slice(grid.shown[0], grid.shown[-1] + 1)
        for place, x in [*enumerate(at, 1)][drawn]:
            ticks[float(x if isinstance(x, int | float) else place)] = axis_value(self.x, x)
        series, deviations = {}, {}
        for method, scores in grid.lines.items():
            if any(score.values for score in scores):
                series[method] = list(ticks), [score.summary.mean for score in scores[drawn]]
                spreads = [score.summary.std if len(score.values) > 1 else math.nan for score in scores]
                deviations[method] = spreads[drawn]
        around = bands(series, deviations, VALUES[value].most)
        return Curves(
            grid.title, series, self.x_label or column_label(self.x), VALUES[value].label, bands=around,
            note=BAND if around else "", span=0.0 if self.y_scale == "log" else VALUES[value].span, x_ticks=ticks,
            x_log=self.scale == "log", y_log=self.y_scale == "log",
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class CurvesView(View):
    """Values against the step of training: the mean over seeds at every evaluation, with a line for each method."""

    x: Literal["step", "epoch"] = "step"
    values: tuple[str, ...] = ("accuracy",)
    scale: Scale = "linear"
    y_scale: Scale = "linear"

    def part(self, experiment: Experiment, rule: str) -> Part:
        results = MethodResults.of(experiment, rule, self.values)
        by_run = {value: _over_training(experiment.records, value, self.x) for value in self.values}
        grids, drawn = [], []
        for panel in _panels(experiment, self):
            grids.append(results.grid_of_values(panel, self.values))
            for value in self.values:
                lines: dict[str, tuple[list[float], list[float]]] = {}
                for method in experiment.methods:
                    line = results.mean_line(panel, method, by_run[value])
                    lines |= {method: line} if line[0] else {}
                title = ", ".join(filter(None, [axis_words(panel), VALUES[value].label]))
                drawn.append(
                    Curves(
                        title, lines, self.x, VALUES[value].label, note="Lines are means over seeds.",
                        x_log=self.scale == "log", y_log=self.y_scale == "log",
                    )
                )  # fmt: skip
        note = "The figure shows every evaluation, the table those that are selected."
        return results.part(self, grids, drawn, [note])


def _words(value: str) -> str:
    """Return the label of a value as a sentence begins with it, such as "Accuracy in %"."""
    return VALUES[value].label.replace(", %", " in %").capitalize()


def _panels(experiment: Experiment, view: View) -> Iterator[dict[str, Any]]:
    """Yield every combination of values of the panels, which include all axes of several values but the view's own."""
    names = dict.fromkeys([*view.panels, *(axis for axis, values in experiment.axes.items() if len(values) > 1)])
    names.pop(view.axis, None)
    for values in itertools.product(*map(experiment.axes.__getitem__, names)):
        yield dict(zip(names, values, strict=True))


def bands(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    deviations: Mapping[str, Sequence[float]],
    most: float = math.inf,
) -> dict[str, tuple[list[float], list[float]]]:
    """Return bounds one deviation to either side of each line that has deviations, limited by the largest value."""
    found = {}
    for name, own in deviations.items():
        y, deviation = np.asarray(series[name][1], float), np.asarray(own, float)
        if not np.isnan(deviation).all():
            found[name] = (y - deviation).tolist(), np.minimum(most, y + deviation).tolist()
    return found


@dataclass(frozen=True, eq=False)
class Chosen:
    """A method on one combination of the axes, at the point of its grid that was chosen.

    point       point of the grid, "" without a grid
    planned     number of seeds that are planned
    done        a line for each finished seed: seed, run, and its values in the units that are printed
    points      number of points of the grid
    incomplete  number of points that lack seeds
    edges       settings whose chosen value is the smallest or the largest of the grid, such as "lr=0.8"
    """

    point: str
    planned: int
    done: pd.DataFrame
    points: int
    incomplete: int
    edges: tuple[str, ...] = ()

    def by_seed(self, value: str) -> dict[Any, float]:
        """Return seed -> value, for the seeds that have one."""
        numbers = self.done.set_index("seed")[f"{SELECTED}{value}"].astype(float)
        found: dict[Any, float] = numbers[np.isfinite(numbers)].to_dict()
        return found


@dataclass(frozen=True, eq=False)
class MethodResults:
    """Results of an experiment under one rule: what was chosen, by the values of the axes and the method."""

    experiment: Experiment
    rule: str
    chosen: Mapping[tuple[Any, ...], Chosen]

    @classmethod
    def of(cls, experiment: Experiment, rule: str, values: Sequence[str]) -> MethodResults:
        """Select evaluations and choose points of grids by a rule."""
        selected = values_at_selected(experiment.records, rule, values).set_index(RUN_COLUMN).add_prefix(SELECTED)
        places = experiment.places.merge(selected, "left", left_on=RUN_COLUMN, right_index=True)
        keys = [*experiment.axes, "method"]
        whole = places[places["hold_out"] == ""]
        if rule == HELD_OUT:
            whole = _validated_elsewhere(whole, places[places["hold_out"] != ""], [*keys, "point", "seed"])
        by_seed = bool(experiment.recipe.search.get("by_seed"))
        groups = whole.groupby(keys, sort=False, dropna=False)
        return cls(experiment, rule, {key: _choose(own, by_seed) for key, own in groups})

    def at(self, panel: Mapping[str, Any], method: str) -> Chosen | None:
        """Return what was chosen for a method at these values of the axes, None if the plan does not have it there."""
        combination = [panel.get(axis, values[0]) for axis, values in self.experiment.axes.items()]
        return self.chosen.get((*combination, method))

    def grid(self, panel: Mapping[str, Any], value: str, axis: str, average: bool, named: bool) -> Grid:
        """Return methods against the values of an axis, for one value; with `named` the title says which."""
        keys, columns, places = [], [], []
        for x in self.experiment.axes[axis]:
            keys.append(axis_text(x))
            columns.append(axis_value(axis, x))
            places.append((value, {**panel, axis: x}))
        more = [AVERAGE] if average else []
        grid = self._grid(panel, places, [*keys, *more], [*columns, *more], value if named else "")
        return replace(grid, across=column_label(axis))

    def grid_of_values(self, panel: Mapping[str, Any], values: Sequence[str]) -> Grid:
        """Return methods against several values."""
        columns = [VALUES[value].label for value in values]
        return self._grid(panel, [(value, panel) for value in values], values, columns, "")

    def _grid(
        self,
        panel: Mapping[str, Any],
        places: Sequence[tuple[str, Mapping[str, Any]]],
        keys: Sequence[str],
        columns: Sequence[str],
        value: str,
    ) -> Grid:
        """Return methods against places; an additional key stands for the average over them."""
        lines, apart = {}, set()
        for method in self.experiment.methods:
            scores = [self._score(at, method, name) for name, at in places]
            lines[method] = [*scores, _average(scores)] if len(keys) > len(places) else scores
            if self.experiment.recipe.methods.get(method, {}).get("oracle"):
                apart.add(method)
        baseline = self.baseline
        for method, scores in lines.items():
            for column, (key, score) in enumerate(zip(keys, scores, strict=True)):
                theirs = None if baseline is None or method == baseline else lines[baseline][column]
                against = None if theirs is None else score.minus(theirs)
                scores[column] = replace(
                    score, against=against, published=self._published(method, key, keys, panel, value)
                )
        names = [name for name, _ in (*places, *places[:1])]
        less = [VALUES[name].less_is_better for name in names[: len(keys)]]
        title = ", ".join(filter(None, [axis_words(panel), VALUES[value].label if value else ""]))
        return Grid(title, "Method", keys, columns, lines, less, frozenset(apart), self._points(panel))

    @cached_property
    def baseline(self) -> str | None:
        """Method that others are compared with: the first that is called ERM, else the first whose algorithm is ERM."""
        first = None
        for method in self.experiment.methods:
            if method.lower() == BASELINE:
                return method
            if first is None and self.experiment.recipe.methods.get(method, {}).get("algorithm") == BASELINE:
                first = method
        return first

    def _score(self, at: Mapping[str, Any], method: str, value: str) -> Score:
        """Return the score at these values of the axes, an empty one if the plan does not have the method there."""
        found = self.at(at, method)
        if found is None:
            return Score({}, 0, 0, VALUES[value].digits)
        runs = found.done.set_index("seed")[RUN_COLUMN].to_dict()
        values, digits = found.by_seed(value), VALUES[value].digits
        return Score(values, found.planned, len(found.done), digits, point=found.point, runs=runs)

    def _published(
        self, method: str, key: str, keys: Sequence[str], panel: Mapping[str, Any], value: str
    ) -> Published | None:
        """Return the paper's number; an average only if all columns that it is taken over are ours too."""
        table = self.experiment.recipe.published
        title = ", ".join(map(axis_text, panel.values()))
        if key == AVERAGE:
            start = f"{title}, " if title else ""
            of_method = table.get(self.rule, {}).get(method, {})
            if not {name.removeprefix(start) for name in of_method if name.startswith(start)} <= set(keys):
                return None
        tries = [] if title else [key]
        for names in ((value, key), (title, key), (title, value, key)):
            tries.insert(0, ", ".join(filter(None, names)))
        return find_published(table, self.rule, method, tries)

    def _points(self, panel: Mapping[str, Any]) -> list[str]:
        """Return a sentence on each method's point: "TRM, best of 4 points: a=1 at photo, sketch; a=2 at cartoon." """
        axes = self.experiment.axes
        here: dict[str, dict[str, list[str]]] = {}  # method -> point -> where
        edges: dict[str, dict[str, None]] = {}
        points, incomplete = Counter[str](), Counter[str]()
        for (*combination, method), found in self.chosen.items():
            at = dict(zip(axes, combination, strict=True))
            if found.points > 1 and len(found.done) and panel.items() <= at.items():
                rest = [axis_value(a, v) for a, v in at.items() if a not in panel and len(axes[a]) > 1]
                here.setdefault(method, {}).setdefault(found.point, []).append(", ".join(rest))
                edges.setdefault(method, {}).update(
                    dict.fromkeys(filter(partial(self._is_listed, method), found.edges))
                )
                points[method] = max(points[method], found.points)
                incomplete[method] = max(incomplete[method], found.incomplete)
        notes = []
        for method in filter(here.__contains__, self.experiment.methods):
            lacking = f", up to {incomplete[method]} of which lack seeds" if incomplete[method] else ""
            given_up = sum({**panel, "method": method}.items() <= place.items() for place in self.experiment.pruned)
            lacking += f", and {given_up} more whose training was given up" if given_up else ""
            chosen = [f"{point} at {', '.join(where)}" for point, where in here[method].items()]
            which = "; ".join(chosen) if len(chosen) > 1 else next(iter(here[method]))
            edge = f" {EDGE}: {', '.join(edges[method])}." if edges[method] else ""
            notes.append(f"{method}, best of {points[method]} points{lacking}: {which}.{edge}")
        return notes

    def _is_listed(self, method: str, setting: str) -> bool:
        """Return True if a setting such as "lr=0.1" comes from a list; a distribution has no edge to remark on."""
        grid = self.experiment.recipe.methods.get(method, {}).get("grid")
        return not (isinstance(grid, Mapping) and isinstance(grid.get(setting.partition("=")[0]), Mapping))

    def mean_line(
        self, panel: Mapping[str, Any], method: str, by_run: Mapping[str, Sequence[tuple[float, float]]]
    ) -> tuple[list[float], list[float]]:
        """Return the mean over a method's runs at each x."""
        found = self.at(panel, method)
        points: dict[float, list[float]] = {}
        for run in found.done[RUN_COLUMN] if found else ():
            for x, y in by_run.get(run, ()):
                points.setdefault(float(x), []).append(y)
        at = sorted(points)
        return at, [math.fsum(points[x]) / len(points[x]) for x in at]

    def part(self, view: View, grids: Sequence[Grid], drawn: Sequence[Curves] = (), notes: Sequence[str] = ()) -> Part:
        """Return the content of a view with these tables, drawings and notes."""
        runs: list[str] = []
        for found in self.chosen.values():
            runs += list(found.done[RUN_COLUMN])
        differences = f"differences {'between methods' if self.baseline is None else 'to ERM'}"
        return Part(
            view.title, self.rule, grids, drawn, notes=[*filter(None, [view.caption]), *notes],
            mixed=mixed_words(self.experiment.origins, runs, differences),
            choices=bool((self.experiment.places["point"] != "").any()),
        )  # fmt: skip


def _average(scores: Sequence[Score]) -> Score:
    """Return the mean of scores seed by seed, over the seeds that all of them have."""
    seeds = [seed for seed in scores[0].values if all(seed in score.values for score in scores)]
    values = {seed: math.fsum(score.values[seed] for score in scores) / len(scores) for seed in seeds}
    done = min(score.done for score in scores)
    runs = {seed: tuple(score.runs.get(seed) for score in scores) for seed in seeds}
    return Score(values, max(score.planned for score in scores), done, scores[0].digits, runs=runs)


def _validated_elsewhere(places: pd.DataFrame, held_out: pd.DataFrame, keys: Sequence[str]) -> pd.DataFrame:
    """Return the places with the mean accuracy of runs that held an environment out, nan if one of them is missing."""
    validation = f"{SELECTED}validation"
    means = held_out.groupby(list(keys), dropna=False)[validation].agg(lambda own: own.mean(skipna=False))
    return places.drop(columns=validation).merge(means.reset_index(), "left", on=list(keys))


def _choose(places: pd.DataFrame, by_seed: bool = False) -> Chosen:
    """Choose the point that validation prefers, from the places of one method on one combination of the axes.

    With `by_seed`, each seed has its own points, and the choice is made among these.
    """
    if by_seed:
        each = {seed: _choose(own) for seed, own in places.groupby("seed", sort=False)}
        return Chosen(
            "; ".join([f"{one.point or 'as it is'} on seed {seed}" for seed, one in each.items()]),
            len(each),
            pd.concat([one.done for one in each.values()]),
            max(one.points for one in each.values()),
            max(one.incomplete for one in each.values()),
            tuple(dict.fromkeys(edge for one in each.values() for edge in one.edges)),
        )
    points, scores = {}, {}
    incomplete = 0
    for point, own in places.groupby("point", sort=False):
        points[point] = own, own[own[f"{SELECTED}done"] == True]  # noqa: E712  # a column, nan where a run has no records
        scores[point] = list(points[point][1][f"{SELECTED}validation"])
        incomplete += len(scores[point]) < len(own)
    best = best_point(scores)
    own, done = points[best]
    return Chosen(best, len(own), done, len(points), incomplete, _edges(best, points))


def _edges(point: str, points: Iterable[str]) -> tuple[str, ...]:
    """Return the settings of a point, such as "lr=0.8", whose number is the smallest or largest among all points."""
    values: dict[str, set[float]] = {}
    for other in points:
        for setting in other.split():
            name, _, text = setting.partition("=")
            with suppress(ValueError):
                values.setdefault(name, set()).add(float(text))
    found = []
    for setting in point.split():
        name, _, text = setting.partition("=")
        of_grid = values.get(name, set())
        if len(of_grid) > 1 and text in {f"{min(of_grid):g}", f"{max(of_grid):g}"}:
            found.append(setting)
    return tuple(found)


def _over_training(records: pd.DataFrame, value: str, x: str) -> dict[str, list[tuple[float, float]]]:
    """Return run -> (x, value) of each of its evaluations."""
    if not {"step", "part", x} <= set(records):
        return {}
    numbers = value_by_evaluation(records, value).dropna().reset_index(name="value")
    at = records.groupby([RUN_COLUMN, "step"], sort=False)[x].first().rename("at").reset_index()
    found = numbers.merge(at, on=[RUN_COLUMN, "step"]).sort_values("at")
    return {run: list(zip(own["at"], own["value"], strict=True)) for run, own in found.groupby(RUN_COLUMN)}
