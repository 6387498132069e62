"""The paper's CNN for 10C-CMNIST: three convolutions, which with the predictor make its four layers."""

from __future__ import annotations

from torch import Tensor, nn


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
