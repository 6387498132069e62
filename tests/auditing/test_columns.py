"""Effects of columns against scikit-learn's fits, and a table with a column that agrees with the label by chance."""

from __future__ import annotations

import json

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss

from transferrisk.auditing.columns import SPREAD, column_effects, column_sections, unstable
from transferrisk.auditing.samples import column_groups
from transferrisk.data.infer import infer_schema
from transferrisk.errors import InputError
from transferrisk.reports import Page, render_page
from transferrisk.reports.terminal import print_values


def sites(agreements, rows=800, seed=0):
    """Two columns that tell of the label everywhere, a category without meaning, and one that agrees so often."""
    rng, parts, places = np.random.default_rng(seed), [], []
    for e, agrees in enumerate(agreements):
        y = rng.integers(2, size=rows)
        real = rng.normal(size=(rows, 2)) + 0.5 * (2 * y - 1)[:, None]
        spurious = np.where(rng.random(rows) < agrees, y, 1 - y)
        parts.append(np.c_[real, np.eye(3)[rng.integers(3, size=rows)], spurious, y])
        places += [f"site {e}"] * rows
    table = np.concatenate(parts)
    return table[:, :-1], table[:, -1].astype(int), np.array(places)


GROUPS = {"age": [0], "dose": [1], "ward": [2, 3, 4], "scanner": [5]}


def test_an_effect_is_the_slope_of_scikit_learn():
    X, y, e = sites([0.9, 0.6], rows=300)
    found = column_effects(X, GROUPS, y, e, refit=False)["age"]
    scaled = X[:, :1] / X[:, 0].std()
    for place, name in enumerate(("site 0", "site 1")):
        model = LogisticRegression(C=SPREAD**2, tol=1e-10).fit(scaled[e == name], y[e == name])
        assert found.effects.value[place] == pytest.approx(model.coef_[0, 0], rel=2e-3)
        p = model.predict_proba(scaled[e == name])[:, 1]
        design = np.c_[np.ones(300), scaled[e == name]]
        hessian = (design * (p * (1 - p))[:, None]).T @ design + np.diag([0, SPREAD**-2])
        half = found.effects.high[place] - found.effects.value[place]
        assert half == pytest.approx(1.968 * np.sqrt(np.linalg.inv(hessian)[1, 1]), rel=5e-3)


def test_one_feature_and_its_two_categories_have_the_same_effect():
    """In size; two features have the sign of all environments together."""
    X, y, e = sites([0.9, 0.7])
    X = np.c_[X, 1 - X[:, 5]]
    found = column_effects(X, {"number": [5], "texts": [5, 6]}, y, e, refit=False)
    np.testing.assert_allclose(found["number"].effects.value, found["texts"].effects.value, rtol=1e-6)


def test_the_spurious_column_is_named():
    found = column_effects(*_ordered(sites([0.95, 0.85, 0.75])))
    assert found.columns[0].name == "scanner"
    assert unstable(found) == ("scanner",)
    assert "scanner" in found.sentences[0]
    assert not found["scanner"].reverses
    assert "sign" not in found.warning
    assert "trm fit with --drop " in found.advice
    assert "does better without" not in found.advice  # held-out losses do not support it
    assert found["scanner"].loss.mean > found["age"].loss.mean > 0  # it helps where it agrees, as here
    turned = column_effects(*_ordered(sites([0.95, 0.85, 0.1])))
    assert turned["scanner"].effects.value[2] < 0
    assert turned["scanner"].reverses
    assert "sign" in turned.warning
    assert "better without" in turned.advice
    assert turned["scanner"].loss.mean < 0
    assert turned["scanner"].risk < 0


def test_columns_of_noise_do_not_help():
    """Without a column of noise the loss falls a little, as it does for a predictor that knows the truth."""
    rng = np.random.default_rng(0)
    X, e = rng.normal(size=(1200, 30)), rng.integers(6, size=1200)
    y = (X[:, 0] + X[:, 1] + rng.normal(size=1200) > 0).astype(int)
    found = column_effects(X, {f"x{i}": [i] for i in range(30)}, y, e)
    noise = [found[f"x{i}"].loss for i in range(2, 30)]
    assert np.mean([one.mean > 0 for one in noise]) < 0.3  # half of them, where weights are inverse variances
    assert np.mean([one.mean > one.error for one in noise]) < 0.1
    assert min(found[name].loss.mean for name in ("x0", "x1")) > 0.05


def _ordered(table):
    X, y, e = table
    return X, GROUPS, y, e


def test_columns_that_agree_are_stable():
    """In twenty tables of stable columns none is called unstable: the level is 1 %."""
    for seed in range(20):
        X, y, e = sites([0.8, 0.8, 0.8], rows=200, seed=seed)
        assert unstable(column_effects(X, GROUPS, y, e, refit=False)) == ()


@pytest.mark.parametrize(("apart", "named"), [(0.2, ()), (1.0, ("x",))])
def test_differences_that_cost_little_are_not_called_unstable(apart, named):
    """Of many samples every difference is beyond chance; three environments have slopes 1 - apart, 1 and 1 + apart."""
    rng, e = np.random.default_rng(0), np.repeat([-1, 0, 1], 10_000)
    X = rng.normal(size=(30_000, 2))
    y = rng.random(30_000) < 1 / (1 + np.exp(-(1 + apart * e) * X[:, 0]))
    found = column_effects(X, {"x": [0], "noise": [1]}, y, e, refit=False)
    assert found["x"].pooled.tau == pytest.approx(apart, abs=0.1)
    assert found["x"].chance < 1e-6
    assert unstable(found) == named
    assert bool(found.warning) == bool(named)


def test_several_classes_and_separation():
    rng = np.random.default_rng(0)
    y, e = rng.integers(3, size=900), np.repeat(["a", "b", "c"], 300)
    says = np.where(e == "c", (y + rng.integers(1, 3, size=900)) % 3, y)  # in c it is always one of the others
    X = np.c_[np.eye(3)[says], rng.normal(size=900)]
    found = column_effects(X, {"says": [0, 1, 2], "noise": [3]}, y, e)
    assert found.columns[0].name == "says"
    assert (found["says"].effects.value[:2] > 1).all()
    assert found["says"].effects.value[2] < 0
    assert np.isfinite(found["says"].effects.high).all()


def test_environments_with_one_class_or_one_value_have_no_effect():
    X, y, e = sites([0.9, 0.8, 0.7], rows=100)
    y[e == "site 0"] = 1  # one class
    X[e == "site 1", 5] = 0  # one value
    found = column_effects(X, GROUPS, y, e, refit=False)
    assert np.isnan(found["age"].effects.value).tolist() == [True, False, False]
    assert np.isnan(found["scanner"].effects.value).tolist() == [True, True, False]
    assert found["scanner"].pooled.k == 1


def test_environments_with_one_class_each_have_no_unstable_column():
    X, _, e = sites([0.9, 0.8], rows=100)
    found = column_effects(X, GROUPS, (e == "site 0").astype(int), e, refit=False)
    assert np.isnan(found.columns[0].effects.value).all()
    assert unstable(found) == ()
    assert found.sentences[0].startswith("No column")


def test_the_environment_is_guessed_from_a_column():
    X, y, e = sites([0.8, 0.8])
    places = np.c_[X, e == "site 0", np.where(e == "site 0", 0.0, np.random.default_rng(0).normal(size=len(X)))]
    found = column_effects(places, {"age": [0], "site": [6], "lot": [7]}, y, e, refit=False)
    assert found["site"].recognised == 1
    assert found["lot"].recognised > 0.85
    assert abs(found["age"].recognised - 0.5) < 0.06


def test_the_source_of_a_revealed_environment_is_named():
    """In one table the shift is in the missing values, in another in the categories, in a third in the numbers."""
    rng, e = np.random.default_rng(0), np.repeat(["p", "q"], 400)
    there = e == "p"
    frame = pd.DataFrame(
        {
            "absent": np.where(rng.random(800) < np.where(there, 0.05, 0.8), np.nan, rng.normal(size=800)),
            "kinds": np.where(rng.random(800) < np.where(there, 0.1, 0.9), "a", rng.choice(["b", "c"], 800)),
            "size": rng.normal(size=800) + 2 * there,
            "same": np.where(rng.random(800) < 0.3, np.nan, rng.normal(size=800)),
            "y": rng.integers(2, size=800),
            "e": e,
        }
    )
    schema = infer_schema(frame, "y", "e")
    groups, missing = column_groups(schema)
    assert missing == {"absent": 1, "same": 7}
    features = schema.encode(frame).features
    found = column_effects(features, groups, frame["y"], e, missing=missing, refit=False)
    told = {one.name: one.told_by for one in found.columns}
    assert told == {"absent": "missing values", "kinds": "categories", "size": "values", "same": ""}
    expected = (0.95 + 0.8) / 2
    assert found["absent"].recognised == pytest.approx(expected, abs=0.04)
    assert found.to_dict()["columns"][0]["told_by"] == found.columns[0].told_by


def test_leaving_out_groups_of_many_environments_agrees_with_scikit_learn():
    """What dropping a column costs, beside logistic regression fitted on other environments."""
    X, y, e = sites(np.tile([0.95, 0.8], 12), rows=60)
    found = column_effects(*_ordered((X, y, e)))
    names, scaled = np.unique(e), (X - X.mean(0)) / X.std(0)
    changes = []
    for name in names:
        there, losses = e == name, []
        for kept in ([0, 1, 2, 3, 4, 5], [0, 1, 2, 3, 4]):
            model = LogisticRegression(C=1 / (found.ridge * (~there).sum())).fit(scaled[~there][:, kept], y[~there])
            losses.append(log_loss(y[there], model.predict_proba(scaled[there][:, kept])))
        changes.append(losses[1] - losses[0])
    assert found["scanner"].loss.mean == pytest.approx(np.mean(changes), abs=0.03)
    assert found["scanner"].loss.k == 24


def test_many_samples_are_thinned():
    """Effects of 120 000 samples are those of fewer, within their errors."""
    X, y, e = sites([0.9, 0.8], rows=60_000)
    few = np.r_[0:5000, 60_000:65_000]
    whole, part = (
        column_effects(X[rows][:, [0, 5]], {"age": [0], "scanner": [1]}, y[rows], e[rows], refit=False)
        for rows in (slice(None), few)
    )
    for name in ("age", "scanner"):
        gap = np.abs(whole[name].effects.value - part[name].effects.value)
        assert (gap < 2 * (part[name].effects.high - part[name].effects.value)).all()


class LargestTensor(torch.utils._python_dispatch.TorchDispatchMode):
    """Watches the operations of torch for the largest memory, in bytes, of a tensor that comes out."""

    size = 0

    def __torch_dispatch__(self, operation, types, args=(), kwargs=None):
        found = operation(*args, **(kwargs or {}))
        for one in found if isinstance(found, tuple | list) else [found]:
            if isinstance(one, torch.Tensor):
                self.size = max(self.size, one.untyped_storage().nbytes())
        return found


def test_memory_does_not_grow_with_the_number_of_columns():
    rng = np.random.default_rng(0)
    X, y, e = rng.normal(size=(20_000, 5)), rng.integers(2, size=20_000), np.repeat(["p", "q"], 10_000)
    with LargestTensor() as largest:
        many = column_effects(X, {f"{i}": [i % 5] for i in range(150)}, y, e, refit=False)
    assert largest.size < 50e6  # bytes; scores of all columns together have 48e6, and their design 72e6 in each half
    alone = column_effects(X[:, 4:], {"4": [0]}, y, e, refit=False)
    for name in ("4", "149"):
        np.testing.assert_allclose(many[name].effects.value, alone["4"].effects.value, rtol=1e-6)


def test_groups_follow_a_schema():
    frame = pd.DataFrame({"x": [1.0, 2.0, None, 4.0], "c": list("abca"), "y": [0, 1, 0, 1], "e": list("ppqq")})
    groups, missing = column_groups(infer_schema(frame, "y", "e"))
    assert groups == {"x": [0, 1], "c": [2, 3, 4]}
    assert missing == {"x": 1}


@pytest.mark.parametrize("number", [3, 12])
def test_pages_and_terminals_show_the_columns(number, capsys):
    X, y, e = sites(np.linspace(0.95, 0.2, number), rows=100)
    found = column_effects(X, GROUPS, y, e)
    page = render_page(Page("Columns", ["Lead"], column_sections(found), {}, "trm audit"))
    assert page.count("<svg") == 1
    assert "scanner" in page
    print_values(*column_sections(found))
    assert "scanner" in capsys.readouterr().out
    assert found.to_dict()["unstable"] == ["scanner"]


@pytest.mark.parametrize("indices", [[], [6], [-1]])
def test_groups_are_checked(indices):
    X, y, e = sites([0.9, 0.8], rows=50)
    with pytest.raises(InputError, match=r"groups\['age'\]"):
        column_effects(X, {"age": indices}, y, e)


def test_an_audit_of_a_table_reports_its_columns(trm, tmp_path):
    X, y, e = sites([0.95, 0.85, 0.6], rows=200)
    frame = pd.DataFrame({"age": X[:, 0], "scanner": np.where(X[:, 5] == 1, "b", "a"), "y": y, "site": e})
    frame.to_csv(tmp_path / "table.csv", index=False)
    named = ("--label", "y", "--environment", "site", "--bootstrap", "20", "--output", tmp_path / "audit.html")
    code, out, _ = trm("audit", tmp_path / "table.csv", *named)
    assert code == 0
    assert "scanner" in out
    assert "scanner" in (tmp_path / "audit.html").read_text()
    code, out, _ = trm("audit", tmp_path / "table.csv", *named, "--json", tmp_path / "found.json")
    assert json.loads((tmp_path / "found.json").read_text())["columns"]["unstable"] == ["scanner"]


def test_a_number_that_names_one_of_forty_environments_is_found():
    random = np.random.default_rng(0)
    site = np.repeat(np.arange(40), 30)
    features = np.stack([1000.0 + site, random.normal(size=1200)], 1)
    report = column_effects(features, {"code": [0], "x": [1]}, random.integers(2, size=1200), site, refit=False)
    assert report["code"].recognised > 0.9
    assert report["x"].recognised < 0.1


def test_bold_columns_are_those_that_are_dropped():
    report = column_effects(*_ordered(sites([0.95, 0.85, 0.75])))
    table = column_sections(report)[0].sections[0]
    bold = [row[0].text for row in table.cells()[0] if row[0].bold]
    assert bold == list(unstable(report)) == ["scanner"]
    assert "Bold: columns that --drop-unstable leaves out" in table.note
    stable = column_sections(column_effects(*_ordered(sites([0.9, 0.9, 0.9]))))[0].sections[0]
    assert not any(row[0].bold for row in stable.cells()[0])
    assert "Bold" not in stable.note
