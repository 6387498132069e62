"""Many predictors on parts of the same rows at once: the fits of all folds for the price of little more than one.

Conventions: B blocks of rows, K problems. Problem k is the loss of `functional.linear_loss` on the blocks it includes,

    l_k(W) = mean over rows in included blocks of cross-entropy + ridge/2 |W|^2,      W (C, D), bias last.

Differs from the exact predictors of `functional`, which solve small batches to rounding level:

1. Limited-memory BFGS, whose iteration reads the rows once; the weights of all problems that include a block stand
   side by side in one product with it, chunk by chunk, so that a chunk is read while it is in the cache.
2. H_0 is about the inverse of the Hessian at W = 0, (1/C) Z^T Z / n + ridge, with one Z^T Z for all problems: the first
   step is nearly Newton's, and correlated features, which slow BFGS alone, cost little.
3. Where a predictor is sure, the loss is flat along changes of its own logits, which slows BFGS as well. After a few
   iterations H_0 is exact there: on the combinations of the rows of W and the constant, a few for each class.
4. It stops where half of g^T H g, the decrease the quadratic model still promises, is below the tolerance, and the last
   step's decrease below a few times that: the model alone promises too little where H has not seen enough yet.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import ConvergenceWarning, warn
from ..solvers.protocols import euclidean, per_problem

Block = tuple[Tensor, Tensor]
"""Rows (m, d) without the constant column, and labels (m,)."""

CHUNK = 1 << 20  # numbers of rows that are worked on at once
_MEMORY = 15  # pairs of steps and changes of the gradient
_LARGEST_FACTOR = 4096  # columns; above, H_0 is diagonal
_REFINED_AFTER = 6  # iterations; by then W points about where it will end
_LARGEST_REFINED = 16  # classes; above, the curvature of their logits costs more than it saves
_ROWS_PER_DIRECTION = 32  # rows that this curvature is estimated from
_LAST = 4  # tolerances that the last step may have brought
_ENOUGH = 1e3  # tolerances within which a fit that could go no further counts as converged
_PATIENCE = 4  # iterations without a decrease beyond rounding


@dataclass(frozen=True)
class Fits:
    value: Tensor  # (K, C, D); nan where a problem includes no row
    objective: Tensor  # (K,) float64
    converged: Tensor  # (K,) bool
    iterations: int


def tolerance_of(dtype: torch.dtype) -> float:
    """How far from its minimum an objective may stay: far below what the held-out samples can tell."""
    return 1e-13 if dtype == torch.float64 else 5e-7


def fit(
    blocks: Sequence[Block],
    included: Tensor,
    num_classes: int,
    ridge: float,
    gram: Tensor,
    *,
    start: Tensor | None = None,
    tolerance: float | None = None,
    max_iterations: int = 1000,
) -> Fits:
    """Minimise l_k for included (K, B) bool.

    gram   (D, D) about the mean of z z^T over the problems' rows; a bad one costs iterations, not accuracy
    start  (K, C, D) where to begin, nan as zero; as the answer does, it sums to zero over classes
    """
    K, D = len(included), gram.shape[0]
    tolerance = tolerance or tolerance_of(gram.dtype)
    sizes = included.double() @ torch.tensor([float(len(rows)) for rows, _ in blocks], dtype=torch.float64)
    value = gram.new_full((K, num_classes, D), torch.nan)
    objective = torch.full((K,), torch.nan, dtype=torch.float64)
    converged = sizes == 0
    active = (sizes > 0).nonzero().flatten()
    if not len(active):
        return Fits(value, objective, converged, 0)
    x = gram.new_zeros(len(active), num_classes, D) if start is None else start[active].nan_to_num(0)
    task = _Task(blocks, included[active], sizes[active], ridge)
    f, g = task.at_zero(x) if start is None else task.evaluate(x)
    inverse = _Inverse(gram, num_classes, ridge)
    best, idle, fallen = f.clone(), torch.zeros_like(f), torch.full_like(f, torch.inf)
    iterations = 0
    while True:
        direction = -inverse.product(g)
        left = -0.5 * euclidean(g, direction).double()
        done = (
            ((left <= tolerance) & (fallen <= _LAST * tolerance)) | (idle >= _PATIENCE) | (iterations >= max_iterations)
        )
        if bool(done.any()):
            value[active[done]], objective[active[done]] = x[done], f[done]
            converged[active[done]] = left[done] <= _ENOUGH * tolerance
            if bool(done.all()):
                break
            keep = ~done
            active, x, f, g, direction = active[keep], x[keep], f[keep], g[keep], direction[keep]
            best, idle, task, inverse = best[keep], idle[keep], task.only(keep), inverse.only(keep)
        new, f_new, g_new = _step(task, x, f, g, direction)
        inverse.learn(new - x, g_new - g)
        fallen = f - f_new
        x, f, g = new, f_new, g_new
        rounding = 8 * torch.finfo(x.dtype).eps * (1 + f.abs())
        idle = torch.where(f < best - rounding, 0, idle + 1)
        best = torch.minimum(best, f)
        iterations += 1
        if iterations == _REFINED_AFTER and num_classes <= _LARGEST_REFINED:
            inverse.refine(*task.curvature(x))
    if not bool(converged.all()):
        warn(
            f"a predictor of the audit was not fitted to tolerance after {iterations} iterations: raise ridge, or "
            "standardise the features",
            ConvergenceWarning,
        )
    return Fits(value, objective, converged, iterations)


@dataclass(frozen=True)
class _Task:
    blocks: Sequence[Block]
    included: Tensor  # (K, B)
    sizes: Tensor  # (K,)
    ridge: float

    def only(self, keep: Tensor) -> _Task:
        return _Task(self.blocks, self.included[keep], self.sizes[keep], self.ridge)

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """l (K,) in float64 and dl/dW (K, C, D)."""
        K, C, D = x.shape
        total, gradient = torch.zeros(K, dtype=torch.float64), torch.zeros_like(x)
        for b, (rows, labels) in enumerate(self.blocks):
            those = self.included[:, b].nonzero().flatten()
            if not len(those) or not len(rows):
                continue
            # Weights sum to zero over classes, and so do logits and residuals: the last class needs no product.
            stacked = x[those, :-1].transpose(0, 1).reshape(-1, D)  # classes first, so that a class is one piece
            weight, bias = stacked[:, :-1].contiguous(), stacked[:, -1:].contiguous()
            by_weight, by_bias = torch.zeros_like(weight), torch.zeros_like(bias)
            step = max(1, CHUNK // D)
            for begin in range(0, len(rows), step):
                some = rows[begin : begin + step]
                logits = x.new_empty(C, len(those), len(some))
                others = logits[:-1].view(-1, len(some))
                torch.addmm(bias, weight, some.mT, out=others)
                torch.sum(logits[:-1], 0, out=logits[-1]).neg_()
                total[those] += _to_residual(logits, labels[begin : begin + step])
                by_weight.addmm_(others, some)
                by_bias += others.sum(1, keepdim=True)
            part = torch.cat([by_weight, by_bias], 1).view(C - 1, len(those), D).transpose(0, 1)
            gradient[those] += torch.cat([part, -part.sum(1, keepdim=True)], 1)
        penalty = 0.5 * self.ridge * euclidean(x, x).double()
        gradient /= per_problem(self.sizes, x).to(x.dtype)
        return total / self.sizes + penalty, gradient.add_(x, alpha=self.ridge)

    def at_zero(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """`evaluate` for x = 0, where every class is as likely: all problems share the sums of each block's rows."""
        K, C, D = x.shape
        sums = x.new_zeros(len(self.blocks), C, D)  # of rows by class
        for block, (rows, labels) in enumerate(self.blocks):
            sums[block, :, -1] = torch.bincount(labels, minlength=C)
            sums[block, :, :-1] = torch.nn.functional.one_hot(labels, C).to(x.dtype).mT @ rows
        by_class = (self.included.to(x.dtype) @ sums.flatten(1)).view(K, C, D)
        gradient = (by_class.mean(1, keepdim=True) - by_class) / per_problem(self.sizes, x).to(x.dtype)
        return torch.full((K,), math.log(C), dtype=torch.float64), gradient

    def curvature(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Directions (K, b, D), orthonormal, that hold the rows of x, and about the Hessian of classes x these.

        The Hessian (K, C b, C b) is a mean over evenly spaced rows, for it needs few.
        """
        K, C, D = x.shape
        constant = x.new_zeros(K, 1, D).index_fill_(2, torch.tensor(D - 1), 1.0)
        basis = torch.linalg.qr(torch.cat([x[:, :-1], constant], 1).mT)[0].mT.contiguous()
        b = basis.shape[1]
        hessian, used = x.new_zeros(K, C * b, C * b), x.new_zeros(K)
        stride = max(1, int(self.sizes.max()) // (_ROWS_PER_DIRECTION * C * b))
        for block, (rows, _) in enumerate(self.blocks):
            those, some = self.included[:, block].nonzero().flatten(), rows[::stride]
            probabilities = torch.softmax(_products(x[those], some), 1)
            parts = _products(basis[those], some)
            weighted = (probabilities.unsqueeze(2) * parts.unsqueeze(1)).flatten(1, 2)  # (., C b, m)
            hessian[those] -= weighted @ weighted.mT
            own = (weighted @ parts.mT).unflatten(1, (C, b))  # (., C, b, b)
            torch.diagonal(hessian.view(K, C, b, C, b), dim1=1, dim2=3)[those] += own.permute(0, 2, 3, 1)
            used[those] += len(some)
        hessian /= per_problem(used.clamp(min=1), hessian)
        return basis, hessian + self.ridge * torch.eye(C * b, dtype=x.dtype)


def _products(weights: Tensor, rows: Tensor) -> Tensor:
    """(K, C, m) of weights (K, C, D), bias last, with m rows."""
    return torch.baddbmm(weights[:, :, -1:], weights[:, :, :-1], rows.mT.expand(len(weights), -1, -1))


def _to_residual(logits: Tensor, labels: Tensor) -> Tensor:
    """Make logits (C, K, m) of m rows into S - Y, in place, and return the sum of their cross-entropies, (K,)."""
    true = labels.expand(1, logits.shape[1], -1)
    logits -= logits.amax(0)
    margin = logits.gather(0, true)
    sums = logits.exp_().sum(0)
    logits /= sums
    logits.scatter_add_(0, true, logits.new_full((1, 1, 1), -1.0).expand_as(true))
    return (sums.log_() - margin[0]).sum(1, dtype=torch.float64)


def _step(task: _Task, x: Tensor, f: Tensor, g: Tensor, direction: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The whole step, or for problems where that is too long a part of it."""
    slope = euclidean(g, direction).double()
    rounding = 8 * torch.finfo(x.dtype).eps * (1 + f.abs())
    size = torch.ones_like(f)
    new, (f_new, g_new) = x + direction, task.evaluate(x + direction)
    for _ in range(30):
        long = ~(f_new <= f + 1e-4 * size * slope + rounding)
        if not bool(long.any()):
            break
        size = torch.where(long, size / 2, size)
        new[long] = x[long] + per_problem(size[long], x).to(x.dtype) * direction[long]
        f_new[long], g_new[long] = task.only(long).evaluate(new[long])
    return new, f_new, g_new


class _Inverse:
    """H, the running approximation of the inverse Hessian of each problem."""

    def __init__(self, gram: Tensor, num_classes: int, ridge: float) -> None:
        D = gram.shape[0]
        self.scale: Tensor | None = None
        self.pairs: list[tuple[Tensor, Tensor, Tensor]] = []  # step, change, 1 / (step . change) or 0
        self.first: Tensor  # H_0 of one class, (D, D), or (D,) where it is diagonal
        if D <= _LARGEST_FACTOR:
            factor = torch.linalg.cholesky(gram + ridge * num_classes * torch.eye(D, dtype=gram.dtype))
            self.first = num_classes * torch.cholesky_inverse(factor)
        else:
            self.first = num_classes / (gram.diagonal() + ridge * num_classes)
        self.refined: tuple[Tensor, Tensor] | None = None  # directions (K, b, D), inverse Hessian (K, C b, C b)

    def refine(self, basis: Tensor, hessian: Tensor) -> None:
        """H_0 is the inverse of this Hessian (K, C b, C b) on classes x directions (K, b, D), as before off them.

        Where features are so far apart in size that the Hessian is lost in rounding, H_0 stays as it is.
        """
        factor, failed = torch.linalg.cholesky_ex(hessian)
        if not bool(failed.any()) and bool(factor.isfinite().all()):
            self.refined = basis, torch.cholesky_inverse(factor)

    def only(self, keep: Tensor) -> _Inverse:
        self.scale = None if self.scale is None else self.scale[keep]
        self.pairs = [(s[keep], y[keep], r[keep]) for s, y, r in self.pairs]
        self.refined = None if self.refined is None else (self.refined[0][keep], self.refined[1][keep])
        return self

    def product(self, vector: Tensor) -> Tensor:
        """H vector, (K, C, D), by the two loops of limited-memory BFGS."""
        q, parts = vector, []
        for s, y, r in reversed(self.pairs):
            part = r * euclidean(s, q)
            q = q - per_problem(part, q) * y
            parts.append(part)
        q = self._first(q)
        for (s, y, r), part in zip(self.pairs, reversed(parts), strict=True):
            q = q + per_problem(part - r * euclidean(y, q), q) * s
        return q

    def learn(self, step: Tensor, change: Tensor) -> None:
        """A pair whose curvature is lost in rounding says nothing and is left out."""
        curvature = euclidean(step, change)
        sizes = (euclidean(step, step) * euclidean(change, change)).sqrt()
        good = curvature > 8 * torch.finfo(step.dtype).eps * sizes
        inverse = torch.where(good, 1 / torch.where(good, curvature, 1), 0)
        self.pairs = [*self.pairs, (step, change, inverse)][-_MEMORY:]
        step, change = self._off(step)[0], self._off(change)[0]
        curvature, image = euclidean(step, change), euclidean(change, self._plain(change))
        before = torch.ones_like(curvature) if self.scale is None else self.scale
        good = good & (curvature > 0) & (image > 0)
        self.scale = torch.where(good, curvature / torch.where(good, image, 1), before)

    def _first(self, vector: Tensor) -> Tensor:
        rest, on = self._off(vector)
        out = self._off(self._plain(rest))[0]
        if self.scale is not None:
            out = out * per_problem(self.scale, out)
        if self.refined is not None and on is not None:
            basis, inverse = self.refined
            out = out + (inverse @ on.flatten(1).unsqueeze(2)).view_as(on) @ basis
        return out

    def _off(self, vector: Tensor) -> tuple[Tensor, Tensor | None]:
        """The vector without its components along the refined directions, and these components (K, C, b)."""
        if self.refined is None:
            return vector, None
        basis, _ = self.refined
        on = vector @ basis.mT
        return torch.baddbmm(vector, on, basis, alpha=-1), on

    def _plain(self, vector: Tensor) -> Tensor:
        return vector * self.first if self.first.dim() == 1 else vector @ self.first
