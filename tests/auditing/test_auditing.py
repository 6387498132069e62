"""The audit against brute force: loops, another library's optimum, formulas written out."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from audited import RIDGE, problem, standardised
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

import transferrisk
from transferrisk import audit
from transferrisk.auditing.bootstrap import Estimate
from transferrisk.auditing.folds import assign_folds
from transferrisk.auditing.page import page_of
from transferrisk.auditing.report import WorstPair
from transferrisk.auditing.samples import prepare
from transferrisk.auditing.sentences import sentences
from transferrisk.errors import InputError
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
