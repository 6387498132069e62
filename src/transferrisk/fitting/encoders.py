"""How what a file holds becomes a network's inputs: learnt from the training rows, kept with the model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

import torch
from torch import Tensor

from ..data.schema import Encoded, Schema
from ..data.standardise import moments
from ..errors import InputError

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class TableEncoder:
    """Rows of a table to vectors, by a schema."""

    schema: Schema

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.schema.feature_names),)

    def encode(self, frame: pd.DataFrame) -> Encoded:
        return self.schema.encode(frame)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "table", "schema": self.schema.to_dict()}


@dataclass(frozen=True)
class VectorEncoder:
    """(x - mean) / scale of every component, both of the training rows; a constant component becomes 0.

    columns  of a Parquet file that hold the vectors, or the array of an NPZ file
    """

    mean: tuple[float, ...]  # (d,)
    scale: tuple[float, ...]  # (d,), 0: it was constant
    columns: tuple[str, ...]

    @classmethod
    def of(cls, vectors: Tensor, columns: tuple[str, ...]) -> Self:
        """Of the training vectors (n, d)."""
        mean, scale = moments(vectors.numpy())
        return cls(tuple(mean.tolist()), tuple(scale.tolist()), columns)

    @property
    def shape(self) -> tuple[int, ...]:
        return (len(self.mean),)

    def encode(self, vectors: Tensor) -> Tensor:
        if vectors.dim() != 2 or vectors.shape[1] != len(self.mean):
            raise InputError(
                f"the vectors have shape {tuple(vectors.shape)}, and the model takes (n, {len(self.mean)}): use the "
                "embeddings it was fitted on"
            )
        mean, factor = torch.tensor(self.mean, dtype=torch.float64), self.factor
        scaled = ((vectors.double() - mean) * factor).float()
        wrong = ~scaled.isfinite()
        if wrong.any():
            row, component = wrong.nonzero()[0].tolist()
            value = float(vectors[row, component])
            raise InputError(
                f"the vector in row {row + 1} has {value:g} as number {component + 1}, which is missing or too far "
                "from those the model was fitted on: correct or remove it"
            )
        return scaled

    @property
    def factor(self) -> Tensor:
        """(d,) float64: 1 / scale, 0 where that is 0."""
        scale = torch.tensor(self.scale, dtype=torch.float64)
        return torch.where(scale > 0, 1 / torch.where(scale > 0, scale, 1), 0)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "vectors", "mean": list(self.mean), "scale": list(self.scale), "columns": list(self.columns)}


@dataclass(frozen=True)
class ImageEncoder:
    """Images as the data layer decodes them, (channels, height, width); normalisation is part of the network."""

    channels: int
    height: int
    width: int

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.channels, self.height, self.width)

    def to_dict(self) -> dict[str, Any]:
        return {"kind": "images", "shape": list(self.shape)}


Encoder = TableEncoder | VectorEncoder | ImageEncoder


def from_dict(content: Mapping[str, Any]) -> Encoder:
    """The encoder `to_dict` was called on."""
    kind = content["kind"]
    if kind == "table":
        return TableEncoder(Schema.from_dict(content["schema"]))
    if kind == "vectors":
        mean, scale = (tuple(float(value) for value in content[name]) for name in ("mean", "scale"))
        if len(mean) != len(scale):
            raise ValueError(f"{len(mean)} means and {len(scale)} scales")
        return VectorEncoder(mean, scale, tuple(map(str, content["columns"])))
    if kind == "images":
        return ImageEncoder(*map(int, content["shape"]))
    raise ValueError(f"features of kind {kind!r}")
