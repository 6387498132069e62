"""Environments reach the classifier through pipelines, searches and cross-validation that leaves one of them out."""

from __future__ import annotations

import doctest

import numpy as np
import pandas as pd
import pytest
import sklearn
from shifted import sites
from sklearn.base import BaseEstimator, ClassifierMixin, clone
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV, LeaveOneGroupOut, cross_val_predict, cross_validate
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import MinMaxScaler

from transferrisk.errors import InputError
from transferrisk.sklearn import LeaveOneEnvironmentOut, TransferRiskClassifier, splitter

X, y, SITE = sites(40, (0.9, 0.3, 0.6, 0.5))
NAMES = np.unique(SITE).tolist()


def short(**parameters):
    return TransferRiskClassifier(**{"max_epochs": 8, "representation": "linear:3", "random_state": 0} | parameters)


@pytest.fixture
def routing():
    with sklearn.config_context(enable_metadata_routing=True):
        yield


def held_out(folds):
    return [np.unique(SITE[test]).tolist() for _, test in folds]


@pytest.mark.parametrize(
    "values", [SITE, list(SITE), pd.Series(SITE, dtype="category"), np.unique(SITE, return_inverse=True)[1]]
)
def test_every_environment_is_held_out_once_in_order(values):
    folds = list(LeaveOneEnvironmentOut().split(X, y, environments=values))
    assert held_out(folds) == [[name] for name in NAMES]
    assert LeaveOneEnvironmentOut().get_n_splits(environments=values) == len(NAMES)
    for train, test in folds:
        assert sorted([*train, *test]) == list(range(len(X)))


def test_with_fewer_splits_than_environments_several_are_held_out_together():
    draws = set()
    for seed in range(20):
        some = LeaveOneEnvironmentOut(2, random_state=seed)
        folds = list(some.split(X, environments=SITE))
        first = held_out(folds)
        assert first == held_out(some.split(X, environments=SITE))
        assert sorted(name for names in first for name in names) == sorted(NAMES)
        assert some.get_n_splits(environments=SITE) == len(first) == 2
        for train, test in folds:
            assert sorted([*train, *test]) == list(range(len(X)))
        draws.add(str(sorted(first)))
    assert len(draws) == 3


@pytest.mark.parametrize(("count", "most", "sizes"), [(3, 2, [1, 1]), (3, 1, [1]), (4, 1, [2]), (11, 4, [3, 3, 3, 2])])
def test_two_environments_are_always_left_to_train_on(count, most, sizes):
    folds = [*LeaveOneEnvironmentOut(most).split(range(count), environments=range(count))]
    assert [len(test) for _, test in folds] == sizes
    assert all(len(train) + len(test) == count and len(train) >= 2 for train, test in folds)
    assert LeaveOneEnvironmentOut(9).get_n_splits(environments=SITE) == len(NAMES)


@pytest.mark.parametrize(
    ("parameters", "environments", "message"),
    [
        ({}, None, "environments must be given"),
        ({}, ["here"] * len(X), r"environments must hold two or more .*\['here'\]"),
        ({}, [*SITE[:-1], None], f"environments .* row {len(X) - 1}"),
        ({}, SITE[1:], "inconsistent numbers of samples"),
        ({}, "site", "environments .*'site'"),
        ({}, pd.DataFrame({"site": SITE, "year": SITE}), rf"environments .* DataFrame of shape \({len(X)}, 2\)"),
        ({"max_splits": 0}, SITE, "max_splits must be an integer >= 1 or None, got 0"),
        ({"max_splits": 1.5}, SITE, "max_splits must be an integer >= 1 or None, got 1.5"),
    ],
)
def test_what_is_refused(parameters, environments, message):
    with pytest.raises(ValueError, match=message):
        list(LeaveOneEnvironmentOut(**parameters).split(X, environments=environments))


@pytest.mark.usefixtures("routing")
@pytest.mark.parametrize("before", [[], [MinMaxScaler()]])
def test_cross_validate(before):
    estimator = make_pipeline(*before, short()) if before else short()
    found = cross_validate(
        estimator, X, y, cv=LeaveOneEnvironmentOut(), params={"environments": SITE}, return_estimator=True
    )
    for i, (train, test) in enumerate(LeaveOneEnvironmentOut().split(X, environments=SITE)):
        expected = clone(estimator).fit(X[train], y[train], environments=SITE[train])
        fitted = found["estimator"][i][-1] if before else found["estimator"][i]
        assert NAMES[i] not in fitted.environments_
        assert found["test_score"][i] == expected.score(X[test], y[test])


@pytest.mark.parametrize(
    "times",
    [
        [8, 9, 10, 11],
        ["8", "9", "10", "11"],
        ["-1", "0.5", "2", "1e3"],
        ["2023-12-31", "2024-01-05", "2024-01-10 12:00", "2024-02"],
        ["28/2/2023", "1/3/2023", "2/3/2023", "13/3/2023"],
        ["Nov 2023", "Dec 2023", "Jan 2024", "Feb 2024"],
        ["wave 2", "wave 10", "wave 11", "wave 100"],
        ["2023Q4", "2024Q1", "2024Q2", "2024Q3"],
        pd.to_datetime(["2023-12-31", "2024-01-05", "2024-01-10", "2024-02-01"]),
    ],
)
def test_the_future_is_held_out_in_natural_order(times):
    place = np.random.default_rng(0).integers(4, size=60)
    values = np.asarray(times)[place]
    folds = list(LeaveOneEnvironmentOut(ordered=True).split(place, environments=values))
    assert [np.unique(place[train]).tolist() for train, _ in folds] == [[0, 1], [0, 1, 2]]
    assert [np.unique(place[test]).tolist() for _, test in folds] == [[2], [3]]
    assert sum(len(test) for _, test in folds) == (place > 1).sum()
    last = LeaveOneEnvironmentOut(1, ordered=True)
    assert last.get_n_splits(environments=values) == 1
    np.testing.assert_array_equal(next(last.split(place, environments=values))[1], folds[1][1])


def test_times_that_have_no_order_are_refused():
    with pytest.raises(InputError, match="year-month-day"):
        list(LeaveOneEnvironmentOut(ordered=True).split(range(3), environments=["2/1/2023", "1/2/2023", "3/3/2023"]))
    with pytest.raises(InputError, match="three"):
        LeaveOneEnvironmentOut(ordered=True).get_n_splits(environments=[2020, 2021])


@pytest.mark.usefixtures("routing")
@pytest.mark.parametrize("piped", [False, True])
def test_grid_search(piped):
    estimator = make_pipeline(MinMaxScaler(), short()) if piped else short()
    name = "transferriskclassifier__algorithm" if piped else "algorithm"
    search = GridSearchCV(estimator, {name: ["erm", "trm"]}, cv=LeaveOneEnvironmentOut(2, random_state=1))
    search.fit(X, y, environments=SITE)
    assert search.n_splits_ == 2
    for place, algorithm in enumerate(("erm", "trm")):
        expected = [
            clone(estimator).set_params(**{name: algorithm}).fit(X[train], y[train], environments=SITE[train])
            .score(X[test], y[test])
            for train, test in LeaveOneEnvironmentOut(2, random_state=1).split(X, environments=SITE)
        ]  # fmt: skip
        assert search.cv_results_["mean_test_score"][place] == pytest.approx(np.mean(expected))
    fitted = search.best_estimator_[-1] if piped else search.best_estimator_
    assert fitted.environments_.tolist() == NAMES


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
    assert fitted[-1].environments_.tolist() == NAMES


@pytest.mark.usefixtures("routing")
def test_sample_weights_are_routed_beside():
    weights = np.where(SITE == "site 0", 1.0, np.linspace(0.1, 2, len(y)))
    request = short().set_fit_request(environments=True, sample_weight=True)
    fitted = make_pipeline(MinMaxScaler(), request).fit(X, y, environments=SITE, sample_weight=weights)
    scaled = MinMaxScaler().fit_transform(X)
    expected = short().fit(scaled, y, environments=SITE, sample_weight=weights)
    np.testing.assert_array_equal(fitted.predict_proba(X), expected.predict_proba(scaled))


class Plain(ClassifierMixin, BaseEstimator):
    """Takes no metadata."""

    def fit(self, X, y):
        self.model_ = LogisticRegression().fit(X, y)
        self.classes_ = self.model_.classes_
        return self

    def predict(self, X):
        return self.model_.predict(X)


@pytest.mark.usefixtures("routing")
def test_an_estimator_that_knows_nothing_of_environments():
    found = cross_val_predict(Plain(), X, y, cv=LeaveOneEnvironmentOut(), params={"environments": SITE})
    assert (found == y).mean() > 0.5


def test_without_routing():
    found = cross_validate(short(), X, y, cv=LeaveOneEnvironmentOut(), groups=SITE, params={"environments": SITE})
    theirs = cross_validate(short(), X, y, cv=LeaveOneGroupOut(), groups=SITE, params={"environments": SITE})
    np.testing.assert_array_equal(found["test_score"], theirs["test_score"])


def test_its_example_runs():
    ended = doctest.testmod(splitter)
    assert ended.attempted > 5
    assert ended.failed == 0
