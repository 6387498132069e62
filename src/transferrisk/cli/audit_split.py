"""Which samples of a data set a checkpoint was not trained on, from what it says of its training."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ..data import EnvironmentSet, Splits

_PARTS = ("training_domain", "test")  # not trained on


def data_of(asked: Mapping[str, Any]) -> str:
    """The data set that a configuration names, "" where it names none."""
    return str(asked.get("data") or "")


def same_set(name: str, other: str) -> bool:
    """Whether two names of data sets mean one: their files may be written in several ways."""
    from ..files import expand_home

    (base, _, argument), (other_base, _, other_argument) = name.partition(":"), other.partition(":")
    if base != other_base:
        return False
    return argument == other_argument or expand_home(argument).resolve() == expand_home(other_argument).resolve()


def split_of(
    data: EnvironmentSet | Splits, asked: Mapping[str, Any], digests: Mapping[str, Any], same: bool
) -> Splits | None:
    """The division into what was trained on and what was not; None where there is none that fits.

    Digests of what was held out decide, so that a file is known again under another name. A configuration without any
    is believed where the name is the `same`.
    """
    from ..training.digests import content_digests

    split = _rebuilt(data, asked)
    if split is None:
        return None
    known = {part: digests[part] for part in _PARTS if part in digests}
    if not known and not same:
        return None
    used = _finetuned(split, asked)
    if any(content_digests(getattr(used, part)) != digest for part, digest in known.items()):
        return None
    return replace(split, test=used.test)


def _rebuilt(data: EnvironmentSet | Splits, asked: Mapping[str, Any]) -> Splits | None:
    """As `trm train` divided it."""
    from ..data import leave_out
    from ..errors import InputError

    if isinstance(data, Splits):
        return data
    test, held_out, names = asked.get("test_env"), asked.get("hold_out"), data.environment_names
    if test not in names:
        return None
    if held_out is not None:
        data, test = data.only([name for name in names if name != test]), held_out
    try:
        return leave_out(data, test, int(asked.get("seed", 0)))
    except InputError:  # too few environments or samples to divide: it is not what was trained on
        return None


def _finetuned(split: Splits, asked: Mapping[str, Any]) -> Splits:
    """What was trained on last, where that was a few samples of the test environment."""
    from ..errors import InputError
    from ..training.finetune import few_samples

    count = asked.get("finetune_samples")
    if count is None:
        return split
    try:
        return replace(split, test=few_samples(split.test, int(count), int(asked.get("seed", 0)))[1])
    except InputError:  # fewer samples than were drawn: it is not what was trained on, as digests will say
        return split
