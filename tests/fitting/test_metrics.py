"""Measures against scikit-learn's and closed forms; what is learned, against a known truth and by simulation."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from scipy.special import softmax
from sklearn import metrics as truth

from transferrisk.errors import InputError
from transferrisk.fitting.decisions import (
    LEVELS,
    Calibration,
    Conformal,
    Decision,
    decide_held_out,
    fit_calibrations,
    fit_conformal,
    fit_threshold,
    learn_decision,
)
from transferrisk.fitting.metrics import (
    METRICS,
    OF_CONFUSION,
    confusion,
    decide,
    figures,
    per_class,
    reliability,
    row_losses,
    row_scores,
)
from transferrisk.settings import as_json, convert


def drawn(rows, classes, seed=0, sharp=1.0):
    """Labels drawn from probabilities, and those of the same logits `sharp` times as large."""
    random = np.random.default_rng(seed)
    logits = 1.5 * random.normal(size=(rows, classes))
    true = Calibration().apply(np.exp(logits) / np.exp(logits).sum(1, keepdims=True))
    labels = (random.random((rows, 1)) > true.cumsum(1)[:, :-1]).sum(1)
    return labels, Calibration(1 / sharp).apply(true)


@pytest.mark.parametrize("classes", [2, 3])
def test_figures_are_those_of_scikit_learn(classes):
    y, p = drawn(300, classes)
    found, guess = figures(y, p), p.argmax(1)
    score, more = (p[:, 1], {}) if classes == 2 else (p, {"multi_class": "ovr"})
    assert found.rows == 300
    assert found.accuracy == pytest.approx(truth.accuracy_score(y, guess))
    assert found.log_loss == pytest.approx(truth.log_loss(y, p)) == pytest.approx(row_losses(y, p).mean())
    assert found.brier == pytest.approx(truth.brier_score_loss(y, score))
    assert found.auroc == pytest.approx(truth.roc_auc_score(y, score, **more))
    assert found.most_frequent == np.bincount(y).max() / 300
    assert found.entropy == pytest.approx(truth.log_loss(y, np.tile(np.bincount(y) / 300, (300, 1))))
    assert OF_CONFUSION["balanced_accuracy"](confusion(y, guess, classes)) == pytest.approx(
        truth.balanced_accuracy_score(y, guess)
    )
    average = "binary" if classes == 2 else "macro"
    assert OF_CONFUSION["f1"](confusion(y, guess, classes)) == pytest.approx(truth.f1_score(y, guess, average=average))
    matrix = confusion(y, guess, classes)
    assert (matrix == truth.confusion_matrix(y, guess)).all()
    by_class = truth.precision_recall_fscore_support(y, guess)[:3]
    assert np.allclose(per_class(matrix).T, by_class)


def test_ties_and_classes_that_are_not_there():
    y, p = np.array([0, 1, 1, 0]), np.full((4, 2), 0.5)
    assert figures(y, p).auroc == truth.roc_auc_score(y, p[:, 1]) == 0.5
    assert math.isnan(figures(np.zeros(4, int), p).auroc)
    assert figures(np.zeros(4, int), p).entropy == 0
    assert figures(y[:0], p[:0]).rows == 0
    three = np.array([[0.7, 0.2, 0.1], [0.2, 0.7, 0.1], [0.6, 0.3, 0.1]])
    assert figures(np.array([0, 1, 0]), three).auroc == 1  # the third class does not count
    assert OF_CONFUSION["balanced_accuracy"](confusion(np.array([0, 0]), three[:2].argmax(1), 3)) == 0.5
    assert np.isfinite(row_losses(np.array([1]), np.array([[1.0, 0.0]]))).all()


def test_calibration_error_in_closed_form():
    p = np.repeat([0.2, 0.6, 0.9], [10, 20, 10])
    y = np.concatenate([np.arange(10) < 3, np.arange(20) < 12, np.arange(10) < 5]).astype(int)
    found = reliability(y, np.stack([1 - p, p], 1))
    assert np.allclose(found.probability, [0.2, 0.6, 0.9])
    assert np.allclose(found.frequency, [0.3, 0.6, 0.5])
    assert found.rows.tolist() == [10, 20, 10]
    assert figures(y, np.stack([1 - p, p], 1)).calibration_error == pytest.approx((0.1 + 0.4) / 4)
    sure = np.eye(3)[[0, 1, 2, 0]]
    assert figures(np.array([0, 1, 2, 1]), sure).calibration_error == pytest.approx(0.25)


@pytest.mark.parametrize("classes", [2, 4])
def test_temperature_undoes_what_made_logits_too_large(classes):
    y, p = drawn(20_000, classes, sharp=2.5)
    environments = np.arange(len(y)) % 5
    calibration = fit_calibrations(y, p, environments)[-1]
    assert calibration.temperature == pytest.approx(2.5, rel=0.05)
    t = calibration.temperature
    low, best, high = (row_losses(y, Calibration(x).apply(p)).mean() for x in (t * 0.999, t, t * 1.001))
    assert abs(high - low) / (0.002 * t) < 1e-4  # the derivative, of environments of one size
    assert best <= min(low, high)
    assert (calibration.apply(p).argmax(1) == p.argmax(1)).all()


def test_temperature_stays_where_it_does_not_transfer():
    y, p = drawn(4000, 2)
    assert (
        fit_calibrations(y, p, np.zeros(len(y), int)) == [Calibration()] * 2
    )  # one environment says nothing of another
    half = np.arange(len(y)) < 2000
    mixed = np.where(half[:, None], Calibration(0.4).apply(p), Calibration(2.5).apply(p))  # one too sure, one too shy
    assert fit_calibrations(y, mixed, half)[-1] == Calibration()


def test_threshold_is_the_best_of_all_where_it_transfers():
    random = np.random.default_rng(0)
    y = (random.random(6000) < 0.1).astype(int)
    odds = np.log(0.1 / 0.9) + 2 * (random.normal(size=6000) + 2 * y) - 2  # exact log odds
    p = 1 / (1 + np.exp(-odds))
    both, environments = np.stack([1 - p, p], 1), np.arange(6000) % 4
    balanced = fit_threshold(y, both, environments, "balanced_accuracy")
    assert balanced == pytest.approx(0.1, abs=0.04)  # the share of the class is where balanced accuracy is largest
    scores = [truth.f1_score(y, p > t) for t in np.linspace(0.05, 0.95, 91)]
    f1 = fit_threshold(y, both, environments, "f1")
    assert truth.f1_score(y, decide(both, f1)) > max(scores) - 0.01
    for metric in ("log_loss", "auroc", "brier"):
        assert fit_threshold(y, both, environments, metric) is None
    assert (decide(both, 0.5) == decide(both)).all()


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("metric", METRICS)
def test_scores_of_rows_have_the_mean_and_the_error_of_the_metric(metric, classes):
    """scikit-learn tells the metric, and drawing the rows again how much it varies."""
    y, p = drawn(400, classes)
    decided = decide(p, 0.3)
    average = "binary" if classes == 2 else "macro"
    score, more = (p[:, 1], {}) if classes == 2 else (p, {"multi_class": "ovr"})
    expected = {
        "log_loss": lambda: truth.log_loss(y, p),
        "brier": lambda: figures(y, p).brier,
        "accuracy": lambda: 1 - truth.accuracy_score(y, decided),
        "balanced_accuracy": lambda: 1 - truth.balanced_accuracy_score(y, decided),
        "f1": lambda: 1 - truth.f1_score(y, decided, average=average),
        "auroc": lambda: 1 - truth.roc_auc_score(y, score, **more),
    }
    scores = row_scores(y, p, decided, metric)
    assert scores.mean() == pytest.approx(expected[metric]())
    random, again = np.random.default_rng(1), []
    for _ in range(400):
        rows = random.integers(400, size=400)
        again.append(row_scores(y[rows], p[rows], decided[rows], metric).mean())
    assert np.sqrt(scores.var() / 400) == pytest.approx(np.std(again), rel=0.12)


def test_scores_where_a_metric_is_not_defined():
    y, p = np.zeros(5, int), np.tile([0.9, 0.1], (5, 1))
    assert np.isnan(row_scores(y, p, decide(p), "auroc")).all()
    assert row_scores(y, p, decide(p), "f1").tolist() == [1] * 5  # as scikit-learn's
    assert row_scores(y, p, decide(p), "balanced_accuracy").tolist() == [0] * 5


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy", "f1"])
def test_a_held_out_environment_has_no_say_in_its_threshold(metric, ordered):
    environments, differ = np.arange(240) % 4, 0
    for seed in range(20):
        y, p = drawn(240, 2, seed)
        p[:, 1] = p[:, 1] ** 1.5  # too low, everywhere alike
        p[:, 0] = 1 - p[:, 1]
        decided = decide_held_out(y, p, environments, metric, ordered)
        for e in range(4):
            own, others = environments == e, environments < e if ordered else environments != e
            alone = fit_threshold(y[others], p[others], environments[others], metric)
            np.testing.assert_array_equal(decided[own], decide(p[own], alone))
            turned = np.where(others, y, 1 - y)
            np.testing.assert_array_equal(decide_held_out(turned, p, environments, metric, ordered)[own], decided[own])
            calibrated = Calibration(2.0).apply(p)
            again = decide_held_out(y, calibrated, environments, metric, ordered)
            assert (again == decided).mean() > 0.98  # the order of rows is the same, and where one half is
            differ += alone is not None
        assert (decide_held_out(y, p, environments, "log_loss", ordered) == decide(p)).all()
    assert 0 < differ < 80


@pytest.mark.parametrize("ordered", [False, True])
def test_a_held_out_environment_has_no_say_in_its_figures(ordered):
    """The same by fits to the other environments alone; their sharpness differs, so temperatures do."""
    environments, differ = np.arange(160) % 4, 0
    for seed in range(15):
        y, p = drawn(160, 3, seed)
        p = np.concatenate([Calibration(1 / (1.5 + e)).apply(p[environments == e]) for e in range(4)])
        y, places = np.concatenate([y[environments == e] for e in range(4)]), np.repeat(np.arange(4), 40)
        decision = learn_decision(y, p, places, "abcd", ordered=ordered)
        assert decision.temperature == fit_calibrations(y, p, places)[-1].temperature
        for e, name in enumerate("abcd"):
            own, others = places == e, places < e if ordered else places != e
            if not others.any():
                assert (decision.temperatures[name], name in decision.conformal.seen) == (1, False)
                continue
            calibration = fit_calibrations(y[others], p[others], places[others])[-1]
            chances = calibration.apply(p[own])
            assert decision.temperatures[name] == pytest.approx(calibration.temperature)
            assert decision.seen[name].log_loss == pytest.approx(truth.log_loss(y[own], chances, labels=range(3)))
            sets = fit_conformal(y[others], calibration.apply(p[others]), places[others]).sets(chances, 0.8)
            covered = sets[np.arange(40), y[own]].mean()
            assert decision.conformal.expected(0.8)[name] == pytest.approx(covered, abs=1e-4)
            differ += calibration.temperature != decision.temperature
    assert differ > 15


def test_sets_reach_their_coverage_in_new_environments():
    """Environments differ in how sure the model should be; over many draws, 90 % of new ones reach the level."""
    random = np.random.default_rng(0)

    def environment(rows=400):
        y, p = drawn(rows, 3, random.integers(1 << 30), sharp=1 + random.random())
        return y, p

    reached = []
    for _ in range(40):
        parts = [environment() for _ in range(9)]
        y, p = (np.concatenate(each) for each in zip(*parts, strict=True))
        conformal = fit_conformal(y, p, np.repeat(np.arange(9), 400))
        for _ in range(5):
            new, chances = environment()
            reached.append(conformal.sets(chances, 0.8)[np.arange(400), new].mean())
    assert np.mean(np.array(reached) >= 0.8) > 0.85
    assert np.mean(reached) < 0.9  # and sets are not wastefully large


@pytest.mark.parametrize("digits", [1, 2])
def test_rows_with_equal_probabilities_are_in_their_sets_together(digits):
    """In the rows that quantiles are from, coverage is at least the level, however many scores are equal."""
    random = np.random.default_rng(digits)
    for _ in range(20):
        p = np.round(random.dirichlet((1, 1, 1), 300), digits)
        p[:, 2] = 1 - p[:, 0] - p[:, 1]
        y = (p.cumsum(1) > random.random((300, 1))).argmax(1)
        conformal = fit_conformal(y, p, np.zeros(300, int))
        covered = [conformal.sets(p, level)[np.arange(300), y].mean() for level in LEVELS]
        assert (covered >= LEVELS).all()
        assert np.allclose(conformal.coverage(y, p), covered, atol=1e-4)
        assert (conformal.sets(p.astype(np.float32), 0.9) == conformal.sets(p, 0.9)).all()


@pytest.mark.parametrize(("environments", "rows"), [(1, 9), (1, 19), (1, 100), (3, 20), (6, 60)])
def test_the_mean_coverage_in_new_environments_is_at_least_what_was_asked_for(environments, rows):
    """For one environment it is the ceil((n + 1) level) / (n + 1) of split conformal prediction, and hardly more."""
    random = np.random.default_rng(0)

    def drawn_alike(rows):
        logits = 2 * random.normal(size=(rows, 4))
        own = 0 if environments == 1 else 0.7 * random.normal(size=4)  # what differs between environments
        y = (softmax(logits + own, 1).cumsum(1) > random.random((rows, 1))).argmax(1)
        return y, softmax(logits, 1)

    covered = []
    for _ in range(400):
        y, p = (np.concatenate(each) for each in zip(*(drawn_alike(rows) for _ in range(environments)), strict=True))
        conformal = fit_conformal(y, p, np.repeat(np.arange(environments), rows))
        new, chances = drawn_alike(100)
        covered.append(conformal.sets(chances, 0.9)[np.arange(100), new].mean())
    error = np.std(covered) / len(covered) ** 0.5
    assert np.mean(covered) > 0.9 - 2 * error
    if environments == 1:
        assert np.mean(covered) == pytest.approx(np.ceil((rows + 1) * 0.9) / (rows + 1), abs=3 * error)


@pytest.mark.parametrize("rows", [1, 4, 8])
def test_sets_from_too_few_rows_hold_all_classes(rows):
    y, p = drawn(rows, 3)
    p[:, 0] = 0  # which has no chance
    p /= p.sum(1, keepdims=True)
    conformal = fit_conformal(y, p, np.zeros(rows, int))
    assert conformal.sets(p, 0.9).all()
    assert conformal.sets(p, 0.99).all()


def test_sets_grow_with_coverage_and_hold_the_likeliest():
    y, p = drawn(900, 3)
    conformal = fit_conformal(y, p, np.arange(900) % 3)
    sizes = [conformal.sets(p, level).sum(1) for level in (0.5, 0.8, 0.905, 0.99)]
    assert all((small <= large).all() for small, large in itertools.pairwise(sizes))
    assert conformal.sets(p, 0.5)[np.arange(900), p.argmax(1)].all()
    alone = fit_conformal(
        y[np.arange(900) % 3 > 0], p[np.arange(900) % 3 > 0], np.arange(900)[np.arange(900) % 3 > 0] % 3
    )
    first = np.arange(900) % 3 == 0
    seen = alone.sets(p[first], 0.9)[np.arange(300), y[first]].mean()
    assert alone.coverage(y[first], p[first])[np.flatnonzero(LEVELS == 0.9)[0]] == pytest.approx(seen, abs=1e-4)
    few = fit_conformal(y[:4], p[:4], np.zeros(4, int))
    assert few.sets(p, 0.9).all()  # four rows cannot say what nine of ten are like
    for coverage in (0.4, 1.0, float("nan")):
        with pytest.raises(InputError, match="coverage"):
            conformal.sets(p, coverage)
    with pytest.raises(InputError, match=str(len(LEVELS))):
        Conformal((0.5,))


def test_decision_is_learned_and_kept():
    y, p = drawn(3000, 2, sharp=3)
    environments = np.arange(3000) % 4
    p[environments == 3] = np.nan  # was not held out
    decision = learn_decision(y, p, environments, ["a", "b", "c", "d"], "f1")
    assert decision.temperature == pytest.approx(3, rel=0.15)
    assert [*decision.seen] == [*decision.conformal.seen] == ["a", "b", "c"]
    assert decision.seen["a"].log_loss < figures(y[environments == 0], p[environments == 0]).log_loss
    assert convert("decision", as_json(decision), Decision) == decision
    with pytest.raises(InputError, match="temperature"):
        convert("decision", {**as_json(decision), "temperature": 0}, Decision)
    nothing = learn_decision(y, np.full_like(p, np.nan), environments, ["a", "b", "c", "d"])
    assert nothing == convert("decision", as_json(nothing), Decision) == Decision()
