"""What is held out, what may be known of it, and which algorithm is taken."""

from __future__ import annotations

import pickle
from collections import Counter

import joblib
import numpy as np
import pandas as pd
import pytest
import torch
from rows import ASKED, table
from sklearn import metrics as truth
from sklearn.base import clone
from sklearn.linear_model import LogisticRegression

from transferrisk.data import EnvironmentSet
from transferrisk.data.infer import infer_schema
from transferrisk.errors import InputError
from transferrisk.fitting import Comparison, Plan, fit, load_model, save_fit
from transferrisk.fitting.candidates import TableEncoder, settings_by_algorithm
from transferrisk.fitting.compare import choose, compare, most_frequent, summarise
from transferrisk.fitting.decisions import decide_held_out, fit_calibrations
from transferrisk.fitting.fitted import fit_source
from transferrisk.fitting.report import fit_page, model_card, wilson
from transferrisk.fitting.source import read_source
from transferrisk.fitting.verdict import verdict
from transferrisk.sklearn import (
    LeaveOneEnvironmentOut,
    LinearClassifier,
    MajorityClassifier,
    TransferRiskClassifier,
)


def of_losses(held="environments", **losses):
    """A comparison of candidates by the losses of their rows, (rows,) with the environment as index."""
    summary = summarise(pd.DataFrame(losses))
    summary["mean"] = summary["worst"] = 0.5
    return Comparison(held, pd.DataFrame(), pd.DataFrame(), summary, {})


def rows(*means, noise=0.5, count=400, seed=0):
    """Losses of the environments a, b, ... around these means; the noise is the same for all candidates."""
    drawn = np.random.default_rng(seed).normal(size=(len(means), count))
    drawn -= drawn.mean(1, keepdims=True)
    return pd.Series((np.array(means)[:, None] + noise * drawn).ravel(), np.repeat(list("abcdef"[: len(means)]), count))


@pytest.mark.parametrize(
    ("losses", "taken"),
    [
        ({"majority": rows(0.9, 0.9, 0.9), "linear": rows(0.5, 0.6, 0.5), "trm": rows(0.4, 0.5, 0.4)}, "trm"),
        ({"trm": rows(0.4, 0.5, 0.4), "boosting": rows(0.4, 0.5, 0.4, seed=1), "erm": rows(0.7, 0.7, 0.7)}, "boosting"),
        ({"own": rows(0.4, 0.5, 0.4), "linear": rows(0.4, 0.5, 0.4)}, "linear"),
        ({"linear": rows(0.45, 0.5, 0.4), "trm": rows(0.4, 0.5, 0.45)}, "linear"),
        ({"linear": rows(0.4009, 0.5009, 0.4009), "trm": rows(0.4, 0.5, 0.4)}, "linear"),
        ({"linear": rows(0.402, 0.502, 0.402), "trm": rows(0.4, 0.5, 0.4)}, "trm"),
    ],
)
def test_the_simplest_within_the_standard_error_of_the_best_is_taken(losses, taken):
    found = of_losses(**losses)
    choice = choose(found)
    assert choice.algorithm == taken
    assert f"{found.summary['loss'][taken]:.3f}" in choice.why


def test_what_costs_accuracy_is_not_taken_where_another_is_as_good():
    found = of_losses(linear=rows(0.4, 0.5, 0.4), boosting=rows(0.4, 0.5, 0.4, seed=1))
    assert choose(found).algorithm == "linear"
    found.summary.loc["linear", "mean"] -= 0.006
    assert choose(found).algorithm == "boosting"
    surely = of_losses(linear=rows(0.5, 0.6, 0.5), boosting=rows(0.4, 0.5, 0.4))
    surely.summary.loc["linear", "mean"] += 0.006
    assert choose(surely).algorithm == "boosting"
    third = of_losses(linear=rows(0.5, 0.6, 0.5), boosting=rows(0.4, 0.5, 0.4), trm=rows(0.4, 0.5, 0.4, seed=1))
    third.summary.loc[["linear", "trm"], "mean"] += np.array([0.02, 0.006])
    assert choose(third).algorithm == "trm"  # though a candidate that is far behind in loss is more accurate still
    behind = of_losses(linear=rows(0.41, 0.51, 0.4), boosting=rows(0.405, 0.505, 0.4), trm=rows(0.4, 0.5, 0.4))
    behind.summary.loc[["linear", "boosting"], "mean"] += np.array([0.05, 0.004])
    assert choose(behind).algorithm == "linear"  # five points more accurate, for 1.5 % of the loss
    behind.summary.loc["linear", "mean"] = behind.summary["mean"]["trm"] + 0.004
    assert choose(behind).algorithm == "trm"


def test_a_candidate_far_behind_in_two_environments_is_trained_no_further():
    x = torch.randn(1200, 3, generator=torch.Generator().manual_seed(0))
    labels = (x[:, 0] + 0.5 * torch.randn(1200, generator=torch.Generator().manual_seed(1)) > 0).long()
    data = EnvironmentSet(x, labels, torch.arange(1200) % 4, ("a", "b", "c", "d"), ("no", "yes"))
    turned = LinearClassifierOfTheOpposite()
    candidates = {"majority": MajorityClassifier(), "linear": LinearClassifier(), "boosting": turned}
    told = []
    found, whole = (
        compare(candidates, x.numpy(), data, on_trained=lambda *done: told.append(done), race=race)
        for race in (True, False)
    )
    assert (set(found.summary.index), set(found.stopped)) == ({"majority", "linear"}, {"boosting"})
    assert told[:9] == [*((done, 12) for done in range(7)), (8, 12), (9, 12)]
    stopped = found.stopped["boosting"]
    assert stopped.accuracy == whole.accuracy["boosting"][["a", "b"]].to_dict()
    apart = whole.loss["boosting"][["a", "b"]] - whole.loss["linear"][["a", "b"]]
    assert stopped.behind == pytest.approx(apart.mean())
    assert stopped.behind > 3 * stopped.error > 0
    pd.testing.assert_series_equal(found.loss["linear"], whole.loss["linear"])
    assert whole.stopped == {}


class LinearClassifierOfTheOpposite(LinearClassifier):
    def predict_proba(self, X):
        return super().predict_proba(X)[:, ::-1]


def test_the_simpler_one_has_to_keep_up_in_the_worst_environment():
    found = of_losses(linear=rows(0.9, 0.3, 0.3, 0.3, noise=1, seed=1), trm=rows(0.5, 0.4, 0.4, 0.4))
    assert found.summary["gap"]["linear"] <= found.summary["gap_error"]["linear"]
    assert choose(found).algorithm == "trm"


def test_a_site_of_few_rows_counts_less():
    large = rows(0.5, 0.5, 0.5, count=5000)
    few = pd.Series([3.0, 0.1, 2.5, 0.2], ["d"] * 4)
    pooled = summarise(pd.DataFrame({"erm": pd.concat([large, few])}))["loss"]["erm"]
    assert abs(pooled - 0.5) < 0.05
    assert pd.concat([large, few]).groupby(level=0).mean().mean() > 0.7


def test_rows_that_came_out_alike_do_not_make_an_environment_certain():
    errors = pd.Series(([1.0, 0.0, 0.0, 0.0] * 300) + [0.0] * 20, np.repeat([*"abc", "d"], [400, 400, 400, 20]))
    assert summarise(pd.DataFrame({"erm": errors}))["loss"]["erm"] == pytest.approx(0.21, abs=0.04)


def test_two_environments_choose_by_rows_and_say_what_cannot_be_known():
    losses = {"linear": rows(0.7, 0.7), "trm": rows(0.4, 0.4)}
    assert choose(of_losses("rows", **losses)).algorithm == "trm"
    choice = choose(of_losses("rows", linear=losses["trm"], trm=losses["linear"]))
    assert choice.algorithm == "linear"  # not taken on faith
    assert "third environment" in choice.why


def test_wilson():
    assert wilson(0.5, 100) == pytest.approx((0.40383, 0.59617), abs=1e-5)  # the textbook's
    low, high = wilson(np.array([0.0, 1.0]), 10)
    assert (low[0], high[1]) == (0, 1)


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
    met = Counter()

    def counting(frame, *said):
        met[tuple(frame.index)] += 1
        return infer_schema(frame, *said)

    for user in ("data.sets.tables", "fitting.candidates"):
        monkeypatch.setattr(f"transferrisk.{user}.infer_schema", counting)
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
    assert told[:14] == [(done, 12) for done in (*range(13), 0)]
    assert (one.held, one.seeds, one.rows) == ("environments", (3, 4), dict.fromkeys("abc", 30))
    for name, chances in one.probabilities.items():
        np.testing.assert_allclose(chances, (first.probabilities[name] + second.probabilities[name]) / 2)
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
    assert set(fitted.comparison.rows) == {"site A", "site B"}
    assert "third environment" in fitted.choice.why


def test_many_environments_are_held_out_several_at_a_time_drawn_by_the_seed(tmp_path):
    table(200, sites=10).to_csv(tmp_path / "ten.csv", index=False)
    drawn = {}
    for seed in (0, 0, 1):
        plan = Plan(("erm",), epochs=1, folds=2, seed=seed, repeats=2, device="cpu")
        found = fit(tmp_path / "ten.csv", ASKED, plan).comparison
        assert (len(found.accuracy), found.left_out, found.seeds) == (10, 0, (seed, seed + 1))
        assert (found.together, len(found.frequent)) == (5, 10)
        pd.testing.assert_frame_equal(drawn.setdefault(seed, found.accuracy), found.accuracy)
    assert not drawn[0].equals(drawn[1])


def test_only_the_future_is_held_out(tmp_path):
    frame = table(150, sites=5)
    frame["site"] = np.array(["w 9", "w 10", "w 11", "w 1", "w 8"])[np.arange(150) % 5]
    frame.to_csv(tmp_path / "t.csv", index=False)
    fitted = fit(tmp_path / "t.csv", ASKED, Plan(("linear", "boosting"), folds=2, ordered=True, device="cpu"))
    found = fitted.comparison
    assert (found.order, found.left_out) == (("w 1", "w 8", "w 9", "w 10", "w 11"), 3)
    assert list(found.accuracy.index) == list(found.rows) == list(found.frequent) == ["w 10", "w 11"]
    assert found.to_dict()["order"] == list(found.order)
    columns = ["x0", "x1", "x2", "x3", "shortcut"]
    past, now = frame[frame["site"].isin(["w 1", "w 8", "w 9"])], frame[frame["site"] == "w 10"]
    guess = past["outcome"].mode()[0]
    assert found.frequent["w 10"] == (now["outcome"] == guess).mean()
    source = read_source(str(tmp_path / "t.csv"), ASKED)
    inputs = source.samples.inputs[:, [source.schema.feature_names.index(name) for name in columns]].numpy()
    alone = compare({"linear": LinearClassifier()}, inputs, source.samples, folds=2, ordered=True)
    expected = LinearClassifier().fit(inputs[past.index], past["outcome"] == "yes", environments=past["site"])
    chances = expected.predict_proba(inputs[now.index])
    np.testing.assert_allclose(alone.probabilities["linear"][now.index], chances, atol=1e-6)
    for text in (model_card(fitted), *fit_page(fitted).lead):
        assert ("w 9, w 10, w 11" in text) == ("future" in text)
    assert "future" in model_card(fitted)


def test_with_two_environments_the_future_cannot_be_known(tmp_path):
    table(60, sites=2).to_csv(tmp_path / "two.csv", index=False)
    fitted = fit(tmp_path / "two.csv", ASKED, Plan(algorithms=("linear",), ordered=True, device="cpu"))
    assert (fitted.comparison.held, fitted.comparison.order) == ("rows", ())
    assert "third" in fitted.choice.why
    with pytest.raises(InputError, match="ordered"):
        Plan(ordered=True, compared=False)


def test_trainings_that_are_done_are_used_for_the_same_data_and_settings_alone(tmp_path):
    frame, keep = table(60), tmp_path / "keep"
    met = []
    for change, found in (
        ({}, 0),
        ({}, 3),
        ({"repeats": 2}, 3),
        ({"epochs": 2}, 0),
        ({"drop_unstable": True}, 3),  # those with all columns
        ({"settings": ("ridge=0.5",)}, 0),
        ({"ordered": True}, 1),  # of the last environment
        ({"x0": 1.0}, 0),
    ):
        frame.assign(**{name: value for name, value in change.items() if name == "x0"}).to_csv(tmp_path / "t.csv")
        plan = {name: value for name, value in change.items() if name != "x0"}
        plan = Plan(**{"algorithms": ("trm",), "epochs": 1, "device": "cpu"} | plan)
        told = []
        fit_source(read_source(str(tmp_path / "t.csv"), ASKED), plan, keep=keep, say=told.append)
        assert [line.split(" of ")[0] for line in told] == ([str(found)] if found else []), change
        met.append(len(list(keep.glob("*.npz"))))
    assert met == [3, 3, 6, 9, 12, 15, 15, 18]


def test_trainings_of_another_version_of_a_library_are_not_used(tmp_path, monkeypatch):
    table(60).to_csv(tmp_path / "t.csv", index=False)
    source, told = read_source(str(tmp_path / "t.csv"), ASKED), []
    monkeypatch.chdir(tmp_path)

    def kept():
        told.clear()
        fit_source(source, Plan(("linear",), device="cpu"), keep=tmp_path / "keep", say=told.append)
        return [line.split(" of ")[0] for line in told]

    assert kept() == []
    (tmp_path / "None").write_text("not the weights of a model that has none")
    assert kept() == ["3"]
    for library in ("lightgbm", "numpy", "pandas", "scikit_learn", "scipy"):
        folder = tmp_path / library / f"{library}-99.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {library}\nVersion: 99\n")
        monkeypatch.syspath_prepend(folder.parent)
        assert kept() == [], library
    assert kept() == ["3"]


class FailsInOneRow(LinearClassifier):
    def predict_proba(self, X):
        found = super().predict_proba(X)
        found[len(found) // 2] = np.nan
        return found


@pytest.mark.parametrize("blend", [False, True])
def test_probabilities_that_are_not_finite_are_refused(blend):
    x = torch.randn(90, 2, generator=torch.Generator().manual_seed(0))
    data = EnvironmentSet(x, (x[:, 0] > 0.3).long(), torch.arange(90) % 3, ("a", "b", "c"), ("no", "yes"))
    with pytest.raises(InputError, match=r"finite.*failing"):
        compare({"linear": LinearClassifier(), "failing": FailsInOneRow()}, x.numpy(), data, blend=blend)


@pytest.mark.parametrize(("ordered", "sites"), [(False, 5), (True, 9)])
def test_what_is_said_of_a_held_out_environment_is_calibrated_by_the_others(tmp_path, ordered, sites):
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.normal(size=(80 * sites, 3)), columns=list("abc")).assign(
        site=np.arange(80 * sites) % sites
    )
    frame["outcome"] = frame["a"] + 2 * random.logistic(size=80 * sites) > 0
    frame.to_csv(tmp_path / "t.csv", index=False)
    fitted = fit(tmp_path / "t.csv", ASKED, Plan(("boosting",), ordered=ordered, device="cpu"))
    y, site, given = frame["outcome"].to_numpy().astype(int), frame["site"].to_numpy(), fitted.held_out
    raw = fitted.comparison.probabilities["boosting"]
    tested = np.isfinite(raw).all(1)
    calibrated = []
    for (name, seen), variance in zip(fitted.decision.seen.items(), fitted.loss_variances, strict=True):
        own = site == int(name)
        others = tested & (site < int(name) if ordered else ~own)
        chances = raw[own]
        if others.any():
            calibration = fit_calibrations(y[others], raw[others], site[others])[-1]
            chances = calibration.apply(chances)
            calibrated.append(calibration.temperature)
        np.testing.assert_allclose(given[own], chances)
        losses = -np.log(chances[np.arange(80), y[own]])
        np.testing.assert_allclose(fitted.losses[own], losses)
        assert seen.log_loss == pytest.approx(losses.mean())
        assert variance == pytest.approx(losses.var() / 80)
    assert max(calibrated) > 1.5
    assert len(calibrated) == (sites - 3 if ordered else sites)
    assert len(set(calibrated)) > 1  # so the temperature of all is not that of each environment
    if not ordered:
        assert fitted.decision.temperature not in calibrated


@pytest.mark.parametrize("metric", ["accuracy", "balanced_accuracy", "f1", "auroc"])
def test_the_metric_is_what_the_choice_and_the_decisions_go_by(tmp_path, metric):
    random = np.random.default_rng(0)
    x = random.normal(size=(1200, 2))
    frame = pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "site": random.choice(list("pqrs"), 1200)})
    frame["outcome"] = np.where(x[:, 0] + random.logistic(size=1200) > 3, "yes", "no")  # one in ten
    frame.to_csv(tmp_path / "t.csv", index=False)
    fitted = fit(tmp_path / "t.csv", ASKED, Plan(("majority", "linear"), metric=metric, device="cpu"))
    found, threshold = fitted.comparison, fitted.decision.threshold
    y = (frame["outcome"] == "yes").astype(int)
    for name, given in found.probabilities.items():
        decided = decide_held_out(y.to_numpy(), given, fitted.source.samples.environments.numpy(), metric)
        score = truth.roc_auc_score if metric == "auroc" else getattr(truth, f"{metric}_score")
        said = given[:, 1] if metric == "auroc" else decided
        worst = min(score(y[frame["site"] == site], said[frame["site"] == site]) for site in "pqrs")
        assert found.summary["worst_loss"][name] == pytest.approx(1 - worst)
        assert found.accuracy[name]["p"] == pytest.approx((decided == y)[frame["site"] == "p"].mean())
    assert (fitted.choice.algorithm == "linear") or metric == "accuracy"
    assert any(
        metric in line and f"{found.summary['mean_loss'][fitted.choice.algorithm]:.3f}" in line
        for line in verdict(fitted)
    )
    save_fit(fitted, tmp_path / "model")
    model = load_model(tmp_path / "model")
    chances = model.predict_proba(frame)[:, 1]
    assert (threshold is not None) == (metric in ("balanced_accuracy", "f1"))
    if threshold is not None:
        assert threshold < 0.4
        assert ((chances > threshold) == (model.predict(frame) == "yes")).all()
        for name in ("card.md", "report.html"):
            assert f"{threshold:.3f}" in (tmp_path / "model" / name).read_text()


def test_small_environments_are_named(tmp_path):
    frame = pd.concat([table(90), table(4, sites=1).assign(site="tiny")])
    frame.to_csv(tmp_path / "t.csv", index=False)
    with pytest.raises(InputError, match=r"10 rows or more, got 'tiny' \(4 rows\).* --drop-small \(drop_small=True"):
        read_source(str(tmp_path / "t.csv"), ASKED)
    with pytest.warns(UserWarning, match="'tiny' .* left out"):
        source = read_source(str(tmp_path / "t.csv"), ASKED, drop_small=True)
    assert source.sizes == {"site A": 30, "site B": 30, "site C": 30}
    assert len(source.samples.inputs) == len(source.frame) == 90


def test_the_most_frequent_class_is_that_of_the_rows_trained_on():
    assert most_frequent(np.array([1, 0, 1]), np.array([0, 0, 0, 1])) == 0.25


def test_settings_go_to_those_that_have_them():
    found = settings_by_algorithm(("erm", "groupdro", "trm"), ["weights_lr=0.5", "trm.ridge=0.1"])
    assert found == {"erm": {}, "groupdro": {"weights_lr": 0.5}, "trm": {"weights_lr": 0.5, "ridge": 0.1}}
    with pytest.raises(InputError, match=r"'rigde'.*'ridge'"):
        settings_by_algorithm(("erm", "trm"), ["rigde=1"])
