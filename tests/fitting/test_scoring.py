"""Scores of predicted files: figures of scikit-learn, thresholds, sets, and what is said about a model."""

from __future__ import annotations

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rows import table
from sklearn import metrics as truth

from transferrisk.errors import DataWarning, InputError
from transferrisk.fitting import load_model
from transferrisk.fitting.decisions import Decision, learn_decision
from transferrisk.fitting.metrics import figures
from transferrisk.fitting.predict import predict_file
from transferrisk.fitting.scoring import Scores, class_tables, no_better, reliability_section
from transferrisk.reports import Page, render_page


@pytest.fixture
def new(tmp_path):
    frame = table(90, seed=3)
    frame.to_csv(tmp_path / "new.csv", index=False)
    return frame, str(tmp_path / "new.csv")


def decided(model, frame, **changes):
    """The model with a decision, learned from some rows."""
    y, chances = (frame["outcome"] == "yes").to_numpy(int), quietly(model.predict_proba, frame)
    codes, names = pd.factorize(frame["site"])
    decision = replace(learn_decision(y, chances, codes, list(names)), **changes)
    return replace(model, decision=decision)


def quietly(call, *given, **named):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DataWarning)
        return call(*given, **named)


def test_figures_of_a_file_are_those_of_all_its_rows(fitted, new, tmp_path):
    frame, file = new
    chances = quietly(fitted.model.predict_proba, frame)
    y = (frame["outcome"] == "yes").to_numpy(int)
    done = quietly(predict_file, fitted.model, file, tmp_path / "out.csv", size=13)
    for site, found in done.figures.items():
        rows = (frame["site"] == site).to_numpy()
        assert found.log_loss == pytest.approx(truth.log_loss(y[rows], chances[rows]), rel=1e-5)
        assert found.auroc == pytest.approx(truth.roc_auc_score(y[rows], chances[rows, 1]))
        assert found.accuracy == truth.accuracy_score(y[rows], chances[rows].argmax(1))
    assert (done.matrix == truth.confusion_matrix(y, chances.argmax(1))).all()
    content = done.to_dict()
    precision, recall, _, _ = truth.precision_recall_fscore_support(y, chances.argmax(1))
    assert content["classes"]["yes"]["precision"] == pytest.approx(precision[1])
    assert content["classes"]["yes"]["recall"] == pytest.approx(recall[1])
    assert content["figures"]["site A"]["rows"] == 30
    lead, by_environment, *_ = done.sections()  # nothing is known from held-out environments
    assert by_environment.title == "By environment"
    assert f"{100 * truth.accuracy_score(y, chances.argmax(1)):.1f} %" in lead
    assert f"{truth.log_loss(y, chances):.3f}" in lead


def test_threshold_and_sets_of_a_model_are_used(fitted, new, tmp_path):
    frame, file = new
    model = decided(fitted.model, frame, threshold=0.8)
    chances = quietly(model.predict_proba, frame)
    expected = np.where(chances[:, 1] > 0.8, "yes", "no")
    assert (quietly(model.predict, frame) == expected).all()
    done = quietly(predict_file, model, file, tmp_path / "out.csv", coverage=0.8)
    found = pd.read_csv(tmp_path / "out.csv")
    assert found["prediction"].tolist() == expected.tolist()
    sets = quietly(model.predict_sets, frame, 0.8)
    names = np.array(["no", "yes"])
    assert found["prediction_set"].tolist() == [" | ".join(names[held]) for held in sets]
    inside = sets[np.arange(90), (frame["outcome"] == "yes").astype(int)]
    for site, share in done.covered.items():
        assert share == inside[frame["site"] == site].mean()
    assert [*done.to_dict()["sets"]["expected"]] == ["site A", "site B", "site C"]
    lead = done.sections()[0]
    assert "environments it was not trained on" in lead
    assert f"{100 * min(one.accuracy for one in done.decision.seen.values()):.1f} % at worst" in lead
    assert any("trained on rows of site A, site B, site C" in str(one) for one in done.sections())
    for bad in (0.3, 1.0):
        with pytest.raises(InputError, match=f"coverage.*{bad}"):
            predict_file(model, file, tmp_path / "out.csv", coverage=bad)
    with pytest.raises(InputError, match="--sets"):
        predict_file(fitted.model, file, tmp_path / "out.csv", coverage=0.9)


def test_a_description_that_was_changed_is_refused(folder):
    load_model(folder)
    for damage in (b"{", b"{}", (folder / "model.json").read_bytes().replace(b"yes", b"no!")):
        (folder / "model.json").write_bytes(damage)
        with pytest.raises(InputError, match=r"model\.json"):
            load_model(folder)


def test_many_rows_are_sampled_and_counts_stay_exact():
    random = np.random.default_rng(0)
    p = random.random((8000, 1))
    chances, y = np.hstack([1 - p, p]), (random.random(8000) < p[:, 0]).astype(int)
    scores = Scores(("0", "1"), most=4000)
    for start in range(0, 8000, 500):
        part = slice(start, start + 500)
        scores.add([*map(str, y[part])], [None] * 500, chances[part], chances[part].argmax(1))
    (found,), whole = scores.result(8000, Decision()).figures.values(), figures(y, chances)
    assert (found.rows, found.accuracy, found.most_frequent) == (8000, whole.accuracy, whole.most_frequent)
    assert found.log_loss == pytest.approx(whole.log_loss, abs=0.05)
    assert sum(len(part) for part, _, _ in scores.kept) <= 2000
    assert "drawn at random" in scores.remarks()


def test_what_is_no_better_than_a_constant_is_named():
    y = np.array([0] * 6 + [1] * 4)
    useless = figures(y, np.tile([0.9, 0.1], (10, 1)))
    telling = figures(y, np.stack([0.95 - 0.4 * y, 0.05 + 0.4 * y], 1))
    good, single = figures(y, np.eye(2)[y]), figures(y[:6], np.eye(2)[y[:6]])
    lines = no_better({"A": good, "B": useless, "C": telling, "D": single})
    assert len(lines) == 2
    assert lines[0].startswith("No better than always predicting the most frequent class at B ")
    assert "at C " in lines[1]


def test_sections_can_be_drawn():
    y, p = np.array([0, 1, 1, 0]), np.array([[0.8, 0.2], [0.3, 0.7], [0.6, 0.4], [0.9, 0.1]])
    matrix = np.array([[2, 0], [1, 1]])
    sections = [*class_tables(matrix, ["no", "yes"]), reliability_section({"model": (y, p)}, classes=["no", "yes"])]
    page = render_page(Page("Page", ["Lead"], sections, {}, "trm"))
    assert "as yes" in page
    assert "probability of yes" in page
