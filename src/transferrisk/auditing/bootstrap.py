"""How far a mean over held-out samples may be from what more samples would give.

Samples of an environment are drawn again with replacement, the same draw for all predictors, so that differences
between predictors keep their pairing. Predictors are not fitted again: the intervals speak of the test, not of the fit.
Samples are drawn one by one: where several belong together, as those of a patient do, intervals are too narrow.
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


def largest_deviations(value: Floats, draws: Floats) -> Floats:
    """max_i |draws_i - value_i| / s_i in each draw, (B,), s_i the deviation of draws_i; value (N,), draws (B, N).

    What does not vary between draws counts as no deviation.
    """
    scale = draws.std(0)
    varies = scale > 0
    if not varies.any():
        return np.zeros(len(draws))
    found: Floats = (np.abs(draws - value)[:, varies] / scale[varies]).max(1)
    return found


def after_choice(value: Any, draws: Floats, deviations: Floats, confidence: float) -> Estimate:
    """Value (...) +- c s, for values some of which are named because of what they came out as; draws (B, ...).

    c is the quantile of the largest deviation of all that could have been named, so that all their intervals hold at
    once, and whichever is named holds too (Westfall and Young's max-t).
    """
    half = np.quantile(deviations, confidence) * draws.std(0)
    low, high = value - half, value + half
    if np.ndim(value) == 0:
        return Estimate(float(value), float(low), float(high))
    return Estimate(np.asarray(value), low, high)


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
