"""Conjugate gradients for a batch of systems.

Differs from the textbook routine in two ways:

1. Problems of a batch that are done stand still while the others go on, so that a problem's answer does
   not depend on its neighbours.
2. With `fixed=True` it runs `max_iterations` iterations and never looks at a value on the host, so that a
   whole training step can be captured in a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .protocols import Product, System, euclidean, per_problem
from .solution import Solution


@dataclass(frozen=True)
class CG:
    """Stops when |rhs - A x| <= tolerance * |rhs| (None: 1e-12 in float64, 1e-6 in float32)."""

    tolerance: float | None = None
    max_iterations: int = 1000
    fixed: bool = False

    def solve(self, system: System, rhs: Tensor) -> Solution:
        return self.run(system.product, rhs)

    def run(self, product: Product, rhs: Tensor, tolerance: Tensor | None = None) -> Solution:
        """`tolerance` (B,) overrides the solver's own, as an inexact Newton method wants it."""
        if tolerance is None:
            own = self.tolerance or (1e-12 if rhs.dtype == torch.float64 else 1e-6)
            tolerance = rhs.new_full(rhs.shape[:1], own)
        x = torch.zeros_like(rhs)
        residual = direction = rhs
        square = euclidean(rhs, rhs)
        target = square * tolerance.square()
        iterations = 0
        while iterations < self.max_iterations:
            active = square > target
            if not self.fixed and not bool(active.any()):
                break
            image = product(direction)
            curvature = euclidean(direction, image)
            step = per_problem(torch.where(active & (curvature > 0), square / curvature, 0), rhs)
            x = torch.addcmul(x, step, direction)
            residual = torch.addcmul(residual, step, image, value=-1)
            previous, square = square, torch.where(active, euclidean(residual, residual), square)
            ratio = torch.where(previous > 0, square / previous, 0)
            direction = torch.addcmul(residual, per_problem(ratio, rhs), direction)
            iterations += 1
        return Solution(x, square <= target, iterations, square.sqrt())
