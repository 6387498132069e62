"""How long runs will take: from those that are done, else from steps measured here and now on random samples.

Reading data, evaluations and the start of a process are left out of what is measured, so short runs take longer.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..training.config import Precision
from ..training.plain import dumps
from .bench import Workload, step_seconds
from .tasks import Cost, PlannedRun, get


@dataclass(frozen=True)
class Estimate:
    """
    seconds  of all runs that could be estimated, one after the other
    unknown  how many could not: those of tasks that take no steps, or of data that is known only when it is read
    """

    seconds: float
    unknown: int


Kind = tuple[Any, ...]


def estimate(
    runs: Sequence[PlannedRun],
    device: str,
    done: Mapping[Kind, float],
    progress: Callable[[str, int, int], None] = lambda what, now, total: None,
) -> Estimate:
    """
    done  seconds of runs of each kind that are finished, as `seconds_by_kind` gives them
    """
    costs = [(run, _cost(run)) for run in runs if _kind(run) not in done]
    measured = {_step(cost): 0.0 for _, cost in costs if cost is not None}
    for number, step in enumerate(measured):
        settings = next(cost.settings for _, cost in costs if cost is not None and _step(cost) == step)
        progress(step[1], number, len(measured))
        measured[step] = step_seconds(*step, settings=settings, device=device)
    progress("", len(measured), len(measured))
    total = sum(done[_kind(run)] for run in runs if _kind(run) in done)
    total += sum(cost.steps * measured[_step(cost)] for _, cost in costs if cost is not None)
    return Estimate(total, sum(cost is None for _, cost in costs))


def seconds_by_kind(runs: Iterable[tuple[PlannedRun, float]]) -> dict[Kind, float]:
    """The median of each kind."""
    found: dict[Kind, list[float]] = {}
    for run, seconds in runs:
        found.setdefault(_kind(run), []).append(seconds)
    return {kind: statistics.median(values) for kind, values in found.items()}


def steps_of(run: PlannedRun) -> int | None:
    """How many it trains for; None where that is not known beforehand."""
    cost = _cost(run)
    return None if cost is None else cost.steps


def _step(cost: Cost) -> tuple[Workload, str, Precision | None]:
    """What decides how long a step takes, about: not the settings."""
    return cost.workload, cost.algorithm, cost.precision


def _kind(run: PlannedRun) -> Kind:
    """Runs that take about as long: so many steps of one kind, evaluated as often."""
    cost = _cost(run)
    if cost is None:
        return run.task, dumps({**run.settings, "seed": 0}, sort_keys=True)
    training = run.settings["training"]
    return run.task, _step(cost), cost.steps, training.get("evaluations"), dumps(training.get("record"))


def _cost(run: PlannedRun) -> Cost | None:
    task = get(run.task)
    return task.cost(task.read(run.settings))
