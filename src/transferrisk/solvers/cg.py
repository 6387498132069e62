"""Conjugate gradients for a batch of systems.

Differs from the textbook routine in two ways:

1. Problems of a batch that are done stand still while the others go on, so that a problem's answer does
   not depend on its neighbours.
2. With `fixed=True` it runs `max_iterations` iterations and never looks at a value on the host, so that a
   whole training step can be captured in a CUDA graph.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from .protocols import Product, Solution, System, accurate, euclidean, norms, per_problem


@dataclass(frozen=True)
class CG:
    """Stops when the residual it carries along is <= tolerance * |rhs| (None: 1e-12 in float64, 1e-6 in float32).

    `solve` then computes the residual anew, and calls the answer converged when that bounds its error
    (`protocols.accurate`) or, with a tolerance given, when it is within ten times that.
    """

    tolerance: float | None = None
    max_iterations: int = 1000
    fixed: bool = False

    @property
    def captures(self) -> bool:
        return self.fixed

    def solve(self, system: System, rhs: Tensor) -> Solution:
        found = self.run(system.product, rhs)
        residual = norms(rhs - system.product(found.value))
        if self.tolerance is None:
            converged = accurate(norms(found.value), residual, system.ridge)
        else:
            converged = residual <= 10 * self.tolerance * norms(rhs)
        return replace(found, converged=converged, residual=residual)

    def run(self, product: Product, rhs: Tensor, tolerance: Tensor | None = None) -> Solution:
        """The iteration alone; `tolerance` (B,) overrides the solver's own, as an inexact Newton method wants it."""
        if tolerance is None:
            default = 1e-12 if rhs.dtype == torch.float64 else 1e-6
            own = default if self.tolerance is None else self.tolerance
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
