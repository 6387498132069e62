"""Samples as they are given: types, containers, scales, and what is refused."""

from __future__ import annotations

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from audited import RIDGE, problem

from transferrisk import audit
from transferrisk.auditing.samples import arrange_samples
from transferrisk.errors import InputError


def test_names_types_and_containers_change_nothing(case):
    X, y, e, held, found = case
    names = np.array(["cat", "dog", "owl"])[y]
    sites = [f"site {'ABC'[i]}" for i in e]
    again = audit(pd.DataFrame(X), list(names), pd.Series(sites), ridge=RIDGE, folds=held, bootstrap=50)
    assert (again.environments, again.classes) == (("site A", "site B", "site C"), ("cat", "dog", "owl"))
    np.testing.assert_array_equal(again.loss.value, found.loss.value)
    tensors = audit(*map(torch.from_numpy, (X, y, e)), ridge=RIDGE, folds=held, bootstrap=50)
    np.testing.assert_array_equal(tensors.loss.high, found.loss.high)
    assert tensors.environments == (0, 1, 2)
    columns = pl.Series(names), pl.Series(sites, dtype=pl.Categorical)
    from_polars = audit(pl.DataFrame(X), *columns, ridge=RIDGE, folds=held, bootstrap=50)
    assert (from_polars.environments, from_polars.classes) == (again.environments, again.classes)
    np.testing.assert_array_equal(from_polars.loss.value, found.loss.value)


def test_float32_agrees_with_float64():
    """More than a million numbers are kept in the type they come in."""
    X, y, e = problem(n=40_000, d=26)
    double, single = (
        audit(X.astype(dtype), y, e, ridge=RIDGE, folds=2, bootstrap=2) for dtype in (np.float64, np.float32)
    )
    np.testing.assert_allclose(single.loss.value, double.loss.value, atol=3e-3)
    assert not np.array_equal(single.loss.value, double.loss.value)


def test_constant_columns_and_scales_do_not_matter():
    X, y, e = problem()
    usual = audit(X, y, e, ridge=RIDGE, bootstrap=5)
    moved = audit(np.c_[X * [1, 1e200, 1e3, 1e-3, 1] + 7, np.full(len(y), 1e3)], y, e, ridge=RIDGE, bootstrap=5)
    np.testing.assert_allclose(usual.loss.value, moved.loss.value, atol=1e-5)
    raw = audit(X, y, e, ridge=RIDGE, bootstrap=5, standardise=False)
    assert np.abs(raw.loss.value - usual.loss.value).max() > 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"environments": np.zeros(60)}, "environments must hold two"),
        ({"labels": np.zeros(60)}, "labels must hold two"),
        ({"labels": np.zeros(59)}, "60 rows"),
        ({"labels": 3}, "labels must .* got int"),
        ({"labels": [None] * 60}, "labels are missing, first in row 1"),
        ({"features": np.full((60, 5), np.nan)}, "features.* first in row 1"),
        ({"features": np.zeros(60)}, r"features.* got \(60,\)"),
        ({"features": np.full((60, 2), "x")}, "features must be numbers"),
        ({"folds": 1}, "folds must be .* got 1"),
        ({"folds": np.zeros(60, int)}, "folds must name two"),
        ({"folds": np.zeros(3)}, r"folds must be .* got float64 of shape \(3,\)"),
        ({"environments": "site"}, "environments .* 60 .*'site'"),
        ({"labels": "y"}, "labels .* 60 .*'y'"),
        (
            {"environments": pd.DataFrame({"site": [0] * 60, "year": [1] * 60})},
            r"environments .* DataFrame.* \(60, 2\)",
        ),
        ({"ridge": 0.0}, "ridge must be .* got 0.0"),
        ({"bootstrap": 0}, "bootstrap must be .* got 0"),
        ({"confidence": 1.0}, "confidence must be .* got 1.0"),
        ({"seed": -1}, "seed must be .* got -1"),
    ],
)
def test_bad_arguments_are_refused_in_one_line(change, message):
    X, y, e = problem(n=60)
    with pytest.raises(InputError, match=message) as error:
        audit(**({"features": X, "labels": y, "environments": e} | change))
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint32])
def test_large_whole_numbers_keep_their_digits(kind):
    given = (1_700_000_000 + np.arange(40)[:, None]).astype(kind)
    kept = arrange_samples(given, np.arange(40) % 2, np.repeat([0, 1], 20), 2, 0, False).rows[:, :-1]
    np.testing.assert_array_equal(np.sort(kept.numpy(), 0), given)


def test_texts_that_are_numbers_are_in_the_order_of_numbers():
    features, labels, environments = problem(n=120)
    names = np.array([1, 2, 10])
    texts = [
        arrange_samples(features, names[labels].astype(t), names[environments].astype(t), 3, 0, True)
        for t in (str, int)
    ]
    assert texts[0].environments == texts[0].classes == ("1", "2", "10")
    assert torch.equal(texts[0].rows, texts[1].rows)
    assert torch.equal(texts[0].labels, texts[1].labels)
    words = arrange_samples(features, labels, np.array(["1", "10", "b"])[environments], 3, 0, True)
    assert words.environments == ("1", "10", "b")
