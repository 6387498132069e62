"""Views that compare methods: table, lines, curves; a rule selects the evaluation of a run and the point of a grid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal

import pandas as pd

from ..errors import InputError, choices
from ..results import best_point, selected_steps
from ..results.records import RUN_COLUMN
from ..results.selection import validation_part
from ..settings import Settings
from .experiment import Experiment, PlannedRun, mixed_words
from .tables import VALUES, Grid, Paired, Part, Published, Score, axis_text, axis_value, axis_words, column_label
from .tables import find_published as find_published_number
from .values import Curves

BASELINE, AVERAGE = "erm", "average"
BAND = "The band is one standard deviation over seeds to either side."
Scale = Literal["linear", "log"]


@dataclass(frozen=True, kw_only=True)
class View(Settings):
    """How a recipe's [show] presents results.

    title    over it, where the recipe's is not enough
    caption  under it: what its terms mean
    panels   axes, or for rows and xy columns; every combination of their values has a table or a drawing of its own
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

    def part(self, experiment: Experiment, rule: str) -> Part:
        """What it shows of an experiment, under a rule."""
        raise NotImplementedError


@dataclass(frozen=True, kw_only=True)
class TableView(View):
    """Methods against the values of an axis, or against several values of the result.

    columns  an axis; without one, the values are the columns
    average  a column more, the mean of the others
    value    of `tables.VALUES`
    """

    columns: str = ""
    average: bool = False
    value: tuple[str, ...] = ("accuracy",)

    def part(self, experiment: Experiment, rule: str) -> Part:
        results = MethodResults.of(experiment, rule, self.value)
        if not self.columns:
            grids = [results.grid_of_values(panel, self.value) for panel in _panels(experiment, self)]
            return results.part(self, grids)
        several = len(self.value) > 1
        grids = [
            results.grid(panel, value, self.columns, self.average, several)
            for panel in _panels(experiment, self, self.columns)
            for value in self.value
        ]
        by = f" by {column_label(self.columns)}"
        where = ", in the column's test environment" if self.columns == "test_env" else by
        return results.part(self, grids, notes=[] if several else [f"{_words(self.value[0])}{where}."])


@dataclass(frozen=True, kw_only=True)
class LinesView(View):
    """A value against an axis, a line for each method.

    x  an axis; `scale` is its own, `y_scale` that of the value
    """

    x: str
    value: tuple[str, ...] = ("accuracy",)
    scale: Scale = "linear"
    y_scale: Scale = "linear"
    x_label: str = ""

    def part(self, experiment: Experiment, rule: str) -> Part:
        results = MethodResults.of(experiment, rule, self.value)
        several = len(self.value) > 1
        grids, drawn = [], []
        for panel in _panels(experiment, self, self.x):
            for value in self.value:
                grid = results.grid(panel, value, self.x, False, several)
                grids.append(grid)
                drawn.append(self._curves(grid, experiment.axes[self.x], value))
        notes = [] if several else [f"{_words(self.value[0])} against {self.x_label or column_label(self.x)}."]
        return results.part(self, grids, drawn, notes)

    def _curves(self, grid: Grid, at: Sequence[Any], value: str) -> Curves:
        """Numbers stand where they are on the axis, words at 1, 2, ..."""
        x = [float(v) if isinstance(v, int | float) else 1.0 + i for i, v in enumerate(at)]
        series = {method: (x, [score.summary.mean for score in scores]) for method, scores in grid.lines.items()}
        spread = {
            method: [score.summary.std if len(score.values) > 1 else math.nan for score in scores]
            for method, scores in grid.lines.items()
        }
        around = bands(series, spread, VALUES[value].most)
        return Curves(
            grid.title,
            series,
            self.x_label or column_label(self.x),
            VALUES[value].label,
            bands=around,
            span=0.0 if self.y_scale == "log" else VALUES[value].span,
            x_log=self.scale == "log",
            y_log=self.y_scale == "log",
            x_ticks={place: axis_value(self.x, v) for place, v in zip(x, at, strict=True)},
            note=BAND if around else "",
        )


@dataclass(frozen=True, kw_only=True)
class CurvesView(View):
    """Values against the step of training: the mean over seeds at every evaluation, a line for each method."""

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
                lines = {method: results.mean_line(panel, method, by_run[value]) for method in experiment.methods}
                title = ", ".join(filter(None, [axis_words(panel), VALUES[value].label]))
                drawn.append(
                    Curves(
                        title,
                        lines,
                        self.x,
                        VALUES[value].label,
                        note="Mean over seeds.",
                        x_log=self.scale == "log",
                        y_log=self.y_scale == "log",
                    )
                )
        return results.part(
            self, grids, drawn, ["The lines show every evaluation; the table, the one that is selected."]
        )


def _words(value: str) -> str:
    """The label of a value in a sentence: "Accuracy in %"."""
    return VALUES[value].label.replace(", %", " in %").capitalize()


def _panels(experiment: Experiment, view: View, *used: str) -> Iterator[dict[str, Any]]:
    """Every combination of the panels' axes; an axis of several values that the view does not name is a panel too."""
    for name in (*view.panels, *used):
        if name not in experiment.axes:
            raise InputError(f"there is no axis {name!r}{choices(name, experiment.axes)}")
    named = [name for name in view.panels if name not in used]
    others = [axis for axis, values in experiment.axes.items() if len(values) > 1 and axis not in (*named, *used)]
    for values in itertools.product(*(experiment.axes[name] for name in (*named, *others))):
        yield dict(zip((*named, *others), values, strict=True))


def bands(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    deviations: Mapping[str, Sequence[float]],
    most: float = math.inf,
) -> dict[str, tuple[list[float], list[float]]]:
    """One deviation to either side, up to the largest possible value, of the lines that have any."""
    found = {}
    for name, own in deviations.items():
        if not all(map(math.isnan, own)):
            pairs = list(zip(series[name][1], own, strict=True))
            found[name] = [y - d for y, d in pairs], [min(most, y + d) for y, d in pairs]
    return found


@dataclass(frozen=True)
class Chosen:
    """A method on one combination of the axes, at the point of its grid that was chosen.

    values      value -> seed -> number, in the units that are printed, of the seeds that have one
    planned     how many seeds there should be
    runs        seed -> its run, of those that are done
    points      how many the grid has; `incomplete` of them lack seeds
    """

    point: str
    values: Mapping[str, Mapping[Any, float]]
    planned: int
    runs: Mapping[Any, str]
    points: int
    incomplete: int


@dataclass(frozen=True, eq=False)
class MethodResults:
    """The results of an experiment under one rule: what was chosen, by values of the axes and method."""

    experiment: Experiment
    rule: str
    chosen: Mapping[tuple[tuple[Any, ...], str], Chosen]

    @classmethod
    def of(cls, experiment: Experiment, rule: str, values: Sequence[str]) -> MethodResults:
        if experiment.methods == [""]:
            raise InputError("there are no methods to compare: use kind rows or xy")
        selected = at_selected(experiment.records, rule, values)
        places: dict[tuple[tuple[Any, ...], str], dict[str, list[PlannedRun]]] = {}
        for place in experiment.planned:
            combination = tuple(place.columns.get(axis) for axis in experiment.axes)
            places.setdefault((combination, place.method), {}).setdefault(place.point, []).append(place)
        return cls(experiment, rule, {key: _choose(points, selected, values) for key, points in places.items()})

    def at(self, panel: Mapping[str, Any], method: str) -> Chosen | None:
        combination = tuple(panel.get(axis, values[0]) for axis, values in self.experiment.axes.items())
        return self.chosen.get((combination, method))

    def grid(self, panel: Mapping[str, Any], value: str, axis: str, average: bool, named: bool) -> Grid:
        """One value, methods against the values of an axis; `named`: the title says which value it is."""
        at = self.experiment.axes[axis]
        keys = [*map(axis_text, at), *([AVERAGE] if average else [])]
        columns = [*(axis_value(axis, x) for x in at), *keys[len(at) :]]
        return self._grid(panel, [(value, {**panel, axis: x}) for x in at], keys, columns, value if named else "")

    def grid_of_values(self, panel: Mapping[str, Any], values: Sequence[str]) -> Grid:
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
        """Methods against places, and where there is a key more, the average over them."""
        lines = {}
        for method in self.experiment.methods:
            scores = [self._score(at, method, name) for name, at in places]
            lines[method] = [*scores, _average(scores)] if len(keys) > len(places) else scores
        baseline = self.baseline
        for method, scores in lines.items():
            for column, (key, score) in enumerate(zip(keys, scores, strict=True)):
                theirs = lines[baseline][column].values if baseline is not None and method != baseline else {}
                against = Paired.of(score.values, theirs)
                scores[column] = replace(
                    score, against=against, published=self._published(method, key, keys, panel, value)
                )
        names = [name for name, _ in places]
        return Grid(
            title=", ".join(filter(None, [axis_words(panel), VALUES[value].label if value else ""])),
            corner="Method",
            keys=keys,
            columns=columns,
            lines=lines,
            less=[VALUES[name].less_is_better for name in (*names, *names[:1])[: len(keys)]],
            apart=frozenset(method for method in lines if self._of_method(method).get("oracle")),
            notes=self._points(panel),
        )

    @property
    def baseline(self) -> str | None:
        """The method that others are compared with: the first that is ERM, on the data that all have."""
        methods = self.experiment.methods
        found = [m for m in methods if BASELINE in (m.lower(), self._of_method(m).get("algorithm"))]
        return min(found, key=lambda method: method.lower() != BASELINE, default=None)

    def _of_method(self, method: str) -> Mapping[str, Any]:
        return self.experiment.recipe.methods.get(method, {})

    def _score(self, at: Mapping[str, Any], method: str, value: str) -> Score:
        """The score at these values of the axes; a method that the plan does not have there is missing."""
        found = self.at(at, method)
        if found is None:
            return Score({}, 0, 0, VALUES[value].digits)
        return Score(found.values[value], found.planned, len(found.runs), VALUES[value].digits, point=found.point)

    def _published(
        self, method: str, key: str, keys: Sequence[str], panel: Mapping[str, Any], value: str
    ) -> Published | None:
        """The paper's number; its average counts only where all columns that it is over are ours too."""
        table = self.experiment.recipe.published
        title = ", ".join(map(axis_text, panel.values()))
        if key == AVERAGE:
            start = f"{title}, " if title else ""
            of_method = table.get(self.rule, {}).get(method, {})
            if not {name.removeprefix(start) for name in of_method if name.startswith(start)} <= set(keys):
                return None
        tries = [", ".join(filter(None, names)) for names in ((title, value, key), (title, key), (value, key))]
        return find_published_number(table, self.rule, method, tries if title else [*tries, key])

    def _points(self, panel: Mapping[str, Any]) -> list[str]:
        """Which point of its grid each method has: "TRM, best of 4 points: a=1 at photo, sketch; a=2 at cartoon." """
        axes = self.experiment.axes
        notes = []
        for method in self.experiment.methods:
            here: dict[str, list[str]] = {}  # point -> where
            points = incomplete = 0
            for (combination, name), found in self.chosen.items():
                at = dict(zip(axes, combination, strict=True))
                if name == method and found.points > 1 and found.runs and panel.items() <= at.items():
                    rest = [axis_value(a, v) for a, v in at.items() if a not in panel and len(axes[a]) > 1]
                    here.setdefault(found.point, []).append(", ".join(rest))
                    points, incomplete = max(points, found.points), max(incomplete, found.incomplete)
            if here:
                lacking = f", up to {incomplete} of which lack seeds" if incomplete else ""
                told = [f"{point} at {', '.join(where)}" for point, where in here.items()]
                which = "; ".join(told) if len(told) > 1 else next(iter(here))
                notes.append(f"{method}, best of {points} points{lacking}: {which}.")
        return notes

    def mean_line(
        self, panel: Mapping[str, Any], method: str, by_run: Mapping[str, Sequence[tuple[float, float]]]
    ) -> tuple[list[float], list[float]]:
        found = self.at(panel, method)
        points: dict[float, list[float]] = {}
        for run in found.runs.values() if found else ():
            for x, y in by_run.get(run, ()):
                points.setdefault(float(x), []).append(y)
        at = sorted(points)
        return at, [math.fsum(points[x]) / len(points[x]) for x in at]

    def part(self, view: View, grids: Sequence[Grid], drawn: Sequence[Curves] = (), notes: Sequence[str] = ()) -> Part:
        runs = [run for found in self.chosen.values() for run in found.runs.values()]
        differences = f"differences {'between methods' if self.baseline is None else 'to ERM'}"
        return Part(
            view.title, self.rule, grids, drawn, notes=[*filter(None, [view.caption]), *notes],
            mixed=mixed_words(self.experiment.origins, runs, differences),
            choices=any(place.point for place in self.experiment.planned),
        )  # fmt: skip


def _average(scores: Sequence[Score]) -> Score:
    """Seed by seed, over the seeds that all scores have."""
    seeds = [seed for seed in scores[0].values if all(seed in score.values for score in scores)]
    values = {seed: math.fsum(score.values[seed] for score in scores) / len(scores) for seed in seeds}
    done = min(score.done for score in scores)
    return Score(values, max(score.planned for score in scores), done, scores[0].digits)


def _choose(
    points: Mapping[str, Sequence[PlannedRun]], selected: Mapping[str, Mapping[str, float]], values: Sequence[str]
) -> Chosen:
    done = {point: [place for place in own if place.run in selected] for point, own in points.items()}
    best = best_point(
        {point: [selected[p.run].get("validation", math.nan) for p in own] for point, own in done.items()}
    )
    found: dict[str, dict[Any, float]] = {name: {} for name in values}
    for place in done[best]:
        for name in values:
            number = selected[place.run].get(name, math.nan)
            if math.isfinite(number):
                found[name][place.seed] = number
    return Chosen(
        point=best,
        values=found,
        planned=len(points[best]),
        runs={place.seed: place.run for place in done[best]},
        points=len(points),
        incomplete=sum(len(done[point]) < len(own) for point, own in points.items()),
    )


def at_selected(records: pd.DataFrame, rule: str, values: Sequence[str]) -> dict[str, dict[str, float]]:
    """Run -> "validation" and each of the values, in the units that are printed, at the evaluation that counts."""
    found: dict[str, dict[str, float]] = {run: {} for run in records[RUN_COLUMN].unique()}
    if not {"step", "part", "accuracy"} <= set(records):
        return found
    steps = selected_steps(records[records["step"].notna()], rule)
    at = pd.MultiIndex.from_tuples(list(steps.items()), names=[RUN_COLUMN, "step"]) if steps else None
    columns = {"validation": _by_evaluation(records, ("accuracy",), validation_part(rule), "mean")}
    columns |= {name: evaluated(records, name) for name in values}
    for name, column in columns.items() if at is not None else ():
        for (run, _), number in zip(at, column.reindex(at), strict=True):  # type: ignore[arg-type]  # it is not None
            found[run][name] = float(number)
    return found


def evaluated(records: pd.DataFrame, name: str) -> pd.Series:
    """A value at every evaluation, by run and step, in the units that are printed."""
    value = VALUES[name]
    return value.factor * _by_evaluation(records, value.columns or (name,), value.part, value.over)


def _by_evaluation(records: pd.DataFrame, columns: Sequence[str], part: str, over: str) -> pd.Series:
    """By run and step, over the environments of a part of the data; nan where one of them has no value."""
    there = records[records["part"] == part]

    def joined(numbers: pd.Series, how: str) -> pd.Series:
        groups = numbers.groupby([there[RUN_COLUMN], there["step"]])
        return groups.agg(how).where(groups.count() == groups.size())

    def column(name: str) -> pd.Series:
        if name not in there:
            return pd.Series(math.nan, there.index)
        return pd.to_numeric(there[name], errors="coerce").astype(float)

    numbers = column(columns[0])
    for name in columns[1:]:
        numbers = numbers + column(name)
    if over != "samples":
        return joined(numbers, over)
    samples = column("samples").where(numbers.notna())
    return joined(numbers * samples, "sum") / joined(samples, "sum")


def _over_training(records: pd.DataFrame, value: str, x: str) -> dict[str, list[tuple[float, float]]]:
    """Run -> (x, value) of each of its evaluations."""
    if not {"step", "part", x} <= set(records):
        return {}
    numbers = evaluated(records, value).dropna().reset_index(name="value")
    at = records.groupby([RUN_COLUMN, "step"], sort=False)[x].first().rename("at").reset_index()
    found = numbers.merge(at, on=[RUN_COLUMN, "step"]).sort_values("at")
    return {run: list(zip(own["at"], own["value"], strict=True)) for run, own in found.groupby(RUN_COLUMN)}
