"""The report of an audit: sentences, frame, text and page."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from audited import RIDGE, problem
from scipy.stats import norm

import transferrisk
from transferrisk import audit
from transferrisk.auditing import Estimate, WorstPair
from transferrisk.auditing.page import accuracy_table, page_of
from transferrisk.auditing.report import answer, expectation, pool, shared_variances


@pytest.mark.parametrize(
    ("points", "told"),
    [
        ((-0.046, -0.08, -0.01), "is higher"),
        ((-0.046, -0.08, 0.02), "not clearly"),
        ((0.046, 0.01, 0.08), "4.6 (1.0 to 8.0) points lower"),
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
    first, second, *_ = found.sentences
    assert first.startswith("No model ")
    assert "trained on 2 and tested in 0" in first
    assert "trained on 0 and tested in 1" in second
    for said in ("log loss", "0.200 (0.100 to 0.300)", "90.0 % right", "85.4 %", told):
        assert said in second


def test_a_negative_bound_has_a_minus_sign():
    assert str(Estimate(0.1, -0.25, 0.2)) == "0.100 (\N{MINUS SIGN}0.250 to 0.200)"


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


def test_accuracies_stand_beside_that_of_the_most_frequent_class():
    rng = np.random.default_rng(0)
    e = np.arange(600) % 2
    y = (rng.random(600) < np.where(e == 0, 0.05, 0.5)).astype(int)
    X = rng.normal(size=(600, 3)) + np.where(e == 1, 3 * y, 0)[:, None]  # of no use at A
    found = audit(X, y, np.array(["A", "B"])[e], ridge=RIDGE, bootstrap=20)
    shares = [max(y[e == site].mean(), 1 - y[e == site].mean()) for site in (0, 1)]
    np.testing.assert_allclose(found.most_frequent, shares)
    assert found.to_dict()["most_frequent"] == pytest.approx(shares)
    frame = found.to_frame()
    assert set(frame[frame.tested_on == "A"].most_frequent) == {found.most_frequent[0]}
    (line,) = (line for line in found.sentences if "no better than always predicting" in line)
    assert f"A ({100 * found.accuracy.value[0, 0]:.1f} % trained there, " in line
    assert f"most frequent class {100 * shares[0]:.1f} %" in line
    assert "trained there" not in line.partition("B (")[2]
    assert str(found).splitlines()[-2].split()[3:] == [*(f"{100 * share:.1f}" for share in shares)]
    (table,) = (section for section in page_of(found).sections if section.title == "Environments")
    assert [row[table.columns.index("Most frequent class, %")].text for row in table.rows] == [
        f"{100 * share:.1f}" for share in shares
    ]


def test_the_page_escapes_names_and_has_a_dash_for_nan(tmp_path, text_of):
    X, y, e = problem(n=90)
    sites = np.array(["<b>A</b>", "B & co", "C", "one"])[np.where(np.arange(90) == 0, 3, e)]
    found = audit(X, y, sites, ridge=RIDGE, folds=3, bootstrap=10)
    found.to_html(tmp_path / "page.html", "trm audit x.npz")
    page = (tmp_path / "page.html").read_text()
    assert "&lt;b&gt;A&lt;/b&gt;" in page
    assert "<b>A</b>" not in page
    assert ">nan<" not in page
    assert "trm audit x.npz" in text_of(tmp_path / "page.html")
    assert "Environment one is too small to judge: 1 sample in 3 folds." in page
    assert page.count("* cannot be judged") == 2  # at the maps and at the bars
    assert "one *" in page
    (pairs,) = (section for section in page_of(found).sections if section.title == "Worst pairs")
    assert len(pairs.rows) == 6  # of the three that can be judged
    assert f"{found.loss.value[0, 2]:.3f}" in page


def test_the_verdict_expects_the_pooled_accuracy_in_a_new_environment(case):
    *_, found = case
    left = found.left_out_accuracy
    width = 2 * norm.ppf(0.975)
    expected = pool(left.value, shared_variances(((left.high - left.low) / width) ** 2, found.counts.sum(1)))
    assert found.expected["accuracy"].mean == pytest.approx(expected.mean)
    answer, expectation, worry, following = found.verdict
    assert "new environment?" in answer
    assert f" {100 * expected.mean:.1f} %" in expectation
    assert f"most frequent class has an accuracy of {100 * found.most_frequent.mean():.1f} %" in expectation
    assert (left.value > found.most_frequent).all()
    behind = found.unseen.low > 0
    first = int(
        np.where(behind, found.unseen.value, -1).argmax() if behind.any() else found.left_out_loss.value.argmax()
    )
    assert f" {first} ({found.counts[first].sum()} samples)" in worry
    assert f"accuracy of {100 * left.value[first]:.1f} %" in worry
    assert f"log loss of {found.left_out_loss.value[first]:.3f}" in worry
    assert "trm fit" in following
    assert found.to_dict()["verdict"] == list(found.verdict)
    assert page_of(found).lead == found.verdict


def test_an_environment_of_high_loss_counts_as_much_as_others_of_its_size():
    losses, rows = np.array([0.5, 0.6, 0.5, 0.7, 0.6, 60.0]), np.full(6, 400)
    variances = losses**2 / rows  # the loss varies as much as it is large
    assert pool(losses, variances).mean < 1  # so that weights by precision would hide the last
    expected = pool(losses, shared_variances(variances, rows))
    assert expected.mean == pytest.approx(losses.mean())
    assert expected.high > 60
    uneven = pool(losses[:5], shared_variances(variances[:5], [14_000, 14_000, 14_000, 14_000, 14]))
    assert abs(uneven.mean - losses[:4].mean()) < 0.02  # few rows still count little where environments are alike


def test_a_model_of_noise_does_not_transfer():
    rng = np.random.default_rng(0)
    e, y = np.arange(400) % 4, (rng.random(400) < 0.2).astype(int)
    found = audit(rng.normal(size=(400, 3)), y, e, ridge=RIDGE, bootstrap=20)
    assert "new environment? No." in found.verdict[0]
    assert " In 0 of 4" in found.verdict[0]


@pytest.mark.parametrize(
    ("accuracies", "found", "interval"),
    [
        ([0.8, 0.81, 0.8, 0.79], "Yes", True),
        ([0.75, 0.65, 0.6, 0.62, 0.7], "With care", True),
        ([0.9, 0.8, 0.3], "Unclear", False),
        ([0.8, 0.8], "Unclear", False),
        ([0.5, 0.48, 0.49], "No", True),
    ],
)
def test_an_interval_is_told_only_where_it_says_something(accuracies, found, interval):
    accuracy, loss = pool(accuracies, np.full(len(accuracies), 4e-4)), pool(accuracies, np.full(len(accuracies), 4e-4))
    below = np.mean(np.array(accuracies) <= 0.5)
    assert answer(accuracy, 0.5, below, caution=False) == found
    assert answer(accuracy, 0.5, below, caution=True) == found.replace("Yes", "With care")
    said = expectation(accuracy, loss, accuracies, accuracies, 0.9)
    assert ("90 % interval" in said) == accuracy.tells == interval
    assert f"{100 * accuracy.mean:.1f} %" in said
    if not interval:  # what was seen
        assert f"{100 * min(accuracies):.1f} to {100 * max(accuracies):.1f} %" in said


@pytest.mark.parametrize(("names", "heads"), [("ABC", ["A", "B", "C"]), (["x" * 30, "y" * 30, "z"], ["1", "2", "3"])])
def test_long_names_are_numbered_in_the_heading(names, heads):
    X, y, e = problem(n=90)
    found = audit(X, y, np.array(list(names))[e], ridge=RIDGE, folds=3, bootstrap=5)
    table = accuracy_table(found)
    assert table.columns[1:] == heads
    heat = page_of(found).sections[1].sections[0]
    assert [name.split()[0] for name in heat.columns] == heads
    assert all(name in row[0] for name, row in zip(names, table.rows[:3], strict=True))


def test_many_environments_are_folded_with_the_neediest_first():
    X, y, e = problem(n=900, E=30)
    found = audit(X, y, e, ridge=RIDGE, folds=2, bootstrap=5)
    table = accuracy_table(found)
    above = found.left_out_accuracy.value - found.most_frequent
    assert [row[0] for row in table.rows] == [str(name) for name in np.argsort(above, kind="stable")]
    assert len(table.rows) - len(table.folded) == 20
    maps = page_of(found).sections[1].sections[0]
    assert maps.values.shape == (20, 20)
    assert maps.rows[0] == table.rows[0][0]
