"""Conjugate gradients for a batch of systems, in any inner product.

Differs from the textbook routine in three ways:

1. The inner product is an argument, so the same code runs in the space of predictors and in the space of
   coefficients over samples, where the natural inner product is the Gram matrix's.
2. Problems of a batch that are done stand still while the others go on, so that a problem's answer does
   not depend on its neighbours.
3. With `fixed=True` it runs `max_iterations` iterations and never looks at a value on the host, so that a
   whole training step can be captured in a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .protocols import Dot, Product, System, euclidean, per_problem
from .solution import Solution


@dataclass(frozen=True)
class CG:
    """Stops when |rhs - A x| <= tolerance * |rhs| (None: 1e-12 in float64, 1e-6 in float32)."""

    tolerance: float | None = None
    max_iterations: int = 1000
    fixed: bool = False

    def solve(self, system: System, rhs: Tensor) -> Solution:
        return self.run(system.product, rhs)

    def run(self, product: Product, rhs: Tensor, dot: Dot = euclidean, tolerance: Tensor | None = None) -> Solution:
        """`tolerance` (B,) overrides the solver's own, as an inexact Newton method wants it."""
        if tolerance is None:
            own = self.tolerance or (1e-12 if rhs.dtype == torch.float64 else 1e-6)
            tolerance = rhs.new_full(rhs.shape[:1], own)
        x = torch.zeros_like(rhs)
        residual = direction = rhs
        square = dot(rhs, rhs)
        target = square * tolerance.square()
        iterations = 0
        while iterations < self.max_iterations:
            active = square > target
            if not self.fixed and not bool(active.any()):
                break
            image = product(direction)
            curvature = dot(direction, image)
            step = per_problem(torch.where(active & (curvature > 0), square / curvature, 0), rhs)
            x = torch.addcmul(x, step, direction)
            residual = torch.addcmul(residual, step, image, value=-1)
            previous, square = square, torch.where(active, dot(residual, residual), square)
            ratio = torch.where(previous > 0, square / previous, 0)
            direction = torch.addcmul(residual, per_problem(ratio, rhs), direction)
            iterations += 1
        return Solution(x, square <= target, iterations, square.clamp(min=0).sqrt())
