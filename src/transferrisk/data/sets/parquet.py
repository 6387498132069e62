"""parquet:FILE, the user's own embeddings: columns `label` and `environment` (or the plural) and features.

Features are in one column of lists named `features` or `embedding`, else in all other columns of numbers. `features`,
`label` and `environment` name other columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ...errors import DataWarning, InputError, warn
from ..catalogue import DataSet, register
from ..checks import existing_file, known_name, listed
from ..environments import EnvironmentSet
from ..facts import Facts
from ..options import Options
from ..tabular import INDEX, opened_parquet, read_parquet
from .embeddings import Vectors, assemble, refuse_equal

NAMES = {"label": ("label", "labels"), "environment": ("environment", "environments")}
LISTS = ("features", "embedding", "embeddings")


@dataclass(frozen=True)
class Columns:
    """Which columns of a file are what: `features` is one of lists, or several of numbers."""

    features: tuple[str, ...]
    label: str
    environment: str


def find_columns(path: Path, asked: Options) -> Columns:
    """By the options, and by the usual names where these say nothing."""
    schema = opened_parquet(path).schema_arrow
    known = [name for name in schema.names if not INDEX.fullmatch(name)]
    for name in known:
        if known.count(name) > 1:
            raise InputError(f"{path} has two columns named {name!r}: rename one")
    keys = {
        "label": _default(asked.label, "label", known, path),
        "environment": _default(asked.environment, "environment", known, path),
    }
    refuse_equal(keys, path)
    return Columns(tuple(_feature_columns(asked.features, known, keys, schema, path)), **keys)


def load(file: str, asked: Options) -> EnvironmentSet:
    path = existing_file(file)
    found = find_columns(path, asked)
    columns, keys = found.features, {"label": found.label, "environment": found.environment}
    table = read_parquet(path, [*columns, *keys.values()])
    if not table.num_rows:
        raise InputError(f"{path} has columns and no rows: write it again with data")
    vectors = vectors_of(table, columns, path)
    labels, environments = (table.column(keys[name]).to_pandas() for name in ("label", "environment"))
    names = columns if len(columns) == vectors.shape[1] else None
    return assemble(path, vectors, labels, environments, keys, asked.skip_bad, names)


def vectors_of(table: Any, columns: Sequence[str], path: Path) -> Vectors:
    """Vectors (n, d) of a pyarrow.Table: one column of lists, or columns of numbers."""
    if is_list(table.schema.field(columns[0]).type):
        return _from_lists(table.column(columns[0]), columns[0], path)
    return _from_numbers(table, columns)


def _default(asked: str | None, option: str, known: Sequence[str], path: Path) -> str:
    if asked is None:
        asked = next((name for name in NAMES[option] if name in known), NAMES[option][0])
    return known_name(asked, known, path, "column", option)


def _feature_columns(
    asked: str | None, known: Sequence[str], keys: dict[str, str], schema: Any, path: Path
) -> Sequence[str]:
    """One column of lists, or columns of numbers."""
    others = [name for name in known if name not in keys.values()]
    if asked is None:
        chosen = [name for name in LISTS if name in others and is_list(schema.field(name).type)][:1]
        chosen = chosen or [name for name in others if _is_number(schema.field(name).type)]
        ignored = [name for name in others if name not in chosen]
        if not chosen:
            raise InputError(
                f"{path} has no features: expected a column of lists named {' or '.join(map(repr, LISTS))}, or columns "
                f"of numbers, beside {listed(map(repr, keys.values()))}; name them with --features"
            )
        if ignored:
            warn(f"{path}: columns not used: {listed(map(repr, ignored))}", DataWarning)
        return chosen
    chosen = [asked] if asked in known else [name.strip() for name in asked.split(",")]
    for name in chosen:
        kind = schema.field(known_name(name, known, path, "column", "features")).type
        if name in keys.values() or chosen.count(name) > 1:
            raise InputError(
                f"{path}: column {name!r} is named twice: it can be a feature, the label or the environment"
            )
        if not _is_number(kind) and not (is_list(kind) and len(chosen) == 1):
            raise InputError(f"{path}: column {name!r} holds {kind}: name columns of numbers, or one column of lists")
    return chosen


def is_list(kind: Any) -> bool:
    import pyarrow as pa

    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _from_numbers(table: Any, columns: Sequence[str]) -> Vectors:
    vectors = np.empty((table.num_rows, len(columns)), np.float32)
    with np.errstate(over="ignore"):
        for j, name in enumerate(columns):
            vectors[:, j] = table.column(name).to_numpy()
    return vectors


def _from_lists(column: Any, name: str, path: Path) -> Vectors:
    """Vectors (n, d); NaN throughout where the list itself is missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    chunks = [chunk.storage if isinstance(chunk, pa.ExtensionArray) else chunk for chunk in column.chunks]
    sizes = np.concatenate([np.asarray(pc.fill_null(pc.list_value_length(c), -1).to_numpy(False)) for c in chunks])
    given = sizes >= 0
    width = int(sizes[given][0]) if given.any() else 0
    if not width:
        raise InputError(f"{path}: column {name!r} holds empty lists: one number or more are needed in each")
    other = given & (sizes != width)
    if other.any():
        row = int(other.argmax())
        raise InputError(
            f"{path}: column {name!r} has lists of different lengths, {width} in row {int(given.argmax()) + 1} and "
            f"{sizes[row]} in row {row + 1}: all have to be the same"
        )
    if not _is_number(chunks[0].type.value_type):
        raise InputError(f"{path}: column {name!r} holds lists of {chunks[0].type.value_type}: numbers are needed")
    vectors = np.full((len(sizes), width), np.nan, np.float32)
    start = 0
    with np.errstate(over="ignore"):
        for chunk in chunks:
            stop = start + len(chunk)
            vectors[start:stop][given[start:stop]] = chunk.flatten().to_numpy(False).reshape(-1, width)
            start = stop
    return vectors


register(
    DataSet(
        Facts(
            name="parquet",
            title="your embeddings, as columns of a Parquet file",
            licence="your own",
            citation="",
        ),
        load,
        takes=frozenset({"label", "environment", "features"}),
        argument="FILE",
    )
)
