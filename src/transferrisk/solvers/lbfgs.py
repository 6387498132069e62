"""Limited-memory BFGS, for functions so dear to evaluate that an iteration must do with one evaluation.

Differs from the textbook routine in four ways:

1. H_0 is what the problem knows of its inverse Hessian (`Evaluated.rough_inverse`), scaled as usual: the first step is
   nearly Newton's, and correlated columns, which slow BFGS alone, cost little.
2. After a few iterations x points about where it will end, and H_0 becomes exact on the directions that the problem
   names there (`Evaluated.curvature`): where a softmax is sure, its loss is flat along changes of its own logits. It
   does so again after twice, four times, ... as many iterations, and at once where x does not start at zero.
3. It stops where half of g^T H g, the decrease the quadratic model still promises, is below the tolerance, and the last
   step's decrease below a few times that: the model alone promises too little where H has not seen enough yet.
4. Problems of a batch that are done leave it, so that an answer does not depend on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from .protocols import Evaluated, Solution, euclidean, norms, per_problem

_LAST = 4  # tolerances that the last step may have brought
_ENOUGH = 1e3  # tolerances within which a problem that could go no further counts as converged
_PATIENCE = 4  # iterations without a decrease beyond rounding
_HALVINGS = 30  # of a step that is too long


@dataclass(frozen=True)
class LBFGS:
    """Minimise a batch of functions by L-BFGS, with curvature where the problem offers it.

    It stops when a function is about `tolerance` above its minimum (None: 1e-13 in float64, 5e-7 in float32).

    Parameters
    ----------
    tolerance
        See above.
    max_iterations
        Iterations after which it stops in any case.
    memory
        Pairs of steps and changes of the gradient that are kept.
    refine_after
        Iterations after which the problem is first asked for its curvature; None: never.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import SoftmaxLoss
    >>> from transferrisk.solvers import LBFGS
    >>> loss = SoftmaxLoss(torch.randn(1, 9, 4), torch.randint(2, (1, 9)), torch.full((1, 9), 1 / 9), 2, ridge=0.1)
    >>> LBFGS().minimise(loss, torch.zeros(1, 2, 4)).converged
    tensor([True])
    """

    tolerance: float | None = None
    max_iterations: int = 1000
    memory: int = 15
    refine_after: int | None = 6

    fixed: ClassVar[bool] = False
    captures: ClassVar[bool] = False

    def minimise(self, problem: Evaluated, start: Tensor) -> Solution:
        default = 1e-13 if start.dtype == torch.float64 else 5e-7
        tolerance = default if self.tolerance is None else self.tolerance
        x = start
        f, g = problem.evaluate(x)
        inverse = _InverseHessian(problem.rough_inverse(), self.memory)
        refine_at = self.refine_after if self.refine_after is None or not bool(x.any()) else 0
        value, residual = torch.empty_like(x), torch.empty_like(norms(x))
        converged, active = torch.zeros_like(f, dtype=torch.bool), torch.arange(len(x), device=x.device)
        best, idle, fallen = f.clone(), torch.zeros_like(f), torch.full_like(f, torch.inf)
        iterations = 0
        while True:
            if iterations == refine_at:
                if (curvature := problem.curvature(x)) is not None:
                    inverse.refine(*curvature)
                refine_at = 2 * iterations or self.refine_after
            direction = -inverse.product(g)
            left = -0.5 * euclidean(g, direction).double()
            done = ((left <= tolerance) & (fallen <= _LAST * tolerance)) | (idle >= _PATIENCE)
            done = done | (iterations >= self.max_iterations)
            if bool(done.any()):
                places = active[done]
                value[places], residual[places] = x[done], norms(g[done])
                converged[places] = left[done] <= _ENOUGH * tolerance
                if bool(done.all()):
                    return Solution(value, converged, iterations, residual)
                keep = ~done
                active, x, f, g, direction = active[keep], x[keep], f[keep], g[keep], direction[keep]
                best, idle, problem = best[keep], idle[keep], problem.only(keep)
                inverse.keep(keep)
            rounding = 8 * torch.finfo(x.dtype).eps * (1 + f.abs())
            new, f_new, g_new = _step(problem, x, f, g, direction, rounding)
            inverse.learn(new - x, g_new - g)
            fallen = f - f_new
            x, f, g = new, f_new, g_new
            idle = torch.where(f < best - rounding, 0, idle + 1)
            best = torch.minimum(best, f)
            iterations += 1


def _step(
    problem: Evaluated, x: Tensor, f: Tensor, g: Tensor, direction: Tensor, rounding: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """The whole step, or a part of it for problems where the whole is too long: x, f and g there."""
    slope = euclidean(g, direction).double()
    size = torch.ones_like(f)
    new = x + direction
    f_new, g_new = problem.evaluate(new)
    for _ in range(_HALVINGS):
        long = ~(f_new <= f + 1e-4 * size * slope + rounding)
        if not bool(long.any()):
            break
        size = torch.where(long, size / 2, size)
        new[long] = x[long] + per_problem(size[long], x).to(x.dtype) * direction[long]
        f_new[long], g_new[long] = problem.only(long).evaluate(new[long])
    return new, f_new, g_new


@dataclass
class _InverseHessian:
    """H, the running approximation of the inverse Hessian of each problem."""

    rough: Tensor  # H_0 of one row of x, (B, D, D) or (B, 1, D), B = 1 where problems share it
    memory: int
    scale: Tensor | None = None  # (B,) of the rough inverse
    pairs: list[tuple[Tensor, Tensor, Tensor]] = field(default_factory=list)  # step, change, 1 / (step . change) or 0
    refined: tuple[Tensor, Tensor] | None = None  # directions (B, b, D), inverse Hessian (B, C b, C b)

    def keep(self, kept: Tensor) -> None:
        """Drop the problems that are not kept, (B,) bool."""
        self.rough = self.rough[kept] if len(self.rough) > 1 else self.rough
        self.scale = None if self.scale is None else self.scale[kept]
        for i, (step, change, inverse) in enumerate(self.pairs):
            self.pairs[i] = step[kept], change[kept], inverse[kept]
        self.refined = None if self.refined is None else (self.refined[0][kept], self.refined[1][kept])

    def product(self, vector: Tensor) -> Tensor:
        """H vector, (B, C, D), by the two loops of limited-memory BFGS around H_0."""
        q, shares = vector, []
        for s, y, r in reversed(self.pairs):
            share = r * euclidean(s, q)
            q = q - per_problem(share, q) * y
            shares.append(share)
        rest, along = self._split(q)
        q, _ = self._split(self._rough(rest))
        if self.scale is not None:
            q = q * per_problem(self.scale, q)
        if self.refined is not None and along is not None:
            directions, inverse = self.refined
            q = q + (inverse @ along.flatten(1).unsqueeze(2)).view_as(along) @ directions
        for (s, y, r), share in zip(self.pairs, reversed(shares), strict=True):
            q = q + per_problem(share - r * euclidean(y, q), q) * s
        return q

    def learn(self, step: Tensor, change: Tensor) -> None:
        """Remember a pair; one whose curvature is lost in rounding says nothing and counts as zero."""
        curvature = euclidean(step, change)
        good = curvature > 8 * torch.finfo(step.dtype).eps * norms(step) * norms(change)
        inverse = torch.where(good, 1 / torch.where(good, curvature, 1), 0)
        self.pairs = [*self.pairs, (step, change, inverse)][-self.memory :]
        step, change = self._split(step)[0], self._split(change)[0]
        curvature, image = euclidean(step, change), euclidean(change, self._rough(change))
        before = torch.ones_like(curvature) if self.scale is None else self.scale
        good = good & (curvature > 0) & (image > 0)
        self.scale = torch.where(good, curvature / torch.where(good, image, 1), before)

    def refine(self, directions: Tensor, hessian: Tensor) -> None:
        """Make H_0 the inverse of this Hessian on these directions; off them it stays as it is.

        Where they are all directions, the pairs of before have nothing to add to it. Where columns are so far apart in
        size that the Hessian is lost in rounding, all of H_0 stays.
        """
        factor, failed = torch.linalg.cholesky_ex(hessian)
        if not bool(failed.any()) and bool(factor.isfinite().all()):
            self.refined = directions, torch.cholesky_inverse(factor)
            self.pairs = [] if directions.shape[1] == directions.shape[2] else self.pairs

    def _split(self, vector: Tensor) -> tuple[Tensor, Tensor | None]:
        """The vector without its components along the refined directions, and these components (B, C, b)."""
        if self.refined is None:
            return vector, None
        directions, _ = self.refined
        along = vector @ directions.mT
        return torch.baddbmm(vector, along, directions, alpha=-1), along

    def _rough(self, vector: Tensor) -> Tensor:
        if self.rough.shape[1] == 1:
            return vector * self.rough
        return vector @ (self.rough[0] if len(self.rough) == 1 else self.rough)
