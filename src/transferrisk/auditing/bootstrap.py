"""How far a mean over held-out samples may be from what more samples would give.

Samples of an environment are drawn again with replacement, the same draw for all predictors, so that differences
between predictors keep their pairing. Predictors are not fitted again: the intervals speak of the test, not of the fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Floats = NDArray[np.float64]

_CHUNK = 1 << 23  # draws held at once


@dataclass(frozen=True, eq=False)
class Estimate:
    """A number, or an array of them, and where it lies with the confidence asked for; nan where it is not known."""

    value: Any
    low: Any
    high: Any

    def __getitem__(self, place: Any) -> Estimate:
        return Estimate(*(part[place] for part in (self.value, self.low, self.high)))

    @classmethod
    def of(cls, value: Any, draws: Floats, confidence: float) -> Estimate:
        """From the value and what it was in each draw, (B, ...)."""
        tail = (1 - confidence) / 2
        low, high = np.quantile(draws, [tail, 1 - tail], axis=0)
        if np.ndim(value) == 0:
            return cls(float(value), float(low), float(high))
        return cls(np.asarray(value), low, high)

    def __str__(self) -> str:
        if np.ndim(self.value):
            return f"{self.value} ({self.low} to {self.high})"
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


def resampled_means(values: Tensor, draws: int, generator: torch.Generator) -> Floats:
    """Mean of values (R, m) over their m samples, drawn again: (draws, R); nan where there is no sample."""
    R, m = values.shape
    if not m:
        return np.full((draws, R), np.nan)
    found = np.empty((draws, R))
    step = max(1, _CHUNK // m)
    table = values.mT.double()
    for begin in range(0, draws, step):
        number = min(step, draws - begin)
        drawn = torch.randint(m, (number, m), generator=generator)
        times = torch.zeros(number, m, dtype=torch.float64)
        times.scatter_add_(1, drawn, torch.ones(1, 1, dtype=torch.float64).expand(number, m))
        found[begin : begin + number] = (times @ table / m).numpy()
    return found
