"""npz:FILE and parquet:FILE, the user's own embeddings: a vector, a label and an environment for each sample.

    NPZ       arrays `features` (n, d), `labels` (n,) and `environments` (n,); read without pickle
    Parquet   columns `label` and `environment` (or the plural); features in one column of lists named `features` or
              `embedding`, else in all other columns of numbers

`features`, `label` and `environment` name other arrays or columns. Vectors are used as they are, in float32: a row with
a value that is missing or infinite is an error, or left out with `skip_bad`.
"""

from __future__ import annotations

import warnings
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import DataWarning, InputError
from ..catalogue import DataSet, register
from ..checks import Mask, existing_file, known_name, listed, review_vectors, usable_rows
from ..environments import EnvironmentSet
from ..facts import Facts
from ..options import Options
from ..tabular import INDEX, opened_parquet, read_parquet
from ..values import blank, classes_of

Vectors = NDArray[np.float32]

NAMES = {"label": ("label", "labels"), "environment": ("environment", "environments")}
LISTS = ("features", "embedding", "embeddings")


def load_npz(file: str, asked: Options) -> EnvironmentSet:
    path = existing_file(file)
    keys = {
        "features": asked.features or "features",
        "label": asked.label or "labels",
        "environment": asked.environment or "environments",
    }
    _refuse_equal(keys, path)
    arrays = _read_npz(path, keys)
    features = arrays["features"]
    if features.ndim != 2 or not features.size:
        raise InputError(
            f"{path}: array {keys['features']!r} has shape {features.shape}: it has to be (n, d), a row a sample"
        )
    if features.dtype.kind not in "fiub":
        raise InputError(f"{path}: array {keys['features']!r} holds {features.dtype}: numbers are needed")
    for name in ("label", "environment"):
        values = arrays[name]
        if values.shape != features.shape[:1]:
            raise InputError(
                f"{path}: array {keys[name]!r} has shape {values.shape}, where {keys['features']!r} has "
                f"{features.shape}: one {name} a row is needed, ({len(features)},)"
            )
        if values.dtype.kind not in "biufUSM":
            raise InputError(f"{path}: array {keys[name]!r} holds {values.dtype}: use whole numbers or texts")
    with np.errstate(over="ignore"):
        vectors = np.ascontiguousarray(features, dtype=np.float32)
    return _assemble(path, vectors, arrays["label"], arrays["environment"], keys, asked.skip_bad)


def load_parquet(file: str, asked: Options) -> EnvironmentSet:
    path = existing_file(file)
    schema = opened_parquet(path).schema_arrow
    known = [name for name in schema.names if not INDEX.fullmatch(name)]
    for name in known:
        if known.count(name) > 1:
            raise InputError(f"{path} has two columns named {name!r}: rename one")
    keys = {
        "label": _default(asked.label, "label", known, path),
        "environment": _default(asked.environment, "environment", known, path),
    }
    _refuse_equal(keys, path)
    columns = _feature_columns(asked.features, known, keys, schema, path)
    table = read_parquet(path, [*columns, *keys.values()])
    if not table.num_rows:
        raise InputError(f"{path} has columns and no rows: write it again with data")
    vectors = (
        _from_lists(table.column(columns[0]), columns[0], path)
        if _is_list(schema.field(columns[0]).type)
        else _from_numbers(table, columns)
    )
    labels, environments = (table.column(keys[name]).to_pandas() for name in ("label", "environment"))
    names = columns if len(columns) == vectors.shape[1] else None
    return _assemble(path, vectors, labels, environments, keys, asked.skip_bad, names)


def _assemble(
    path: Path,
    vectors: Vectors,
    labels: Any,
    environments: Any,
    keys: dict[str, str],
    skip_bad: bool,
    columns: Sequence[str] | None = None,
) -> EnvironmentSet:
    import pandas as pd

    given = {"label": pd.Series(_plain(labels)), "environment": pd.Series(_plain(environments))}
    finite = np.isfinite(vectors)
    whole: Mask = np.asarray(finite.all(1))
    problems = [(f"{name} {keys[name]!r} is missing", blank(values)) for name, values in given.items()]
    if not whole.all():
        row = int(whole.argmin())
        column = int(finite[row].argmin())
        called = repr(columns[column]) if columns else f"{column + 1} of {vectors.shape[1]}"
        problems.append((f"feature {called} is missing, infinite or too large for float32", ~whole))
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


def _plain(values: Any) -> Any:
    """NumPy's texts and bytes as pandas takes them; "nan" is what NumPy makes of a missing one."""
    if not isinstance(values, np.ndarray):
        return values
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "replace")
    if values.dtype.kind == "U":
        texts = values.astype(object)
        texts[values == "nan"] = None
        return texts
    return values.astype(values.dtype.newbyteorder("="))


def _read_npz(path: Path, keys: dict[str, str]) -> dict[str, NDArray[Any]]:
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is not an NPZ file, or damaged: write it with numpy.savez")
    arrays = {}
    key = ""
    try:
        with np.load(path, allow_pickle=False) as archive:
            for option, key in keys.items():
                known_name(key, archive.files, path, "array", option)
                arrays[option] = archive[key]
    except InputError:
        raise
    except ValueError as error:
        if "allow_pickle" not in str(error):
            raise InputError(f"{path}: array {key!r} is damaged ({error}): write it with numpy.savez") from None
        raise InputError(
            f"{path}: array {key!r} holds Python objects, which are never unpickled: save it with .astype(str), or as "
            "numbers"
        ) from None
    except (OSError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path} is damaged ({error}): write it with numpy.savez") from None
    return arrays


def _refuse_equal(keys: dict[str, str], path: Path) -> None:
    for option, key in keys.items():
        if list(keys.values()).count(key) > 1:
            raise InputError(f"{path}: {key!r} cannot be {option} and something else as well: name two")


def _default(asked: str | None, option: str, known: Sequence[str], path: Path) -> str:
    if asked is None:
        asked = next((name for name in NAMES[option] if name in known), NAMES[option][0])
    return known_name(asked, known, path, "column", option)


def _is_list(kind: Any) -> bool:
    import pyarrow as pa

    kind = kind.storage_type if isinstance(kind, pa.BaseExtensionType) else kind
    return bool(pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind))


def _is_number(kind: Any) -> bool:
    import pyarrow as pa

    return bool(pa.types.is_integer(kind) or pa.types.is_floating(kind))


def _feature_columns(
    asked: str | None, known: Sequence[str], keys: dict[str, str], schema: Any, path: Path
) -> Sequence[str]:
    """One column of lists, or columns of numbers."""
    others = [name for name in known if name not in keys.values()]
    if asked is None:
        chosen = [name for name in LISTS if name in others and _is_list(schema.field(name).type)][:1]
        chosen = chosen or [name for name in others if _is_number(schema.field(name).type)]
        ignored = [name for name in others if name not in chosen]
        if not chosen:
            raise InputError(
                f"{path} has no features: expected a column of lists named {' or '.join(map(repr, LISTS))}, or columns "
                f"of numbers, beside {listed(map(repr, keys.values()))}; name them with --features"
            )
        if ignored:
            warnings.warn(f"{path}: columns not used: {listed(map(repr, ignored))}", DataWarning, stacklevel=3)
        return chosen
    chosen = [asked] if asked in known else [name.strip() for name in asked.split(",")]
    for name in chosen:
        kind = schema.field(known_name(name, known, path, "column", "features")).type
        if name in keys.values() or chosen.count(name) > 1:
            raise InputError(
                f"{path}: column {name!r} is named twice: it can be a feature, the label or the environment"
            )
        if not _is_number(kind) and not (_is_list(kind) and len(chosen) == 1):
            raise InputError(f"{path}: column {name!r} holds {kind}: name columns of numbers, or one column of lists")
    return chosen


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


for _name, _title, _load in (
    ("npz", "your embeddings, as arrays features, labels and environments in an NPZ file", load_npz),
    ("parquet", "your embeddings, as columns of a Parquet file", load_parquet),
):
    register(
        DataSet(
            Facts(name=_name, title=_title, licence="your own", citation=""),
            _load,
            takes=frozenset({"label", "environment", "features"}),
            argument="FILE",
        )
    )
