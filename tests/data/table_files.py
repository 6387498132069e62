"""A small table, as a file."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from transferrisk.data import Options, load_data
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
