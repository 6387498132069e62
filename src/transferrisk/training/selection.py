"""Which of a run's evaluations counts, and which settings: functions of the records, run afterwards."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Literal, get_args

from ..errors import InputError
from .records import Record, mean_accuracy

Selection = Literal["training_domain", "test_domain", "last"]


def select(records: Sequence[Record], by: Selection) -> list[Record]:
    """One record a run: that of the highest accuracy on this validation data, the later one when they tie."""
    if by not in get_args(Selection):
        raise InputError(f"selection by {by!r} is not known: choose from {', '.join(get_args(Selection))}")
    chosen: dict[tuple[object, ...], Record] = {}
    for record in sorted(records, key=lambda r: r.step):
        best = chosen.get(record.run)
        if best is None or by == "last" or _score(record, by) >= _score(best, by):
            chosen[record.run] = record
    return list(chosen.values())


def leave_one_environment_out(records: Sequence[Record]) -> list[Record]:
    """One record an algorithm and seed: of the run whose settings do best on training environments they left out.

    A run with `held_out` was trained without one of the training environments and tested on it; one without was
    trained on all of them. For each settings, the accuracies on what was held out are averaged over the environments;
    the highest wins, the first when they tie. Within a run, the evaluation is selected by training-domain validation.
    """
    selected = select(records, "training_domain")
    chosen = []
    for algorithm, seed in dict.fromkeys((r.algorithm, r.seed) for r in selected):
        mine = [r for r in selected if (r.algorithm, r.seed) == (algorithm, seed)]
        accuracies: dict[str, dict[str, float]] = {}  # by settings, then by environment
        for record in mine:
            if record.held_out is not None:
                accuracies.setdefault(_settings(record), {})[record.held_out] = mean_accuracy(record.test)
        name = f"{algorithm}, seed {seed}"
        if not accuracies:
            raise InputError(f"{name}: no run held a training environment out, so there is nothing to select by")
        expected = {environment for by_environment in accuracies.values() for environment in by_environment}
        for settings, by_environment in accuracies.items():
            missing = sorted(expected - set(by_environment))
            if missing:
                raise InputError(f"{name}: no run with settings {settings} held {missing[0]!r} out: add it")
        best = max(accuracies, key=lambda settings: sum(accuracies[settings].values()))
        final = [r for r in mine if r.held_out is None and _settings(r) == best]
        if not final:
            raise InputError(f"{name}: settings {best} are the best, and no run with them saw all environments: add it")
        chosen += final
    return chosen


def _settings(record: Record) -> str:
    return json.dumps(record.settings, sort_keys=True)


def _score(record: Record, by: Selection) -> float:
    return mean_accuracy(record.training_domain if by == "training_domain" else record.test_domain)
