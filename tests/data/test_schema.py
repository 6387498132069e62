"""Later tables give the same features, and schemas survive JSON exactly."""

from __future__ import annotations

import json
import math

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from schemas import MIXED, schema_of

from transferrisk.data.columns import Boolean, Categorical, Date, Note, Numeric
from transferrisk.data.schema import Schema
from transferrisk.errors import InputError


def test_columns_absent_extra_and_in_another_order():
    schema = schema_of(**MIXED, same=[1] * 4)
    frame = pd.DataFrame(MIXED)
    whole = schema.encode(frame).features
    assert torch.equal(schema.encode(frame[frame.columns[::-1]]).features, whole)
    more = schema.encode(frame.assign(extra=1, other="a", same=1))
    assert torch.equal(more.features, whole)
    assert more.notes == (Note("unused columns", values=("extra", "other")),)

    less = schema.encode(frame[["z"]])
    assert less.notes == (Note("missing columns", values=tuple("xbcmd")),)
    nothing = {"x": np.nan, "b": None, "c": None, "m": None, "d": None}
    filled = schema.encode(frame.assign(**nothing).astype(dict.fromkeys("bcmd", object)))
    assert torch.equal(less.features, filled.features)
    by_name = dict(zip(less.names, less.features[0].tolist(), strict=True))
    assert by_name["x"] == pytest.approx((2 - 2.25) / math.sqrt((1.25**2 + 2 * 0.25**2 + 1.75**2) / 4))
    assert (by_name["x (missing)"], by_name["m (missing)"], by_name["b"]) == (1, 1, 1)
    assert [by_name[f"c={category}"] for category in "uvw"] == [0, 0, 0]
    assert filled.notes == (
        Note("missing values", "b", 4, used="more frequent value True"),
        Note("missing values", "c", 4),
        Note("missing values", "d", 4, used="median date"),
    )


def test_unseen_categories_are_said():
    schema = schema_of(**MIXED)
    result = schema.encode(pd.DataFrame(MIXED).assign(c=["u", "new", "new", "newer"], m=["u", None, "w", "w"]))
    assert result.notes == (Note("unseen categories", "c", 3, ("new", "newer")),)
    columns = [result.names.index(f"c={category}") for category in "uvw"]
    assert result.features[:, columns].sum(1).tolist() == [1, 0, 0, 0]


@pytest.mark.parametrize(
    ("note", "sentence"),
    [
        (Note("unused columns", values=("a", "b")), "columns not used: 'a', 'b'"),
        (Note("missing columns", values=("a",)), "missing columns, taken as missing values: 'a'"),
        (
            Note("unseen categories", "c", 3, ("new", "newer")),
            "column 'c' has 3 rows with categories not seen before ('new', 'newer'): all its features are 0 there",
        ),
        (
            Note("missing values", "b", 1, used="median 2"),
            "column 'b' has 1 missing value, where there were none before: the median 2 is used",
        ),
    ],
)
def test_notes_in_words(note, sentence):
    assert str(note) == sentence


def test_notes_of_parts_of_a_file_add_up():
    first = Note("unseen categories", "c", 3, ("new", "newer"))
    second = Note("unseen categories", "c", 2, ("newest", "new"))
    assert first.key == second.key != Note("missing values", "c", 1).key
    assert first + second == Note("unseen categories", "c", 5, ("new", "newer", "newest"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"z": ["1", "two", "3", "4"]}, "column 'z' has 'two' in row 2, which is not a number: correct the file"),
        ({"z": [1.0, 2.0, np.inf, 1]}, "column 'z' has inf in row 3, which is infinite or too large"),
        ({"z": [1.0, 2.0, 1, 1e300]}, "column 'z' has 1e+300 in row 4, which is infinite or too large"),
        ({"z": pd.to_datetime(["2020-01-01"] * 4)}, "column 'z' has '2020-01-01' in row 1, which is not a number"),
        ({"d": ["2020-01-01", "May", "", ""]}, "column 'd' has 'May' in row 2, which is not a date such as 2024-05-31"),
        ({"d": [1, 2, 3, 4]}, "column 'd' has '1' in row 1, which is not a date"),
        ({"b": [[1]] * 4}, "column 'b' has '[1]' in row 1, which is not true or false"),
        ({"c": [[1]] * 4}, "column 'c' must hold categories, got list values"),
    ],
)
def test_wrong_types(change, message):
    with pytest.raises(InputError) as caught:
        schema_of(**MIXED).encode(pd.DataFrame({**MIXED, **change}))
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_texts_that_are_numbers_are_taken():
    schema = schema_of(**MIXED)
    texts = pd.DataFrame({**MIXED, "z": ["3", "1", " 4", "1.0"], "x": ["1", "2", None, "4"]})
    assert torch.equal(schema.encode(texts).features, schema.encode(pd.DataFrame(MIXED)).features)


def test_infer_refuses():
    with pytest.raises(InputError, match=r"column 'x' has inf in row 2, which is not a number"):
        schema_of(x=[1.0, np.inf, 2.0])
    with pytest.raises(InputError, match=r"no column can be a feature: 'x' \(constant\)"):
        schema_of(x=[1, 1, 1])
    with pytest.raises(InputError, match="there is none beside label and environment"):
        Schema.infer(pd.DataFrame({"y": [1], "site": [1]}), "y", "site")
    with pytest.raises(InputError, match="a table of 0 rows and 3 columns"):
        Schema.infer(pd.DataFrame({"y": [], "site": [], "x": []}), "y", "site")
    with pytest.raises(InputError, match="two columns are named 'x'"):
        Schema.infer(pd.DataFrame([[1, 2, 0, 0]], columns=["x", "x", "y", "site"]), "y", "site")


def test_no_rows_can_be_encoded():
    schema = schema_of(**MIXED)
    assert schema.encode(pd.DataFrame(MIXED).iloc[:0]).features.shape == (0, len(schema.feature_names))


def test_json_and_back():
    schema = schema_of(**MIXED, same=[1] * 4, code=pd.Series(["0.1"] * 4))
    again = Schema.from_dict(json.loads(json.dumps(schema.to_dict(), allow_nan=False)))
    assert again == schema
    assert {type(column) for column in again.columns} == {Numeric, Boolean, Categorical, Date}
    assert again.to_dict() == schema.to_dict()
    frame = pd.DataFrame(MIXED)
    assert torch.equal(again.encode(frame).features, schema.encode(frame).features)


@given(st.lists(st.floats(allow_nan=True, allow_infinity=False), min_size=2, max_size=30))
def test_any_numbers_survive_json_and_give_finite_features(values):
    frame = pd.DataFrame({"x": values, "w": np.arange(len(values)) % 2})
    schema = Schema.infer(frame, "y", "site")
    features = schema.encode(frame).features
    assert bool(features.isfinite().all())
    assert Schema.from_dict(json.loads(json.dumps(schema.to_dict()))) == schema


@pytest.mark.parametrize("damage", ["version", "columns", "kind", "extra"])
def test_damaged_schemas_are_refused(damage):
    content = schema_of(**MIXED).to_dict()
    if damage in ("version", "columns"):
        del content[damage]
    else:
        content["columns"][0][damage] = "odd"
    with pytest.raises(InputError, match="schema"):
        Schema.from_dict(content)
