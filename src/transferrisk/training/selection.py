"""Which of a run's evaluations counts, and which settings: functions of the records, run afterwards."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Literal, get_args

from ..errors import InputError
from .plain import dumps
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
    """One record an algorithm, origin and seed: of the run whose settings do best on environments they left out.

    A run with `held_out` was trained without one of the training environments and tested on it; one without was
    trained on all of them. Settings are those of the algorithm and of the training. For each, the accuracies on what
    was held out are averaged over the environments; the highest wins, the first when they tie. Within a run, the
    evaluation is selected by training-domain validation.
    """
    problems: dict[tuple[str, str, int], list[Record]] = {}
    for record in select(records, "training_domain"):
        key = record.algorithm, dumps(record.origin, sort_keys=True), record.seed
        problems.setdefault(key, []).append(record)
    return [chosen for mine in problems.values() for chosen in _best_settings(mine)]


def _best_settings(mine: Sequence[Record]) -> list[Record]:
    """Of the runs of one algorithm on one problem."""
    known = {_key(record): _settings(record) for record in mine}
    accuracies: dict[str, dict[str, float]] = {}  # by settings, then by environment
    for record in mine:
        if record.held_out is not None:
            accuracies.setdefault(_key(record), {})[record.held_out] = mean_accuracy(record.test)
    name = f"{mine[0].algorithm}, seed {mine[0].seed}"
    if not accuracies:
        raise InputError(f"{name}: no run held a training environment out, so there is nothing to select by")
    expected = {environment for by_environment in accuracies.values() for environment in by_environment}
    for key, by_environment in accuracies.items():
        missing = sorted(expected - set(by_environment))
        if missing:
            shown = _shown(known[key], known.values())
            raise InputError(f"{name}: no run with settings {shown} held {missing[0]!r} out: add it")
    best = max(accuracies, key=lambda key: sum(accuracies[key].values()))
    final = [record for record in mine if record.held_out is None and _key(record) == best]
    if not final:
        shown = _shown(known[best], known.values())
        raise InputError(f"{name}: settings {shown} are the best, and no run with them saw all environments: add it")
    return final


def _settings(record: Record) -> dict[str, object]:
    return {**record.training, **record.settings}


def _key(record: Record) -> str:
    return dumps([record.training, record.settings], sort_keys=True)


def _shown(settings: Mapping[str, object], among: Iterable[Mapping[str, object]]) -> str:
    """Those that are not the same in all of them; all where there is one of them only."""
    among = list(among)
    differ = {k: v for k, v in settings.items() if any(other.get(k) != v for other in among)}
    return dumps(differ or settings, sort_keys=True)


def _score(record: Record, by: Selection) -> float:
    return mean_accuracy(record.training_domain if by == "training_domain" else record.test_domain)
