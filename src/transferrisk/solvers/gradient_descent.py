"""Plain gradient descent: how the paper's public code finds w(Q), in 30 steps at rate 0.1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .protocols import Problem, Solution, accurate, norms


@dataclass(frozen=True)
class GradientDescent:
    steps: int = 30
    rate: float = 0.1

    @property
    def fixed(self) -> bool:
        return True

    @property
    def captures(self) -> bool:
        return True

    def minimise(self, problem: Problem, start: Tensor) -> Solution:
        x = start
        for _ in range(self.steps):
            x = x - self.rate * problem.linearise(x).gradient
        residual = norms(problem.linearise(x).gradient)
        size = torch.maximum(norms(x), problem.unit)
        return Solution(x, accurate(size, residual, problem.ridge), self.steps, residual)
