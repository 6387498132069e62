"""The shows that compare methods: table, lines, curves."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pandas as pd

from ...errors import InputError, did_you_mean
from ..sections import Curves
from . import shows
from .grids import Grid
from .load import Experiment
from .made import mixed
from .parts import Part, has_points, nothing_yet
from .results import Results, panel_title
from .select import chosen, evaluated
from .shows import CurvesShow, LinesShow, Show, TableShow
from .values import VALUES, label, shown

BAND = "The band is one standard deviation over seeds to either side."


def table(experiment: Experiment, show: TableShow, rule: str) -> Part:
    results = Results(experiment, rule, chosen(experiment, rule, show.value))
    if show.columns:
        several = len(show.value) > 1
        grids = [
            results.grid(panel, value, show.columns, show.average, several)
            for panel in panels(experiment, show, show.columns)
            for value in show.value
        ]
    else:
        grids = [results.grid_of_values(panel, show.value) for panel in panels(experiment, show)]
    notes = []
    if show.columns and len(show.value) == 1:
        where = ", in the column's test environment" if show.columns == "test_env" else f" by {label(show.columns)}"
        notes = [f"{_said(show.value[0])}{where}."]
    return _part(results, show, grids, notes=notes)


def _said(value: str) -> str:
    """The label of a value in a sentence: "Accuracy in %"."""
    return VALUES[value].label.replace(", %", " in %").capitalize()


def lines(experiment: Experiment, show: LinesShow, rule: str) -> Part:
    results = Results(experiment, rule, chosen(experiment, rule, show.value))
    where = list(panels(experiment, show, show.x))
    several = len(show.value) > 1
    grids = [results.grid(panel, value, show.x, False, several) for panel in where for value in show.value]
    drawn = [
        _lines(grid, experiment.axes[show.x], show, value)
        for grid, value in zip(grids, itertools.cycle(show.value), strict=False)
    ]
    against = f"against {show.x_label or label(show.x)}"
    notes = [] if several else [f"{_said(show.value[0])} {against}."]
    return _part(results, show, grids, drawn, notes)


def _lines(grid: Grid, at: Sequence[Any], show: LinesShow, value: str) -> Curves:
    """Numbers on the axis; what is none stands at 1, 2, ..."""
    x = [float(v) if isinstance(v, int | float) else 1.0 + i for i, v in enumerate(at)]
    series = {method: (x, [entry.summary.mean for entry in entries]) for method, entries in grid.lines.items()}
    spread = {method: [_deviation(entry.values) for entry in entries] for method, entries in grid.lines.items()}
    around = bands(series, spread, VALUES[value].most)
    return Curves(
        grid.title,
        series,
        show.x_label or label(show.x),
        VALUES[value].label,
        bands=around,
        span=0.0 if show.y_scale == "log" else VALUES[value].span,
        x_log=show.scale == "log",
        y_log=show.y_scale == "log",
        x_ticks={place: shown(show.x, value) for place, value in zip(x, at, strict=True)},
        note=BAND if around else "",
    )


def curves(experiment: Experiment, show: CurvesShow, rule: str) -> Part:
    """Mean over seeds at every evaluation; the tables hold the evaluation that counts."""
    results = Results(experiment, rule, chosen(experiment, rule, show.values))
    where = list(panels(experiment, show))
    grids = [results.grid_of_values(panel, show.values) for panel in where]
    by_value = {value: _over_training(experiment.rows, value, show.x) for value in show.values}
    drawn = [
        Curves(
            ", ".join(filter(None, [panel_title(panel), VALUES[value].label])),
            {method: _mean_line(results, panel, method, by_value[value]) for method in experiment.methods},
            show.x,
            VALUES[value].label,
            note="Mean over seeds.",
            x_log=show.scale == "log",
            y_log=show.y_scale == "log",
        )
        for panel in where
        for value in show.values
    ]
    return _part(results, show, grids, drawn, ["The lines show every evaluation; the table, the one that is selected."])


def _over_training(rows: pd.DataFrame, value: str, x: str) -> dict[str, list[tuple[float, float]]]:
    """Run -> (x, value) of each of its evaluations."""
    if not {"step", "part", x} <= set(rows):
        return {}
    numbers = evaluated(rows, value).dropna().reset_index(name="value")
    at = rows.groupby(["run", "step"], sort=False)[x].first().rename("at").reset_index()
    found = numbers.merge(at, on=["run", "step"]).sort_values("at")
    return {run: list(zip(own["at"], own["value"], strict=True)) for run, own in found.groupby("run")}


def _mean_line(
    results: Results, panel: Mapping[str, Any], method: str, by_run: Mapping[str, Sequence[tuple[float, float]]]
) -> tuple[list[float], list[float]]:
    found = results.at(panel, method)
    points: dict[float, list[float]] = {}
    for run in found.runs.values() if found else ():
        for x, y in by_run.get(run, ()):
            points.setdefault(float(x), []).append(y)
    at = sorted(points)
    return at, [math.fsum(points[x]) / len(points[x]) for x in at]


def bands(
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]],
    deviations: Mapping[str, Sequence[float]],
    most: float = math.inf,
) -> dict[str, tuple[list[float], list[float]]]:
    """One deviation to either side, up to what can be, of the lines that have any."""
    return {
        name: (
            [y - d for y, d in zip(series[name][1], own, strict=True)],
            [min(most, y + d) for y, d in zip(series[name][1], own, strict=True)],
        )
        for name, own in deviations.items()
        if not all(map(math.isnan, own))
    }


def _deviation(values: Mapping[Any, float]) -> float:
    return float(pd.Series(values).std()) if len(values) > 1 else math.nan


def panels(experiment: Experiment, show: Show, *used: str) -> Iterator[dict[str, Any]]:
    """Every combination of the panels' axes; an axis of several values that the show does not name is one too."""
    for name in (*show.panels, *used):
        if name not in experiment.axes:
            known = list(experiment.axes)
            raise InputError(
                f"recipe {experiment.name}, [show]: there is no axis {name!r}: {did_you_mean(name, known)}choose from "
                f"{', '.join(known) or 'none, since nothing is varied'}"
            )
    named = [name for name in show.panels if name not in used]
    others = [axis for axis, values in experiment.axes.items() if len(values) > 1 and axis not in (*named, *used)]
    names = [*named, *others]
    for values in itertools.product(*(experiment.axes[name] for name in names)):
        yield dict(zip(names, values, strict=True))


def _part(
    results: Results,
    show: Show,
    grids: Sequence[Grid],
    drawn: Sequence[Curves] = (),
    notes: Sequence[str] = (),
) -> Part:
    experiment, rule = results.experiment, results.rule
    if experiment.methods == [""]:
        raise InputError(f"recipe {experiment.name}, [show]: there are no methods to compare: use kind rows or xy")
    runs = [run for found in results.chosen.values() for run in found.runs.values()]
    differences = f"differences {'between methods' if results.baseline is None else 'to ERM'}"
    machines = mixed(experiment.made, runs, differences)
    notes = [*filter(None, [show.caption, *notes, nothing_yet(grids, drawn)])]
    return Part(
        show.title, stem(show, rule), rule, grids, [*filter(has_points, drawn)], notes=notes, mixed=machines,
        choices=any(cell.point for cell in experiment.cells),
    )  # fmt: skip


def stem(show: Show, rule: str) -> str:
    """Of the files' names."""
    return "-".join(filter(None, [shows.stem(show.name), rule])) or "results"
