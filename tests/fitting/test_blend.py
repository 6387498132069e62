"""The weighted average of candidates: its weights, what may be known to them, and the model that is kept."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from rows import ASKED, table
from scipy.optimize import minimize
from sklearn.compose import make_column_transformer
from sklearn.pipeline import make_pipeline

from transferrisk.data import EnvironmentSet, Options
from transferrisk.errors import InputError
from transferrisk.fitting import Plan, fit, load_model, save_fit
from transferrisk.fitting.audited import read_model_features
from transferrisk.fitting.blending import blend_held_out, mixture_weights, pick_members
from transferrisk.fitting.compare import choose, compare
from transferrisk.fitting.decisions import Calibration
from transferrisk.fitting.export import export_onnx
from transferrisk.fitting.fitted import fit_source
from transferrisk.fitting.predict import predict_file
from transferrisk.fitting.report import comparison_table, fit_page, fit_sections, model_card, summarise_fit
from transferrisk.fitting.source import read_source
from transferrisk.models.saved import WEIGHTS, encode_tensors, read_tensors
from transferrisk.sklearn import LinearClassifier

THREE = ("majority", "linear", "boosting")
PLAN = Plan((*THREE, "blend"), algorithm="blend", device="cpu", workers=1)


def bent_table(rows, sites=4, seed=0):
    """A table whose outcome depends on x0, as a linear model can say, and on the size of x1, as trees can."""
    frame = table(rows, sites, seed).drop(columns=["code", "version"])
    score = 2 * frame["x0"] + 2 * (frame["x1"].abs() > 0.7) + np.random.default_rng(seed).normal(size=rows)
    return frame.assign(outcome=np.where(score > 1, "yes", "no"))


@pytest.fixture(scope="module")
def blended(tmp_path_factory):
    """The average on a table with every kind of column, and the folder with its model and the table."""
    folder = tmp_path_factory.mktemp("blend")
    bent_table(240).to_csv(folder / "t.csv", index=False)
    fitted = fit(folder / "t.csv", ASKED, PLAN)
    save_fit(fitted, folder / "model")
    return fitted, folder


def predictions(candidates=3, rows=300, classes=3, seed=0, better=0.1):
    """Labels, environments of different sizes, and candidates that each know something of their own, the last most."""
    random = np.random.default_rng(seed)
    environments = np.sort(random.choice(4, rows, p=[0.1, 0.2, 0.3, 0.4]))
    labels = random.integers(0, classes, rows)
    found = {}
    for k in range(candidates):
        logits = random.normal(size=(rows, classes))
        logits[np.arange(rows), labels] += 2 * (random.random(rows) < 0.5 + better * k)
        found[f"c{k}"] = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    return labels, environments, found


def by_scipy(chances, shares):
    """The largest likelihood on the simplex by sequential quadratic programming."""
    count = chances.shape[1]
    return minimize(
        lambda w: -shares @ np.log(chances @ w),
        np.full(count, 1 / count),
        jac=lambda w: -(shares / (chances @ w)) @ chances,
        bounds=[(0, 1)] * count,
        constraints={"type": "eq", "fun": lambda w: w.sum() - 1, "jac": lambda w: np.ones(count)},
        method="SLSQP",
        options={"ftol": 1e-14, "maxiter": 500},
    ).x


@pytest.mark.parametrize("seed", range(3))
def test_weights_have_the_largest_likelihood(seed):
    labels, environments, found = predictions(seed=seed)
    chances = np.stack([one[np.arange(len(labels)), labels] for one in found.values()], 1)
    shares = 1 / np.bincount(environments)[environments] / 4
    (weights,) = mixture_weights(chances, shares[None])
    np.testing.assert_allclose(weights, by_scipy(chances, shares), atol=1e-4)
    assert weights.std() > 0.02
    assert weights.sum() == pytest.approx(1)


def test_an_environment_is_averaged_with_weights_that_have_not_seen_it():
    labels, environments, found = predictions(2, rows=6000, better=0.02)
    found["c0"] = found["c0"] * np.nan ** (environments == 3)[:, None]  # one that was not held out
    blended, members = blend_held_out(labels, found, environments)
    assert np.isnan(blended).all(1).tolist() == (environments == 3).tolist()
    chances = np.stack([one[np.arange(len(labels)), labels] for one in found.values()], 1)
    for e in range(3):
        own, others = environments == e, (environments != e) & (environments != 3)
        shares = 1 / np.bincount(environments)[environments[others]][None] / 2
        (weights,) = mixture_weights(chances[others], shares, pick_members(chances[others], shares), 1 / 2)
        assert weights.min() > 0.05
        expected = sum(w * one[own] for w, one in zip(weights, found.values(), strict=True))
        np.testing.assert_allclose(blended[own], expected, atol=1e-3)
        other = np.where(own, (labels + 1) % 3, labels)  # whatever happened there
        again, told = blend_held_out(other, found, environments)
        np.testing.assert_array_equal(again[own], blended[own])
        assert told != members


def test_only_earlier_environments_have_a_say_where_they_follow_each_other():
    labels, environments, found = predictions(3, rows=600)
    blended, members = blend_held_out(labels, found, environments, ordered=True)
    np.testing.assert_allclose(blended[environments == 0], sum(one[environments == 0] for one in found.values()) / 3)
    assert blend_held_out(labels, found, environments)[1] == members  # the final weights are of all
    for e in range(1, 4):
        own, earlier = environments == e, environments < e
        past = {name: one[earlier] for name, one in found.items()}
        _, weights = blend_held_out(labels[earlier], past, environments[earlier])
        np.testing.assert_allclose(blended[own], sum(w * found[name][own] for name, w in weights.items()), atol=1e-12)


def test_the_future_has_no_say_in_an_ordered_comparison():
    """Names sort otherwise than their times; labels of the last one are others."""
    random = np.random.default_rng(0)
    names, environments = ("w 10", "w 11", "w 2", "w 8", "w 9"), np.arange(2000) % 5
    x = random.normal(size=(2000, 2)).astype("float32")
    labels = (x.sum(1) + random.logistic(size=2000) > 1.5).astype(int)
    last = environments == 1
    one_column = {f"of column {i}": make_column_transformer(("passthrough", [i])) for i in range(2)}
    candidates, found = {name: make_pipeline(one, LinearClassifier()) for name, one in one_column.items()}, []
    for y in (labels, np.where(last, random.integers(0, 2, 2000), labels)):
        data = EnvironmentSet(*map(torch.from_numpy, (x, y, environments)), names, ("no", "yes"))
        found.append(compare(candidates, x, data, metric="f1", ordered=True, blend=True))
    one, other = found
    assert list(one.accuracy.index) == ["w 9", "w 10", "w 11"]
    pd.testing.assert_frame_equal(one.accuracy.loc[["w 9", "w 10"]], other.accuracy.loc[["w 9", "w 10"]])
    assert one.members != other.members
    np.testing.assert_array_equal(one.probabilities["blend"], other.probabilities["blend"])
    first = environments == 4
    equal = sum(one.probabilities[name][first] for name in candidates) / 2
    np.testing.assert_allclose(one.probabilities["blend"][first], equal)


@pytest.mark.parametrize("prior", [0.0, 0.3, 3.0])
def test_a_prior_counts_as_rows_that_favour_no_member(prior):
    labels, _, found = predictions()
    chances = np.stack([one[np.arange(len(labels)), labels] for one in found.values()], 1)
    shares, members = np.full((1, 300), 1 / 300), np.array([[True, False, True]])
    (weights,) = mixture_weights(chances, shares, members, np.array([prior]))
    assert weights[1] == 0
    kept, some = weights[[0, 2]], chances[:, [0, 2]]
    slope = (some / (some @ kept)[:, None]).mean(0) + prior / 2 / kept  # is the same for both at the optimum
    np.testing.assert_allclose(slope, 1 + prior, rtol=1e-3)
    assert abs(kept - 0.5).max() < 0.5 / (1 + prior)


def test_members_are_those_close_to_the_lowest_loss():
    losses = np.array([0.5, 0.51, 0.524, 0.526, 0.6])
    chances = np.exp(-losses)[None].repeat(100, 0)
    shares = np.full((2, 100), 0.01)
    np.testing.assert_array_equal(pick_members(chances, shares), [[True, True, True, False, False]] * 2)
    many = np.exp(-np.linspace(0.51, 0.5, 9))[None].repeat(100, 0)
    np.testing.assert_array_equal(pick_members(many, shares), [[False] * 3 + [True] * 6] * 2)
    tiny = np.exp(-losses / 5 + 0.095)[None].repeat(100, 0)  # of a small loss, a few percent are next to nothing
    np.testing.assert_array_equal(pick_members(tiny, shares), [[True] * 4 + [False]] * 2)


def test_what_is_far_behind_is_left_out():
    labels, environments, found = predictions(2)
    found["guess"] = np.full((300, 3), 1 / 3)
    found["wrong"] = found["c0"][:, [1, 2, 0]]
    blended, members = blend_held_out(labels, found, environments)
    assert set(members) <= {"c0", "c1"}
    assert sum(members.values()) == pytest.approx(1)
    alone, _ = blend_held_out(labels, {name: found[name] for name in ("c0", "c1")}, environments)
    np.testing.assert_allclose(blended, alone)


def test_the_average_is_one_more_candidate(blended):
    fitted, folder = blended
    found = fitted.comparison
    assert list(found.summary.index) == list(found.accuracy) == list(found.loss) == [*THREE, "blend"]
    kept = json.loads((folder / "model" / "comparison.json").read_text())["comparison"]["algorithms"]["blend"]
    assert kept["weights"] == dict(found.members)
    known = fitted.source.samples.labels.numpy()
    losses = -np.log(found.probabilities["blend"][np.arange(240), known])
    by_site = pd.Series(losses).groupby(fitted.source.samples.environments.numpy()).mean()
    np.testing.assert_allclose(found.loss["blend"], by_site)
    assert found.summary["loss"]["blend"] < found.summary["loss"]["linear"]
    assert set(found.members) == {"linear", "boosting"}


def test_it_is_said_what_the_average_is_made_of(blended):
    fitted, folder = blended
    weights = fitted.comparison.members
    assert weights["boosting"] > weights["linear"]
    members = f"{weights['boosting']:.2f} Gradient boosting, {weights['linear']:.2f} Linear model"
    page = fit_page(fitted)
    assert members in model_card(fitted)
    assert members in comparison_table(fitted).note
    assert f"Weighted average: {members}" in page.settings["Model"]
    assert any(members in str(section) for section in (*page.sections, *fit_sections(fitted)))
    assert summarise_fit(fitted, folder)["comparison"]["algorithms"]["blend"]["weights"] == dict(weights)


def test_the_model_gives_the_weighted_sum_of_what_its_members_give(blended):
    fitted, folder = blended
    model, new = load_model(folder / "model"), bent_table(200, seed=1)
    new.loc[:20, "colour"] = None
    new.loc[50:60, "colour"] = "mauve"
    expected = 0.0
    for name, weight in fitted.comparison.members.items():
        alone = fit(folder / "t.csv", ASKED, Plan(algorithm=name, compared=False, device="cpu"))
        with pytest.warns(UserWarning, match="mauve"):
            expected = expected + weight * alone.model.predict_proba(new)
    with pytest.warns(UserWarning, match="mauve"):
        found = model.predict_proba(new)
    expected = Calibration(fitted.decision.temperature).apply(expected)
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert (model.origin.algorithm, model.form) == ("blend", "both")
    new.to_csv(folder / "new.csv", index=False)
    with pytest.warns(UserWarning, match="mauve"):
        done = predict_file(model, str(folder / "new.csv"), folder / "out.csv", size=60)
    assert done.rows == 200
    read = pd.read_csv(folder / "out.csv")[["probability_no", "probability_yes"]]
    np.testing.assert_allclose(read, found, atol=1e-6)


def test_a_temperature_acts_on_the_average(blended):
    fitted, _ = blended
    new = bent_table(50, seed=2)
    before = fitted.model.predict_proba(new)
    with torch.no_grad():
        fitted.model.network.head.weight /= 2
        after = fitted.model.predict_proba(new)
        fitted.model.network.head.weight *= 2
    np.testing.assert_allclose(after, Calibration(2.0).apply(before), atol=1e-12)


def test_the_exported_file_gives_the_same(blended, tmp_path):
    onnxruntime = pytest.importorskip("onnxruntime", reason="extra 'onnx'")
    pytest.importorskip("onnxscript", reason="extra 'onnx'")
    fitted, folder = blended
    new = bent_table(60, seed=3)
    days = (new["seen"] - pd.Timestamp("1970-01-01")).dt.days
    given = new.assign(seen=days.astype(float), smokes=new["smokes"].astype(float), colour=new["colour"].fillna(""))
    inputs = export_onnx(load_model(folder / "model"), tmp_path / "m.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "m.onnx"), providers=["CPUExecutionProvider"])
    (found,) = session.run(["probabilities"], {name: given[name].to_numpy() for name, *_ in inputs})
    np.testing.assert_allclose(found, fitted.model.predict_proba(new), atol=1e-5)


def test_features_of_an_audit(blended, tmp_path):
    fitted, folder = blended
    with pytest.raises(InputError, match="was fitted on all rows"):
        read_model_features(folder / "model", str(folder / "t.csv"), ASKED)
    new = bent_table(90, seed=4)
    new.to_csv(tmp_path / "new.csv", index=False)
    found = read_model_features(folder / "model", str(tmp_path / "new.csv"), ASKED)
    shares = torch.as_tensor(found.features).exp().numpy()
    np.testing.assert_allclose(shares.sum(1), 1, atol=1e-6)
    np.testing.assert_allclose(Calibration(fitted.decision.temperature).apply(shares), fitted.model.predict_proba(new))


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"weight": 0.9}, "sum to 1"),
        ({"weight": -0.2}, "weight must be"),
        ({"weight": "most"}, "weight must be"),
        ({"width": 10**15}, "columns"),
        ({"start": -1}, "start must be"),
        ({"start": 10**6}, "columns"),
        ({"dtype": "float16"}, "dtype must be"),
        ({"on_top": "blend"}, "members must be"),
        ({"on_top": "nothing:3"}, "nothing"),
        ({"on_top": "mlp:64"}, "does not fit"),
        ({"sizes": {"nodes": 3}}, "trees is missing"),
        ({"sizes": "large"}, "sizes must be"),
        ({"size": 1}, "unknown setting 'size'"),
        ({"name": None}, "name must be"),
        (None, "members must be"),
    ],
)
def test_a_forged_description_is_refused(blended, tmp_path, change, told):
    tensors, header = read_tensors(blended[1] / "model" / WEIGHTS)
    members = header["about"]["members"]
    header["about"]["members"] = [members[0] | change, *members[1:]] if change is not None else {"linear": 1}
    (tmp_path / WEIGHTS).write_bytes(encode_tensors(tensors, header))
    with pytest.raises(InputError, match=told) as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


def test_vectors_of_three_classes(tmp_path):
    random = np.random.default_rng(0)
    x = (1e3 + random.normal(size=(150, 4))).astype(np.float32)
    site = np.arange(150) % 3
    labels = np.digitize(x[:, 0] - 1e3 + np.abs(x[:, 1] - 1e3) + 0.3 * random.normal(size=150), [0.3, 1.2])
    np.savez(tmp_path / "e.npz", features=x, labels=labels, environments=site)
    plan = replace(PLAN, algorithms=("linear", "boosting", "erm", "blend"), epochs=5)
    fitted = fit(tmp_path / "e.npz", Options(), plan)
    save_fit(fitted, tmp_path / "model")
    model, new = load_model(tmp_path / "model"), (1e3 + random.normal(size=(80, 4))).astype(np.float32)
    expected = 0.0
    for name, weight in fitted.comparison.members.items():
        alone = fit(tmp_path / "e.npz", Options(), Plan(algorithm=name, compared=False, epochs=5, device="cpu"))
        expected = expected + weight * alone.model.predict_proba(new)
    expected = Calibration(fitted.decision.temperature).apply(expected)
    assert len(fitted.comparison.members) > 1
    np.testing.assert_allclose(model.predict_proba(new), expected, atol=1e-6)


def test_images_on_a_frozen_backbone(tmp_path):
    random = np.random.default_rng(0)
    for i in range(72):
        path = tmp_path / "pictures" / "abc"[i % 3] / ("cat", "dog")[i % 2] / f"{i}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        pixels = random.integers(0, 256, (8, 8, 3), dtype=np.uint8)
        pixels[..., 1] = (100, 150)[i % 2] + random.integers(-60, 60)
        Image.fromarray(pixels).save(path)
    torch.manual_seed(0)
    from safetensors.torch import save_file

    from transferrisk.models import build_model

    save_file(build_model("cnn:4", 2, (3, 8, 8)).featuriser.network.state_dict(), tmp_path / "w.safetensors")
    plan = replace(PLAN, algorithms=("linear", "boosting"), backbone="cnn:4", weights=str(tmp_path / "w.safetensors"))
    fitted = fit(tmp_path / "pictures", Options(size=8), plan)
    save_fit(fitted, tmp_path / "model")
    images = fitted.source.samples.inputs[:]
    found = load_model(tmp_path / "model").predict_proba(images)
    np.testing.assert_array_equal(found, fitted.model.predict_proba(images))
    members = fitted.model.network.featuriser.top.members
    features = fitted.model.network.featuriser.backbone(images.float() / 255).detach()
    weights = fitted.comparison.members.values()
    expected = sum(w * m(features).double().softmax(1) for w, m in zip(weights, members, strict=True))
    expected = Calibration(fitted.decision.temperature).apply(expected.detach().numpy())
    np.testing.assert_allclose(found, expected, atol=1e-6)
    with pytest.raises(InputError, match="'blend' takes the features of a frozen backbone"):
        fit(tmp_path / "pictures", Options(size=8), replace(plan, algorithms=("erm", "trm"), frozen=False))


def test_it_is_taken_only_where_it_is_clearly_better(blended):
    found = blended[0].comparison
    near = found.summary.copy()
    near.loc["blend", ["loss", "gap", "gap_error", "worst_gap", "worst_error"]] = 0.1, 0, 0, 0, 0
    near.loc["linear", ["gap", "gap_error", "worst_gap", "worst_error", "mean"]] = 0.01, 0.02, 0.01, 0.02, 0.99
    assert choose(replace(found, summary=near)).algorithm == "linear"
    for other in ("lightgbm", "my-own"):  # not simple either, and which of them is best may be luck
        own = near.rename(index={"linear": other})
        assert choose(replace(found, summary=own)).algorithm == "blend"
        own.loc["blend", ["gap", "gap_error"]], own.loc[other, ["gap", "loss"]] = (0.05, 0.02), (0, 0.1)
        assert choose(replace(found, summary=own)).algorithm == other
    near.loc[list(THREE), ["gap", "gap_error"]] = 0.03, 0.02
    assert choose(replace(found, summary=near)).algorithm == "blend"


def test_where_weights_cannot_be_known_there_is_no_average(tmp_path):
    for sites in (2, 3):
        table(30 * sites, sites=sites).to_csv(tmp_path / f"{sites}.csv", index=False)
    both = Plan(("erm", "groupdro", "blend"), epochs=5, device="cpu")
    for file, plan in (("2.csv", both), ("3.csv", replace(both, folds=2)), ("3.csv", replace(both, ordered=True))):
        assert "blend" not in fit(tmp_path / file, ASKED, plan).comparison.summary.index
        with pytest.raises(InputError, match="'blend' needs three environments"):
            fit(tmp_path / file, ASKED, replace(plan, algorithm="blend"))
    assert "blend" in fit(tmp_path / "3.csv", ASKED, both).comparison.summary.index
    alone = replace(both, algorithms=both.algorithms[:2])
    assert "blend" not in fit(tmp_path / "3.csv", ASKED, alone).comparison.summary.index
    for wrong in ({"algorithms": ("linear", "blend")}, {"algorithms": ("linear",), "algorithm": "blend"}):
        with pytest.raises(InputError, match="two or more candidates for 'blend'"):
            Plan(**wrong)
    with pytest.raises(InputError, match="--no-compare"):
        Plan(algorithm="blend", compared=False)


def test_trainings_are_kept_and_the_average_is_not(tmp_path):
    table(90).to_csv(tmp_path / "t.csv", index=False)
    source, plan = read_source(str(tmp_path / "t.csv"), ASKED), Plan(("majority", "linear", "blend"), device="cpu")
    first = fit_source(source, plan, keep=tmp_path / "keep")
    assert len(list((tmp_path / "keep").glob("*.npz"))) == 6
    told = set()
    again = fit_source(source, plan, on_progress=lambda what, *_: told.add(what), keep=tmp_path / "keep")
    assert "comparing 2 candidates and their average" in told  # as many as the rows of the table
    assert again.comparison.to_dict() == first.comparison.to_dict()
    assert again.comparison.members == first.comparison.members


def test_seeds_are_averaged_before_candidates_are():
    x = torch.randn(90, 2, generator=torch.Generator().manual_seed(0))
    data = EnvironmentSet(x, (x.sum(1) > 0.3).long(), torch.arange(90) % 3, ("a", "b", "c"), ("no", "yes"))
    one_column = {f"of column {i}": make_column_transformer(("passthrough", [i])) for i in range(2)}
    candidates = {name: make_pipeline(one, LinearClassifier()) for name, one in one_column.items()}
    found = compare(candidates, x.numpy(), data, (0, 1), blend=True)
    given = {name: found.probabilities[name] for name in candidates}
    expected, members = blend_held_out(data.labels.numpy(), given, data.environments.numpy())
    np.testing.assert_array_equal(found.probabilities["blend"], expected)
    assert found.members == members
