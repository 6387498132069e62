"""Environments that are too small, within one fold, or without a class."""

from __future__ import annotations

import json
import math

import numpy as np
import pytest
from audited import RIDGE, problem

from transferrisk import audit
from transferrisk.errors import InputError


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


def test_nothing_to_judge_is_reported():
    rng = np.random.default_rng(0)
    found = audit(rng.normal(size=(8, 2)), [0, 1] * 4, [0] * 4 + [1] * 4, ridge=RIDGE, bootstrap=5)
    assert found.worst is None
    assert np.isnan(found.transfer_risk.value)
    assert found.sentences[0].startswith("Fewer than two environments")
    assert found.to_dict()["transfer_risk"]["value"] is None


def test_an_environment_that_cannot_be_fitted_has_no_ridge_and_no_say():
    X, y, e = problem(n=200)
    held = np.where(e == 0, 0, np.arange(200) % 3)
    found = audit(X, y, e, folds=held, bootstrap=5)
    assert np.isnan(found.ridges[0])
    assert found.pooled_ridge == pytest.approx(math.exp(np.log(found.ridges[1:]).mean()))
    assert found.to_dict()["ridges"][0] is None


@pytest.mark.parametrize(
    ("samples", "classes", "environments", "said"),
    [(10_000, 2, 10_000, "environments must be at most"), (9_000, 1000, 300, "300 x 9000 x 1000")],
)
def test_too_many_environments_are_refused_at_once(samples, classes, environments, said):
    labels, sites = np.arange(samples) % classes, np.arange(samples) // (samples // environments)
    with pytest.raises(InputError, match=said):
        audit(np.zeros((samples, 2)), labels, sites)
