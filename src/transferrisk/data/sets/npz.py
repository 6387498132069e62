"""npz:FILE, the user's own embeddings: arrays `features` (n, d), `labels` (n,) and `environments` (n,).

Read without pickle. `features`, `label` and `environment` name other arrays.
"""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...errors import InputError
from ..archives import DAMAGED, because
from ..catalogue import DataSet, register
from ..checks import existing_file, known_name
from ..environments import EnvironmentSet
from ..facts import Facts
from ..options import Options
from .embeddings import assemble, refuse_equal


def load(file: str, asked: Options) -> EnvironmentSet:
    path = existing_file(file)
    keys = {
        "features": asked.features or "features",
        "label": asked.label or "labels",
        "environment": asked.environment or "environments",
    }
    refuse_equal(keys, path)
    arrays = _read(path, keys)
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
    return assemble(path, vectors, arrays["label"], arrays["environment"], keys, asked.skip_bad)


def _read(path: Path, keys: dict[str, str]) -> dict[str, NDArray[Any]]:
    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is not an NPZ file, or damaged: write it with numpy.savez")
    try:
        with np.load(path, allow_pickle=False) as archive:
            for option, key in keys.items():
                known_name(key, archive.files, path, "array", option)
            return {option: array_of(archive, key, path) for option, key in keys.items()}
    except InputError:
        raise
    except DAMAGED as error:
        raise InputError(f"{path} is damaged ({because(error)}): write it with numpy.savez") from None


def array_of(archive: Any, key: str, path: Path) -> NDArray[Any]:
    """An array of an open NPZ file, never of Python objects."""
    try:
        array = archive[key]
    except MemoryError as error:
        raise InputError(
            f"{path}: array {key!r} does not fit into memory ({because(error)}), or is damaged: use a smaller one"
        ) from None
    except DAMAGED as error:
        if "allow_pickle" in str(error):
            raise InputError(
                f"{path}: array {key!r} holds Python objects, which are never unpickled: save it with .astype(str), or "
                "as numbers"
            ) from None
        raise InputError(
            f"{path}: array {key!r} is damaged or locked ({because(error)}): write it with numpy.savez"
        ) from None
    if not isinstance(array, np.ndarray):
        raise InputError(f"{path}: {key!r} is no array: write it with numpy.savez")
    return array


register(
    DataSet(
        Facts(
            name="npz",
            title="your embeddings, as arrays features, labels and environments in an NPZ file",
            licence="your own",
            citation="",
        ),
        load,
        takes=frozenset({"label", "environment", "features"}),
        argument="FILE",
    )
)
