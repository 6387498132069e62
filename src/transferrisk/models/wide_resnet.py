"""Wide ResNet for small images (Zagoruyko & Komodakis, 2016); WRN-16-2 is the paper's network for SceneCOCO.

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
            raise InputError(f"a Wide ResNet of depth {depth} cannot be built: take 10, 16, 22, 28, ... (6 n + 4)")
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
