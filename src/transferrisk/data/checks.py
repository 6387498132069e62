"""Checks of a user's own data before it is used, and warnings about it.

Rows are counted from 1 in every message; the header of a table is not a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import compress
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..errors import DataWarning, InputError, choices, counted, listed, warn
from .catalogue import SKIP_BAD
from .environments import EnvironmentSet

S = TypeVar("S", bound=EnvironmentSet)
Mask = NDArray[np.bool_]

BLOCK = 1 << 22  # numbers worked on at once


def require_name(name: str, names: Sequence[str], where: Path | str, noun: str, option: str) -> str:
    """`name`, if it is among the names of a file's columns or arrays; `option` is the option that names another."""
    if name in names:
        return name
    raise InputError(f"{where} has no {noun} {name!r}{choices(name, names)} with --{option}")


def refuse_or_skip(bad: Sequence[str], total: int, noun: str, where: Path | str, skip_bad: bool) -> None:
    """Report bad ones among `total` samples, each described as "which (why)".

    This is an error that names the first; with `skip_bad` a warning that lists ten, unless nothing would be left.
    """
    if not bad:
        return
    if skip_bad and len(bad) < total:
        warn(f"{where}: {len(bad)} of {counted(total, noun)} left out: {listed(bad)}", DataWarning)
        return
    way_out = f"correct or remove them, or go on without them with {SKIP_BAD}" if len(bad) < total else "correct them"
    raise InputError(f"{where}: {len(bad)} of {counted(total, noun)} cannot be used, the first is {bad[0]}: {way_out}")


def usable_rows(problems: Mapping[str, Mask], where: Path | str, skip_bad: bool) -> NDArray[np.int64] | None:
    """Return the positions of the rows without a problem, None for all. Without `skip_bad`, a problem is an error.

    `problems` are description -> mask of the rows that have it; the first row of each stands as the example.
    """
    met = {reason: mask for reason, mask in problems.items() if mask.any()}
    if not met:
        return None
    bad = np.logical_or.reduce(list(met.values()))
    told: list[str] = []
    given: set[str] = set()
    for row in bad.nonzero()[0]:
        reason = next(reason for reason, mask in met.items() if mask[row])
        told.append(f"row {row + 1}" if reason in given else f"row {row + 1} ({reason})")
        given.add(reason)
    refuse_or_skip(told, len(bad), "row", where, skip_bad)
    return np.flatnonzero(~bad)


def review(data: S, where: Path | str = "the data") -> S:
    """The set itself, if two environments and two classes have samples; warns if an environment lacks a class."""
    counts = data.group_counts().cpu().numpy()
    seen = list(compress(data.environment_names, counts.sum(1)))
    if len(seen) < 2:
        raise InputError(
            f"{where} has {counted(len(seen), 'environment')} with samples ({listed(map(repr, seen)) or 'none'}): "
            "transfer needs at least two"
        )
    classes = list(compress(data.class_names, counts.sum(0)))
    if len(classes) < 2:
        raise InputError(
            f"{where} has only the label {classes[0]!r}: there is nothing to predict; check that you mean this label"
        )
    if not counts.all():
        absent = [f"{data.class_names[c]!r} in {data.environment_names[e]!r}" for e, c in np.argwhere(counts == 0)]
        warn(f"{where}: no samples of class {listed(absent, 5)}", DataWarning)
    return data


def review_vectors(data: S, where: Path | str, rows: NDArray[np.int64] | None = None) -> S:
    """`review`, and a warning if environments share samples. `rows` are the samples' positions in the file."""
    review(data, where)
    shared = twins(data.inputs[:], data.labels, data.environments)
    if len(shared):
        first, second = (int(i if rows is None else rows[i]) + 1 for i in shared[0].tolist())
        warn(
            f"{where}: {counted(len(shared), 'row')} with the features and label of a row in another environment, such "
            f"as row {second} and row {first}",
            DataWarning,
        )
    return data


def twins(features: Tensor, labels: Tensor, environments: Tensor) -> NDArray[np.int64]:
    """Return pairs (m, 2): the first row of its kind, and a later row like it that lies in another environment.

    Rows are alike if features and label are equal. A hash proposes the pairs, and the features decide. Equal rows have
    equal hashes: sum_j mix(bits_j) r_j + label r modulo 2^64, r odd.
    """
    values, kinds, places = features.cpu().numpy(), labels.cpu().numpy(), environments.cpu().numpy()
    n, d = values.shape
    factors = np.random.default_rng(0).integers(1 << 63, size=d, dtype=np.uint64) * 2 + 1
    hashes = kinds.astype(np.uint64) * np.uint64(0xD1342543DE82EF95)
    step = max(BLOCK // d, 1)
    for start in range(0, n, step):
        part = values[start : start + step].astype(np.float32) + np.float32(0)  # -0 becomes 0
        bits = part.view(np.uint32).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        hashes[start : start + step] += ((bits ^ (bits >> np.uint64(32))) * factors).sum(1, dtype=np.uint64)
    order = np.argsort(hashes, kind="stable")
    starts = np.r_[True, hashes[order[1:]] != hashes[order[:-1]]]
    first = order[np.maximum.accumulate(np.where(starts, np.arange(n), 0))]
    apart = (places[first] != places[order]) & (kinds[first] == kinds[order])
    pairs = np.stack([first[apart], order[apart]], 1)
    pairs = pairs[np.argsort(pairs[:, 1])]
    alike = np.empty(len(pairs), bool)
    for start in range(0, len(pairs), step):
        one, other = pairs[start : start + step].T
        alike[start : start + step] = (values[one] == values[other]).all(1)
    return pairs[alike]
