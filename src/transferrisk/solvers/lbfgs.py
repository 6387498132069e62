"""Limited-memory BFGS, for functions so expensive that an iteration must make do with one evaluation.

It differs from the textbook routine in four ways:

1. H_0 is the problem's approximate inverse Hessian (`Evaluated.rough_inverse`), scaled as usual: the first step is
   nearly Newton's, and correlated columns, which slow BFGS alone, cost little.
2. After a few iterations, when x points about where it will end, H_0 becomes exact on the directions that the problem
   names there (`Evaluated.curvature`): where a softmax is confident, its loss is flat along changes of its own logits.
   This is repeated after twice, four times, ... as many iterations, and done at once if x does not start at zero.
3. It stops when g^T H g / 2, the decrease that the quadratic model predicts, is below the tolerance and the decrease of
   the last step below a few times that: the model alone predicts too little before H has seen enough steps.
4. Problems of a batch that have converged leave it, so that an answer does not depend on its neighbours.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch
from torch import Tensor

from .protocols import Evaluated, Solution, euclidean, holds, norms, per_problem

_LAST = 4  # largest decrease of the last step, in tolerances
_ENOUGH = 1e3  # largest predicted decrease of a stalled problem that counts as converged, in tolerances
_PATIENCE = 4  # iterations without a decrease beyond rounding after which a problem has stalled
_HALVINGS = 30  # largest number of halvings of a step


@dataclass(frozen=True)
class LBFGS:
    """Minimise a batch of functions by L-BFGS, with the problem's own curvature in a few directions.

    Parameters
    ----------
    tolerance
        Distance of a function from its minimum, about, at which it stops. None: 1e-13 in float64, 5e-7 in float32.
    max_iterations
        Largest number of iterations.
    memory
        Number of pairs of a step and a change of the gradient to keep.
    refine_after
        Number of iterations after which the problem's curvature is first computed. None: never.

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
        """Minimise every function of a batch.

        Parameters
        ----------
        problem
            Functions.
        start
            Points to start from, (B, C, D).

        Returns
        -------
        Solution
            Minimisers, (B, C, D), and how well they are found.
        """
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
            if holds(done.any()):
                places = active[done]
                value[places], residual[places] = x[done], norms(g[done])
                converged[places] = left[done] <= _ENOUGH * tolerance
                if holds(done.all()):
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
    """Return x, f and g after the whole step, or after a part of it for problems where the whole is too long."""
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
    """Running approximation H of the inverse Hessian of each problem."""

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
        """Return H vector, (B, C, D), by the two loops of limited-memory BFGS around H_0."""
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
        """Add a pair; one whose curvature is lost in rounding counts as zero."""
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
        """Make H_0 the inverse of this Hessian on these directions (B, b, D); on others it stays as it is.

        If these are all directions, earlier pairs add nothing and are dropped. If the Hessian is not positive definite,
        because columns differ so much in size that it is lost in rounding, all of H_0 stays as it is.
        """
        factor, failed = torch.linalg.cholesky_ex(hessian)
        if not bool(failed.any()) and bool(factor.isfinite().all()):
            self.refined = directions, torch.cholesky_inverse(factor)
            self.pairs = [] if directions.shape[1] == directions.shape[2] else self.pairs

    def _split(self, vector: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return the vector without its components along the refined directions, and these components (B, C, b)."""
        if self.refined is None:
            return vector, None
        directions, _ = self.refined
        along = vector @ directions.mT
        return torch.baddbmm(vector, along, directions, alpha=-1), along

    def _rough(self, vector: Tensor) -> Tensor:
        if self.rough.shape[1] == 1:
            return vector * self.rough
        return vector @ (self.rough[0] if len(self.rough) == 1 else self.rough)
