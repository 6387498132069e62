"""A small table as a file, and schemas of columns with the features they give."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import torch

from transferrisk.data import Options, load_data
from transferrisk.data.infer import infer_schema
from transferrisk.data.schema import Schema
from transferrisk.errors import InputError

ASKED = Options(label="y", environment="site")
TEXT = """age,colour,y,site
31,red,no,north
45,blue,yes,north
22,red,no,south
,green,yes,south
67,blue,no,10
50,red,yes,10
"""


def write(folder, text=TEXT, name="table.csv"):
    path = folder / name
    path.write_text(text)
    return path


def frame_of(n=40, **columns):
    return pd.DataFrame(
        {"x": np.random.default_rng(0).normal(size=n), "y": np.arange(n) % 2, "site": np.arange(n) // 2 % 2} | columns
    )


def refused(path, asked=ASKED):
    with pytest.raises(InputError) as caught:
        load_data(f"table:{path}", asked)
    message = str(caught.value)
    assert "\n" not in message
    assert path.name in message
    return message


def schema_of(**columns) -> Schema:
    n = len(next(iter(columns.values())))
    frame = pd.DataFrame({**columns, "y": np.arange(n) % 2, "site": np.arange(n) % 3})
    return infer_schema(frame, "y", "site")


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
