"""Newton's method with conjugate gradients inside, for a batch of strongly convex problems.

Each iteration solves H p = -g only as exactly as the gradient is small (so convergence is superlinear),
then takes the longest of a series of steps, from 1 down to the problem's safe step, that lowers the function
enough. The safe step always does, so the method converges from any start.

Differs from a textbook trust-region or line-search Newton:

1. The candidate steps are evaluated together, without looking at them on the host.
2. Problems of a batch that are done stand still, so that an answer does not depend on its neighbours.
3. `Newton.captured(...)` runs a fixed number of iterations and never waits for the device.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from .cg import CG
from .direct import Cholesky
from .protocols import Problem, Solution, accurate, euclidean, norms, per_problem

_CANDIDATES = 8  # steps that are tried at once
_PATIENCE = 15  # iterations that may pass without halving the gradient
_SUFFICIENT = 0.1  # part of the decrease that the slope promises, below which a step is too long


@dataclass(frozen=True)
class Newton:
    """Stops when |gradient| <= tolerance * scale, the scale being the problem's own (`Linearisation`).

    With `tolerance=None` it goes on until rounding lets an iteration no longer halve the gradient, and calls the
    result converged when the gradient that is left bounds the error (`protocols.accurate`).

    linear  how H p = -g is solved: by products, or by factoring H, which is faster where H is small, some 300 rows
    """

    tolerance: float | None = None
    max_iterations: int = 100
    linear: CG | Cholesky = field(default_factory=lambda: CG(max_iterations=500))
    fixed: bool = False

    @property
    def captures(self) -> bool:
        return self.fixed and self.linear.captures

    @classmethod
    def captured(cls, iterations: int = 10, products: int = 20, tolerance: float | None = None) -> Newton:
        """A fixed number of iterations and of Hessian products in each, fit for a CUDA graph."""
        return cls(tolerance, iterations, CG(max_iterations=products, fixed=True), fixed=True)

    def minimise(self, problem: Problem, start: Tensor) -> Solution:
        x = start
        target = torch.finfo(x.dtype).eps if self.tolerance is None else self.tolerance
        gradient, scale, hessian = problem.linearise(x)
        residual = best = norms(gradient)
        active = residual > target * scale
        stalled = torch.zeros_like(residual)
        iterations = 0
        while iterations < self.max_iterations and (self.fixed or bool(active.any())):
            # sqrt(|g| / scale) gives convergence of order 1.5 with the fewest products; below target nothing is gained.
            forcing = torch.maximum((residual / scale).sqrt().clamp(max=0.1), 0.1 * target * scale / residual)
            forcing = torch.where(active, forcing, 1.0)
            if isinstance(self.linear, CG):
                direction = -self.linear.run(hessian.product, gradient, forcing).value
            else:
                direction = -self.linear.solve(hessian, gradient).value
            step = self._step(problem, x, gradient, direction, hessian.product(direction))
            x = x + per_problem(torch.where(active, step, 0), x) * direction
            gradient, scale, hessian = problem.linearise(x)
            residual = norms(gradient)
            stalled = torch.where(residual < 0.5 * best, 0, stalled + 1)
            best = torch.minimum(best, residual)
            # Far from the optimum the gradient may rest a while; once the answer is good, one idle iteration is enough.
            good = accurate(torch.maximum(norms(x), problem.unit), residual, problem.ridge)
            patience = torch.where(good, 1, _PATIENCE)
            active = active & (residual > target * scale) & (stalled < patience)
            iterations += 1
        if self.tolerance is None:
            converged = accurate(torch.maximum(norms(x), problem.unit), residual, problem.ridge)
        else:
            converged = residual <= target * scale
        return Solution(x, converged, iterations, residual)

    @staticmethod
    def _step(problem: Problem, x: Tensor, gradient: Tensor, direction: Tensor, image: Tensor) -> Tensor:
        """The longest of a geometric series of steps, from 1 down to the safe one, that lowers the function enough."""
        slope = euclidean(gradient, direction)  # (B,) <= 0
        safe = problem.safe_step(direction, slope, euclidean(direction, image)).clamp(max=1.0)
        powers = torch.linspace(0, 1, _CANDIDATES, dtype=x.dtype, device=x.device)
        steps = safe ** powers.unsqueeze(-1)  # (T, B)
        values = problem.along(x, direction, torch.cat([torch.zeros_like(safe)[None], steps]))
        rounding = 8 * torch.finfo(x.dtype).eps * (1 + values[0].abs())
        enough = values[1:] <= values[0] + _SUFFICIENT * steps * slope + rounding
        first = torch.cat([enough[:-1], torch.ones_like(enough[:1])]).to(torch.uint8).argmax(0)
        return steps.gather(0, first[None]).squeeze(0)
