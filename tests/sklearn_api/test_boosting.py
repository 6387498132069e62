"""Boosted trees: with weighted environments, by the formula, and with a head that transfers, by its objective."""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.metrics import log_loss

from transferrisk import TransferRisk
from transferrisk.errors import InputError
from transferrisk.functional import optimal_predictor
from transferrisk.sklearn import BoostingClassifier, LeafTransferClassifier
from transferrisk.sklearn.boosting import SMALL_TREES

FEW = {"max_iter": 24, "max_leaf_nodes": 4}


def sites(shares, seed, rows=400):
    """Two columns that tell the label everywhere, and one that agrees with it in a share of each site's rows."""
    random = np.random.default_rng(seed)
    y = random.integers(2, size=rows * len(shares))
    site = np.repeat(np.arange(len(shares)), rows)
    stable = random.normal(size=(len(y), 2)) + 1.2 * (y[:, None] - 0.5)
    agrees = np.where(random.random(len(y)) < np.asarray(shares)[site], y, 1 - y) + 0.3 * random.normal(size=len(y))
    return np.column_stack([stable, agrees]).astype(np.float32), y, site


def test_parameters_reach_scikit_learn():
    X, y, site = sites([0.9, 0.6], 0)
    expected = HistGradientBoostingClassifier(random_state=0, **FEW).fit(X.astype(float), y)
    found = BoostingClassifier(params=FEW, random_state=0).fit(X, y, environments=site)
    np.testing.assert_allclose(found.predict_proba(X), expected.predict_proba(X.astype(float)), atol=1e-6)


def test_environments_are_weighted_by_exponentiated_gradient():
    """The weights by the formula, from the losses that the first ten and twenty of the fitted trees have."""
    X, y, site = sites([0.95, 0.9, 0.5], 0)
    X, y, site = X[200:], y[200:], site[200:]  # environments of unequal size
    found = BoostingClassifier(params=FEW, environments_lr=2.0, random_state=0).fit(X, y, environments=site)
    trees, start = found.model_.featuriser, found.model_.head.bias[1]
    leaves = trees.value[trees.final_nodes(torch.from_numpy(X))].squeeze(2)  # (n, T)
    gains = np.zeros(3)
    for grown in (10, 20):
        chances = torch.sigmoid(start + leaves[:, :grown].sum(1)).numpy()
        losses = -np.log(np.where(y == 1, chances, 1 - chances))
        gains += [losses[site == e].mean() for e in range(3)]
    weights = np.bincount(site) * np.exp(2.0 * gains)
    np.testing.assert_allclose(found.environment_weights_, weights / weights.sum(), rtol=1e-5)
    assert found.environment_weights_[2] > 0.45  # of 0.4 of the rows


@pytest.mark.parametrize("distinct", [9, 5000])
def test_weights_that_hardly_move_give_the_trees_of_scikit_learn(distinct):
    """Columns are cut before scikit-learn sees them: with few values at the same places, else at about the same."""
    X, y, site = sites([0.9, 0.8, 0.7], 2, rows=2000)
    X = np.round(X * distinct / 8) * 8 / distinct
    X[::7, 1] = np.nan
    plain, moved = (
        BoostingClassifier(params=SMALL_TREES, environments_lr=rate, random_state=0).fit(X, y, environments=site)
        for rate in (0.0, 1e-12)
    )
    off = abs(plain.predict_proba(X) - moved.predict_proba(X))
    assert (off.max() < 1e-9) if distinct == 9 else (off.mean() < 0.02)


def test_weighting_lowers_the_loss_of_the_worst_environment():
    X, y, site = sites([0.95, 0.95, 0.95, 0.1], 1)
    losses = []
    for rate in (0.0, 2.0):
        found = BoostingClassifier(params=FEW, environments_lr=rate, random_state=0).fit(X, y, environments=site)
        losses.append(log_loss(y[site == 3], found.predict_proba(X[site == 3])))
    assert losses[1] < losses[0] - 0.05


def test_lightgbm_does_not_weight_environments():
    pytest.importorskip("lightgbm", reason="comes with the extra boosting")
    with pytest.raises(InputError, match="environments_lr must be 0 with lightgbm, got 1"):
        BoostingClassifier("lightgbm", environments_lr=1.0).fit(*sites([0.9, 0.6], 0)[:2])


def test_leaves_that_do_not_transfer_lose_their_scale():
    X, y, site = sites([0.9, 0.7, 0.3], 100)
    unseen, labels, _ = sites([0.05], 101, rows=2000)
    plain = BoostingClassifier(params=SMALL_TREES, random_state=0).fit(X, y, environments=site)
    found = LeafTransferClassifier(random_state=0).fit(X, y, environments=site)
    assert found.scales_[2] < 0.2
    assert min(found.scales_[0], found.scales_[1]) > 0.8
    right = [(one.predict(unseen) == labels).mean() for one in (plain, found)]
    assert right[1] > right[0] + 0.05


def test_scales_lower_the_objective_and_the_head_is_the_optimum():
    """On few rows all of them are looked at: the objective by public functions, at the scales and without them."""
    X, y, site = sites([0.9, 0.7, 0.3], 102)
    found = LeafTransferClassifier(random_state=0).fit(X, y, environments=site)
    grown = BoostingClassifier(params=SMALL_TREES, random_state=0).fit(X, y, environments=site).model_.featuriser
    z = grown.column_shares(torch.from_numpy(X), 3)[1].squeeze(2)
    z = z - z.mean(0)
    labels, environments = torch.from_numpy(y), torch.from_numpy(site)
    risk = TransferRisk(found.ridge, weights="worst", num_classes=2)

    def objective(scale):
        W = optimal_predictor(z * scale, labels, 2, found.ridge)
        loss = torch.nn.functional.cross_entropy(z * scale @ W[:, :-1].mT + W[:, -1], labels)
        return float(loss + found.transfer_weight * risk(z * scale, labels, environments).risk), W

    scale = torch.from_numpy(found.scales_)
    (value, W), (before, _) = objective(scale), objective(torch.ones_like(scale))
    assert value < before - 0.02
    expected = z * scale @ W[:, :-1].mT + W[:, -1]
    torch.testing.assert_close(found.model_(torch.from_numpy(X)), expected, atol=1e-6, rtol=0)


def test_leaves_that_transfer_lose_nothing():
    X, y, site = sites([0.8, 0.8, 0.8], 103)
    unseen, labels, _ = sites([0.8], 104, rows=2000)
    plain = BoostingClassifier(params=SMALL_TREES, random_state=0).fit(X, y, environments=site)
    found = LeafTransferClassifier(random_state=0).fit(X, y, environments=site)
    assert log_loss(labels, found.predict_proba(unseen)) < log_loss(labels, plain.predict_proba(unseen)) + 0.01


@pytest.mark.parametrize("site", [None, np.repeat([0, 1], [1190, 10])])
def test_without_two_large_environments_trees_stay_as_they_are(site):
    X, y, _ = sites([0.9, 0.7, 0.3], 104)
    plain = BoostingClassifier(params=SMALL_TREES, random_state=0).fit(X, y, environments=site)
    found = LeafTransferClassifier(random_state=0).fit(X, y, environments=site)
    np.testing.assert_array_equal(found.predict_proba(X), plain.predict_proba(X))


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame])
def test_columns_of_a_frame_with_a_categorical_type_are_categories(make):
    random = np.random.default_rng(0)
    colour = random.choice(["red", "green", "blue"], 500)
    category = {pd.DataFrame: pd.Categorical, pl.DataFrame: lambda values: pl.Series(values, dtype=pl.Categorical)}
    frame = make({"colour": category[make](colour), "x": random.normal(size=500)})
    y = (colour == "green").astype(int)
    found = BoostingClassifier(random_state=0).fit(frame, y)
    assert (found.predict(frame) == y).all()
    assert (found.model_.featuriser.subset > 0).any()
    new = make({"colour": category[make](["violet", "green", "red", "green"]), "x": np.zeros(4)})
    assert found.predict(new)[1:].tolist() == [1, 0, 1]  # by the name of a category, whatever its place in this frame


@pytest.mark.filterwarnings("ignore:X does not have valid feature names")
def test_categories_are_found_by_value_whatever_the_type_they_come_in():
    random = np.random.default_rng(0)
    size, x = random.choice([10, 20, 30, 40], 500), random.normal(size=500)
    y = np.isin(size, [10, 30]).astype(int)
    numbers = pd.DataFrame({"size": size, "x": x})
    for values in (size, size.astype(str)):
        frame = numbers.assign(size=pd.Categorical(values))
        found = BoostingClassifier(random_state=0).fit(frame, y)
        expected = found.predict_proba(frame)
        for same in (frame.assign(size=values), frame.assign(size=values.astype(object)), frame.to_numpy()):
            np.testing.assert_array_equal(found.predict_proba(same), expected)
    found = BoostingClassifier(random_state=0).fit(numbers, y)
    with pytest.raises(InputError, match=r"'size' must hold numbers.*got categories"):
        found.predict(numbers.assign(size=pd.Categorical(size)))


@pytest.mark.parametrize(
    "params",
    [
        {"boosting_type": "rf", "bagging_freq": 1, "bagging_fraction": 0.5},
        {"linear_tree": True},
        {"sigmoid": 2.0},
        {"zero_as_missing": True},
        {"objective": "multiclassova"},
    ],
    ids=lambda params: next(iter(params)),
)
def test_parameters_of_lightgbm_that_give_another_model_are_refused(params):
    pytest.importorskip("lightgbm", reason="comes with the extra boosting")
    X, y, _ = sites([0.9, 0.6], 0)
    y = y + (X[:, 1] > 1) if "objective" in params else y
    with pytest.raises(InputError, match="params must"):
        BoostingClassifier("lightgbm", params={"n_estimators": 5, **params}, random_state=0).fit(X, y)


def test_an_index_below_zero_is_a_missing_value():
    X, y, _ = sites([0.9, 0.6], 0)
    X[:, 0] = np.random.default_rng(0).integers(-1, 3, len(X))
    y = (X[:, 0] == -1) ^ (X[:, 1] > 2)
    expected, gaps = X.copy(), np.where(X == -1, np.nan, X)
    for library in ("scikit-learn", *(["lightgbm"] if find_spec("lightgbm") else [])):
        below, missing = (
            BoostingClassifier(library, categorical=[0], random_state=0).fit(rows, y).predict_proba(rows)
            for rows in (X, gaps)
        )
        np.testing.assert_array_equal(below, missing)
        assert ((below[:, 1] > 0.5) == y).mean() > 0.98
    np.testing.assert_array_equal(X, expected)  # the caller's


@pytest.mark.parametrize("value", [1.5, 1e9])
def test_an_index_that_cannot_be_one_is_refused(value):
    X, y, _ = sites([0.9, 0.6], 0)
    X[:, 0] = np.arange(len(X)) % 3
    found = BoostingClassifier(categorical=[0], params=FEW, random_state=0).fit(X, y)
    new = X[:2].copy()
    new[:, 0] = 99
    expected = found.predict_proba(new)
    X[0, 0] = value
    with pytest.raises(InputError, match=f"column 0 .*got {value:g}".replace("+", "[+]")):
        BoostingClassifier(categorical=[0]).fit(X, y)
    with pytest.raises(InputError, match=r"categorical .*got 3"):
        BoostingClassifier(categorical=[3]).fit(X, y)
    new[:, 0] = 1e9  # one that was not there, like any other
    np.testing.assert_array_equal(found.predict_proba(new), expected)


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"library": "xgboost"}, "library .*got 'xgboost'"),
        ({"params": {"max_itre": 1}}, "params .*got 'max_itre'.*'max_iter'"),
        ({"params": ["max_iter"]}, "params .*got"),
        ({"params": {"warm_start": False}}, "params .*got 'warm_start'"),
        ({"params": {"monotonic_cst": [1, 0, 0]}, "categorical": [1]}, "params .*got 'monotonic_cst'"),
    ],
)
def test_bad_parameters_are_told_in_one_line(parameters, message):
    X, y, _ = sites([0.9, 0.6], 0)
    X[:, 1] = y
    with pytest.raises(InputError, match=message) as error:
        BoostingClassifier(**parameters).fit(X, y)
    assert "\n" not in str(error.value)


def test_a_seed_among_the_parameters_is_that_of_the_library():
    X, y, _ = sites([0.9, 0.6], 0)
    drawn = FEW | {"max_features": 0.4}
    expected = BoostingClassifier(params=drawn, random_state=3).fit(X, y).predict_proba(X)
    found = BoostingClassifier(params=drawn | {"random_state": 3}, random_state=0).fit(X, y).predict_proba(X)
    np.testing.assert_array_equal(found, expected)


def test_weighted_trees_split_off_missing_values_with_few_bins():
    """Above the largest cut nothing is left but missing values."""
    random = np.random.default_rng(0)
    x = np.minimum(random.integers(0, 60, 2000), 30).astype(float)
    x[random.random(2000) < 0.3] = np.nan
    y, site = np.isnan(x).astype(int), random.integers(0, 3, 2000)
    found = BoostingClassifier(environments_lr=0.5, params={"max_bins": 4}).fit(x[:, None], y, environments=site)
    np.testing.assert_array_equal(found.predict(x[:, None]), y)


@pytest.mark.parametrize("make", [BoostingClassifier, LeafTransferClassifier])
def test_columns_without_any_value_leave_the_shares_of_the_classes(make):
    y, site = np.arange(300) % 3 == 0, np.arange(300) % 2
    X = np.full((300, 2), np.nan)
    found = make(categorical=[0, 1], random_state=0).fit(X, y, environments=site)
    np.testing.assert_allclose(found.predict_proba(X[:1]), [[2 / 3, 1 / 3]], atol=0.01)
