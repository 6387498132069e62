"""The mean and the deviation that features are standardised by, wherever they are."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.floating[Any]]

_CHUNK = 1 << 20  # numbers looked at at once
_SMALLEST = 1e-290  # deviation that can be divided by without losing digits


def moments(
    rows: Floats, weights: Floats | None = None, rounding: int = 10
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Mean and standard deviation of every column of rows (n, d), each (d,); a constant one has deviation 0.

    A column is constant where it varies by no more than `rounding` epsilons of its type, as computed numbers may.
    Columns are divided by their largest number first, so that no square overflows, and rows are taken in parts, so
    that there is no second copy of them.
    """
    n, d = rows.shape
    step = max(1, _CHUNK // d)
    low, high = rows.min(0).astype(np.float64), rows.max(0).astype(np.float64)
    largest = np.maximum(np.maximum(-low, high), np.finfo(np.float64).tiny)
    constant = high / largest - low / largest <= rounding * np.finfo(rows.dtype).eps

    def average(of: Callable[[Floats], Floats]) -> NDArray[np.float64]:
        total: NDArray[np.float64] = np.zeros(d)
        for start in range(0, n, step):
            part = of(rows[start : start + step] / largest)
            total += (part if weights is None else part * weights[start : start + step, None]).sum(0)
        return total / (n if weights is None else float(weights.sum()))

    mean = average(lambda shares: shares)
    scale = largest * np.sqrt(average(lambda shares: (shares - mean) ** 2))
    return np.where(constant, low, largest * mean), np.where(constant | (scale <= _SMALLEST), 0.0, scale)
