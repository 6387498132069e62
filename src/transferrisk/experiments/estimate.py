"""Duration of runs, estimated from finished runs of the same kind, or from steps measured on random samples.

Reading data and starting a process are not measured, so short runs take longer than estimated.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..errors import counted
from ..settings import dumps
from ..solvers import threads_set
from ..training import Precision
from .bench import BRIEF, Cost, Workload, forward_seconds, step_seconds
from .executors import Executor, LocalExecutor
from .plan import Plan
from .store import Store
from .tasks import PlannedRun, get_task

FEW = 2  # samples of each environment in a step that is measured in place of a long one
LONGEST = 4.0  # seconds of the step of ERM that shows how time grows with samples
BUDGET = 25.0  # seconds after which no further kind of step is measured


@dataclass(frozen=True)
class Estimate:
    """Duration of runs.

    seconds  total of all runs that could be estimated, one after the other
    unknown  number of other runs: their tasks take no steps, their data is known only when it is read, or their steps
             were not measured in time
    """

    seconds: float
    unknown: int


Kind = tuple[Any, ...]
Step = tuple[Workload, str, Precision | None]


def estimate(
    runs: Sequence[PlannedRun],
    device: str,
    done: Mapping[Kind, float],
    progress: Callable[[str, int, int], None] = lambda what, now, total: None,
    budget: float = BUDGET,
) -> Estimate:
    """Return the estimated duration of runs.

    done    seconds of finished runs of each kind, from `seconds_by_kind`
    budget  approximate number of seconds to spend on measuring
    """
    costs = [_kind_and_cost(run) for run in runs]
    missing = [cost for kind, cost in costs if kind not in done and cost is not None]
    measured, end = _Measured(device), time.monotonic() + budget
    kinds: dict[Step, Cost] = {}
    for cost in missing:
        kinds.setdefault(_step(cost), cost)
    for number, cost in enumerate(kinds.values()):
        progress(f"measuring steps of {cost.algorithm}", number, len(kinds))
        if time.monotonic() < end:
            measured.add(cost)
    progress("", len(kinds), len(kinds))
    timed = [cost for cost in missing if _step(cost) in measured.steps]
    total = sum(done[kind] for kind, _ in costs if kind in done) + sum(map(measured.seconds, timed))
    return Estimate(total, sum(kind not in done for kind, _ in costs) - len(timed))


class _Measured:
    """Measured times.

    steps    kind of step -> seconds
    samples  network and size of samples -> seconds of a sample in an evaluation
    """

    def __init__(self, device: str) -> None:
        self.device = device
        self.steps: dict[Step, float] = {}
        self.samples: dict[Kind, float] = {}
        self._scales: dict[Kind, tuple[Workload, float]] = {}

    def add(self, cost: Cost) -> None:
        workload, precision = cost.workload, cost.precision
        if (workload, precision) not in self._scales:
            self._scales[workload, precision] = self._scale(workload, precision)
        taken, scale = self._scales[workload, precision]
        seconds = step_seconds(taken, cost.algorithm, precision, settings=cost.settings, device=self.device)
        self.steps[_step(cost)] = scale * seconds
        if _network(cost) not in self.samples:
            seconds = scale * forward_seconds(taken, precision, device=self.device)
            self.samples[_network(cost)] = seconds / (workload.environments * workload.batch_size)

    def seconds(self, cost: Cost) -> float:
        return cost.steps * self.steps[_step(cost)] + cost.evaluated * self.samples[_network(cost)]

    def _scale(self, workload: Workload, precision: Precision | None) -> tuple[Workload, float]:
        """Return the workload that is measured in place of this one, and the factor between their times.

        A quick step is measured itself. Algorithms with slow steps are compared on a few samples. The largest step of
        ERM within `LONGEST` seconds shows how time grows; beyond it, time is assumed proportional to the samples.
        """
        few = replace(workload, batch_size=min(FEW, workload.batch_size))
        if self.device != "cpu" or few == workload:
            return workload, 1.0

        def erm(batch_size: int) -> float:
            larger = replace(workload, batch_size=batch_size)
            return step_seconds(larger, "erm", precision, settings={}, device=self.device)

        first = erm(few.batch_size)
        if first * workload.batch_size / few.batch_size < BRIEF:
            return workload, 1.0
        most = min(workload.batch_size, max(few.batch_size, int(LONGEST * few.batch_size / first)))
        grown = 1.0 if most == few.batch_size else erm(most) / first
        return few, grown * workload.batch_size / most


def seconds_by_kind(runs: Iterable[tuple[PlannedRun, float]]) -> dict[Kind, float]:
    """Return the median seconds of the runs of each kind."""
    found: dict[Kind, list[float]] = {}
    for run, seconds in runs:
        found.setdefault(_kind_and_cost(run)[0], []).append(seconds)
    return {kind: statistics.median(values) for kind, values in found.items()}


def _step(cost: Cost) -> Step:
    """Return the values that determine the duration of a step, without the algorithm's settings."""
    return cost.workload, cost.algorithm, cost.precision


def _network(cost: Cost) -> Kind:
    """Return the values that determine the duration of a sample in an evaluation."""
    return cost.workload.backbone, cost.workload.shape, cost.precision


def _kind_and_cost(run: PlannedRun) -> tuple[Kind, Cost | None]:
    """Return the kind and cost of a run. Runs of a kind take equally many steps of one kind and evaluations."""
    task = get_task(run.task)
    cost = task.cost(task.read(run.settings))
    if cost is None:
        return (run.task, dumps({**run.settings, "seed": 0}, sort_keys=True)), None
    training = run.settings["training"]
    return (run.task, _step(cost), cost.steps, cost.evaluated, dumps(training.get("record"))), cost


def describe_plan(plan: Plan, store: Store, executor: Executor, progress: Callable[[str, int, int], None]) -> list[str]:
    """Return lines with the number of finished and missing runs and the time that the missing runs take.

    For clusters, the time is that of one run after the other.
    """
    local = executor if isinstance(executor, LocalExecutor) else LocalExecutor(1)
    seats, threads = local.seats()
    devices = list(dict.fromkeys(seats))
    runs, missing = plan.runs, store.missing(plan.runs)
    left = {run.name for run in missing}
    took = [(run, store.seconds(run.name)) for run in runs if run.name not in left]
    done = seconds_by_kind([(run, seconds) for run, seconds in took if seconds is not None])
    with threads_set(threads):
        found = estimate(missing, devices[0], done, progress)
    lines = [plan.recipe.name + (f": {plan.recipe.title}" if plan.recipe.title else "")]
    needed = f" ({plan.needed} of them train models that others need)" if plan.needed else ""
    lines += [f"{counted(len(runs), 'run')}{needed}: {len(runs) - len(missing)} finished, {len(missing)} missing"]
    if len(missing) > found.unknown:
        at_once = len(seats) if devices == ["cpu"] else len(devices)
        shared = "" if devices == ["cpu"] else ", faster where several runs share a GPU"
        each = f"{at_once} at once with {counted(threads, 'thread')} each on {', '.join(devices)}{shared}"
        unknown = f", and {counted(found.unknown, 'run')} of unknown duration" if found.unknown else ""
        lines += [
            f"about {_duration(found.seconds / at_once)} ({each}), estimated from measured steps and evaluations; "
            f"reading data and starting up come on top{unknown}"
        ]
    elif missing:
        lines += ["their duration is not known beforehand"]
    return lines


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    if minutes < 90:
        return f"{minutes} min"
    return f"{minutes // 60} h {minutes % 60} min" if minutes < 600 else f"{round(seconds / 3600)} h"
