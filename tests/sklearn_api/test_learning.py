"""What is learnt: as much as scikit-learn's own classifiers learn, and what transfers."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from joblib import Parallel, delayed
from shifted import sites
from sklearn.datasets import load_breast_cancer, load_digits, load_iris
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from transferrisk.errors import EnvironmentWarning, TransferRiskError
from transferrisk.sklearn import TransferRiskClassifier

FOLDS = StratifiedKFold(3, shuffle=True, random_state=0)


@pytest.mark.parametrize("load", [load_iris, load_breast_cancer, load_digits])
def test_on_plain_tables_erm_is_as_good_as_logistic_regression(load):
    X, y = load(return_X_y=True)
    theirs = cross_val_score(make_pipeline(StandardScaler(), LogisticRegression(max_iter=500)), X, y, cv=FOLDS).mean()
    ours = cross_val_score(TransferRiskClassifier("erm", random_state=0), X, y, cv=FOLDS).mean()
    assert ours > theirs - 0.02


def test_and_with_a_hidden_layer_as_good_as_a_network():
    X, y = load_digits(return_X_y=True)
    network = make_pipeline(StandardScaler(), MLPClassifier((64,), random_state=0, max_iter=100, tol=0.001))
    theirs = cross_val_score(network, X, y, cv=FOLDS).mean()
    hidden = TransferRiskClassifier("erm", representation="mlp:64", random_state=0)
    assert cross_val_score(hidden, X, y, cv=FOLDS).mean() > theirs - 0.02


@pytest.mark.parametrize("rows", [100, 1000])
def test_trm_is_better_than_erm_where_what_seemed_true_is_not(rows):
    """With 1000 rows of each site, batches are drawn."""
    X, y, site = sites(rows, (0.95, 0.8, 0.3), d=10)
    elsewhere, truth, _ = sites(2000, (0.05,), seed=1, d=10)
    parameters = {"random_state": 0, "max_epochs": "auto" if rows == 100 else 15}
    accuracy = {
        name: TransferRiskClassifier(name, **parameters).fit(X, y, environments=site).score(elsewhere, truth)
        for name in ("erm", "trm")
    }
    assert accuracy["trm"] > accuracy["erm"] + 0.03, accuracy


def test_sites_of_very_different_sizes_and_a_batch_larger_than_some():
    X, y, site = sites(400, (0.9, 0.3, 0.6))
    kept = np.r_[0:400, 400:403, 800:830]
    fitted = TransferRiskClassifier(batch_size=64, max_epochs=8, random_state=0)
    fitted.fit(X[kept], y[kept], environments=site[kept])
    assert len(fitted.loss_curve_) == 8 * (-(-433 // 3) // 64)
    assert fitted.score(X, y) > 0.6


def test_columns_are_standardised_whatever_their_size():
    rng = np.random.default_rng(0)
    X, y, site = sites(60, (0.9, 0.3))
    odd = np.c_[X * [1e-9, 1e9, 1, 1e200, 1, 1] + [0, 1e12, 0, 0, 0, 0], np.full(len(X), 0.1), rng.normal(size=len(X))]
    plain = np.c_[X, np.zeros(len(X)), odd[:, -1]]
    one, other = (
        TransferRiskClassifier(max_epochs=20, random_state=0).fit(rows, y, environments=site).predict_proba(rows)
        for rows in (odd, plain)
    )
    np.testing.assert_allclose(one, other, atol=2e-3)


def test_early_stopping_keeps_what_is_best_in_the_held_out_site():
    X, y, site = sites(60, (0.95, 0.9, 0.1), d=10)
    fitted = TransferRiskClassifier(
        "erm", early_stopping=True, validation_environments=["site 2"], n_iter_no_change=5, random_state=0
    ).fit(X, y, environments=site)
    held = site == "site 2"
    assert fitted.validation_environments_.tolist() == ["site 2"]
    assert fitted.n_iter_ < 100
    assert len(fitted.validation_scores_) == fitted.n_iter_ / 2  # looked at 50 times in 100 epochs
    assert fitted.score(X[held], y[held]) == pytest.approx(max(fitted.validation_scores_), abs=1e-6)
    assert fitted.validation_scores_[-1] < max(fitted.validation_scores_)


def test_patience_begins_a_while_after_the_penalty_does():
    X, y, site = sites(60, (0.95, 0.9, 0.1), d=10)
    stopped = {
        start: TransferRiskClassifier(
            "vrex", algorithm_params={"start_epoch": start}, early_stopping=True, n_iter_no_change=1, max_epochs=50,
            validation_environments=["site 2"], random_state=0,
        ).fit(X, y, environments=site).n_iter_
        for start in (0, 20, 50)
    }  # fmt: skip
    assert stopped[0] < 20
    assert 25 <= stopped[20] < 50
    assert stopped[50] == 50


@pytest.mark.parametrize(("asked", "count"), [(1, 1), (2, 2), (0.5, 2), (["site 0", "site 3"], 2)])
def test_which_environments_are_held_out(asked, count):
    X, y, site = sites(20, (0.9, 0.3, 0.5, 0.6))
    fitted = TransferRiskClassifier(
        early_stopping=True, validation_environments=asked, max_epochs=4, representation="linear:3", random_state=0
    ).fit(X, y, environments=site)
    assert len(fitted.validation_environments_) == count
    if isinstance(asked, list):
        assert fitted.validation_environments_.tolist() == asked


def test_early_stopping_with_two_environments_trains_to_the_end_and_says_so():
    X, y, site = sites(20, (0.9, 0.3))
    short = {"max_epochs": 5, "representation": "linear:3", "random_state": 0}
    with pytest.warns(EnvironmentWarning, match="early stopping .* got 2"):
        fitted = TransferRiskClassifier(early_stopping=True, **short).fit(X, y, environments=site)
    plain = TransferRiskClassifier(**short).fit(X, y, environments=site)
    np.testing.assert_array_equal(fitted.predict_proba(X), plain.predict_proba(X))


def test_divergence_is_told():
    X, y, site = sites(40, (0.9, 0.3))
    with pytest.raises(TransferRiskError, match=r"diverged at lr=1e\+30"):
        TransferRiskClassifier("vrex", learning_rate=1e30, random_state=0).fit(X, y, environments=site)


def test_it_tells_how_it_goes_on_when_asked(capsys):
    X, y, site = sites(20, (0.9, 0.3))
    TransferRiskClassifier("erm", max_epochs=10, verbose=1, random_state=0).fit(X, y, environments=site)
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 10
    assert lines[-1].startswith("epoch 10 of 10: loss 0.")


@pytest.mark.parametrize(("algorithm", "params"), [("fish", {}), ("mldg", {}), ("trm", {"query": "random"})])
def test_threads_fit_as_one_after_another_would(algorithm, params):
    X, y, site = sites(20, (0.9, 0.3, 0.6, 0.1))

    def proba(seed):
        fitted = TransferRiskClassifier(
            algorithm, algorithm_params=params, max_epochs=20, representation="linear:3", random_state=seed
        )
        return fitted.fit(X, y, environments=site).predict_proba(X)

    expected, before = [proba(seed) for seed in range(4)], torch.get_rng_state()
    found = Parallel(n_jobs=4, backend="threading")(delayed(proba)(seed) for seed in range(4))
    np.testing.assert_array_equal(found, expected)
    assert torch.equal(torch.get_rng_state(), before)
