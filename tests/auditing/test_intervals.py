"""Intervals: how often they hold the truth, and what is called within chance."""

from __future__ import annotations

import math

import numpy as np
import torch
from audited import RIDGE

from transferrisk import audit
from transferrisk.auditing.run import draw_means, estimate, largest_deviations


def middle(draws, confidence):
    """The middle share of the draws of a value."""
    return np.quantile(draws[1:], [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)


def test_intervals_cover_as_often_as_they_say():
    """About nine in ten 90 % intervals of 400 samples of known mean hold it: within four standard errors."""
    generator = torch.Generator().manual_seed(0)
    values = torch.empty(400, 150, dtype=torch.float64).exponential_(generator=generator)  # mean 1
    low, high = middle(np.concatenate([draw_means(row[None], 200, (0, i)) for i, row in enumerate(values)], 1), 0.9)
    covered = np.mean((low <= 1) & (high >= 1))
    assert abs(covered - 0.9) < 4 * math.sqrt(0.9 * 0.1 / 400)


def test_an_audit_gives_the_middle_of_the_draws(case):
    X, y, e, held, found = case
    again = audit(X, y, e, ridge=RIDGE, folds=held, bootstrap=50, confidence=0.5)
    assert (found.loss.low <= again.loss.low).all()
    assert (again.loss.low <= again.loss.value).mean() > 0.8
    assert (again.loss.high <= found.loss.high).all()


def test_draws_have_the_variance_of_a_mean():
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 300)))
    found = draw_means(values, 4000, (0,))
    np.testing.assert_allclose(found[0], values.mean(1))
    np.testing.assert_allclose(found[1:].std(0), values.std(1, correction=0) / math.sqrt(300), rtol=0.06)
    np.testing.assert_allclose(found[1:].mean(0), values.mean(1), atol=0.01)


def test_the_interval_of_the_risk_holds_the_risk_when_many_environments_compete():
    rng = np.random.default_rng(0)
    X, y, e = rng.normal(size=(900, 3)), rng.integers(2, size=900), np.arange(900) % 30
    before = X.copy()
    risk = audit(X, y, e, ridge=RIDGE, bootstrap=50).transfer_risk
    assert risk.low < risk.value < risk.high
    np.testing.assert_array_equal(X, before)  # standardised in a copy


def test_the_interval_of_the_largest_of_many_holds_its_truth():
    """The largest of 30 means is named, all with truth 0: nine in ten of its intervals hold 0, usual ones rarely."""
    generator, usual, chosen = torch.Generator().manual_seed(0), [], []
    for i in range(100):
        values = torch.randn(30, 100, generator=generator, dtype=torch.float64)
        means = draw_means(values, 200, (0, i))
        best = int(means[0].argmax())
        usual.append(middle(means[:, best], 0.9)[0] > 0)
        chosen.append(estimate(means[:, best], 0.9, largest_deviations(means)).low > 0)
    assert np.mean(usual) > 0.5
    assert np.mean(chosen) < 0.1 + 3 * math.sqrt(0.9 * 0.1 / 100)


def test_ten_equal_environments_seldom_raise_an_alarm():
    alarms, helped, unseen = [], [], []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        y, e = rng.integers(2, size=400), np.arange(400) % 10
        found = audit(rng.normal(size=(400, 2)) + y[:, None], y, e, ridge=0.1, folds=2, bootstrap=100)
        alarms.append("could be chance" not in found.sentences[0])
        helped.append(found.worst_by_accuracy.closed.low > 0)
        unseen.append(any("loses most" in line for line in found.sentences))
    assert max(map(sum, (alarms, helped, unseen))) <= 1


def test_the_cost_of_being_unseen_is_judged_by_paired_differences():
    """A turns a feature round that B and C share, so that it needs a predictor of its own most."""
    rng = np.random.default_rng(0)
    y, e = rng.integers(2, size=1500), np.arange(1500) % 3
    X = rng.normal(size=(1500, 3)) + 0.4 * y[:, None]
    X[:, 0] += np.where(e == 0, -3 * y, 2 * y)
    found = audit(X, y, np.array(["A", "B", "C"])[e], ridge=RIDGE)
    gaps = np.diag(found.accuracy.value) - found.left_out_accuracy.value
    np.testing.assert_allclose(found.unseen.value, gaps)
    assert gaps.argmax() == 0
    (line,) = (line for line in found.sentences if "loses most by being left out" in line)
    assert f" A, {100 * gaps[0]:.1f} (" in line


def test_equal_environments_are_within_chance_and_different_ones_are_not():
    rng = np.random.default_rng(0)
    y, e = rng.integers(2, size=1200), rng.integers(3, size=1200)
    X = rng.normal(size=(1200, 4)) + y[:, None]
    same = audit(X, y, e, ridge=RIDGE)
    assert "could be chance" in same.sentences[0]
    X[:, 0] += 4 * np.where(e == 2, -y, y)
    different = audit(X, y, np.array(["A", "B", "C"])[e], ridge=RIDGE)
    assert "could be chance" not in different.sentences[0]
    assert different.worst.points.low > 0.1
    assert "C" in different.sentences[0]
