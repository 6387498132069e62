"""Featurisers of vectors: rows of a table, or embeddings another network has made."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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


class Standardise(nn.Module):
    """(x - mean) / scale by column, (n, d), in float64 and then of the type that the layers above compute in.

    Columns of a table may be large and vary little; what is left after a subtraction in float32 would be rounding.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Tensor, scale: Tensor, dtype: torch.dtype) -> None:
        super().__init__()
        self.register_buffer("mean", mean.double())
        self.register_buffer("scale", scale.double())
        self.dtype = dtype

    def forward(self, vectors: Tensor) -> Tensor:
        return ((vectors - self.mean) / self.scale).to(self.dtype)
