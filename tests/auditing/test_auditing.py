"""The audit against brute force: loops, another library's optimum, formulas written out."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

import transferrisk
from transferrisk import audit
from transferrisk.auditing import fits
from transferrisk.auditing.bootstrap import Estimate, after_choice, largest_deviations, resampled_means
from transferrisk.auditing.fits import fit
from transferrisk.auditing.folds import assign_folds
from transferrisk.auditing.page import page_of
from transferrisk.auditing.report import WorstPair
from transferrisk.auditing.samples import prepare
from transferrisk.auditing.sentences import sentences
from transferrisk.errors import ConvergenceWarning, InputError
from transferrisk.functional import irm_penalty, optimal_predictor

RIDGE = 0.02


def problem(n=240, d=5, E=3, C=3, seed=0, shift=0.8):
    """Gaussian classes whose means differ between environments; features (n, d), labels and environments (n,)."""
    rng = np.random.default_rng(seed)
    labels, environments = rng.integers(C, size=n), rng.integers(E, size=n)
    means = rng.normal(size=(C, d)) + shift * rng.normal(size=(E, C, d))
    return rng.normal(size=(n, d)) + means[environments, labels], labels, environments


def probabilities(train, test, C, ridge=RIDGE):
    """scikit-learn's optimum of the same objective, bias penalised as a column of ones; (m, C)."""
    (X, y), rows = train, np.c_[test, np.ones(len(test))]
    model = LogisticRegression(C=1 / (len(X) * ridge), fit_intercept=False, tol=1e-10, max_iter=5000)
    model.fit(np.c_[X, np.ones(len(X))], y)
    assert len(model.classes_) == C > 2
    return model.predict_proba(rows)


def standardised(X):
    return (X - X.mean(0)) / X.std(0)


def held_out(X, y, e, held, member, C):
    """Probabilities (n, C) of the predictor of each sample's fold, fitted on member's samples outside of it."""
    found = np.empty((len(y), C))
    for k in np.unique(held):
        train = member & (held != k)
        found[held == k] = probabilities((X[train], y[train]), X[held == k], C)
    return found


@pytest.fixture(scope="module")
def case():
    X, y, e = problem()
    held = assign_folds(e, y, 3, seed=1)
    return X, y, e, held, audit(X, y, e, ridge=RIDGE, folds=held, bootstrap=50)


def test_the_matrix_is_that_of_a_loop_over_another_librarys_optimum(case):
    X, y, e, held, found = case
    Z = standardised(X)
    for q in range(3):
        p_all = held_out(Z, y, e, held, e == q, 3)
        for p in range(3):
            here = e == p
            assert found.loss.value[q, p] == pytest.approx(log_loss(y[here], p_all[here], labels=range(3)), abs=1e-5)
            assert found.accuracy.value[q, p] == pytest.approx((p_all[here].argmax(1) == y[here]).mean(), abs=1e-12)


def test_pooled_and_left_out_and_irm_are_what_their_formulas_say(case):
    X, y, e, held, found = case
    Z = standardised(X)
    p_all = held_out(Z, y, e, held, np.ones(len(y), bool), 3)
    for p in range(3):
        here = e == p
        assert found.pooled_loss.value[p] == pytest.approx(log_loss(y[here], p_all[here], labels=range(3)), abs=1e-5)
        assert found.pooled_accuracy.value[p] == pytest.approx((p_all[here].argmax(1) == y[here]).mean(), abs=1e-12)
        away = probabilities((Z[~here], y[~here]), Z[here], 3)
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


def test_what_another_environment_adds_is_truly_fitted(case):
    X, y, e, held, found = case
    worst = found.worst
    (r,) = {0, 1, 2} - {worst.fitted_on, worst.tested_on}
    assert worst.helper == r
    here = e == worst.tested_on
    both = held_out(standardised(X), y, e, held, (e == worst.fitted_on) | (e == r), 3)
    gain = (both[here].argmax(1) == y[here]).mean() - found.accuracy.value[worst.fitted_on, worst.tested_on]
    assert worst.closed.value == pytest.approx(gain, abs=1e-12)


def test_the_order_of_samples_does_not_matter_where_folds_are_the_same(case):
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


def test_float32_agrees_with_float64(case, monkeypatch):
    X, y, e, held, found = case
    monkeypatch.setattr("transferrisk.auditing.samples._SMALL", 0)
    single = audit(X.astype(np.float32), y, e, ridge=RIDGE, folds=held, bootstrap=5)
    np.testing.assert_allclose(single.loss.value, found.loss.value, atol=3e-3)
    assert not np.array_equal(single.loss.value, found.loss.value)


@pytest.mark.parametrize("largest", [4096, 2], ids=["factor", "diagonal"])
def test_fits_of_many_parts_are_the_exact_predictors(largest, monkeypatch):
    monkeypatch.setattr("transferrisk.auditing.fits._LARGEST_FACTOR", largest)
    monkeypatch.setattr("transferrisk.auditing.fits.CHUNK", 60)
    X, y, _ = problem(n=90, d=6)
    X[:, 1] += 5 * X[:, 0]
    X, y = torch.from_numpy(X), torch.from_numpy(y)
    blocks = [(X[i::3], y[i::3]) for i in range(3)]
    included = torch.tensor([[1, 1, 0], [0, 1, 0], [1, 1, 1], [0, 0, 0]]).bool()
    Z = torch.cat([X, torch.ones(90, 1)], 1)
    found = fit(blocks, included, 3, 1e-3, Z.T @ Z / 90)
    assert found.converged.all()
    assert found.value[3].isnan().all()
    for k in range(3):
        rows = torch.cat([X[i::3] for i in range(3) if included[k, i]])
        labels = torch.cat([y[i::3] for i in range(3) if included[k, i]])
        torch.testing.assert_close(found.value[k], optimal_predictor(rows, labels, 3, 1e-3), atol=1e-4, rtol=1e-4)


def test_the_curvature_of_logits_is_the_hessians_and_spares_iterations(monkeypatch):
    X, y, _ = problem(n=4000, d=40, E=1, C=4, seed=3, shift=0)
    rows, labels = torch.tensor(standardised(X)), torch.tensor(y)
    blocks = [(rows[k::4], labels[k::4]) for k in range(4)]
    included, gram = ~torch.eye(4, dtype=torch.bool), torch.eye(41, dtype=torch.float64)
    refined = fit(blocks, included, 4, 1e-3, gram)
    monkeypatch.setattr(fits, "_REFINED_AFTER", -1)
    assert refined.iterations < fit(blocks, included, 4, 1e-3, gram).iterations

    monkeypatch.setattr(fits, "_ROWS_PER_DIRECTION", 10**6)  # all rows
    W = refined.value[:1]
    basis, hessian = fits._Task(blocks, included[:1], torch.tensor([3000.0]), 1e-3).curvature(W)
    Z = torch.nn.functional.pad(torch.cat([block[0] for block in blocks[1:]]), (0, 1), value=1.0)
    y = torch.cat([block[1] for block in blocks[1:]])

    def loss(a):
        V = W[0] + a @ basis[0]
        return torch.nn.functional.cross_entropy(Z @ V.T, y) + 0.5e-3 * V.square().sum()

    true = torch.autograd.functional.hessian(loss, W.new_zeros(4, basis.shape[1])).view_as(hessian[0])
    torch.testing.assert_close(hessian[0], true)


def test_features_of_a_size_that_leaves_no_curvature_are_fitted_all_the_same():
    rows = 1e19 * torch.randn(30, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    blocks = [(rows[k::3], torch.arange(30)[k::3] % 2) for k in range(3)]
    gram = torch.diag(torch.tensor([1e38, 1.0], dtype=torch.float64))
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        found = fit(blocks, ~torch.eye(3, dtype=torch.bool), 2, 1e-3, gram)
    assert found.value.isfinite().all()
    assert (found.objective <= math.log(2)).all()


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


def test_intervals_cover_as_often_as_they_say():
    """Of 400 samples of known mean, about nine in ten 90 % intervals hold it: within four standard errors."""
    generator = torch.Generator().manual_seed(0)
    values = torch.empty(400, 150, dtype=torch.float64).exponential_(generator=generator)  # mean 1
    draws = np.stack([resampled_means(row[None], 200, generator)[:, 0] for row in values], 1)
    found = Estimate.of(values.mean(1).numpy(), draws, 0.9)
    covered = np.mean((found.low <= 1) & (found.high >= 1))
    assert abs(covered - 0.9) < 4 * math.sqrt(0.9 * 0.1 / 400)


def test_draws_have_the_variance_of_a_mean():
    values = torch.from_numpy(np.random.default_rng(0).normal(size=(2, 300)))
    draws = resampled_means(values, 4000, torch.Generator().manual_seed(0))
    np.testing.assert_allclose(draws.std(0), values.std(1, correction=0) / math.sqrt(300), rtol=0.06)
    np.testing.assert_allclose(draws.mean(0), values.mean(1), atol=0.01)


def test_small_environments_are_named_not_hidden():
    X, y, e = problem(n=200)
    X = np.concatenate([X, np.random.default_rng(1).normal(size=(9, 5))])
    y = np.concatenate([y, [0, 1, 2, 1, 1, 1, 1, 1, 1]])
    sites = np.array(["A", "B", "C", "one", "two", "same"])[np.concatenate([e, [3, 4, 4, 5, 5, 5, 5, 5, 5]])]
    found = audit(X, y, sites, ridge=RIDGE, folds=3, bootstrap=20)
    assert found.environments == ("A", "B", "C", "one", "same", "two")
    assert found.judged.tolist() == [True, True, True, False, False, False]
    assert set(found.remarks) == {"one", "two", "same"}
    for name in ("one", "two", "same"):
        assert any(line.startswith(f"Environment {name} ") for line in found.sentences)
    assert np.isnan(found.loss.value[3]).all()  # nothing is left to fit on
    assert np.isfinite(found.loss.value[:3]).all()
    assert np.isfinite(found.loss.value[5]).all()
    assert found.worst.fitted_on < 3
    assert found.worst.tested_on < 3
    alone = audit(X[:200], y[:200], e, ridge=RIDGE, folds=3, bootstrap=20)
    assert alone.transfer_risk.value == pytest.approx(found.transfer_risk.value, abs=0.15)
    frame = found.to_frame()
    assert frame[frame.fitted_on == "one"].loss.isna().all()
    assert not frame[frame.tested_on == "two"].judged.any()
    assert found.marked_names == ["A", "B", "C", "one *", "same *", "two *"]
    assert "* cannot be judged" in str(found)
    assert "*" not in str(alone)
    json.dumps(found.to_dict(), allow_nan=False)


def test_an_environment_within_one_fold_is_not_fitted_on():
    X, y, e = problem(n=200)
    held = np.where(e == 0, 0, np.arange(200) % 3)
    found = audit(X, y, e, ridge=RIDGE, folds=held, bootstrap=20)
    assert found.judged.tolist() == [False, True, True]
    assert "one fold" in found.remarks[0]
    assert np.isnan(found.loss.value[0]).all()
    assert np.isfinite(found.loss.value[1:]).all()
    assert np.isfinite(found.left_out_loss.value).all()


def test_the_interval_of_the_risk_holds_the_risk_where_many_environments_compete():
    rng = np.random.default_rng(0)
    X, y, e = rng.normal(size=(900, 3)), rng.integers(2, size=900), np.arange(900) % 30
    before = X.copy()
    risk = audit(X, y, e, ridge=RIDGE, bootstrap=50).transfer_risk
    assert risk.low < risk.value < risk.high
    np.testing.assert_array_equal(X, before)  # standardised in a copy


def test_a_class_missing_somewhere_is_told_and_costs_only_there():
    X, y, e = problem(n=300)
    keep = ~((e == 1) & (y == 2))
    found = audit(X[keep], y[keep], e[keep], ridge=RIDGE, bootstrap=20)
    assert found.judged.all()
    assert found.remarks == {1: "has no sample of class 2"}
    assert np.isfinite(found.loss.value).all()
    assert found.counts[1].tolist()[2] == 0


def test_nothing_to_judge_is_said():
    rng = np.random.default_rng(0)
    found = audit(rng.normal(size=(8, 2)), [0, 1] * 4, [0] * 4 + [1] * 4, ridge=RIDGE, bootstrap=5)
    assert found.worst is None
    assert np.isnan(found.transfer_risk.value)
    assert found.sentences[0].startswith("Fewer than two environments")
    assert found.to_dict()["transfer_risk"]["value"] is None


def test_equal_environments_are_within_chance_and_different_ones_are_not():
    rng = np.random.default_rng(0)
    y, e = rng.integers(2, size=1200), rng.integers(3, size=1200)
    X = rng.normal(size=(1200, 4)) + y[:, None]
    same = audit(X, y, e, ridge=RIDGE)
    assert "within chance" in same.sentences[0]
    X[:, 0] += 4 * np.where(e == 2, -y, y)
    different = audit(X, y, np.array(["A", "B", "C"])[e], ridge=RIDGE)
    assert "within chance" not in different.sentences[0]
    assert different.worst.points.low > 0.1
    assert "C" in different.sentences[0]


@pytest.mark.parametrize(
    ("points", "told"),
    [
        ((-0.046, -0.08, -0.01), "it gets more right all the same (90.0 % right, where one fitted there gets 85.4 %)."),
        ((-0.046, -0.08, 0.02), "how many it gets right differs by no more than chance (90.0 % right, where one "),
        ((0.046, 0.01, 0.08), "it gets 4.6 (1.0 to 8.0) points fewer right (90.0 % right, where one fitted there gets"),
    ],
)
def test_the_worst_pair_by_loss_is_told_by_its_loss(case, points, told):
    *_, found = case
    accuracy = np.full((3, 3), 0.9)
    accuracy[1, 1] = 0.854
    by_loss = WorstPair(0, 1, Estimate(0.2, 0.1, 0.3), Estimate(*points), None, None)
    by_accuracy = WorstPair(2, 0, Estimate(0.1, 0, 0.2), Estimate(-0.02, -0.05, 0.01), None, None)
    found = replace(
        found, worst=by_loss, worst_by_accuracy=by_accuracy, accuracy=Estimate(accuracy, accuracy, accuracy)
    )
    first, second, *_ = sentences(found)
    assert first.startswith(
        "No predictor fitted elsewhere gets fewer right than one fitted there; the nearest to it is "
    )
    assert second.startswith(
        "By cross-entropy the worst pair is a predictor fitted on 0 at 1: +0.200 (+0.100 to +0.300) "
    )
    assert told in second


def test_constant_columns_and_scales_do_not_matter():
    X, y, e = problem()
    plain = audit(X, y, e, ridge=RIDGE, bootstrap=5)
    moved = audit(np.c_[X * [1, 1e200, 1e3, 1e-3, 1] + 7, np.full(len(y), 1e3)], y, e, ridge=RIDGE, bootstrap=5)
    np.testing.assert_allclose(plain.loss.value, moved.loss.value, atol=1e-5)
    raw = audit(X, y, e, ridge=RIDGE, bootstrap=5, standardise=False)
    assert np.abs(raw.loss.value - plain.loss.value).max() > 1e-4


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"environments": np.zeros(60)}, "two environments"),
        ({"labels": np.zeros(60)}, "nothing to predict"),
        ({"labels": np.zeros(59)}, "60 rows"),
        ({"labels": 3}, "one int"),
        ({"labels": [None] * 60}, "missing, first in row 1"),
        ({"features": np.full((60, 5), np.nan)}, "first in row 1"),
        ({"features": np.zeros(60)}, r"give \(n, d\)"),
        ({"features": np.full((60, 2), "x")}, "not all numbers"),
        ({"folds": 1}, "folds=1"),
        ({"folds": np.zeros(60, int)}, "one fold alone"),
        ({"folds": np.zeros(3)}, "neither"),
        ({"ridge": 0.0}, "ridge=0.0"),
        ({"bootstrap": 0}, "bootstrap=0"),
        ({"confidence": 1.0}, "confidence=1.0"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_what_cannot_be_audited_is_told_in_one_line(change, message):
    X, y, e = problem(n=60)
    with pytest.raises(InputError, match=message) as error:
        audit(**({"features": X, "labels": y, "environments": e} | change))
    assert "\n" not in str(error.value)


def test_the_frame_is_tidy_and_the_text_short(case):
    *_, found = case
    frame = found.to_frame()
    assert len(frame) == 3 * 5
    row = frame[(frame.fitted_on == 1) & (frame.tested_on == 2)].iloc[0]
    assert row.loss == found.loss.value[1, 2]
    assert row.loss_low <= row.loss <= row.loss_high
    assert row.samples == found.counts[2].sum()
    assert len(str(found).splitlines()) == 1 + 6 + 1
    assert transferrisk.audit is audit


def test_accuracies_stand_beside_that_of_a_guess():
    rng = np.random.default_rng(0)
    e = np.arange(600) % 2
    y = (rng.random(600) < np.where(e == 0, 0.05, 0.5)).astype(int)
    X = rng.normal(size=(600, 3)) + np.where(e == 1, 3 * y, 0)[:, None]  # of no use at A
    found = audit(X, y, np.array(["A", "B"])[e], ridge=RIDGE, bootstrap=20)
    shares = [max(y[e == site].mean(), 1 - y[e == site].mean()) for site in (0, 1)]
    np.testing.assert_allclose(found.majority, shares)
    assert found.to_dict()["majority"] == pytest.approx(shares)
    frame = found.to_frame()
    assert set(frame[frame.tested_on == "A"].majority) == {found.majority[0]}
    (line,) = (line for line in found.sentences if "guessing the most frequent class" in line)
    assert f"A ({100 * found.accuracy.value[0, 0]:.1f} % fitted there, " in line
    assert f"{100 * shares[0]:.1f} % are of one class" in line
    assert "fitted there" not in line.partition("B (")[2]
    assert str(found).splitlines()[-2].split() == ["most", "frequent", *(f"{100 * share:.1f}" for share in shares)]
    (table,) = (section for section in page_of(found).sections if section.title == "Environments")
    assert [row[table.columns.index("Most frequent class, %")].text for row in table.rows] == [
        f"{100 * share:.1f}" for share in shares
    ]


def test_the_page_shows_names_as_they_are_and_a_dash_for_what_is_not_known(tmp_path):
    X, y, e = problem(n=90)
    sites = np.array(["<b>A</b>", "B & co", "C", "one"])[np.where(np.arange(90) == 0, 3, e)]
    found = audit(X, y, sites, ridge=RIDGE, folds=3, bootstrap=10)
    found.to_html(tmp_path / "page.html", "trm audit x.npz")
    page = (tmp_path / "page.html").read_text()
    assert "&lt;b&gt;A&lt;/b&gt;" in page
    assert "<b>A</b>" not in page
    assert ">nan<" not in page
    assert "trm audit x.npz" in page
    assert "Environment one is too small to judge: 1 sample in 3 folds." in page
    assert page.count("* cannot be judged, so its numbers mean nothing.") == 2  # at the maps and at the bars
    assert "one *" in page
    (pairs,) = (section for section in page_of(found).sections if section.title == "Worst pairs")
    assert len(pairs.rows) == 6  # of the three that can be judged
    assert f"{found.loss.value[0, 2]:.3f}" in page


def test_the_interval_of_the_largest_of_many_holds_its_truth():
    """Of 30 means whose truth is 0, the largest is named: nine in ten of its intervals hold 0; plain ones rarely do."""
    generator, plain, chosen = torch.Generator().manual_seed(0), [], []
    for _ in range(100):
        values = torch.randn(30, 100, generator=generator, dtype=torch.float64)
        means, draws = values.mean(1).numpy(), resampled_means(values, 200, generator)
        best = int(means.argmax())
        plain.append(Estimate.of(means[best], draws[:, best], 0.9).low > 0)
        chosen.append(after_choice(means[best], draws[:, best], largest_deviations(means, draws), 0.9).low > 0)
    assert np.mean(plain) > 0.5
    assert np.mean(chosen) < 0.1 + 3 * math.sqrt(0.9 * 0.1 / 100)


def test_ten_equal_environments_seldom_raise_an_alarm():
    alarms, helped, unseen = [], [], []
    for seed in range(10):
        rng = np.random.default_rng(seed)
        y, e = rng.integers(2, size=400), np.arange(400) % 10
        found = audit(rng.normal(size=(400, 2)) + y[:, None], y, e, ridge=0.1, folds=2, bootstrap=100)
        alarms.append("within chance" not in found.sentences[0])
        helped.append(found.worst_by_accuracy.closed.low > 0)
        unseen.append(any("loses most" in line for line in found.sentences))
    assert max(map(sum, (alarms, helped, unseen))) <= 1


def test_what_being_unseen_costs_is_judged_by_paired_differences():
    """A turns a feature round that B and C share, so that it needs a predictor of its own most."""
    rng = np.random.default_rng(0)
    y, e = rng.integers(2, size=1500), np.arange(1500) % 3
    X = rng.normal(size=(1500, 3)) + 0.4 * y[:, None]
    X[:, 0] += np.where(e == 0, -3 * y, 2 * y)
    found = audit(X, y, np.array(["A", "B", "C"])[e], ridge=RIDGE)
    gaps = np.diag(found.accuracy.value) - found.left_out_accuracy.value
    np.testing.assert_allclose(found.unseen.value, gaps)
    assert gaps.argmax() == 0
    (line,) = (line for line in found.sentences if "by being unseen" in line)
    assert line.startswith(f"A loses most by being unseen, {100 * gaps[0]:.1f} (")


def test_an_environment_that_cannot_be_fitted_has_no_ridge_and_no_say():
    X, y, e = problem(n=200)
    held = np.where(e == 0, 0, np.arange(200) % 3)
    found = audit(X, y, e, folds=held, bootstrap=5)
    assert np.isnan(found.ridges[0])
    assert found.pooled_ridge == pytest.approx(math.exp(np.log(found.ridges[1:]).mean()))
    assert found.to_dict()["ridges"][0] is None


@pytest.mark.parametrize("kind", [np.int64, np.int32, np.uint32])
def test_large_whole_numbers_keep_their_digits(kind):
    given = (1_700_000_000 + np.arange(40)[:, None]).astype(kind)
    kept = prepare(given, np.arange(40) % 2, np.repeat([0, 1], 20), 2, 0, False).rows
    np.testing.assert_array_equal(np.sort(kept.numpy(), 0), given)


def test_texts_that_are_numbers_are_in_the_order_of_numbers():
    features, labels, environments = problem(n=120)
    names = np.array([1, 2, 10])
    texts = [prepare(features, names[labels].astype(t), names[environments].astype(t), 3, 0, True) for t in (str, int)]
    assert texts[0].environments == texts[0].classes == ("1", "2", "10")
    assert torch.equal(texts[0].rows, texts[1].rows)
    assert torch.equal(texts[0].labels, texts[1].labels)
    words = prepare(features, labels, np.array(["1", "10", "b"])[environments], 3, 0, True)
    assert words.environments == ("1", "10", "b")
