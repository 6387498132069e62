"""Features brought to mean 0 and deviation 1: the one place, for tables, vectors, networks and audits."""

from __future__ import annotations

from typing import Any, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

Floats = NDArray[np.floating[Any]]
Numbers = TypeVar("Numbers", NDArray[np.float64], Tensor)

_CHUNK = 1 << 20  # numbers looked at at once
_SMALLEST = 1e-290  # deviation that can be divided by without losing digits


def moments(
    rows: Floats, weights: Floats | None = None, rounding: int = 10
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of every column of rows (n, d), each (d,); a constant one has deviation 0.

    A column is constant if it varies by at most `rounding` epsilons of its type, as computed numbers may. Columns are
    divided by their largest number first, so that no square overflows, and rows are taken in chunks, so that there is
    no second copy of them.
    """
    n, d = rows.shape
    step = max(1, _CHUNK // d)
    low, high = rows.min(0).astype(np.float64), rows.max(0).astype(np.float64)
    largest = np.maximum(np.maximum(-low, high), np.finfo(np.float64).tiny)
    constant = high / largest - low / largest <= rounding * np.finfo(rows.dtype).eps

    counts = np.ones(n) if weights is None else weights / weights.mean()
    mean, square = np.zeros(d), np.zeros(d)
    for start in range(0, n, step):
        shares = rows[start : start + step] / largest
        mean += np.einsum("n,nd->d", counts[start : start + step], shares) / n
    for start in range(0, n, step):
        shares = rows[start : start + step] / largest
        square += np.einsum("n,nd->d", counts[start : start + step], (shares - mean) ** 2) / n
    scale = largest * np.sqrt(square)
    return np.where(constant, low, largest * mean), np.where(constant | (scale <= _SMALLEST), 0.0, scale)


def standardised(values: Numbers, mean: Any, scale: Any) -> Numbers:
    """(x - mean) / scale in float64; a quarter of each is taken, so that the difference of large numbers is finite."""
    result: Numbers = (values / 4 - mean / 4) / (scale / 4)
    return result


class Standardise(nn.Module):
    """(x - mean) / scale by column, (n, d), in float64 and then in `dtype`; a column of scale 0 becomes 0.

    Columns of a table may be large and vary little: after a subtraction in float32, only rounding would be left.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.register_buffer("mean", mean.double())
        self.register_buffer("scale", scale.double())
        self.dtype = dtype

    @classmethod
    def fit(cls, rows: Floats, weights: Floats | None = None, dtype: torch.dtype = torch.float32) -> Self:
        """The module for the moments of rows (n, d)."""
        mean, scale = map(torch.from_numpy, moments(rows, weights))
        return cls(mean, scale, dtype)

    @classmethod
    def identity(cls, width: int, dtype: torch.dtype = torch.float32) -> Self:
        """The module that leaves vectors (n, width) as they are; a state dict may bring other moments."""
        return cls(torch.zeros(width), torch.ones(width), dtype)

    def forward(self, vectors: Tensor) -> Tensor:
        scale = torch.where(self.scale > 0, self.scale, torch.inf)
        return standardised(vectors.double(), self.mean, scale).to(self.dtype)
