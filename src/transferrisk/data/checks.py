"""Checks of a user's own data before it is used, and warnings about it.

Rows are counted from 1 in every message; the header of a table is not a row.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from itertools import compress
from operator import attrgetter
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from ..errors import DataWarning, InputError, choices, counted, listed, warn
from .catalogue import SKIP_BAD
from .environments import EnvironmentSet
from .schema import Numeric
from .values import as_codes, as_numbers

if TYPE_CHECKING:
    from .sets.tables import Table

S = TypeVar("S", bound=EnvironmentSet)
Mask = NDArray[np.bool_]

BLOCK = 1 << 22  # numbers worked on at once
FEW_CODES, ROWS_PER_CODE = range(3, 11), 10  # whole numbers that may be codes: so many different ones, in so many rows
MISSING_CODES = (-1, -9, -99, -999, -9999, 9, 99, 999, 9999)  # numbers that mean missing where they lie far from others
OFTEN, RARELY = 0.1, 0.01  # shares of rows with a code of missing values: in some environments, and in the others
FEWEST_ROWS = 5  # of an environment, with such a code
MOST_LINES = 3  # warnings about such codes; for more columns they share one


def require_name(name: str, names: Sequence[str], where: Path | str, noun: str, option: str) -> str:
    """Return `name` if a file has such a column or array; the error names the option that chooses another."""
    if name in names:
        return name
    raise InputError(f"{where} has no {noun} {name!r}{choices(name, names)} with --{option}")


def refuse_or_skip(bad: Sequence[str], total: int, noun: str, where: Path | str, skip_bad: bool) -> None:
    """Report bad samples, of `total` in all, each described as "which (why)".

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
    bad = np.logical_or.reduce(list(problems.values()))
    if not bad.any():
        return None
    descriptions: list[str] = []
    explained: set[str] = set()
    for row in np.flatnonzero(bad):
        reason = next(reason for reason, mask in problems.items() if mask[row])
        descriptions.append(f"row {row + 1}" if reason in explained else f"row {row + 1} ({reason})")
        explained.add(reason)
    refuse_or_skip(descriptions, len(bad), "row", where, skip_bad)
    return np.flatnonzero(~bad)


def review(data: S, where: Path | str = "the data") -> S:
    """Return the set if two environments and two classes have samples; warn if an environment lacks a class."""
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
    """Review a set of vectors, and warn if environments share samples; `rows` are their positions in the file."""
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


# ---- columns of a table that may not be what they seem


def ask_about_columns(table: Table) -> None:
    """Warn about columns to look at: the label under another name, codes of categories, and codes of missing values."""
    copies = list(filter(partial(_is_label, table), map(attrgetter("name"), table.schema.columns)))
    if copies:
        warn(
            f"{table.file}: each value of {listed(map(repr, copies))} stands for one value of the label "
            f"{table.label!r}: where it is not known before the label is, leave it out with --drop {','.join(copies)}",
            DataWarning,
        )
    codes: dict[str, str] = {}
    missing: list[str] = []
    lines: list[str] = []
    for column in table.schema.columns:
        if not isinstance(column, Numeric):
            continue
        values = as_numbers(table.frame[column.name], column.name)
        given = ~np.isnan(values)
        different = np.unique(values[given])
        whole = len(different) in FEW_CODES and bool((different % 1 == 0).all())
        if whole and given.sum() >= ROWS_PER_CODE * len(different) and column.name not in table.declared.kinds:
            codes[column.name] = f"{different[0]:g} to {different[-1]:g}"
        for value, places in _missing_codes(table, values, different):
            missing.append(f"{column.name!r} ({value:g})")
            lines.append(f"column {column.name!r} is {value:g} in {places}: does {value:g} mean missing?")
    if codes:
        names = listed(map(repr, codes))
        which = ",".join(codes) if len(codes) == 1 else "COLUMNS"
        ranges = listed(dict.fromkeys(codes.values()))
        found = f"column {names} has" if len(codes) == 1 else f"columns {names} have few values,"
        warn(
            f"{table.file}: {found} the whole numbers {ranges}: --categorical {which} takes them as codes, --numeric "
            f"{which} keeps them as numbers without this remark",
            DataWarning,
        )
    if len(lines) > MOST_LINES:
        lines = [
            "columns have one value in many rows of some environments and hardly in the others: "
            f"{listed(missing)}; does it mean missing?"
        ]
    for line in lines:
        warn(f"{table.file}: {line} Then leave such cells empty", DataWarning)


def _is_label(table: Table, name: str) -> bool:
    """Return whether each value of a column comes with one class and each class with one value, in enough rows."""
    codes, texts = as_codes(table.frame[name])
    given = codes >= 0
    if len(texts) != len(table.class_names) or given.sum() < ROWS_PER_CODE * len(texts):
        return False
    pairs = np.unique(codes[given] * len(texts) + table.labels[given])
    return len(pairs) == len(np.unique(pairs % len(texts))) == len(texts)


def _missing_codes(
    table: Table, values: NDArray[np.float64], different: NDArray[np.float64]
) -> list[tuple[float, str]]:
    """Return the values that may mean missing, and in which environments they are, in ascending order of values.

    Candidates among the different values are 0 below all others, and a code far away. Such a value is frequent in some
    environments and rare in all others.
    """
    if len(different) < 3:
        return []
    candidates = [0.0] if different[0] == 0 else []
    for value, others in ((different[0], different[1:]), (different[-1], different[:-1])):
        if value in MISSING_CODES and np.abs(others - value).min() > others[-1] - others[0]:
            candidates.append(float(value))
    found = []
    rows = np.bincount(table.environments[~np.isnan(values)], minlength=len(table.environment_names))
    for value in candidates:
        counts = np.bincount(table.environments[values == value], minlength=len(rows))
        often = counts >= np.maximum(OFTEN * rows, FEWEST_ROWS)
        rare = ~often & (rows > 0)
        if not often.any() or not rare.any() or (counts[rare] > RARELY * rows[rare]).any():
            continue
        places = [f"{counts[e]} of {rows[e]} rows at {table.environment_names[e]!r}" for e in np.flatnonzero(often)]
        rest = f"{counts[rare].sum()} of {rows[rare].sum()} rows" if counts[rare].any() else "nowhere"
        found.append((value, f"{listed(places, 3)} and {rest} else"))
    return found
