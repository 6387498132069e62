"""npz:FILE and parquet:FILE, the user's own embeddings: a vector, a label and an environment for each sample.

npz       arrays `features` (n, d), `labels` (n,) and `environments` (n,), read without pickle
parquet   columns `label` and `environment` (or the plural) and features, in one column of lists named `features` or
          `embedding`, else in all other columns of numbers

The options `features`, `label` and `environment` name other arrays or columns. Vectors are used as they are, in
float32: a row with a value that is missing or infinite is an error, or left out with `skip_bad`.
"""

from __future__ import annotations

import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import DataWarning, InputError, cause_of, listed, require_name, warn
from ...files import existing_file
from ..catalogue import Options, register_own_files
from ..containers import DAMAGED, refuse_bomb
from ..environments import EnvironmentSet, review_vectors
from ..table_files import INDEX, open_parquet, read_parquet
from ..values import classes_of, is_blank, usable_rows

NAMES = {"label": ("label", "labels"), "environment": ("environment", "environments")}
LISTS = ("features", "embedding", "embeddings")

Vectors = NDArray[np.float32]


def assemble(
    path: Path,
    vectors: Vectors,
    labels: Any,
    environments: Any,
    keys: dict[str, str],
    skip_bad: bool,
    columns: Sequence[str] | None = None,
) -> EnvironmentSet:
    """Return the set of vectors (n, d), labels (n,) and environments (n,), whose names in the file are `keys`."""
    import pandas as pd

    by_option = {"label": labels, "environment": environments}
    given = {name: pd.Series(_for_pandas(values, f"{path}: {keys[name]!r}")) for name, values in by_option.items()}
    finite = np.isfinite(vectors)
    whole: NDArray[np.bool_] = np.asarray(finite.all(1))
    problems = {f"{name} {keys[name]!r} is missing": is_blank(values) for name, values in given.items()}
    if not whole.all():
        row = int(whole.argmin())
        column = int(finite[row].argmin())
        called = repr(columns[column]) if columns else f"{column + 1} of {vectors.shape[1]}"
        problems[f"feature {called} is missing, infinite or too large for float32"] = ~whole
    rows = usable_rows(problems, path, skip_bad)
    if rows is not None:
        vectors = vectors[rows]
        given = {name: values.iloc[rows] for name, values in given.items()}
    coded = {name: classes_of(values, keys[name], path, name) for name, values in given.items()}
    data = EnvironmentSet(
        torch.from_numpy(vectors),
        torch.from_numpy(coded["label"][0]),
        torch.from_numpy(coded["environment"][0]),
        coded["environment"][1],
        coded["label"][1],
    )
    return review_vectors(data, path, rows)


def _for_pandas(values: Any, name: str) -> Any:
    """Return NumPy's texts and bytes as pandas takes them; NumPy writes a missing text as "nan"."""
    if not isinstance(values, np.ndarray):
        return values
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "replace")
    if values.dtype.kind == "U":
        values = np.ascontiguousarray(values, values.dtype.newbyteorder("="))
        characters = values.view(np.uint32).reshape(len(values), -1)
        odd = ((characters >= 0xD800) & (characters <= 0xDFFF) | (characters > 0x10FFFF)).any(1)
        if odd.any():
            row = int(odd.argmax()) + 1
            raise InputError(f"{name} in row {row} is not a text that can be written as UTF-8: correct it")
        texts = values.astype(object)
        texts[values == "nan"] = None
        return texts
    return values.astype(values.dtype.newbyteorder("="))


def _refuse_equal(keys: dict[str, str], path: Path) -> None:
    """Refuse one array or column for two purposes."""
    for option, key in keys.items():
        if list(keys.values()).count(key) > 1:
            raise InputError(f"{path}: {key!r} cannot be {option} and something else as well: name two")


# ---- NPZ


def load_npz(file: str, options: Options) -> EnvironmentSet:
    path = existing_file(file)
    keys = {
        "features": options.features or "features",
        "label": options.label or "labels",
        "environment": options.environment or "environments",
    }
    _refuse_equal(keys, path)
    found = read_arrays(path, keys)
    arrays = {option: found[key] for option, key in keys.items()}
    vectors = as_vectors(arrays["features"], keys["features"], path)
    for name in ("label", "environment"):
        values = arrays[name]
        if values.shape != vectors.shape[:1]:
            raise InputError(
                f"{path}: array {keys[name]!r} has shape {values.shape}, where {keys['features']!r} has "
                f"{vectors.shape}: one {name} a row is needed, ({len(vectors)},)"
            )
        if values.dtype.kind not in "biufUSM":
            raise InputError(f"{path}: array {keys[name]!r} must hold whole numbers or texts, got {values.dtype}")
    return assemble(path, vectors, arrays["label"], arrays["environment"], keys, options.skip_bad)


def read_arrays(path: Path, keys: Mapping[str, str], optional: Sequence[str] = ()) -> dict[str, NDArray[Any]]:
    """Return arrays of an NPZ file by name: all in `keys`, option -> name, and the `optional` ones that it has."""
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is not an NPZ file, or damaged: write it with numpy.savez")
    try:
        with np.load(path, allow_pickle=False) as archive:
            refuse_bomb(path, archive.zip)
            for option, key in keys.items():
                require_name(key, archive.files, path, "array", option)
            names = [*keys.values(), *(name for name in optional if name in archive.files)]
            return {name: _array(archive, name, path) for name in names}
    except InputError:
        raise
    except DAMAGED as error:
        raise InputError(f"{path} is damaged ({cause_of(error)}): write it with numpy.savez") from None


def as_vectors(array: NDArray[Any], key: str, path: Path) -> Vectors:
    """Return an array of numbers (n, d) in float32; numbers that are too large for it become infinite."""
    if array.ndim != 2 or not array.size:
        raise InputError(f"{path}: array {key!r} must have the shape (n, d), a row a sample, got {array.shape}")
    if array.dtype.kind not in "fiub":
        raise InputError(f"{path}: array {key!r} must hold numbers, got {array.dtype}")
    with np.errstate(over="ignore"):
        return np.ascontiguousarray(array, dtype=np.float32)


def _array(archive: Any, key: str, path: Path) -> NDArray[Any]:
    """Return an array of an open NPZ file; arrays of Python objects are refused."""
    try:
        array = archive[key]
    except MemoryError as error:
        raise InputError(
            f"{path}: array {key!r} does not fit into memory ({cause_of(error)}), or is damaged: use a smaller one"
        ) from None
    except DAMAGED as error:
        if "allow_pickle" in str(error):
            raise InputError(
                f"{path}: array {key!r} holds Python objects, which are never unpickled: save it with .astype(str), or "
                "as numbers"
            ) from None
        raise InputError(
            f"{path}: array {key!r} is damaged or locked ({cause_of(error)}): write it with numpy.savez"
        ) from None
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path}: {key!r} is not an array: write it with numpy.savez")
    return array


# ---- Parquet


@dataclass(frozen=True)
class Columns:
    """The columns of a file by purpose: `features` is one of lists, or several of numbers."""

    features: tuple[str, ...]
    label: str
    environment: str


def find_columns(path: Path, options: Options) -> Columns:
    """Return the columns that the options name, or those with the usual names."""
    schema = open_parquet(path).schema_arrow
    header = [name for name in schema.names if not INDEX.fullmatch(name)]
    for name in header:
        if header.count(name) > 1:
            raise InputError(f"{path} has two columns named {name!r}: rename one")
    keys = {}
    for option, usual in NAMES.items():
        wanted = getattr(options, option) or next((name for name in usual if name in header), usual[0])
        keys[option] = require_name(wanted, header, path, "column", option)
    _refuse_equal(keys, path)
    return Columns(tuple(_feature_columns(options.features, header, keys, schema, path)), **keys)


def load_parquet(file: str, options: Options) -> EnvironmentSet:
    path = existing_file(file)
    found = find_columns(path, options)
    columns, keys = found.features, {"label": found.label, "environment": found.environment}
    table = read_parquet(path, [*columns, *keys.values()])
    if not table.num_rows:
        raise InputError(f"{path} has columns and no rows: check how it was written")
    vectors = vectors_of(table, columns, path)
    labels, environments = (table.column(keys[name]).to_pandas() for name in ("label", "environment"))
    names = columns if len(columns) == vectors.shape[1] else None
    return assemble(path, vectors, labels, environments, keys, options.skip_bad, names)


def vectors_of(table: Any, columns: Sequence[str], path: Path) -> Vectors:
    """Return vectors (n, d) of a pyarrow.Table: one column of lists, or columns of numbers."""
    if is_list(table.schema.field(columns[0]).type):
        return _from_lists(table.column(columns[0]), columns[0], path)
    vectors = np.empty((table.num_rows, len(columns)), np.float32)
    with np.errstate(over="ignore"):
        for j, name in enumerate(columns):
            vectors[:, j] = table.column(name).to_numpy()
    return vectors


def has_lists(path: Path, features: str | None) -> bool:
    """Return whether the features of a Parquet file are a column of lists, which is named or has a usual name."""
    names = LISTS if features is None else (features, features.strip())
    return any(field.name in names and is_list(field.type) for field in open_parquet(path).schema_arrow)


def is_list(kind: Any) -> bool:
    import pyarrow as pa

    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _feature_columns(
    features: str | None, header: Sequence[str], keys: dict[str, str], schema: Any, path: Path
) -> Sequence[str]:
    """Return the column of lists, or the columns of numbers, that hold the features."""
    if features is None:
        others = [name for name in header if name not in keys.values()]
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
    chosen = [features] if features in header else [name.strip() for name in features.split(",")]
    for name in chosen:
        kind = schema.field(require_name(name, header, path, "column", "features")).type
        if name in keys.values() or chosen.count(name) > 1:
            raise InputError(
                f"{path}: column {name!r} is named twice: it can be a feature, the label or the environment"
            )
        if not _is_number(kind) and not (is_list(kind) and len(chosen) == 1):
            raise InputError(f"{path}: column {name!r} holds {kind}: name columns of numbers, or one column of lists")
    return chosen


def _from_lists(column: Any, name: str, path: Path) -> Vectors:
    """Return vectors (n, d); a row is NaN where its list is missing."""
    import pyarrow as pa
    import pyarrow.compute as pc

    lists = column.combine_chunks()
    lists = lists.storage if isinstance(lists, pa.ExtensionArray) else lists
    sizes = np.asarray(pc.fill_null(pc.list_value_length(lists), -1).to_numpy(False))
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
    if not _is_number(lists.type.value_type):
        raise InputError(f"{path}: column {name!r} must hold lists of numbers, got {lists.type.value_type}")
    vectors = np.full((len(sizes), width), np.nan, np.float32)
    with np.errstate(over="ignore"):
        vectors[given] = lists.flatten().to_numpy(False).reshape(-1, width)
    return vectors


register_own_files(
    "npz",
    "your embeddings, as arrays features, labels and environments in an NPZ file",
    load_npz,
    takes="label environment features",
)
register_own_files(
    "parquet", "your embeddings, as columns of a Parquet file", load_parquet, takes="label environment features"
)
