"""How long runs will take: from those that are done, else from steps measured here and now on random samples.

Reading data, evaluations and the start of a process are left out of what is measured, so short runs take longer.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..data.catalogue import look_up
from ..data.facts import Facts
from ..data.splits import VALIDATION
from .bench import Workload, step_seconds
from .tasks import PlannedRun

_SAME = ("data", "algorithm", "backbone", "size", "precision")  # settings whose runs take about as long


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
    steps: dict[Kind, float | None] = {}
    kinds = list(dict.fromkeys(_kind(run) for run in runs if _kind(run) not in done))
    total, unknown = 0.0, 0
    for run in runs:
        kind = _kind(run)
        if kind in done:
            total += done[kind]
            continue
        if kind not in steps:
            progress(str(run.settings.get("algorithm", run.task)), len(steps), len(kinds))
            steps[kind] = _step(run, device)
        count, each = steps_of(run), steps[kind]
        if count is None or each is None:
            unknown += 1
        else:
            total += count * each
    progress("", len(kinds), len(kinds))
    return Estimate(total, unknown)


def seconds_by_kind(runs: Iterable[tuple[PlannedRun, float]]) -> dict[Kind, float]:
    """The median of each kind."""
    found: dict[Kind, list[float]] = {}
    for run, seconds in runs:
        found.setdefault(_kind(run), []).append(seconds)
    return {kind: statistics.median(values) for kind, values in found.items()}


def steps_of(run: PlannedRun) -> int | None:
    """How many it trains for; None where that is not known beforehand."""
    workload = _workload(run)
    if workload is None:
        return None
    if run.task == "finetune":
        epochs = run.settings["tuning"].get("epochs", run.settings["training"]["epochs"])
        return int(epochs * max(1, run.settings["samples"] // workload.batch_size))
    return int(run.settings["training"]["epochs"] * (_smallest(run) // workload.batch_size))


def _kind(run: PlannedRun) -> Kind:
    training = run.settings.get("training", {})
    sizes = (training.get("epochs"), training.get("batch_size"), training.get("evaluations"))
    return (run.task, *(run.settings.get(name) for name in _SAME), *sizes)


def _step(run: PlannedRun, device: str) -> float | None:
    workload = _workload(run)
    if workload is None:
        return None
    tuned = run.task == "finetune"
    algorithm, settings = ("erm", {}) if tuned else (run.settings["algorithm"], run.settings["settings"])
    return step_seconds(workload, algorithm, settings, device, run.settings["precision"])


def _workload(run: PlannedRun) -> Workload | None:
    if run.task not in ("train", "finetune"):
        return None
    facts = _facts(run)
    if facts is None or not facts.environments:
        return None
    settings = run.settings
    size, backbone, batch = settings["size"], settings["backbone"], settings["training"].get("batch_size")
    if backbone is None or batch is None or "epochs" not in settings["training"]:
        return None
    shape = (facts.shape[0], size, size) if size and len(facts.shape) == 3 else facts.shape
    environments = 1 if run.task == "finetune" else len(_environments(run))
    return Workload(environments, batch, shape, backbone, len(facts.classes))


def _smallest(run: PlannedRun) -> int:
    """Samples of the smallest training environment, about."""
    facts = _facts(run)
    assert facts is not None
    share = 1.0 if facts.test else 1 - VALIDATION
    return min(int(share * facts.environments[name]) for name in _environments(run))


def _environments(run: PlannedRun) -> list[str]:
    facts = _facts(run)
    assert facts is not None
    left_out = {facts.test, run.settings["test_env"], run.settings["hold_out"]}
    return [name for name in facts.environments if name not in left_out]


def _facts(run: PlannedRun) -> Facts | None:
    data_set = look_up(run.settings["data"])
    return None if data_set is None else data_set.facts
