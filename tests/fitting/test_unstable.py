"""A column that agrees with the label in the training sites and not in the next one."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import sklearn
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from transferrisk.data import Options
from transferrisk.fitting import DropUnstable, Plan, fit
from transferrisk.fitting.verdict import verdict


def sites(agreements, rows=1000, seed=0):
    """Four columns that give about 75 % together, two without meaning, and the last that agrees so often."""
    rng, parts, places = np.random.default_rng(seed), [], []
    for e, agrees in enumerate(agreements):
        y = rng.integers(2, size=rows)
        real = rng.normal(size=(rows, 4)) + np.array([0.45, 0.4, 0.25, 0.2]) * (2 * y - 1)[:, None]
        parts.append(np.c_[real, rng.normal(size=(rows, 2)), np.where(rng.random(rows) < agrees, y, 1 - y), y])
        places += [e] * rows
    table = np.concatenate(parts)
    return table[:, :-1], table[:, -1].astype(int), np.array(places)


@pytest.mark.parametrize("agreements", [(0.95, 0.85), (0.95, 0.9, 0.85)])
@pytest.mark.parametrize("seed", range(3))
def test_a_future_site_gains_by_what_is_dropped(agreements, seed):
    X, y, e = sites((*agreements, 0.1), seed=seed)
    train = e < len(agreements)
    with sklearn.config_context(enable_metadata_routing=True):
        drop = DropUnstable().set_fit_request(environments=True)
        linear = make_pipeline(drop, LogisticRegression()).fit(X[train], y[train], environments=e[train])
    assert linear[0].dropped_ == ("6",)
    booster = HistGradientBoostingClassifier(random_state=0).fit(X[train], y[train])
    assert linear.score(X[~train], y[~train]) > max(0.68, booster.score(X[~train], y[~train]) + 0.05)


def test_features_of_a_column_go_together():
    X, y, e = sites((0.95, 0.8))
    both = np.c_[X[:, :3], X[:, 6], 1 - X[:, 6]]
    found = DropUnstable({"a": [0], "b": [1], "c": [2], "scanner": [3, 4]}).fit(both, y, e)
    assert found.dropped_ == ("scanner",)
    np.testing.assert_array_equal(found.transform(both), both[:, :3])
    assert found.get_feature_names_out().tolist() == ["x0", "x1", "x2"]


def test_stable_columns_stay():
    X, y, e = sites((0.9, 0.9))
    assert DropUnstable().fit(X, y, e).dropped_ == ()
    with pytest.raises(NotFittedError):
        DropUnstable().transform(X)


def test_fit_drops_inside_the_folds_and_tells_what_it_gained(tmp_path):
    """The column that agrees 95, 90 and 85 % of the time leaves the model, which then works where it agrees in 10 %."""
    X, y, e = sites((0.95, 0.9, 0.85, 0.1))
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(6)] + ["scanner"]).assign(y=y, site=[f"s{i}" for i in e])
    frame[e < 3].to_csv(tmp_path / "t.csv", index=False)
    options, plan = Options(label="y", environment="site"), Plan(("linear", "boosting"), device="cpu")
    trusting, careful = (fit(tmp_path / "t.csv", options, replace(plan, drop_unstable=it)) for it in (False, True))
    assert "scanner" in careful.model.schema.dropped
    assert careful.with_all.summary["mean"]["linear"] > careful.comparison.summary["mean"]["linear"] + 0.05
    assert "'scanner'" in " ".join(verdict(careful))
    stayed = [name for name, gone in careful.comparison.dropped.items() if not gone]
    assert ("every candidate tested there used" in " ".join(verdict(careful))) == bool(stayed)
    assert trusting.comparison.dropped == {}
    assert "scanner" in " ".join(trusting.columns.sentences)
    (following,) = (line for line in verdict(trusting) if line.startswith("Next:"))
    assert "--drop scanner" in following
    assert "does better without" not in following  # held-out losses speak against it
    for fitted in (trusting, careful):  # what was dropped is shown too
        assert fitted.columns.columns[0].name == "scanner"
        assert fitted.columns["scanner"].loss.mean > 0
        seen = fitted.decision.seen
        np.testing.assert_allclose([one.loss for one in fitted.shifts], [one.log_loss for one in seen.values()])
    new, labels = frame[e == 3].drop(columns=["y", "site"]), y[e == 3].astype(str)
    assert (trusting.model.predict(new) == labels).mean() < 0.5
    assert (careful.model.predict(new) == labels).mean() > 0.68


def test_it_is_said_in_which_folds_a_dropped_column_stayed(tmp_path):
    """Only the last site shows that the scanner is unstable: the models tested there had to use it."""
    X, y, e = sites((0.9, 0.9, 0.9, 0.1), rows=300)
    frame = pd.DataFrame(X, columns=[f"x{i}" for i in range(6)] + ["scanner"]).assign(y=y, site=[f"s{i}" for i in e])
    frame.to_csv(tmp_path / "t.csv", index=False)
    plan = Plan(("linear",), device="cpu", drop_unstable=True, workers=1)
    fitted = fit(tmp_path / "t.csv", Options(label="y", environment="site"), plan)
    assert "scanner" in fitted.model.schema.dropped
    assert fitted.comparison.dropped == {"s0": ("scanner",), "s1": ("scanner",), "s2": ("scanner",), "s3": ()}
    (said,) = (line for line in verdict(fitted) if line.startswith("The model does without 'scanner'"))
    assert "When s3 was held out" in said
    assert "not those of a model without 'scanner'" in said
    rest = [fitted.decision.seen[name].accuracy for name in ("s0", "s1", "s2")]
    assert f"{100 * np.mean(rest):.1f} %" in said
    assert "--drop scanner " in verdict(fitted)[-1]  # compares without it everywhere
    assert fitted.decision.seen["s3"].accuracy < 0.5 < min(rest)
