"""Environments reach the classifier through pipelines, searches and cross-validation."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
import sklearn
from shifted import sites
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut, cross_val_predict, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from transferrisk.sklearn import TransferRiskClassifier

X, y, SITE = sites(50, (0.9, 0.3, 0.6))
OUT = LeaveOneGroupOut()


def short(**parameters):
    return TransferRiskClassifier(**{"max_epochs": 10, "representation": "linear:3", "random_state": 0} | parameters)


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


@pytest.mark.usefixtures("routing")
def test_pipeline():
    scaled = MinMaxScaler().fit_transform(X)
    expected = short().fit(scaled, y, environments=SITE).predict_proba(scaled)
    for last in (short(), short().set_fit_request(environments=True)):
        fitted = make_pipeline(MinMaxScaler(), last).fit(X, y, environments=SITE)
        assert fitted[-1].algorithm_ == "trm"
        np.testing.assert_array_equal(fitted.predict_proba(X), expected)


def test_pipeline_without_routing():
    fitted = make_pipeline(MinMaxScaler(), short()).fit(X, y, transferriskclassifier__environments=SITE)
    assert fitted[-1].environments_.tolist() == ["site 0", "site 1", "site 2"]


def by_hand(**parameters):
    """Accuracy in each site of a classifier that was fitted to the others."""
    scores = []
    for train, test in OUT.split(X, y, groups=SITE):
        fitted = short(**parameters).fit(X[train], y[train], environments=SITE[train])
        assert SITE[test[0]] not in fitted.environments_
        scores.append(fitted.score(X[test], y[test]))
    return scores


@pytest.mark.usefixtures("routing")
def test_cross_validation_leaves_one_environment_out():
    scores = cross_val_score(short(), X, y, cv=OUT, params={"environments": SITE, "groups": SITE})
    np.testing.assert_array_equal(scores, by_hand())
    piped = make_pipeline(MinMaxScaler(), short())
    frame, site = pd.DataFrame(X, columns=list("abcdef")), pd.Series(SITE)
    predicted = cross_val_predict(piped, frame, y, cv=OUT, params={"environments": site, "groups": site})
    assert (predicted == y).mean() > 0.6


def test_cross_validation_without_routing():
    scores = cross_val_score(short(), X, y, cv=OUT, groups=SITE, params={"environments": SITE})
    np.testing.assert_array_equal(scores, by_hand())


@pytest.mark.usefixtures("routing")
def test_grid_search():
    search = GridSearchCV(short(), {"algorithm": ["erm", "trm"], "representation": ["linear:2", "linear:3"]}, cv=OUT)
    search.fit(X, y, environments=SITE, groups=SITE)
    expected = [np.mean(by_hand(**p)) for p in search.cv_results_["params"]]
    np.testing.assert_allclose(search.cv_results_["mean_test_score"], expected)
    assert search.best_estimator_.environments_.tolist() == ["site 0", "site 1", "site 2"]


@pytest.mark.usefixtures("routing")
def test_sample_weights_are_routed_beside():
    weights = np.where(SITE == "site 0", 1.0, np.linspace(0.1, 2, len(y)))
    request = short().set_fit_request(environments=True, sample_weight=True)
    fitted = make_pipeline(MinMaxScaler(), request).fit(X, y, environments=SITE, sample_weight=weights)
    scaled = MinMaxScaler().fit_transform(X)
    expected = short().fit(scaled, y, environments=SITE, sample_weight=weights)
    np.testing.assert_array_equal(fitted.predict_proba(X), expected.predict_proba(scaled))
