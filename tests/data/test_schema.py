"""Columns become the features one computes by hand; later tables give the same ones; schemas survive JSON exactly."""

from __future__ import annotations

import datetime as dt
import json
import math
import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from table_files import MIXED, encoded, schema_of

from transferrisk.data import values as module
from transferrisk.data.infer import Declared, infer_schema, read_declared
from transferrisk.data.schema import Boolean, Categorical, Date, Note, Numeric, Schema
from transferrisk.data.values import Standardise, as_codes, as_name, moments
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
        infer_schema(pd.DataFrame({"y": [1], "site": [1]}), "y", "site")
    with pytest.raises(InputError, match="a table of 0 rows and 3 columns"):
        infer_schema(pd.DataFrame({"y": [], "site": [], "x": []}), "y", "site")
    with pytest.raises(InputError, match="two columns are named 'x'"):
        infer_schema(pd.DataFrame([[1, 2, 0, 0]], columns=["x", "x", "y", "site"]), "y", "site")


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
    schema = infer_schema(frame, "y", "site")
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


@pytest.mark.parametrize("dtype", ["int64", "float32", "float64", "Int64", "Float64", "uint8", "object"])
def test_numbers_like_scikit_learn(dtype):
    values = np.random.default_rng(0).integers(0, 200, 300)
    series = pd.Series(values).astype(dtype)
    truth = StandardScaler().fit_transform(values[:, None].astype(float))[:, 0]
    assert encoded(x=series)["x"] == pytest.approx(truth, abs=1e-6)


def test_missing_numbers_like_scikit_learn():
    values = np.random.default_rng(1).normal(50, 3, (400, 1))
    values[np.random.default_rng(2).random(400) < 0.2] = np.nan
    truth = make_pipeline(SimpleImputer(strategy="median"), StandardScaler()).fit_transform(values)
    schema = schema_of(x=values[:, 0])
    features = schema.encode(pd.DataFrame({"x": values[:, 0]})).features
    np.testing.assert_allclose(features[:, 0], truth[:, 0], atol=1e-6)
    np.testing.assert_array_equal(features[:, 1], np.isnan(values[:, 0]))


@pytest.mark.parametrize("values", [[1.7e308, -1.7e308, 1e308], [5e-324, 0.0, 1e-300], [1e-200, 2e-200, 4e-200]])
def test_extreme_numbers_stay_finite(values):
    schema = schema_of(x=values, z=[1, 2, 4])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        features = schema.encode(pd.DataFrame({"x": values, "z": [1, 2, 4]})).features
    assert bool(features.isfinite().all())
    if "x" not in schema.dropped:
        np.testing.assert_allclose(features.mean(0), 0, atol=1e-6)
        np.testing.assert_allclose(features.std(0, correction=0), 1, rtol=1e-6)


def test_decimals_and_durations_are_numbers():
    assert encoded(x=pd.Series([Decimal("1.5"), Decimal("2.5")], dtype=object))["x"] == [-1, 1]
    schema = schema_of(x=pd.to_timedelta([36, 12], "h"))
    assert schema.columns[0].scaling.median == 1.0  # day


def test_booleans():
    assert encoded(b=[True, False, True]) == {"b": [1, 0, 1]}
    found = encoded(b=pd.Series([True, None, False, True], dtype=object))
    assert found == {"b": [1, 1, 0, 1], "b (missing)": [0, 1, 0, 0]}
    assert encoded(b=pd.Series([True, None, False], dtype="boolean"))["b"] == [1, 0, 0]  # a tie: false
    assert encoded(b=pd.Series([True, None, True], dtype="boolean")) == {"b (missing)": [0, 1, 0]}
    schema = schema_of(b=[True, False, True])
    for given_as in ([0, 1, 1], ["false", "TRUE", "True"], [0.0, 1.0, 1.0]):
        assert schema.encode(pd.DataFrame({"b": given_as})).features[:, 0].tolist() == [0, 1, 1]
    with pytest.raises(InputError, match=r"column 'b' has 'perhaps' in row 2, which is not true or false"):
        schema.encode(pd.DataFrame({"b": ["true", "perhaps"]}))


@pytest.mark.parametrize("dtype", [None, object, "category", "string"])
def test_categories_like_scikit_learn(dtype):
    values = np.random.default_rng(0).choice(["oak", "elm", "ash", "yew"], 200)
    truth = OneHotEncoder(sparse_output=False).fit_transform(values[:, None])
    found = encoded(tree=pd.Series(values, dtype=dtype))
    assert list(found) == ["tree=ash", "tree=elm", "tree=oak", "tree=yew"]
    np.testing.assert_array_equal(np.array(list(found.values())).T, truth)


def test_missing_is_a_category_where_it_occurred():
    assert encoded(c=["b", None, "a", " "]) == {
        "c=a": [0, 0, 1, 0],
        "c=b": [1, 0, 0, 0],
        "c (missing)": [0, 1, 0, 1],
    }


def test_yes_and_no_are_categories_and_numbers_as_categories_are_sorted_by_value():
    assert list(encoded(c=["no", "yes", "no"])) == ["c=no", "c=yes"]
    assert list(encoded(c=pd.Series([10, 9, 9], dtype="category"))) == ["c=9", "c=10"]


def test_many_categories():
    values = [f"c{i:02}" for i in range(60) for _ in range(2 if i < 50 else 3)]  # the last ten are the most frequent
    schema = schema_of(c=values)
    kept = schema.columns[0].categories
    assert len(kept) == 49
    assert kept == (*(f"c{i:02}" for i in range(39)), *(f"c{i:02}" for i in range(50, 60)))
    assert "49 most frequent" in schema.remarks["c"]
    features = schema.encode(pd.DataFrame({"c": ["c00", "c39", "never"]})).features
    assert features.shape == (3, 50)
    assert features.argmax(1).tolist() == [0, 49, 49]
    assert features.sum(1).tolist() == [1, 1, 1]


def test_dates_by_hand():
    found = encoded(d=["1970-01-05", "1970-01-12", "1972-12-31T12:00"])
    days = np.array([4, 11, 1095.5])
    assert found["d (days)"] == pytest.approx((days - days.mean()) / days.std())
    in_year = 2 * np.pi * np.array([4, 11, 365]) / 365.2425  # 1972 is a leap year
    assert found["d (sin year)"] == pytest.approx(np.sin(in_year), abs=1e-6)
    assert found["d (cos year)"] == pytest.approx(np.cos(in_year), abs=1e-6)
    in_week = 2 * np.pi * np.array([0, 0, 6]) / 7  # Monday, Monday, Sunday
    assert found["d (sin week)"] == pytest.approx(np.sin(in_week), abs=1e-6)
    assert found["d (cos week)"] == pytest.approx(np.cos(in_week), abs=1e-6)


@pytest.mark.parametrize(
    "dates",
    [
        pd.to_datetime(["2020-02-29", None, "1969-12-31"]),
        pd.to_datetime(["2020-02-29", None, "1969-12-31"], utc=True).tz_convert("Asia/Tokyo"),
        pd.Series([dt.date(2020, 2, 29), None, dt.date(1969, 12, 31)], dtype=object),
        pd.Series(["2020-02-29T00:00:00Z", None, "1969-12-31T02:00:00+02:00"]),
    ],
    ids=["naive", "with a zone", "objects", "texts"],
)
def test_dates_of_all_types_agree(dates):
    truth = encoded(d=["2020-02-29", None, "1969-12-31"])
    assert list(truth) == [
        f"d ({part})" for part in ("days", "sin year", "cos year", "sin week", "cos week", "missing")
    ]
    assert encoded(d=dates) == truth


def test_what_only_resembles_a_date():
    for values in (["2020", "2021", "2022"], ["2020-13-01", "2020-01-01", "2021-01-01"], ["2020-01-01", "x", "y"]):
        assert isinstance(schema_of(d=values).columns[0], Categorical)
    assert isinstance(schema_of(d=["0001-01-01", "9999-12-31"]).columns[0], Date)


def test_differences_of_large_numbers_are_no_warning():
    found = encoded(x=[1e308, -1e308] * 30)  # 60 rows: looked at for whether they count the rows
    assert found["x"] == pytest.approx([1.0, -1.0] * 30)


def test_dates_beyond_the_calendar_of_python():
    stamps = np.array([-(2**31), 2**31 - 1, 0, 18], "datetime64[D]").astype("datetime64[ms]")
    days = np.array([-(2**31), 2**31 - 1, 0, 18])
    found = encoded(x=stamps)
    assert found["x (days)"] == pytest.approx((days - days.mean()) / days.std(), abs=1e-6)
    assert found["x (sin week)"][3] == pytest.approx(0.0)  # 19 January 1970 was a Monday
    assert found["x (cos week)"][3] == pytest.approx(1.0)


@pytest.mark.parametrize(
    "values",
    [
        np.array(["-5877641-06-23", "5881580-07-11", "2024-05-31"], "datetime64[ms]"),
        np.array(["2024-05-31T01:02:03.123456789", "2024-05-31"], "datetime64[ns]"),
        np.array([2**62, 0, 90_000], "timedelta64[s]"),
    ],
    ids=["far dates", "nanoseconds", "durations"],
)
def test_names_are_the_same_however_a_column_is_read(values):
    series = pd.Series(values)
    codes, names = as_codes(series, as_name)
    assert [names[code] for code in codes] == [as_name(value) for value in series.astype(object)]
    assert len(names) == len(values)


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
    assert "--missing oops" in schema.dropped["typo"]
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
        "typo": schema.dropped["typo"],
    }


def test_a_few_texts_in_a_column_of_numbers_are_named_with_the_option_that_takes_them_as_missing():
    years = [*map(str, range(1950, 1980)), *["unknown"] * 20, "n/a"]
    assert "--missing n/a,unknown" in schema_of(year=years).remarks["year"]
    assert "--missing" not in schema_of(grade=[*"1234"] * 10 + ["A", "B", "C", "D"]).remarks.get("grade", "")


def test_constant_but_for_missing_values_says_where_they_are():
    assert encoded(x=[5.0, np.nan, 5.0]) == {"x (missing)": [0, 1, 0]}
    assert encoded(d=["2020-01-01", None, "2020-01-01"]) == {"d (missing)": [0, 1, 0]}


def test_numbers_with_a_text_among_them():
    schema = schema_of(code=["1", "2", "3", "1", "2", "3", "1", "2", "3", "1", "V7"])
    assert schema.columns[0].categories == ("1", "2", "3", "V7")
    assert "'V7' in row 11" in schema.remarks["code"]
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


ROWS = np.random.default_rng(0).normal(3, [1.0, 1e-3, 1e3], (50, 3))


@pytest.mark.parametrize("chunk", [1, 30, 1 << 20])
def test_weights_count_as_repetitions(monkeypatch, chunk):
    monkeypatch.setattr(module, "_CHUNK", chunk)
    times = np.arange(len(ROWS)) % 3
    repeated = np.repeat(ROWS, times, axis=0)
    np.testing.assert_allclose(moments(ROWS, times * 1.0), (repeated.mean(0), repeated.std(0)))
    np.testing.assert_allclose(moments(ROWS), (ROWS.mean(0), ROWS.std(0)))


@pytest.mark.parametrize("size", [1e-200, 1e200, 5e307])
def test_nothing_overflows(size):
    unit = ROWS / np.abs(ROWS).max(0)
    np.testing.assert_allclose(moments(unit * size), (unit.mean(0) * size, unit.std(0) * size))


@pytest.mark.parametrize(("dtype", "step"), [(np.float32, 1e-7), (np.float64, 1e-15)])
def test_a_column_that_varies_by_rounding_alone_is_constant(dtype, step):
    rows = np.outer([1, 1 + step, 1, 1 + 100 * step], [0.1, 1000, 0]).astype(dtype)
    mean, scale = moments(rows[:3])
    np.testing.assert_array_equal(mean, rows[0])
    np.testing.assert_array_equal(scale, 0)
    assert (moments(rows)[1] > 0).tolist() == [True, True, False]
    assert (moments(rows[:3], rounding=0)[1] > 0).tolist() == [True, True, False]
    np.testing.assert_array_equal(moments(np.array([[5e-324], [0.0]]))[1], 0)  # nothing that can be divided by


@pytest.mark.parametrize("size", [1.0, 1e-200, 1e200])
def test_standardise(size):
    rows = np.column_stack([ROWS / 1e3 * size, np.full(len(ROWS), 7.0)])
    standardise = Standardise.fit(rows, dtype=torch.float64)
    found = standardise(torch.from_numpy(rows)).numpy()
    np.testing.assert_allclose(found[:, :3], (ROWS - ROWS.mean(0)) / ROWS.std(0), rtol=1e-9, atol=1e-9)
    np.testing.assert_array_equal(found[:, 3], 0)
    other = Standardise(torch.zeros(4), torch.ones(4), torch.float64)
    assert torch.equal(other(torch.eye(4, dtype=torch.float64)), torch.eye(4, dtype=torch.float64))
    other.load_state_dict(standardise.state_dict())
    assert torch.equal(other(torch.from_numpy(rows)), standardise(torch.from_numpy(rows)))
    assert Standardise.fit(rows)(torch.from_numpy(rows)).dtype == torch.float32


def declared_schema(columns, kinds=None, **said):
    frame = pd.DataFrame(columns)
    return infer_schema(frame.assign(y=0, site=0), "y", "site", Declared(kinds or {}, **said)), frame


def test_declared_kinds_go_before_what_values_suggest():
    random = np.random.default_rng(0)
    columns = {
        "code": random.integers(1, 5, 60),
        "text": random.integers(0, 900, 60).astype(str),
        "row": np.arange(60),
        "flag": random.integers(0, 2, 60).astype(str),
        "day": [f"2020-01-{i % 28 + 1:02}" for i in range(60)],
        "gone": random.normal(size=60),
    }
    kinds = {"code": "categorical", "text": "numeric", "row": "numeric", "flag": "boolean", "day": "categorical"}
    schema, frame = declared_schema(columns, {**kinds, "gone": "drop"})
    assert {column.name: column.kind for column in schema.columns} == kinds
    assert list(schema.dropped) == ["gone"]
    assert not schema.remarks
    features = dict(zip(schema.feature_names, schema.encode(frame).features.numpy().T, strict=True))
    codes = OneHotEncoder(sparse_output=False).fit_transform(columns["code"][:, None])
    np.testing.assert_array_equal(np.stack([features[f"code={i}"] for i in range(1, 5)], 1), codes)
    numbers = StandardScaler().fit_transform(columns["text"].astype(float)[:, None])[:, 0]
    np.testing.assert_allclose(features["text"], numbers, atol=1e-6)
    np.testing.assert_array_equal(features["flag"], columns["flag"].astype(float))
    assert sum(name.startswith("day=") for name in features) == 28
    assert schema.encode(frame.assign(gone=1)).notes == ()


@pytest.mark.parametrize(("kind", "what"), [("numeric", "a number"), ("date", "a date"), ("boolean", "true or false")])
def test_a_column_that_is_not_what_is_said_is_refused_with_its_row(kind, what):
    with pytest.raises(InputError, match=rf"column 'x' has 'many' in row 3, which is not {what}"):
        declared_schema({"x": ["1" if kind != "date" else "2020-01-01"] * 2 + ["many"]}, {"x": kind})
    with pytest.raises(InputError, match="column 'x' must hold categories, got list values"):
        declared_schema({"x": [[1], [2]]}, {"x": "categorical"})


def test_without_indicators_like_scikit_learn_and_the_same_for_trees():
    random = np.random.default_rng(1)
    numbers, letters = random.normal(size=(300, 1)), random.choice(["a", "b", "b", "c"], (300, 1)).astype(object)
    numbers[random.random(300) < 0.3], letters[random.random(300) < 0.3] = np.nan, np.nan
    columns = {"x": numbers[:, 0], "c": letters[:, 0], "same": np.where(np.arange(300) % 2, np.nan, 4.0)}
    schema, frame = declared_schema(columns)
    bare = schema.without_indicators()
    assert bare.feature_names == ("x", "c=a", "c=b", "c=c")
    assert list(bare.dropped) == ["same"]
    assert declared_schema(columns, others="never")[0] == bare
    scaled = make_pipeline(SimpleImputer(strategy="median"), StandardScaler()).fit_transform(numbers)
    filled = make_pipeline(SimpleImputer(strategy="most_frequent"), OneHotEncoder(sparse_output=False))
    found = bare.encode(frame)
    assert found.notes == ()
    np.testing.assert_allclose(found.features, np.hstack([scaled, filled.fit_transform(letters)]), atol=1e-6)
    whole, fewer = (one.encode(frame, "columns").features for one in (schema, bare))
    np.testing.assert_array_equal(fewer, whole[:, :2])
    assert fewer[:, 0].isnan().tolist() == np.isnan(numbers[:, 0]).tolist()
    assert schema.without_indicators(["x"]).feature_names == ("x", "x (missing)", "c=a", "c=b", "c=c")
    with pytest.raises(InputError, match=r"no column can be a feature: 'same' \(constant but for missing values\)"):
        declared_schema({"same": columns["same"]}, others="never")


def test_what_a_schema_declares_gives_it_again(tmp_path):
    columns = {**MIXED, "same": [1] * 4, "n": [1.5, np.nan, 2.0, 3.0]}
    schema, frame = declared_schema(columns, {"z": "categorical"}, indicators={"n": False})
    file = tmp_path / "schema.json"
    file.write_text(json.dumps(schema.declaration()))
    said = read_declared(file)
    assert said.kinds["z"] == "categorical"
    assert (said.indicators["n"], said.indicators["x"]) == (False, True)
    again = infer_schema(frame.assign(y=0, site=0), "y", "site", said)
    assert again.columns == schema.columns
    assert again.dropped.keys() == schema.dropped.keys()
    edited = {"x": {"missing_indicator": False}, "c": {"kind": "drop"}}
    file.write_text(json.dumps(schema.declaration() | edited))
    names = infer_schema(frame.assign(y=0, site=0), "y", "site", read_declared(file)).feature_names
    assert names == tuple(one for one in schema.feature_names if one != "x (missing)" and not one.startswith("c="))


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("", "is empty"),
        ("{", "is not JSON"),
        ("[1]", "got a list"),
        ('{"version": 2}', "got 2 for 'version'"),
        ('{"x": {"kind": "number"}}', "kind of column 'x' must be"),
        ('{"x": {"kinds": "numeric"}}', "unknown key 'kinds' of column 'x': did you mean 'kind'?"),
        ('{"x": {"missing_indicator": "no"}}', "missing_indicator of column 'x' must be"),
    ],
)
def test_a_wrong_file_is_one_clear_line(tmp_path, content, told):
    (tmp_path / "schema.json").write_text(content)
    with pytest.raises(InputError) as caught:
        read_declared(tmp_path / "schema.json")
    assert told in str(caught.value)
    assert "schema.json" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_percentages_are_numbers_and_other_forms_are_told_with_the_way_out():
    shares = [f"{7 * i % 60}.5%" for i in range(60)]
    schema = schema_of(share=shares, comma=[f"0,{i}" for i in range(10, 70)], day=["03/04/2021", "05/06/2022"] * 30)
    assert isinstance(schema.columns[0], Numeric)
    found = schema.encode(pd.DataFrame({"share": [" 12.5 %", None]})).features[:, 0]
    assert schema.columns[0].scaling.median == 30
    assert found[0] == pytest.approx((12.5 - 30) / np.std(np.arange(60)))
    with pytest.raises(InputError, match=r"'share'.*'half'"):
        schema.encode(pd.DataFrame({"share": ["12%", "half"]}))
    assert "0.52" in schema.dropped["comma"]
    assert "--dates" in schema.remarks["day"]


def test_a_column_of_frequent_categories_that_are_all_new_is_told():
    codes = [f"c{i % 60}" for i in range(240)]
    schema = schema_of(code=codes)
    assert schema.columns[0].other
    assert schema.encode(pd.DataFrame({"code": codes})).notes == ()
    (note,) = schema.encode(pd.DataFrame({"code": [f"other {i}" for i in range(30)]})).notes
    assert (note.kind, note.column, note.count) == ("unseen categories", "code", 30)
