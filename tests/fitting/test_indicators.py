"""Missing-value indicators stay where they help in held-out environments, inside the folds too."""

from __future__ import annotations

from dataclasses import replace

import joblib
import numpy as np
import pandas as pd
import pytest
from rows import ASKED, table
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from transferrisk.auditing.samples import settle_indicators
from transferrisk.data.infer import Declared, infer_schema
from transferrisk.errors import DataWarning
from transferrisk.fitting import Plan, fit, load_model, save_fit
from transferrisk.fitting.candidates import TableEncoder
from transferrisk.fitting.predict import predict_file
from transferrisk.fitting.source import read_source
from transferrisk.sklearn import LeaveOneEnvironmentOut

SITES = np.repeat([f"site {i}" for i in range(5)], 120)


def visits(helps: bool) -> pd.DataFrame:
    """A number that is missing by the outcome, in the same way everywhere or in another way at every site."""
    random = np.random.default_rng(100)
    x, y = random.normal(size=(2, len(SITES)))
    outcome = x + y > 0
    towards = np.ones(len(SITES)) if helps else np.where(SITES < "site 2", 1, np.where(SITES < "site 3", 0, -1))
    missing = random.random(len(SITES)) < 0.5 + 0.35 * towards * np.where(outcome, 1, -1)
    dose = np.where(missing, np.nan, random.normal(size=len(SITES)))
    return pd.DataFrame({"x": x, "dose": dose, "site": SITES, "outcome": np.where(outcome, "yes", "no")})


def held_out_loss(features, frame):
    parts = LeaveOneEnvironmentOut().split(features, environments=frame["site"])
    labels = frame["outcome"].to_numpy()
    losses = []
    for train, test in parts:
        model = LogisticRegression().fit(features[train], labels[train])
        losses.append(log_loss(labels[test], model.predict_proba(features[test])))
    return np.mean(losses)


@pytest.mark.parametrize("helps", [True, False])
def test_auto_takes_what_logistic_regression_does_better_with(tmp_path, helps):
    frame = visits(helps)
    frame.to_csv(tmp_path / "visits.csv", index=False)
    found = {
        mode: read_source(str(tmp_path / "visits.csv"), replace(ASKED, missing_indicators=mode))
        for mode in ("auto", "always", "never")
    }
    losses = {mode: held_out_loss(one.samples.inputs[:].numpy(), frame) for mode, one in found.items()}
    assert (losses["always"] < losses["never"]) == helps
    assert losses["auto"] == min(losses.values())
    assert found["always"].schema.feature_names == ("x", "dose", "dose (missing)")
    assert found["never"].schema.feature_names == ("x", "dose")


@pytest.mark.parametrize(("tells", "least", "most"), [(0.15, 36, 40), (0, 0, 4)])
def test_indicators_of_pure_noise_are_left_out(tells, least, most):
    """Values are missing in 0.3 + tells of the rows of one class, and in 0.3 - tells of those of the other."""
    stay = 0
    for seed in range(40):
        random = np.random.default_rng(seed)
        x, z, noise = random.normal(size=(3, 400))
        y, site = (x + noise > 0).astype(int), random.integers(5, size=400)
        z[random.random(400) < 0.3 + tells * (2 * y - 1)] = np.nan
        frame = pd.DataFrame({"x": x, "z": z, "y": y, "site": site})
        schema = infer_schema(frame, "y", "site")
        stay += "z (missing)" in settle_indicators(schema, Declared(), frame, y, site).feature_names
    assert least <= stay <= most


@pytest.mark.parametrize("helps", [True, False])
def test_each_fold_decides_by_its_own_rows(tmp_path, helps):
    frame = visits(helps)
    joblib.dump(frame, tmp_path / "table")
    outcome, places = frame["outcome"].to_numpy(), frame["site"].to_numpy()

    def names_of(rows, **said):
        encoder = TableEncoder(tmp_path / "table", "outcome", "site", declared=Declared(**said))
        return encoder.fit(rows[:, None], outcome[rows], environments=places[rows]).schema_.feature_names

    four = np.flatnonzero(places != "site 4")
    assert ("dose (missing)" in names_of(four)) == helps
    assert "dose (missing)" in names_of(four, others="always")
    assert "dose (missing)" in names_of(four, indicators={"dose": True})
    assert "dose (missing)" not in names_of(four, indicators={"dose": False})
    assert "dose (missing)" not in names_of(np.flatnonzero(places < "site 2"))  # two sites cannot tell
    assert names_of(four, kinds={"x": "drop"}, others="never") == ("dose",)


def test_a_schema_that_is_given_back_gives_the_same_model_and_an_edited_one_another(tmp_path):
    file = tmp_path / "visits.csv"
    frame = table(300)
    frame["grade"] = np.arange(300) % 4
    frame.to_csv(file, index=False)
    plan = Plan(algorithm="linear", compared=False, device="cpu")
    asked = replace(ASKED, categorical="grade", drop="x3,code")
    first = fit(file, asked, plan)
    save_fit(first, tmp_path / "model")
    again = fit(file, replace(ASKED, schema=tmp_path / "model" / "schema.json"), plan)
    assert again.source.schema.columns == first.source.schema.columns
    np.testing.assert_array_equal(again.model.predict_proba(frame), first.model.predict_proba(frame))
    assert {"grade=0", "grade=3"} <= set(first.source.schema.feature_names)
    assert "x3" in load_model(tmp_path / "model").schema.dropped


def test_zeroes_where_there_were_none_are_told(tmp_path):
    random = np.random.default_rng(0)
    frame = table(300).assign(chol=random.normal(250, 30, 300), rain=np.where(random.random(300) < 0.5, 0, 1.5))
    frame.to_csv(tmp_path / "visits.csv", index=False)
    for algorithm in ("linear", "boosting"):
        model = fit(tmp_path / "visits.csv", ASKED, Plan(algorithm=algorithm, compared=False, device="cpu")).model
        new = frame.iloc[:60].assign(rain=0)
        new.loc[:40, "chol"] = 0
        new.to_csv(tmp_path / "new.csv", index=False)
        with pytest.warns(DataWarning) as caught:
            predict_file(model, str(tmp_path / "new.csv"), tmp_path / "p.csv", size=25)
        (line,) = [str(one.message) for one in caught]
        assert "column 'chol' is 0 in 41 of 60 rows, and was so in none of those trained on" in line
        assert "does 0 mean missing?" in line
