"""What the user's own embeddings have in common: a vector, a label and an environment for each sample.

Vectors are used as they are, in float32: a row with a value that is missing or infinite is an error, or left out with
`skip_bad`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ...errors import InputError
from ..checks import Mask, review_vectors, usable_rows
from ..environments import EnvironmentSet
from ..values import blank, classes_of

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
    """The set of vectors (n, d), labels (n,) and environments (n,), whose names in the file are `keys`."""
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


def refuse_equal(keys: dict[str, str], path: Path) -> None:
    """One array or column cannot be two things."""
    for option, key in keys.items():
        if list(keys.values()).count(key) > 1:
            raise InputError(f"{path}: {key!r} cannot be {option} and something else as well: name two")


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
