"""`trm fit`, `trm predict` and `trm export` as a user runs them."""

from __future__ import annotations

import io
import json
import re
import sys

import numpy as np
import pandas as pd
import pytest
import torch

from transferrisk.cli import _run
from transferrisk.data.catalogue import set_name
from transferrisk.fitting.candidates import named


@pytest.fixture
def visits(tmp_path):
    random = np.random.default_rng(0)
    x = random.normal(size=(150, 2))
    frame = pd.DataFrame({"age": x[:, 0], "dose": x[:, 1], "ward": random.choice(["x", "y"], 150), "unit": "mg"})
    frame["hospital"], frame["outcome"] = random.choice(["north", "south", "east"], 150), (x.sum(1) > 0).astype(int)
    frame.to_csv(tmp_path / "visits.csv", index=False)
    return frame


NAMED = ("--label", "outcome", "--environment", "hospital")
QUICK = ("--epochs", "30", "--device", "cpu", "--workers", "1")


def test_fit_and_predict(trm, visits, tmp_path, text_of):
    code, out, err = trm(
        "fit", "visits.csv", *NAMED, "--output", "model", *QUICK, "--algorithms", "erm,groupdro,trm", "--repeats", "2"
    )
    assert (code, err) == (0, "")
    assert "unit      not used" in out
    assert "numeric" in out
    lines = [line.split() for line in out.splitlines()]
    written = json.loads((tmp_path / "model" / "comparison.json").read_text())
    for name, found in written["comparison"]["algorithms"].items():
        expected = [*found["accuracy"].values(), found["mean_accuracy"], found["worst_accuracy"]]
        shown = [f"{100 * value:.1f}" for value in expected] + [f"{found['mean_log_loss']:.3f}"]
        assert any(line[-7:-1] == shown or line[-6:-1] == shown for line in lines), name
        assert np.mean(list(found["accuracy"].values())) == pytest.approx(found["mean_accuracy"])
    assert f"Chosen: {named(written['chosen'])}, " in " ".join(out.split())
    assert "report: model/report.html" in out
    page = (tmp_path / "model" / "report.html").read_text()
    assert "Accuracy by environment" in page
    assert "trm fit visits.csv --label outcome" in text_of(tmp_path / "model" / "report.html")

    code, out, err = trm("predict", "model", "visits.csv", "--output", "-", "--id", "ward")
    assert code == 0
    predictions = pd.read_csv(io.StringIO(out))
    assert list(predictions.columns) == ["ward", "prediction", "probability_0", "probability_1"]
    right = (predictions["prediction"] == visits["outcome"]).groupby(visits["hospital"]).mean()
    assert right.min() > 0.8
    for name, share in right.items():
        assert any(line.split()[:3] == [name, str((visits["hospital"] == name).sum()), f"{100 * share:.1f}"]
                   for line in err.splitlines())  # fmt: skip

    code, out, err = trm("predict", "model", "visits.csv", "--output", "p.parquet", "--json")
    assert json.loads(out)["accuracy"] == pytest.approx(right.to_dict())
    assert len(pd.read_parquet("p.parquet")) == 150

    code, out, err = trm("predict", "model", "visits.csv", "--output", "q.csv", "--label", "outcom")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "has no column 'outcom': did you mean 'outcome'?" in err
    visits.assign(outcome="unheard of").to_csv(tmp_path / "other.csv", index=False)
    code, out, err = trm("predict", "model", "other.csv", "--output", "p.csv")
    assert (code, out.splitlines()[-1], err.count("\n")) == (0, "150 predictions: p.csv", 1)
    assert "no accuracy" in err

    for command, name in ((("predict", "model", "visits.csv"), "link.csv"), (("export", "model"), "link.onnx")):
        (tmp_path / name).symlink_to(tmp_path / "model" / "model.json")
        code, out, err = trm(*command, "--output", name)
        assert (code, out) == (2, "")
        assert err == f"trm: {name} is read as model/model.json, and is not replaced: choose another output\n"

    (tmp_path / "model" / "model.safetensors").write_bytes(b"")
    for command in (("predict", "model", "visits.csv", "--output", "q.csv"), ("export", "model", "--output", "m.onnx")):
        code, out, err = trm(*command)
        assert (code, out) == (2, "")
        assert err.startswith("trm: model/model.safetensors is damaged")
        assert err.count("\n") == 1
    assert not (tmp_path / "q.csv").exists()


def test_columns_and_shifts_are_told_on_page_terminal_and_in_json(trm, visits, tmp_path, text_of):
    """The dose tells of the outcome in two hospitals, and of its opposite in the third."""
    turned = visits["hospital"] == "south"
    visits.loc[turned, "outcome"] = (visits["dose"][turned] < 0).astype(int)
    visits.loc[~turned, "outcome"] = (visits["dose"][~turned] > 0).astype(int)
    visits.to_csv("visits.csv", index=False)
    asked = ("visits.csv", *NAMED, "--output", "m", "--algorithms", "linear", "--workers", "1", "--json", "fit.json")
    code, out, err = trm("fit", *asked)
    assert (code, err) == (0, "")
    told, page = json.loads((tmp_path / "fit.json").read_text()), text_of(tmp_path / "m" / "report.html")
    assert told["columns"]["unstable"] == ["dose"]
    assert told["columns"]["environments"] == ["east", "north", "south"]
    (dose,) = (one for one in told["columns"]["columns"] if one["name"] == "dose")
    assert np.sign(dose["effects"]["value"]).tolist() == [1, 1, -1]
    assert dose["pooled"]["q"] > 20
    assert any("'dose'" in line and "--drop-unstable" in line for line in told["verdict"])
    worst = max(told["shifts"]["environments"], key=lambda one: one["excess"])
    assert (worst["environment"], worst["kind"]) == ("south", "relation")
    for line in (*told["columns"]["sentences"], *told["shifts"]["sentences"]):
        assert line in " ".join(out.split())
        assert line in page


def test_many_columns_are_few_lines(trm, visits, tmp_path):
    random = np.random.default_rng(1)
    more = pd.DataFrame(random.normal(size=(150, 200)), columns=[f"gene{i}" for i in range(200)])
    pd.concat([more, visits], axis=1).to_csv("wide.csv", index=False)
    quick = ("--epochs", "1", "--device", "cpu", "--no-compare", "--algorithm", "erm")
    code, out, err = trm("fit", "wide.csv", *NAMED, "--output", "model", *quick)
    assert (code, err) == (0, "")
    assert out.count("gene") == 19
    assert "unit      not used" in out  # what there is a remark on comes first
    assert "\nand 184 more columns: see model/card.md\n" in out
    for name in ("card.md", "report.html"):
        assert all(f"gene{i}" in (tmp_path / "model" / name).read_text() for i in range(200))


@pytest.mark.parametrize(
    "command", [("fit", "x.csv", "--output", "m"), ("audit", "x.csv"), ("data", "show", "table:x.csv")]
)
def test_another_separator_is_told(trm, visits, command):
    visits.to_csv("x.csv", index=False, sep=";")
    code, out, err = trm(*command, *NAMED)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "its separators are semicolons; save it with commas" in err


def test_columns_as_they_are_said_to_be(trm, visits, tmp_path):
    visits.assign(grade=np.arange(150) % 4).to_csv("graded.csv", index=False)
    quick = ("--epochs", "1", "--device", "cpu", "--no-compare", "--algorithm", "linear", "--json")
    code, out, err = trm("fit", "graded.csv", *NAMED, "--output", "m", *quick)
    assert (code, err.count("\n")) == (0, 1)
    assert "column 'grade' has the whole numbers 0 to 3: --categorical grade takes them as codes" in err
    said = ("--categorical", "grade,ward", "--drop", "unit,dose")
    code, out, err = trm("fit", "graded.csv", *NAMED, "--output", "m", *quick, *said, "--force")
    taken = {"age": "numeric", "ward": "categorical", "grade": "categorical", "dose": "not used", "unit": "not used"}
    assert (code, err) == (0, "")
    assert {entry["column"]: entry["taken_as"] for entry in json.loads(out)["features"]} == taken
    code, out, err = trm("fit", "graded.csv", *NAMED, "--output", "m2", *quick, "--schema", "m/schema.json")
    assert (code, err) == (0, "")
    assert {entry["column"]: entry["taken_as"] for entry in json.loads(out)["features"]} == taken
    code, out, err = trm("audit", "graded.csv", *NAMED, "--schema", "m/schema.json", "--bootstrap", "5", "--json")
    assert (code, err) == (0, "")
    assert {one["name"] for one in json.loads(out)["columns"]["columns"]} == {"age", "ward", "grade"}
    run = ("--test-env", "east", "--epochs", "1", "--device", "cpu", "--quiet", "--output")
    code, _, err = trm("train", "--data", "table:graded.csv", *NAMED, "--schema", "m/schema.json", *run, "run")
    assert (code, err) == (0, "")
    assert json.loads((tmp_path / "run" / "model.json").read_text())["input_shape"] == [7]  # age, 2 wards, 4 grades
    for wrong in (("--schema", "m/model.json"), ("--missing-indicators", "some"), ("--numeric", "ward")):
        code, _, err = trm("audit", "graded.csv", *NAMED, *wrong)
        assert (code, err.count("\n")) == (2, 1)


def test_json_and_an_algorithm_of_ones_own(trm, visits):
    code, out, err = trm(
        "fit", "visits.csv", *NAMED, "--output", "m", *QUICK, "--no-compare", "--algorithm", "vrex", "--json"
    )
    assert (code, err) == (0, "")
    summary = json.loads(out)
    assert (summary["algorithm"], summary["comparison"], summary["rows"]) == ("vrex", None, 150)
    assert {entry["column"]: entry["taken_as"] for entry in summary["features"]} == {
        "age": "numeric", "dose": "numeric", "ward": "categorical", "unit": "not used",
    }  # fmt: skip
    code, out, err = trm("fit", "visits.csv", *NAMED, "--output", "m", *QUICK)
    assert (code, out) == (2, "")
    assert err.startswith("trm: m holds a model already")


def test_a_log_gets_lines_of_progress_and_a_terminal_none(trm, visits, monkeypatch):
    monkeypatch.setattr("transferrisk.reports.terminal.SECONDS", 0.01)
    command = ("fit", "visits.csv", *NAMED, *QUICK, "--algorithms", "linear,erm", "--json", "--force", "--output", "m")
    code, out, err = trm(*command)
    assert (code, json.loads(out)["rows"]) == (0, 150)
    done = [line.split(":")[1].split(",")[0] for line in err.splitlines() if line.startswith("comparing 2 candidates:")]
    assert done == sorted(set(done))
    assert any(re.fullmatch(r" [1-6] of 6", one) for one in done)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("TTY_INTERACTIVE", "0")
    code, out, err = trm(*command)
    assert (code, json.loads(out)["rows"]) == (0, 150)
    assert " of 6," not in err


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("visits.csv", "--label", "outcom", "--environment", "hospital"), "did you mean 'outcome'?"),
        (("visits.csv", "--label", "outcome"), "say which holds the environment, with --environment"),
        (("visits.csv", "--label", "outcome", "--environment", "outcome"), "cannot be both label and environment"),
        (("visits.csv", "--label", "unit", "--environment", "hospital"), "there is nothing to predict"),
        (("visits.csv", "--label", "outcome", "--environment", "unit"), "transfer needs at least two"),
        (("visits.csv", *NAMED, "--features", "age,outcome"), "column 'outcome' is named twice"),
        (("visit.csv", *NAMED), "did you mean 'visits.csv'?"),
        (("empty.csv", *NAMED), "is empty"),
        (("visits.txt", *NAMED), "visits.txt"),
        (("visits.csv", *NAMED, "--algorithms", "erm,tmr"), "algorithm 'tmr': did you mean 'trm'?"),
        (("visits.csv", *NAMED, "--set", "trm.rigde=1"), "did you mean 'ridge'?"),
        (("visits.csv", *NAMED, "--backbone", "cnn"), "takes images"),
        (("visits.csv", *NAMED, "--size", "8"), "size"),
        (("visits.csv", *NAMED, "--frozen"), "got table:visits.csv"),
        (("visits.csv", *NAMED, "--device", "tpu"), "tpu"),
        (("visits.csv", *NAMED, "--ordered", "--no-compare"), "--ordered"),
    ],
)
def test_what_cannot_be_fitted_is_one_line(trm, visits, tmp_path, arguments, told):
    (tmp_path / "empty.csv").touch()
    (tmp_path / "visits.txt").write_text("text")
    code, _, err = trm("fit", *arguments, "--output", "model", "--workers", "1")
    assert code == 2
    assert told in err
    assert err.count("\n") == 1
    assert not (tmp_path / "model").exists()


def test_a_pretrained_backbone_is_frozen_on_a_cpu_and_a_line_says_so(trm, tmp_path):
    from PIL import Image
    from safetensors.torch import save_file

    from transferrisk.models import build_model

    save_file(build_model("cnn:2", 2, (3, 8, 8)).featuriser.network.state_dict(), tmp_path / "cnn.safetensors")
    for i, place in enumerate(f"{site}/{label}" for site in "xy" for label in ("cat", "dog")):
        (tmp_path / "pictures" / place).mkdir(parents=True)
        for j in range(5):
            Image.new("RGB", (8, 8), (50 * i, 9 * j, 200)).save(tmp_path / "pictures" / place / f"{j}.png")
    asked = ("--size", "8", "--backbone", "cnn:2", "--epochs", "2", "--device", "cpu", "--no-compare", "--force")
    pretrained = ("--weights", "cnn.safetensors")
    frozen = "cnn:2 is taken as it is (frozen), and linear:16 trained on its features; --tuned trains all of it, which"
    for options, line in (
        (pretrained, frozen),
        ((*pretrained, "--tuned"), ""),
        ((*pretrained, "--frozen"), ""),
        ((), ""),
    ):
        code, out, err = trm("fit", "pictures", "--output", "m", *asked, *options)
        assert (code, err) == (0, "")
        assert line in " ".join(out.split())
        assert ("--tuned" in out) == bool(line)
    code, out, _ = trm("fit", "pictures", "--output", "m", *asked, *pretrained, "--on-top", "linear", "--json")
    known = {"backbone": "cnn:2", "weights": "cnn.safetensors", "frozen": True, "on_top": "linear"}
    assert json.loads(out)["network"] == known
    code, out, _ = trm("predict", "m", "pictures", "--output", "p.csv")
    assert (code, "20 predictions: p.csv" in out) == (0, True)
    code, _, err = trm("fit", "pictures", "--output", "m2", *asked, "--frozen")
    assert (code, err.count("\n")) == (2, 1)
    assert "'cnn:2' without weights" in err


@pytest.mark.parametrize(
    ("command", "where", "way_out"),
    [
        (
            ("fit", "visits.csv", *NAMED, "--output", "m"),
            "transferrisk.fitting.source.read_source",
            "use fewer --workers, a sm",
        ),
        (
            ("predict", "m", "visits.csv", "--output", "p.csv"),
            "transferrisk.fitting.model.load_model",
            "use a lower --chunk-rows",
        ),
        (("export", "m", "--output", "m.onnx"), "transferrisk.fitting.model.load_model", "end other programs"),
    ],
)
def test_full_memory_is_one_line(trm, visits, tmp_path, monkeypatch, command, where, way_out):
    monkeypatch.setattr(where, lambda *_: torch.empty(10**15))
    before = sorted(tmp_path.iterdir())
    code, out, err = trm(*command)
    assert (code, out) == (2, "")
    assert err.startswith(f"trm: memory is full (tried to allocate 4000000000000000 bytes): {way_out}")
    assert err.count("\n") == 1
    assert sorted(tmp_path.iterdir()) == before


def test_other_errors_stay_what_they_are(monkeypatch):
    def fail(*_):
        raise RuntimeError("shapes differ")

    monkeypatch.setattr("transferrisk.fitting.model.load_model", fail)
    monkeypatch.setattr(sys, "argv", ["trm", "predict", "m", "visits.csv", "--output", "p.csv"])
    with pytest.raises(RuntimeError, match="shapes differ"):
        _run()  # not main, which leaves its signal handlers where an error is not told


def test_a_bare_path_is_taken_by_its_kind(visits, tmp_path, monkeypatch):
    from transferrisk.data import Options

    monkeypatch.chdir(tmp_path)
    visits.to_parquet("t.parquet")
    pd.DataFrame({"embedding": [[1.0]], "label": [0]}).to_parquet("e.parquet")
    (tmp_path / "pictures").mkdir()
    for given, name in {
        "visits.csv": "table:visits.csv",
        "t.parquet": "table:t.parquet",
        "e.parquet": "parquet:e.parquet",
        "e.npz": "npz:e.npz",
        "pictures": "folder:pictures",
        "list.jsonl": "manifest:list.jsonl",
        "table:visits.csv": "table:visits.csv",
        "gaussian": "gaussian",
    }.items():
        assert set_name(given, Options()) == name
    assert set_name("visits.csv", Options(path="file")) == "manifest:visits.csv"
    pd.DataFrame({"emb": [[1.0]], "embedding": [[1.0]], "age": 1.0, "label": [0]}).to_parquet("own.parquet")
    assert set_name("own.parquet", Options(features="emb")) == "parquet:own.parquet"
    assert set_name("own.parquet", Options(features="age")) == "table:own.parquet"
