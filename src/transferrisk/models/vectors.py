"""Featurisers of vectors: rows of a table, or embeddings another network has made."""

from __future__ import annotations

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
