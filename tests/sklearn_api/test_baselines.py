"""The majority class and the linear model against scikit-learn's own, and as candidates of its tools."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
import pytest
import sklearn
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import cross_validate

from transferrisk.data import Options
from transferrisk.errors import InputError
from transferrisk.fitting import Plan, fit
from transferrisk.models import SavedModel, load_model_folder, save_model
from transferrisk.models.trees import sizes_of
from transferrisk.settings import as_json
from transferrisk.sklearn import (
    BoostingClassifier,
    LeafTransferClassifier,
    LeaveOneEnvironmentOut,
    LinearClassifier,
    MajorityClassifier,
)


@pytest.fixture
def rows():
    random = np.random.default_rng(0)
    X = random.normal(3, 5, size=(600, 4)).astype(np.float32)
    y = np.array(["low", "mid", "high"])[np.digitize(X[:, 0] + random.normal(size=600) * 4, [1, 5])]
    return X, y, random.choice(["a", "b", "c"], 600)


def test_majority_says_the_shares(rows):
    X, y, site = rows
    found = MajorityClassifier().fit(X, y, environments=site)
    shares = pd.Series(y).value_counts(normalize=True)[found.classes_]
    np.testing.assert_allclose(found.predict_proba(X[:3]), np.tile(shares, (3, 1)))


@pytest.mark.parametrize("ridge", [1e-1, 1e-2, 1e-3])
def test_linear_is_the_optimum_of_logistic_regression(rows, ridge):
    X, y, site = rows
    found = LinearClassifier([ridge]).fit(X, y, environments=site)
    scaled = (X - X.mean(0)) / X.std(0)
    expected = LogisticRegression(C=1 / (ridge * len(X)), tol=1e-10, max_iter=10_000).fit(scaled, y)
    np.testing.assert_allclose(found.predict_proba(X), expected.predict_proba(scaled), atol=5e-3)
    assert found.ridge_ == ridge


def test_the_ridge_is_the_best_in_held_out_environments():
    """A column that means the opposite elsewhere is held down by a strong ridge, which a weak one would trust."""
    random = np.random.default_rng(1)
    site = np.repeat([0, 1, 2], 200)
    y = random.integers(2, size=600)
    X = np.stack([(2 * y - 1) * np.array([1, 1, -1])[site] + random.normal(size=600) / 2, random.normal(size=600)], 1)
    assert LinearClassifier().fit(X, y, environments=site).ridge_ >= 3e-2
    assert LinearClassifier().fit(X[site < 2], y[site < 2], environments=site[site < 2]).ridge_ < 3e-2


def test_each_environment_counts_the_same_in_the_choice_of_the_ridge():
    """Six environments are held out in five groups; the small one that shares a group with a large one has its say."""
    random = np.random.default_rng(2)
    site = np.repeat(np.arange(6), [2000, 60, 60, 60, 60, 60])
    y = random.integers(2, size=len(site))
    X = np.stack([2 * y - 1 + random.normal(size=len(y)) / 2, random.normal(size=len(y))], 1)
    X[site == 5, 0] *= -1
    losses = []
    for ridge in (1e-1, 1e-3):
        tested = np.zeros(6)
        for fold in range(5):
            train = site % 5 != fold
            found = LinearClassifier([ridge]).fit(X[train], y[train], environments=site[train])
            for e in np.unique(site[~train]):
                chances = found.predict_proba(X[site == e])[np.arange((site == e).sum()), y[site == e]]
                tested[e] = -np.log(chances).mean()
        losses.append((tested.mean(), tested[:5].mean()))
    (strong, without_last), (weak, weak_without_last) = losses
    assert strong < weak
    assert without_last > weak_without_last
    assert LinearClassifier([1e-1, 1e-3]).fit(X, y, environments=site).ridge_ == 1e-1


def test_weaker_ridges_are_tried_until_two_in_a_row_are_no_better(rows):
    """A ridge of 100 leaves next to nothing of the columns, and 0.001 is better than 1 by far."""
    X, y, site = rows
    for ridges, expected in (
        ([1.0, 100.0, 0.001], 0.001),
        ([1.0, 100.0, 100.0, 0.001], 1.0),
        ([1.0, 100.0, 0.1, 100.0, 0.001], 0.001),
    ):
        assert LinearClassifier(ridges).fit(X, y, environments=site).ridge_ == expected


def test_a_fitted_table_chooses_the_ridge_by_the_order_of_its_environments(tmp_path):
    """Sites 1 and 10, which differ from the others, are held out together: the first and the sixth, not by text."""
    random = np.random.default_rng(102)
    site, y = np.repeat(np.arange(6), 80), random.integers(2, size=480)
    means = np.stack([np.array([-0.2, 1, 1, 1, 1, -0.2])[site], np.ones(480)], 1) * (2 * y - 1)[:, None]
    X = (means + random.normal(size=(480, 2))).astype(np.float32)
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(site=np.array([1, 2, 3, 4, 5, 10])[site], y=y)
    frame.to_csv(tmp_path / "table.csv", index=False)
    asked = Options(label="y", environment="site")
    found = fit(tmp_path / "table.csv", asked, Plan(algorithms=("linear",), workers=1)).model
    expected, by_text = (
        LinearClassifier().fit(X, y, environments=order).model_.head.weight
        for order in (site, frame["site"].astype(str))
    )
    weight = found.network.head.weight  # divided by a temperature
    torch.testing.assert_close(weight / weight.norm(), expected / expected.norm(), atol=1e-5, rtol=0)
    assert (weight / weight.norm() - by_text / by_text.norm()).abs().max() > 1e-3


def test_they_are_cross_validated_over_environments(rows):
    X, y, site = rows
    with sklearn.config_context(enable_metadata_routing=True):
        for candidate in (MajorityClassifier(), LinearClassifier(), BoostingClassifier(random_state=0)):
            scores = cross_validate(candidate, X, y, cv=LeaveOneEnvironmentOut(), params={"environments": site})
            assert len(scores["test_score"]) == 3
    assert scores["test_score"].mean() > 0.5


def test_one_class_is_refused(rows):
    with pytest.raises(InputError, match="y must hold two or more classes"):
        LinearClassifier().fit(rows[0], ["low"] * 600)


def restored(found, columns, folder):
    """Return the fitted network from a folder."""
    sizes = sizes_of(found.model_)
    about = {"on_top": "linear", "dtype": "float64"} if sizes is None else {"sizes": as_json(sizes)}
    backbone = "linear" if sizes is None else "trees"
    save_model(folder, SavedModel(found.model_, backbone, (columns,), tuple(map(str, found.classes_)), (), about))
    return load_model_folder(folder).network


@pytest.mark.parametrize(
    "make",
    [
        LinearClassifier,
        partial(BoostingClassifier, random_state=0),
        partial(BoostingClassifier, environments_lr=0.5, random_state=0),
        partial(LeafTransferClassifier, random_state=0),
    ],
)
def test_a_column_of_large_numbers_that_vary_little_keeps_its_digits(make, tmp_path):
    """In float32, numbers around a billion are multiples of 64."""
    random = np.random.default_rng(0)
    X, site = random.integers(-16, 17, size=(600, 2)) / 8, np.arange(600) % 3
    y = (X[:, 0] + random.normal(size=600) / 2 > 0).astype(int)
    offset = 2.0**30 * np.array([1, 0])
    expected = make().fit(X, y, environments=site).predict_proba(X)
    given = X + offset
    given.flags.writeable = False
    found = make().fit(given, y, environments=site)
    np.testing.assert_allclose(found.predict_proba(given), expected, atol=1e-6)
    network = restored(found, 2, tmp_path)
    np.testing.assert_allclose(network(torch.from_numpy(X + offset)).detach().softmax(1), expected, atol=1e-6)


def test_a_constant_column_has_no_part_in_the_linear_model(rows):
    """The mean of many 0.1 differs from 0.1 by rounding, which must not become a column."""
    X, y, site = rows
    found = LinearClassifier().fit(np.column_stack([X, np.full(len(X), 0.1)]).astype(np.float64), y, environments=site)
    assert (found.model_.head.weight[:, -1] == 0).all()
