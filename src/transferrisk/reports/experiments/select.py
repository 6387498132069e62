"""Which evaluation of a run counts, and which point of a method's grid: functions of the rows.

Within a run, the evaluation of the highest accuracy on the rule's validation data, the mean over environments, the
later one when they tie; or the last. Among the points of a grid that have this accuracy for the most seeds, since one
lucky seed would beat ten, that of the highest mean over seeds, the first when they tie: one point for all seeds.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pandas as pd

from .load import Cell, Experiment
from .values import VALUES, Over

Combination = tuple[Any, ...]
"""A value of each axis, in their order."""


@dataclass(frozen=True)
class Chosen:
    """A method on one combination, at the point of its grid that was chosen.

    values      value -> seed -> number, in the units that are printed, of the seeds that have one
    planned     how many seeds there should be
    done        how many have run
    points      how many the grid has; `incomplete` of them lack seeds
    runs        seed -> its run, of those that are done
    """

    point: str
    values: Mapping[str, Mapping[Any, float]]
    planned: int
    done: int
    points: int
    incomplete: int
    runs: Mapping[Any, str]


def chosen(experiment: Experiment, rule: str, values: Sequence[str]) -> dict[tuple[Combination, str], Chosen]:
    """For every combination and method of the plan."""
    numbers = at_selected(experiment.rows, rule, values)
    places: dict[tuple[Combination, str], dict[str, list[Cell]]] = {}
    for cell in experiment.cells:
        combination = tuple(cell.columns.get(axis) for axis in experiment.axes)
        places.setdefault((combination, cell.method), {}).setdefault(cell.point, []).append(cell)
    return {place: _best(points, numbers, values) for place, points in places.items()}


def at_selected(rows: pd.DataFrame, rule: str, values: Sequence[str]) -> dict[str, dict[str, float]]:
    """Run -> "validation" and each of the values, in the units that are printed, at the evaluation that counts."""
    if not {"step", "part", "accuracy"} <= set(rows):
        return {run: {} for run in rows["run"].unique()}
    part = "training_domain" if rule == "last" else rule
    validation = by_evaluation(rows, "accuracy", part, "mean")
    if rule == "last":
        steps = rows.groupby("run", sort=False)["step"].max()
    else:
        ranked = validation.dropna().rename("score").reset_index().sort_values(["score", "step"])
        steps = ranked.groupby("run")["step"].last()
    at = pd.MultiIndex.from_arrays([steps.index, steps.to_numpy()], names=["run", "step"])
    columns = {"validation": validation}
    for name in values:
        columns[name] = evaluated(rows, name)
    table = pd.DataFrame({name: column.reindex(at) for name, column in columns.items()}, index=at)
    found = {run: dict.fromkeys(columns, math.nan) for run in rows["run"].unique()}
    for (run, _), line in zip(at, table.to_dict("records"), strict=True):
        found[run] = {str(name): float(number) for name, number in line.items()}
    return found


def evaluated(rows: pd.DataFrame, name: str) -> pd.Series:
    """A value at every evaluation, by run and step, in the units that are printed."""
    value = VALUES[name]
    return value.factor * by_evaluation(rows, value.column or name, value.part, value.over)


def by_evaluation(rows: pd.DataFrame, column: str, part: str, over: Over) -> pd.Series:
    """By run and step, over the environments of a part of the data; nan where one of them has none."""
    there = rows[rows["part"] == part]
    by = [there["run"], there["step"]]
    numbers = _numbers(there, column)
    if over == "samples":
        samples = _numbers(there, "samples").where(numbers.notna())
        return _whole(numbers * samples, by, "sum") / _whole(samples, by, "sum")
    return _whole(numbers, by, over)


def _numbers(rows: pd.DataFrame, column: str) -> pd.Series:
    """nan where there is none, and everywhere where there is no such column."""
    if column not in rows:
        return pd.Series(math.nan, rows.index)
    return pd.to_numeric(rows[column], errors="coerce").astype(float)


def _whole(numbers: pd.Series, by: Sequence[pd.Series], over: str) -> pd.Series:
    groups = numbers.groupby(list(by))
    return groups.agg(over).where(groups.count() == groups.size())


def _best(
    points: Mapping[str, Sequence[Cell]], numbers: Mapping[str, Mapping[str, float]], values: Sequence[str]
) -> Chosen:
    scores = {
        point: _finite(numbers[cell.run].get("validation") for cell in cells if cell.run in numbers)
        for point, cells in points.items()
    }
    done = {point: sum(cell.run in numbers for cell in cells) for point, cells in points.items()}
    best = max(points, key=lambda p: (len(scores[p]), statistics.mean(scores[p]) if scores[p] else 0.0, done[p]))
    cells = [cell for cell in points[best] if cell.run in numbers]
    return Chosen(
        point=best,
        values={
            name: {cell.seed: number for cell in cells if (number := _number(numbers[cell.run].get(name))) is not None}
            for name in values
        },
        planned=len(points[best]),
        done=done[best],
        points=len(points),
        incomplete=sum(done[point] < len(cells) for point, cells in points.items()),
        runs={cell.seed: cell.run for cell in cells},
    )


def _number(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _finite(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None and math.isfinite(value)]
