"""Trees as arrays say what the libraries that grew them say."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.ensemble import HistGradientBoostingClassifier

from transferrisk.errors import InputError
from transferrisk.models.trees import Sizes, empty_trees, sizes_of
from transferrisk.sklearn import BoostingClassifier


def rows(classes, count=1500):
    """A numeric column, one of categories of which not all occur, and noise, with missing values everywhere."""
    random = np.random.default_rng(classes)
    X = random.normal(size=(count, 3)).astype(np.float32)
    X[:, 1] = 2 * random.integers(0, 7, count)
    X[random.random(X.shape) < 0.1] = np.nan
    score = np.nan_to_num(X[:, 0]) + (X[:, 1] == 4) + random.normal(size=count) / 2
    y = np.digitize(score, np.quantile(score, np.linspace(0, 1, classes + 1)[1:-1]))
    new = X.copy()
    new[:50, 1], new[50:90, 1], new[90:95] = 99, 3, np.nan  # categories that were not there
    return X, y, new


@pytest.mark.parametrize("classes", [2, 4])
def test_scikit_learn(classes):
    X, y, new = rows(classes)
    expected = HistGradientBoostingClassifier(categorical_features=[1], random_state=0).fit(X.astype(float), y)
    found = BoostingClassifier(categorical=[1], random_state=0).fit(X, y)
    np.testing.assert_allclose(found.predict_proba(new), expected.predict_proba(new.astype(float)), atol=1e-6)


@pytest.mark.parametrize("classes", [2, 4])
@pytest.mark.parametrize("missing", [True, False])
def test_lightgbm(classes, missing):
    lightgbm = pytest.importorskip("lightgbm", reason="comes with the extra boosting")
    X, y, new = rows(classes)
    if not missing:
        X = np.nan_to_num(X)
    expected = lightgbm.LGBMClassifier(random_state=0, verbose=-1, n_jobs=1).fit(
        X.astype(float), y, categorical_feature=[1]
    )
    found = BoostingClassifier("lightgbm", categorical=[1], random_state=0).fit(X, y)
    chances = expected.booster_.predict(new.astype(float))
    if classes == 2:
        chances = np.stack([1 - chances, chances], 1)
    np.testing.assert_allclose(found.predict_proba(new), chances, atol=1e-6)


def test_arrays_of_these_sizes_take_the_state():
    X, y, new = rows(2, 300)
    model = BoostingClassifier(random_state=0).fit(X, y).model_
    other = empty_trees(sizes_of(model), 2)
    other.load_state_dict(model.state_dict())
    import torch

    assert torch.equal(other(torch.from_numpy(new)), model(torch.from_numpy(new)))
    with pytest.raises(InputError, match="nodes"):
        Sizes.of({"nodes": "many", "trees": 1, "scores": 1, "subsets": 1, "categories": 1, "depth": 1})
