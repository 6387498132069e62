"""The paper's networks, and those for vectors.

cnn        the paper's CNN for 10C-CMNIST: three convolutions, which with the predictor make its four layers
wrn-16-2   Wide ResNet for small images (Zagoruyko & Komodakis, 2016), the paper's network for SceneCOCO:

    conv 3x3, 16                                   stride 1: nothing is lost before the first group
    three groups of (depth - 4) / 6 blocks         16k, 32k, 64k channels; strides 1, 2, 2
    batch norm, ReLU, global average pool          64k features

A block is pre-activated: (batch norm, ReLU, conv 3x3) twice, added to its input. Where the number of channels changes,
the shortcut is a 1x1 convolution of the activated input, as in the authors' code. No dropout.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu

from ..errors import InputError


class SmallCNN(nn.Module):
    """3 -> w, w -> 2w with stride 2, 2w -> 2w; 3x3 with padding, each ReLU then batch norm; global average pool.

    The paper's width is 64, which gives 128 features.
    """

    def __init__(self, in_channels: int = 3, width: int = 64) -> None:
        super().__init__()
        self.num_features = 2 * width

        def layer(channels: int, out: int, stride: int = 1) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(channels, out, 3, stride, padding=1), nn.ReLU(), nn.BatchNorm2d(out))

        self.layers = nn.Sequential(
            layer(in_channels, width), layer(width, 2 * width, stride=2), layer(2 * width, 2 * width)
        )

    def forward(self, images: Tensor) -> Tensor:
        maps: Tensor = self.layers(images)  # (n, 2w, h/2, w/2)
        return maps.mean((2, 3))


class Block(nn.Module):
    """(n, c, h, w) to (n, c', h/s, w/s)."""

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
    """(n, c, h, w) to 64 * width features, (n, 64k). Convolutions start at He's normal with fan-out."""

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


class Linear(nn.Module):
    """The vectors themselves, (n, d): with the head on top, a linear classifier."""

    def forward(self, vectors: Tensor) -> Tensor:
        return vectors


class MLP(nn.Module):
    """One hidden layer: relu(A x + b), (n, d) to (n, width)."""

    def __init__(self, in_features: int, width: int = 128) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(in_features, width), nn.ReLU())

    def forward(self, vectors: Tensor) -> Tensor:
        features: Tensor = self.layers(vectors)
        return features
