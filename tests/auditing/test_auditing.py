"""The audit against brute force: loops, another library's optimum, formulas written out."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from audited import RIDGE, problem, standardised
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from transferrisk import audit
from transferrisk.auditing.samples import assign_folds
from transferrisk.functional import irm_penalty, optimal_predictor


def probabilities(train, test, C, ridge=RIDGE):
    """scikit-learn's optimum of the same objective, bias penalised as a column of ones; (m, C)."""
    (X, y), rows = train, np.c_[test, np.ones(len(test))]
    model = LogisticRegression(C=1 / (len(X) * ridge), fit_intercept=False, tol=1e-10, max_iter=5000)
    model.fit(np.c_[X, np.ones(len(X))], y)
    assert len(model.classes_) == C > 2
    return model.predict_proba(rows)


def held_out(X, y, e, held, member, C):
    """Probabilities (n, C) of the predictor of each sample's fold, fitted on member's samples outside of it."""
    found = np.empty((len(y), C))
    for k in np.unique(held):
        train = member & (held != k)
        found[held == k] = probabilities((X[train], y[train]), X[held == k], C)
    return found


def test_the_matrix_is_that_of_a_loop_over_another_librarys_optimum(case):
    X, y, e, held, found = case
    Z = standardised(X)
    for q in range(3):
        p_all = held_out(Z, y, e, held, e == q, 3)
        for p in range(3):
            here = e == p
            assert found.loss.value[q, p] == pytest.approx(log_loss(y[here], p_all[here], labels=range(3)), abs=1e-5)
            assert found.accuracy.value[q, p] == pytest.approx((p_all[here].argmax(1) == y[here]).mean(), abs=1e-12)


def test_pooled_left_out_and_irm_follow_their_formulas(case):
    X, y, e, held, found = case
    Z = standardised(X)
    p_all = held_out(Z, y, e, held, np.ones(len(y), bool), 3)
    for p in range(3):
        here = e == p
        assert found.pooled_loss.value[p] == pytest.approx(log_loss(y[here], p_all[here], labels=range(3)), abs=1e-5)
        assert found.pooled_accuracy.value[p] == pytest.approx((p_all[here].argmax(1) == y[here]).mean(), abs=1e-12)
        scaled = (X - X[~here].mean(0)) / X[~here].std(0)
        free = LogisticRegression(C=1 / ((~here).sum() * RIDGE), tol=1e-10, max_iter=5000)
        away = free.fit(scaled[~here], y[~here]).predict_proba(scaled[here])
        assert found.left_out_loss.value[p] == pytest.approx(log_loss(y[here], away, labels=range(3)), abs=1e-5)
        assert found.left_out_accuracy.value[p] == pytest.approx((away.argmax(1) == y[here]).mean(), abs=1e-12)
    logits = torch.empty(len(y), 3, dtype=torch.float64)
    for k in range(3):
        train = torch.from_numpy(held != k)
        W = optimal_predictor(torch.from_numpy(Z)[train], torch.from_numpy(y)[train], 3, RIDGE)
        logits[~train] = torch.from_numpy(np.c_[Z, np.ones(len(Z))])[~train] @ W.T
    penalties = irm_penalty(logits, torch.from_numpy(y), torch.from_numpy(e), 3)
    np.testing.assert_allclose(found.irm.value, penalties, atol=1e-6)


def test_risks_and_the_worst_pair_follow_from_the_matrix(case):
    *_, found = case
    M, A = found.loss.value, found.accuracy.value
    others = [[M[q, p] for p in range(3) if p != q] for q in range(3)]
    assert found.transfer_risk.value == pytest.approx(np.mean([max(row) for row in others]))
    assert found.mean_transfer_risk.value == pytest.approx(np.mean(others))
    q, p = max(((q, p) for q in range(3) for p in range(3) if p != q), key=lambda pair: M[pair] - M[pair[1], pair[1]])
    assert (found.worst.fitted_on, found.worst.tested_on) == (q, p)
    assert found.worst.points.value == pytest.approx(A[p, p] - A[q, p])
    missed = np.diag(A) - A
    worse = found.worst_by_accuracy
    assert missed[worse.fitted_on, worse.tested_on] == missed.max()
    assert worse.points.value == pytest.approx(missed.max())


def test_the_gain_of_another_environment_is_that_of_a_fit(case):
    X, y, e, held, found = case
    worst = found.worst
    (r,) = {0, 1, 2} - {worst.fitted_on, worst.tested_on}
    assert worst.helper == r
    here = e == worst.tested_on
    both = held_out(standardised(X), y, e, held, (e == worst.fitted_on) | (e == r), 3)
    gain = (both[here].argmax(1) == y[here]).mean() - found.accuracy.value[worst.fitted_on, worst.tested_on]
    assert worst.closed.value == pytest.approx(gain, abs=1e-12)


def test_the_order_of_samples_does_not_matter_if_folds_are_the_same(case):
    X, y, e, held, found = case
    order = np.random.default_rng(3).permutation(len(y))
    again = audit(X[order], y[order], e[order], ridge=RIDGE, folds=held[order], bootstrap=5)
    np.testing.assert_allclose(again.loss.value, found.loss.value, atol=1e-6)
    np.testing.assert_array_equal(again.counts, found.counts)


def test_every_sample_twice_changes_no_mean(case):
    X, y, e, held, found = case
    twice = [np.concatenate([part, part]) for part in (X, y, e, held)]
    again = audit(*twice[:3], ridge=RIDGE, folds=twice[3], bootstrap=50)
    np.testing.assert_allclose(again.loss.value, found.loss.value, atol=1e-6)
    width, before = (float((a.accuracy.high - a.accuracy.low).mean()) for a in (again, found))
    assert width < before


def test_the_ridge_is_the_one_with_the_least_held_out_loss_at_home():
    X, y, e = problem(n=150, d=8)
    held = assign_folds(e, y, 3, seed=0)
    found = audit(X, y, e, folds=held, bootstrap=5)
    losses = {ridge: np.diag(audit(X, y, e, ridge=ridge, folds=held, bootstrap=5).loss.value)
              for ridge in (1e-1, 1e-2, 1e-3, 1e-4)}  # fmt: skip
    for q in range(3):
        best = min(losses, key=lambda ridge: losses[ridge][q])
        assert found.ridges[q] == best
        assert found.loss.value[q, q] == pytest.approx(losses[best][q], abs=1e-6)
    assert found.pooled_ridge == pytest.approx(math.exp(np.log(found.ridges).mean()))


def test_folds_share_out_every_class_of_every_environment():
    _, y, e = problem(n=500)
    held = assign_folds(e, y, 5, seed=0)
    for place in range(3):
        sizes = np.bincount(held[e == place], minlength=5)
        assert sizes.max() - sizes.min() <= 1
        for c in range(3):
            sizes = np.bincount(held[(e == place) & (y == c)], minlength=5)
            assert sizes.max() - sizes.min() <= 1
    assert not np.array_equal(held, assign_folds(e, y, 5, seed=1))
    np.testing.assert_array_equal(held, assign_folds(e, y, 5, seed=0))
