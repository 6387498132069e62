"""Choice of settings by accuracy in environments that were left out of training."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ..errors import InputError
from ..settings import dumps
from .records import Record
from .selection import mean_score, select


def leave_one_environment_out(runs: Sequence[tuple[Mapping[str, Any], Sequence[Record]]]) -> list[int]:
    """Return the positions of the runs whose settings do best on environments that were left out.

    Parameters
    ----------
    runs
        Description and records of each run.

    Returns
    -------
    list[int]
        Positions of runs that were trained on all environments, one for each problem.

    Examples
    --------
    >>> from transferrisk.results import leave_one_environment_out
    >>> leave_one_environment_out([])
    []
    """
    problems: dict[str, list[int]] = {}
    for position, (about, _) in enumerate(runs):
        same = {key: value for key, value in about.items() if key not in ("hold_out", "settings", "training")}
        problems.setdefault(dumps(same, sort_keys=True), []).append(position)
    return [chosen for positions in problems.values() for chosen in _best_settings(runs, positions)]


def _best_settings(runs: Sequence[tuple[Mapping[str, Any], Sequence[Record]]], positions: Sequence[int]) -> list[int]:
    """Return the positions of one problem's runs with the best settings that were trained on all environments."""
    settings = {i: dumps([runs[i][0].get("training"), runs[i][0].get("settings")], sort_keys=True) for i in positions}
    accuracies: dict[str, dict[str, float]] = {}  # settings -> environment -> accuracy there
    for i in positions:
        if (environment := runs[i][0].get("hold_out")) is not None:
            chosen = select(runs[i][1], "training_domain")
            accuracies.setdefault(settings[i], {})[environment] = mean_score(chosen, "test")
    about = runs[positions[0]][0]
    name = f"{about.get('algorithm')}, seed {about.get('seed')}"
    if not accuracies:
        raise InputError(f"{name}: no run has hold_out, so settings cannot be compared: add runs that leave one out")
    expected = {environment for by_environment in accuracies.values() for environment in by_environment}
    for key, by_environment in accuracies.items():
        missing = sorted(expected - set(by_environment))
        if missing:
            raise InputError(f"{name}: no run with settings {key} has hold_out={missing[0]!r}: add it")
    best = max(accuracies, key=lambda key: sum(accuracies[key].values()))
    final = [i for i in positions if runs[i][0].get("hold_out") is None and settings[i] == best]
    if not final:
        raise InputError(f"{name}: no run with the best settings, {best}, was trained on all environments: add it")
    return final
