"""Exported models, run by onnxruntime on samples they have not seen."""

from __future__ import annotations

import json
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from rows import ASKED, table

from transferrisk.data.infer import Declared, infer_schema
from transferrisk.data.values import Standardise
from transferrisk.errors import InputError
from transferrisk.fitting import Plan, fit, load_model, save_fit
from transferrisk.fitting.decisions import Decision
from transferrisk.fitting.export import export_onnx
from transferrisk.fitting.model import Model, Origin
from transferrisk.models import OnFrozen, build_model

NEEDED = "comes with the extra onnx: pip install 'transferrisk[onnx]'"


@pytest.fixture
def runtime(tmp_path):
    """runtime(model) -> a session of onnxruntime with the exported model."""
    pytest.importorskip("onnx", reason=NEEDED)
    pytest.importorskip("onnxscript", reason=NEEDED)
    onnxruntime = pytest.importorskip("onnxruntime", reason=NEEDED)

    def session_of(model):
        inputs = export_onnx(model, tmp_path / "model.onnx")
        session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
        assert [entry[0] for entry in inputs] == [entry.name for entry in session.get_inputs()]
        assert json.loads(session.get_modelmeta().custom_metadata_map["classes"]) == list(model.classes)
        return session

    return session_of


def model_of(shape, backbone, kind="table", schema=None):
    torch.manual_seed(0)
    network = build_model(backbone, 3, shape).eval()
    origin = Origin("table:x.csv", kind, "outcome", "site", algorithm="erm")
    return Model(network, backbone, shape, ("a", "b", "c"), ("u", "v"), {}, origin, schema)


def fed(frame, session):
    """Columns as the exported file takes them."""
    feed = {}
    for entry in session.get_inputs():
        column = frame[entry.name]
        if entry.type == "tensor(string)":
            feed[entry.name] = column.fillna("").to_numpy(object)
        elif pd.api.types.is_datetime64_any_dtype(column):
            days = column.to_numpy().astype("datetime64[s]").astype(np.int64) / 86400
            feed[entry.name] = np.where(column.isna(), np.nan, days)
        else:
            feed[entry.name] = column.to_numpy(float)
    return feed


@pytest.mark.parametrize("indicators", ["always", "never"])
def test_tables_with_every_kind_of_column(runtime, indicators):
    before = table(400).rename(columns={"x0": "features", "x1": "trm.value.0", "x2": "network.head"})
    before["missing both ways"] = np.where(np.arange(400) % 3, np.nan, 5.0)
    before["many"] = [f"m{i % 70}" for i in range(400)]
    schema = infer_schema(before, "outcome", "site", Declared(others=indicators))
    model = model_of((len(schema.feature_names),), "mlp:8", schema=schema)
    new = table(300, seed=9).rename(columns={"x0": "features", "x1": "trm.value.0", "x2": "network.head"})
    new["missing both ways"], new["many"] = 5.0, [f"m{i % 90}" for i in range(300)]
    new["seen"] = np.datetime64("1583-01-01", "s") + np.random.default_rng(0).integers(0, 3 * 10**10, 300)
    new.loc[::7, ["features", "seen", "colour", "income"]] = None
    new.loc[5, "colour"] = "mauve"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = model.predict_proba(new)
    session = runtime(model)
    (found,) = session.run(["probabilities"], fed(new, session))
    assert np.abs(found - expected).max() < 1e-5
    assert expected.std(0).min() > 0.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("backbone", ["linear", "mlp:8"])
def test_vectors(runtime, backbone, dtype):
    x = (1e4 + np.random.default_rng(0).normal(size=(50, 7))).astype(np.float32)
    x[:, 3] = 2
    torch.manual_seed(0)
    network = OnFrozen(
        build_model("linear", 3, (7,)), build_model(backbone, 3, (7,)).to(dtype), Standardise.fit(x[:30], dtype=dtype)
    )
    model = Model(network.eval(), "linear", (7,), ("a", "b", "c"), ("u", "v"))
    (found,) = runtime(model).run(["probabilities"], {"features": x[30:]})
    assert np.abs(found - model.predict_proba(x[30:])).max() < 1e-5


def test_nothing_that_the_exporter_prints_is_passed_on(runtime, monkeypatch, capsys):
    """--json has standard output to itself."""
    export = torch.onnx.export

    def loud(*given, **settings):
        print("Applied 1 of general pattern rewrite rules.")
        return export(*given, **settings)

    monkeypatch.setattr(torch.onnx, "export", loud)
    runtime(model_of((3,), "linear", "vectors"))
    assert capsys.readouterr().out == ""


def test_images(runtime):
    images = np.random.default_rng(0).integers(0, 256, (5, 3, 12, 12)).astype(np.uint8)
    model = model_of((3, 12, 12), "cnn:4", "images")
    (found,) = runtime(model).run(["probabilities"], {"images": images})
    assert np.abs(found - model.predict_proba(images)).max() < 1e-5


def test_without_the_extra_one_line_says_what_to_install(monkeypatch, tmp_path):
    from transferrisk import extras

    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    model = model_of((3, 12, 12), "cnn:4", "images")
    with pytest.raises(InputError, match=r"onnx is not installed: pip install 'transferrisk\[onnx\]'"):
        export_onnx(model, tmp_path / "model.onnx")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("candidate", ["majority", "linear", "boosting", "lightgbm", "boosting-weighted", "trm-leaves"])
def test_baselines_are_saved_and_exported(runtime, tmp_path, candidate):
    """A table with categories that were not there before and missing values, through the folder and the file."""
    if candidate == "lightgbm":
        pytest.importorskip("lightgbm", reason="comes with the extra boosting")
    table(600).to_csv(tmp_path / "t.csv", index=False)
    fitted = fit(tmp_path / "t.csv", ASKED, Plan(algorithm=candidate, compared=False, device="cpu"))
    save_fit(fitted, tmp_path / "model")
    model, new = load_model(tmp_path / "model"), table(200, seed=1).drop(columns=["code", "version"])
    new.loc[:20, "colour"] = "mauve"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        expected = model.predict_proba(new)
        np.testing.assert_array_equal(expected, fitted.model.predict_proba(new))
        model = replace(model, decision=Decision(threshold=0.3))
        decided = model.predict(new)
    session = runtime(model)
    (found,) = session.run(None, fed(new, session))
    np.testing.assert_allclose(found, expected, atol=1e-5)
    threshold = float(session.get_modelmeta().custom_metadata_map["threshold"])
    assert (np.where(found[:, 1] > threshold, "yes", "no") == decided).all()
    if candidate != "majority":
        assert (expected.argmax(1) == (new["outcome"] == "yes")).mean() > 0.8
