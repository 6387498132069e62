"""How far a mean over held-out samples may be from what more samples would give.

Samples of an environment are drawn again with replacement, the same draw for all predictors, so that differences
between predictors keep their pairing. Predictors are not fitted again: the intervals speak of the test, not of the fit.
Samples are drawn one by one: where several belong together, as those of a patient do, intervals are too narrow.
"""

from __future__ import annotations

from collections.abc import Callable
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
        return Estimate(self.value[place], self.low[place], self.high[place])

    def __str__(self) -> str:
        if np.ndim(self.value):
            return f"{self.value} ({self.low} to {self.high})"
        return f"{self.value:.3f} ({self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True, eq=False)
class Drawn:
    """Numbers (...) and what each was in every draw, (B, ...)."""

    value: Floats
    draws: Floats

    def __getitem__(self, place: Any) -> Drawn:
        return Drawn(self.value[place], self.draws[:, *place] if isinstance(place, tuple) else self.draws[:, place])

    def __sub__(self, other: Drawn) -> Drawn:
        return Drawn(self.value - other.value, self.draws - other.draws)

    def map(self, function: Callable[[Floats], Any]) -> Drawn:
        """The same function, which acts on trailing dimensions alone, of the value and of every draw."""
        return Drawn(np.asarray(function(self.value)), np.asarray(function(self.draws)))

    def estimate(self, confidence: float) -> Estimate:
        """The middle share of the draws around the value."""
        tail = (1 - confidence) / 2
        return Estimate(self.value[()], *np.quantile(self.draws, [tail, 1 - tail], axis=0))

    def estimate_chosen(self, deviations: Floats, confidence: float) -> Estimate:
        """Value +- c s, for values some of which are named because of what they came out as.

        s is the standard deviation of a value's draws, and c the quantile of the largest `deviations` (B,) of all that
        could have been named, so that all their intervals hold at once, and whichever is named holds too (Westfall and
        Young's max-t).
        """
        half = np.quantile(deviations, confidence) * self.draws.std(0)
        return Estimate(self.value[()], self.value - half, self.value + half)

    def largest_deviations(self) -> Floats:
        """max_i |draws_i - value_i| / s_i in each draw, (B,); what does not vary between draws is left out."""
        draws, value = self.draws.reshape(len(self.draws), -1), self.value.ravel()
        scale = draws.std(0)
        varies = scale > 0
        if not varies.any():
            return np.zeros(len(draws))
        found: Floats = (np.abs(draws - value)[:, varies] / scale[varies]).max(1)
        return found


def draw_means(values: Tensor, draws: int, generator: torch.Generator) -> Drawn:
    """Means of values (R, m) over their m samples, (R,), and over samples drawn again; nan where there is no sample."""
    R, m = values.shape
    table = values.mT.double()
    if not m:
        return Drawn(np.full(R, np.nan), np.full((draws, R), np.nan))
    found = np.empty((draws, R))
    step = max(1, _CHUNK // m)
    for begin in range(0, draws, step):
        number = min(step, draws - begin)
        drawn = torch.randint(m, (number, m), generator=generator)
        times = torch.zeros(number, m, dtype=torch.float64)
        times.scatter_add_(1, drawn, torch.ones(1, 1, dtype=torch.float64).expand(number, m))
        found[begin : begin + number] = (times @ table / m).numpy()
    return Drawn(table.mean(0).numpy(), found)
