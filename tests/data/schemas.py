"""Schemas of columns, and the features they give."""

from __future__ import annotations

import numpy as np
import pandas as pd
import torch

from transferrisk.data.schema import Schema


def schema_of(**columns) -> Schema:
    n = len(next(iter(columns.values())))
    frame = pd.DataFrame({**columns, "y": np.arange(n) % 2, "site": np.arange(n) % 3})
    return Schema.infer(frame, "y", "site")


def encoded(**columns) -> dict[str, list[float]]:
    schema = schema_of(**columns)
    result = schema.encode(pd.DataFrame(columns))
    assert result.notes == ()
    assert result.features.dtype == torch.float32
    assert result.names == schema.feature_names
    return {name: result.features[:, j].tolist() for j, name in enumerate(result.names)}


MIXED = {
    "x": [1.0, 2.0, np.nan, 4.0],
    "z": [3, 1, 4, 1],
    "b": [True, False, True, True],
    "c": ["u", "v", "u", "w"],
    "m": ["u", None, "u", "w"],
    "d": ["2020-01-01", "2020-01-02", "2021-05-05", "2022-01-01"],
}
