"""Plain gradient descent: how the paper's public code finds w(Q), in 30 steps at rate 0.1."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from .protocols import Problem, default_tolerance, euclidean
from .solution import Solution


@dataclass(frozen=True)
class GradientDescent:
    steps: int = 30
    rate: float = 0.1
    tolerance: float | None = None  # only for the report: the number of steps is fixed

    @property
    def fixed(self) -> bool:
        return True

    def minimise(self, problem: Problem, start: Tensor) -> Solution:
        x = start
        for _ in range(self.steps):
            x = x - self.rate * problem.linearise(x).gradient
        gradient, scale, _ = problem.linearise(x)
        residual = euclidean(gradient, gradient).sqrt()
        tolerance = self.tolerance or default_tolerance(residual.dtype)
        return Solution(x, residual <= tolerance * scale, self.steps, residual)
