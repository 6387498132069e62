"""Columns become the features one computes by hand, or those of scikit-learn."""

from __future__ import annotations

import datetime as dt
import math
import warnings
from decimal import Decimal

import numpy as np
import pandas as pd
import pytest
from schemas import encoded, schema_of
from sklearn.impute import SimpleImputer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from transferrisk.data.columns import Categorical, Date
from transferrisk.data.values import as_codes, as_name
from transferrisk.errors import InputError


def test_numbers_by_hand():
    found = encoded(x=[1.0, 3.0, np.nan, 5.0, 11.0])  # median 4, mean of the filled 4.8
    filled = np.array([1, 3, 4, 5, 11])
    assert list(found) == ["x", "x (missing)"]
    assert found["x"] == pytest.approx((filled - 4.8) / math.sqrt(((filled - 4.8) ** 2).mean()))
    assert found["x (missing)"] == [0, 0, 1, 0, 0]


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
