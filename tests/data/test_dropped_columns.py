"""Columns that are no features, and those that are with a remark."""

from __future__ import annotations

import datetime as dt

import numpy as np
import pandas as pd
import pytest
import torch
from schemas import encoded, schema_of


def test_columns_that_cannot_be_features():
    n = 120
    schema = schema_of(
        x=np.arange(n) ** 2,
        same=["a"] * n,
        one=[1] * n,
        true=[True] * n,
        day=["2020-01-01"] * n,
        none=[None] * n,
        nans=[np.nan] * n,
        blanks=[" "] * n,
        name=[f"person {i}" for i in range(n)],
        count=np.arange(n) + 1000,
        raw=[b"a", b"b"] * 60,
        vectors=[[1, 2], [3]] * 60,
        at=[dt.time(1), dt.time(2)] * 60,
        typo=[*map(str, np.random.default_rng(0).random(n - 1)), "oops"],
    )
    assert [column.name for column in schema.columns] == ["x"]
    assert schema.dropped == {
        "same": "constant",
        "one": "constant",
        "true": "constant",
        "day": "constant",
        "none": "every value is missing",
        "nans": "every value is missing",
        "blanks": "every value is missing",
        "name": "120 different texts in 120 rows",
        "count": "it counts the rows",
        "raw": "it holds bytes values",
        "vectors": "it holds list values",
        "at": "it holds time values",
        "typo": "120 different texts in 120 rows, numbers but for 'oops' in row 120",
    }


def test_constant_but_for_missing_values_says_where_they_are():
    assert encoded(x=[5.0, np.nan, 5.0]) == {"x (missing)": [0, 1, 0]}
    assert encoded(d=["2020-01-01", None, "2020-01-01"]) == {"d (missing)": [0, 1, 0]}


def test_numbers_with_a_text_among_them():
    schema = schema_of(code=["1", "2", "3", "1", "2", "3", "1", "2", "3", "1", "V7"])
    assert schema.columns[0].categories == ("1", "2", "3", "V7")
    assert schema.remarks == {"code": "numbers but for 'V7' in row 11, and is taken as categories"}
    assert schema.encode(pd.DataFrame({"code": [2.0, np.nan]})).features[0].tolist() == [0, 1, 0, 0]


def test_label_and_environment_are_no_features():
    schema = schema_of(x=[1, 2, 4])
    frame = pd.DataFrame({"x": [1, 2, 4], "y": [5, 6, 7], "site": [8, 9, 9]})
    assert schema.feature_names == ("x",)
    assert torch.equal(schema.encode(frame).features, schema.encode(frame[["x"]]).features)
    assert schema.encode(frame).notes == ()


RISING = np.cumsum(np.random.default_rng(0).integers(1, 9, 40)) + 2**60  # apart in digits that floats do not hold


@pytest.mark.parametrize("name", ["id", "patient_id", "PatientID", "subjectid", "Index", "key", "Nr", "number"])
@pytest.mark.parametrize("values", [RISING, RISING[::-1], [None, *RISING.tolist()]])
def test_identifiers_with_gaps_are_no_features(name, values):
    schema = schema_of(x=np.arange(len(values)) % 7, **{name: pd.Series(values, dtype="Int64")})
    assert [column.name for column in schema.columns] == ["x"]
    assert schema.dropped == {name: "an identifier by its name, with another number in order in every row"}


def test_what_only_may_be_an_identifier_stays_with_a_remark():
    shuffled = np.random.default_rng(1).permutation(RISING)
    schema = schema_of(
        seconds=RISING,
        id=shuffled,
        idle=RISING,
        grid_id=RISING % 7,  # not one for each row
        paid=(RISING - RISING[0]) + 0.5,
        index=np.r_[RISING[:-1], RISING[0]],
    )
    assert [column.name for column in schema.columns] == ["seconds", "id", "idle", "grid_id", "paid", "index"]
    remark = "whole numbers, another one in every row: leave it out if they only name the rows"
    assert schema.remarks == dict.fromkeys(["seconds", "id", "idle"], remark)
    assert schema_of(id=[3, 5, 9, 20, 21] * 4).remarks == {}
    few = schema_of(id=np.arange(20) * 3)
    assert (len(few.columns), few.remarks) == (1, {})
