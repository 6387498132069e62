"""The benchmark of tables runs, and its figures are those of another route."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss
from sklearn.model_selection import LeaveOneGroupOut, cross_val_predict
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler


@pytest.fixture
def tables(monkeypatch):
    pytest.importorskip("lightgbm")
    monkeypatch.syspath_prepend(Path(__file__).parents[1] / "benchmarks")
    return __import__("tables")


def test_figures_of_a_table_are_those_of_scikit_learn(tables, tmp_path, monkeypatch, capsys):
    frame = tables.simulate([0.9, 0.8, 0.7, 0.1], stable=1.0, seed=0, rows=60)
    monkeypatch.setattr(tables, "SIMULATED", {"sites": lambda: frame})
    tables.main(
        [str(tmp_path), "--only", "sites", "--algorithms", "majority,linear", "--json", str(tmp_path / "found.json")]
    )
    (found,) = json.loads((tmp_path / "found.json").read_text())
    assert "sites" in capsys.readouterr().out
    known, future = frame[frame.environment < 3], frame[frame.environment == 3]
    X, y = known.drop(columns=["label", "environment"]), known["label"].to_numpy()
    model = make_pipeline(StandardScaler(), LogisticRegression())
    chances = cross_val_predict(model, X, y, groups=known["environment"], cv=LeaveOneGroupOut(), method="predict_proba")
    sites = known["environment"].to_numpy()
    rival = found["rivals"]["logistic"]
    assert rival["held_out"]["accuracy"] == pytest.approx(np.mean(chances.argmax(1) == y))
    losses = [log_loss(y[sites == site], chances[sites == site]) for site in range(3)]
    assert rival["held_out"]["log_loss"] == pytest.approx(np.mean(losses))
    right = model.fit(X, y).score(future[X.columns], future["label"])
    assert rival["future"]["accuracy"] == pytest.approx(right)
    assert found["future_best"]["accuracy"] >= right
    assert (found["rows"], found["environments"], found["future_rows"]) == (180, 3, 60)
    own = found["comparison"]["algorithms"][found["chosen"]]
    assert found["held_out"]["accuracy"] == pytest.approx(own["mean_accuracy"])
    gap = found["held_out"]["accuracy"] - found["held_out_best"]["accuracy"]
    assert found["held_out_accurate"] == (gap >= -0.005)
