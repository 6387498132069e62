"""What is held out, what may be known of it, and which algorithm is taken."""

from __future__ import annotations

import pickle
from collections import Counter
from dataclasses import replace

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from rows import ASKED, table
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

from transferrisk.data import EnvironmentSet
from transferrisk.data.schema import Schema
from transferrisk.errors import InputError
from transferrisk.fitting import Comparison, Plan, fit
from transferrisk.fitting.candidates import TableEncoder, settings_by_algorithm
from transferrisk.fitting.compare import beside_a_guess, choose, compare, most_frequent, summarise
from transferrisk.fitting.fitted import read_source
from transferrisk.fitting.report import wilson
from transferrisk.sklearn import LeaveOneEnvironmentOut, TransferRiskClassifier


def comparison(means, noise, held="environments"):
    """Two environments around each mean."""
    accuracy = pd.DataFrame({name: [mean - 0.01, mean + 0.01] for name, mean in means.items()}, ["a", "b"])
    summary = pd.DataFrame({"mean": means, "worst": accuracy.min(), "mean_error": noise, "worst_error": noise})
    return Comparison(held, accuracy, summary.loc[list(means)], {"a": 9, "b": 9})


@pytest.mark.parametrize(
    ("means", "taken"),
    [
        ({"erm": 0.80, "groupdro": 0.81, "trm": 0.90}, "trm"),
        ({"erm": 0.89, "groupdro": 0.81, "trm": 0.90}, "erm"),
        ({"trm": 0.90, "groupdro": 0.89, "erm": 0.80}, "groupdro"),
        ({"erm": 0.90, "groupdro": 0.90, "trm": 0.90}, "erm"),
        ({"own": 0.90, "trm": 0.90}, "trm"),
    ],
)
def test_the_simplest_within_noise_of_the_best_is_taken(means, taken):
    choice = choose(comparison(means, dict.fromkeys(means, 0.02)))
    assert choice.algorithm == taken
    assert f"{100 * means[taken]:.1f} %" in choice.why
    assert ("so the simpler one is taken" in choice.why) == (means[taken] < max(means.values()))


def test_rows_held_out_decide_nothing_about_transfer():
    assert choose(comparison({"erm": 0.9, "trm": 0.5}, {"erm": 0, "trm": 0}, "rows")).algorithm == "trm"
    choice = choose(comparison({"erm": 0.5, "groupdro": 0.9}, {"erm": 0, "groupdro": 0}, "rows"))
    assert choice.algorithm == "groupdro"
    assert "says nothing about new environments" in choice.why


def shares(*accuracies, rows=100):
    """Rows of the environments a, b, ..., of which the first came out right."""
    right = [np.arange(rows) < round(share * rows) for share in accuracies]
    return pd.Series(np.concatenate(right).astype(float), np.repeat(list("abc"[: len(accuracies)]), rows))


def compared(**columns):
    return Comparison("environments", *summarise(pd.DataFrame(columns)))


def test_a_gain_in_one_environment_alone_is_a_gain():
    choice = choose(compared(erm=shares(0.55, 0.80, 0.80), trm=shares(0.85, 0.80, 0.80)))
    assert choice.algorithm == "trm"
    assert choice.why == "highest mean accuracy of 81.7 % in environments it was not trained on"


def test_the_simpler_one_has_to_keep_up_in_the_worst_environment():
    found = compared(erm=shares(0.70, 0.90, 0.80), trm=shares(0.80, 0.80, 0.81))
    assert found.summary["mean"]["trm"] - found.summary["mean"]["erm"] < found.summary["mean_error"]["erm"]
    choice = choose(found)
    assert choice.algorithm == "trm"
    assert "erm is simpler" in choice.why
    assert "trm has 10.00 points more in the worst" in choice.why
    choice = choose(compared(erm=shares(0.79, 0.80, 0.80), trm=shares(0.80, 0.79, 0.81)))
    assert choice.algorithm == "erm"
    assert "trm has 0.33 points more, within the standard error of 0.57, and 0.00 points more in the w" in choice.why


def test_standard_errors_are_over_pairs_of_rows():
    errors = compared(one=shares(1, 1), other=shares(1, 0.8)).summary
    assert errors["mean_error"].to_dict() == {"one": 0, "other": pytest.approx(np.sqrt(0.2 * 0.8 / 100) / 2)}
    assert errors["worst_error"]["one"] == 0
    errors = compared(one=shares(0.9, 0.8), other=shares(0.9, 0.6)).summary  # the worst is the same environment
    assert errors["worst_error"]["other"] == pytest.approx(np.sqrt(0.2 * 0.8 / 100))  # 20 of 100 differ
    errors = compared(one=shares(0.9, 0.6), other=shares(0.5, 0.8)).summary
    apart = np.sqrt((0.6 * 0.4 + 0.5 * 0.5) / 100)  # not the same environment, so the rows are no pairs
    assert errors["worst_error"]["other"] == pytest.approx(apart)


def test_wilson():
    assert wilson(0.5, 100) == pytest.approx((0.40383, 0.59617), abs=1e-5)  # the textbook's
    low, high = wilson(np.array([0.0, 1.0]), 10)
    assert (low[0], high[1]) == (0, 1)


def test_rows_drawn_again_by_another_seed_are_no_more_rows():
    right = pd.DataFrame({"erm": shares(0.7, 0.8), "trm": shares(0.9, 0.8)})
    once, thrice = summarise(right), summarise(pd.concat([right] * 3), repeats=3)
    for found, expected in zip(thrice, once, strict=True):
        np.testing.assert_allclose(found, expected)
    assert thrice[2].to_dict() == {"a": 100, "b": 100}


def test_the_encoding_knows_nothing_of_what_is_held_out(tmp_path):
    frame = table(300)
    away = frame["site"] == "site C"
    other = frame.copy()
    other.loc[away, ["x0", "income"]] = 1e9
    other.loc[away, "colour"] = "mauve"
    schemas = []
    for name, rows in (("one", frame), ("other", other)):
        rows.to_csv(tmp_path / f"{name}.csv", index=False)
        source = read_source(str(tmp_path / f"{name}.csv"), ASKED)
        *_, (train, test) = LeaveOneEnvironmentOut().split(rows, environments=source.samples.environments)
        assert set(source.samples.environments[test].tolist()) == {2}
        joblib.dump(source.frame, tmp_path / name)
        encoder = TableEncoder(tmp_path / name, source.label, source.environment)
        schemas.append(encoder.fit(train[:, None]).schema_)
    assert schemas[0] == schemas[1]
    assert "colour=mauve" in source.schema.feature_names
    assert "colour=mauve" not in schemas[1].feature_names
    assert not any(name.startswith(("site", "outcome")) for name in source.schema.feature_names)


def test_what_goes_to_another_process_is_small(tmp_path):
    table(500).assign(text="x" * 1000).to_csv(tmp_path / "t.csv", index=False)
    source = read_source(str(tmp_path / "t.csv"), ASKED)
    joblib.dump(source.frame, tmp_path / "table")
    encoder, rows = TableEncoder(tmp_path / "table", source.label, source.environment), np.arange(500)[:, None]
    there = pickle.loads(pickle.dumps(clone(encoder).fit(rows)))
    np.testing.assert_array_equal(there.transform(rows), source.samples.inputs[:].numpy())
    assert len(pickle.dumps((encoder, rows))) < 10_000


def test_a_schema_is_inferred_once_for_each_training_part(tmp_path, monkeypatch):
    table(90).to_csv(tmp_path / "small.csv", index=False)
    infer, met = Schema.infer.__func__, Counter()

    def counting(cls, frame, label, environment):
        met[tuple(frame.index)] += 1
        return infer(cls, frame, label, environment)

    monkeypatch.setattr(Schema, "infer", classmethod(counting))
    fit(tmp_path / "small.csv", ASKED, Plan(algorithms=("erm", "groupdro"), epochs=1, device="cpu", workers=1))
    assert sorted(map(len, met)) == [60, 60, 60, 90]
    assert set(met.values()) == {1}


def test_seeds_are_averaged_row_by_row_and_processes_change_nothing():
    x = torch.randn(90, 3, generator=torch.Generator().manual_seed(0))
    labels = (x[:, 0] + torch.randn(90, generator=torch.Generator().manual_seed(1)) > 0).long()
    data = EnvironmentSet(x, labels, torch.arange(90) % 3, ("a", "b", "c"), ("no", "yes"))
    candidates = {name: TransferRiskClassifier(name, max_epochs=5) for name in ("erm", "trm")}
    told = []
    one, two, first, second = (
        compare(candidates, x.numpy(), data, seeds, 10, workers, lambda *done: told.append(done))
        for seeds, workers in (((3, 4), 1), ((3, 4), 2), ((3,), 1), ((4,), 1))
    )
    assert one.to_dict() == two.to_dict()
    assert one.curves == two.curves == first.curves
    assert told[:4] == [(3, 12), (6, 12), (9, 12), (12, 12)]
    assert (one.held, one.seeds, one.rows) == ("environments", (3, 4), dict.fromkeys("abc", 30))
    np.testing.assert_allclose(one.accuracy, (first.accuracy + second.accuracy) / 2)
    assert len(one.curves["trm"][0]) == 5


def test_an_environment_without_which_one_class_is_left_is_not_held_out():
    x, environments = torch.randn(60, 2), torch.arange(60) % 3
    labels = ((environments == 2) & (torch.arange(60) % 2 == 0)).long()
    data = EnvironmentSet(x, labels, environments, ("a", "b", "c"), ("no", "yes"))
    found = compare({"erm": TransferRiskClassifier("erm", max_epochs=2)}, x.numpy(), data)
    assert (list(found.accuracy.index), found.left_out) == (["a", "b"], 1)


def test_erm_does_as_well_as_logistic_regression_in_new_places(tmp_path):
    frame = table(1500).drop(columns=["shortcut", "code"])
    frame.to_parquet(tmp_path / "plain.parquet")
    plan = Plan(algorithms=("erm",), workers=1, device="cpu")
    found = fit(tmp_path / "plain.parquet", ASKED, plan).comparison
    columns = [f"x{i}" for i in range(4)]
    for place in ("site A", "site B", "site C"):
        away = frame["site"] == place
        other = LogisticRegression().fit(frame.loc[~away, columns], frame.loc[~away, "outcome"])
        expected = other.score(frame.loc[away, columns], frame.loc[away, "outcome"])
        assert found.accuracy["erm"][place] > expected - 0.03
    assert expected > 0.85


def test_two_environments_are_compared_on_rows_and_that_is_said(tmp_path):
    table(120, sites=2).to_csv(tmp_path / "two.csv", index=False)
    fitted = fit(tmp_path / "two.csv", ASKED, Plan(algorithms=("erm", "trm"), epochs=2, device="cpu", repeats=2))
    assert fitted.comparison.held == "rows"
    assert fitted.comparison.rows == {"site A": 12, "site B": 12}
    assert fitted.choice.algorithm == "trm"
    assert "cannot be compared" in fitted.choice.why


def test_of_many_environments_some_are_drawn_by_the_seed(tmp_path):
    table(200, sites=10).to_csv(tmp_path / "ten.csv", index=False)
    drawn = {}
    for seed in (0, 0, 1):
        plan = Plan(("erm",), epochs=1, folds=2, seed=seed, repeats=2, device="cpu")
        found = fit(tmp_path / "ten.csv", ASKED, plan).comparison
        assert (len(found.accuracy), found.left_out, found.seeds) == (2, 8, (seed, seed + 1))
        pd.testing.assert_frame_equal(drawn.setdefault(seed, found.accuracy), found.accuracy)
    assert list(drawn[0].index) != list(drawn[1].index)


def test_small_environments_are_named(tmp_path):
    frame = pd.concat([table(90), table(4, sites=1).assign(site="tiny")])
    frame.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match=r"10 rows or more, got 'tiny' \(4 rows\).* drop_small \(--drop-small\)"):
        read_source(str(tmp_path / "t.csv"), ASKED)
    with pytest.warns(UserWarning, match="'tiny' .* left out"):
        source = read_source(str(tmp_path / "t.csv"), ASKED, drop_small=True)
    assert source.sizes == {"site A": 30, "site B": 30, "site C": 30}
    assert len(source.samples.inputs) == len(source.frame) == 90


def test_exact_ties_are_called_so():
    why = choose(comparison({"trm": 0.9, "erm": 0.9}, {"erm": 0, "trm": 0})).why
    assert why == (
        "mean accuracy of 90.0 % in environments it was not trained on, tied with trm; the simpler one is taken"
    )
    assert choose(comparison({"erm": 0.9, "trm": 0.9}, {"erm": 0, "trm": 0})).why == why
    for order in (("erm", "groupdro"), ("groupdro", "erm")):
        choice = choose(comparison(dict.fromkeys(order, 0.9), dict.fromkeys(order, 0), "rows"))
        assert choice.algorithm == "erm"
        assert "tied with groupdro; the simpler one is taken" in choice.why


@pytest.mark.parametrize(("share", "told"), [(0.89, False), (0.9, True), (0.95, True)])
def test_a_choice_no_better_than_the_most_frequent_class_says_so(share, told):
    found = comparison({"erm": 0.9, "trm": 0.8}, {"erm": 0, "trm": 0})
    clause = beside_a_guess(replace(found, frequent={"a": share - 0.02, "b": share + 0.02}), "erm")
    assert (f"which reaches {100 * share:.1f} %" in clause) == bool(clause) == told
    assert beside_a_guess(found, "erm") == ""


def test_the_most_frequent_class_is_that_of_the_other_environments():
    assert most_frequent(np.array([[5, 0], [1, 3], [1, 3]])).tolist() == [0.0, 0.25, 0.25]


def test_settings_go_to_those_that_have_them():
    found = settings_by_algorithm(("erm", "groupdro", "trm"), ["weights_lr=0.5", "trm.ridge=0.1"])
    assert found == {"erm": {}, "groupdro": {"weights_lr": 0.5}, "trm": {"weights_lr": 0.5, "ridge": 0.1}}
    with pytest.raises(InputError, match=r"'rigde'.*'ridge'"):
        settings_by_algorithm(("erm", "trm"), ["rigde=1"])
