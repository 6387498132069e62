"""w(Q; Phi): the exact ridge-regularised minimiser, and its derivative by the rows that it is fitted on."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ..settings import Positive, convert
from ..solvers import CG, LinearSolver, Minimiser, Newton, Solution
from ..solvers.named import check_solver
from .checks import (
    check_count,
    check_labels,
    check_problem,
    check_problem_values,
    check_start,
    check_tensors,
    working_dtype,
)
from .linear_loss import SoftmaxLoss, logits_of, softmax_jacobian, softmax_residual, with_bias
from .precision import PREDICTOR, attempts, full_precision, warn_unless_converged

SpaceName = Literal["auto", "predictor", "sample"]


@dataclass(frozen=True)
class Span:
    """Rows Z = rows basis^T in an orthonormal basis of their span: the n x C space.

    At its optimum a predictor lies in the span of the rows it is fitted on: ridge W = -(r (S - Y))^T Z. With
    Z = R Q^T, Q (D, k) orthonormal and k = min(n, D), it is W = X Q^T for some X of C x k numbers, and because Q
    keeps norms the problem in X is the same one with rows R in place of Z. When there are far fewer rows than
    columns, its products no longer depend on D.

    Why not coefficients over the rows themselves, W = A^T Z, with the Gram matrix Z Z^T: where rows are nearly
    equal and their labels are not, A is huge and cancels in A^T Z, and float32 has no digits left to give.
    """

    rows: Tensor  # (B, n, k)
    basis: Tensor | None  # (B, D, k) orthonormal columns; None: rows are taken as they are

    @classmethod
    def of(cls, rows: Tensor, space: SpaceName = "auto") -> Span:
        """Factor rows (B, n, D) for "sample" (n x C), keep them for "predictor" (d x C).

        "auto" factors where products with the rows are what takes the time: on a CPU, when that at least halves them.
        On a GPU the small products cost their launch, whatever their size.
        """
        if convert("space", space, SpaceName) == "auto":
            space = "sample" if rows.device.type == "cpu" and 2 * rows.shape[1] <= rows.shape[2] else "predictor"
        if space == "predictor":
            return cls(rows, None)
        basis, triangle = torch.linalg.qr(rows.mT)
        return cls(triangle.mT, basis)

    def project(self, vectors: Tensor) -> Tensor:
        """The part of (B, C, D) inside the span, (B, C, k)."""
        return vectors if self.basis is None else vectors @ self.basis

    def lift(self, reduced: Tensor) -> Tensor:
        """(B, C, k) back to (B, C, D)."""
        return reduced if self.basis is None else reduced @ self.basis.mT


@dataclass(frozen=True)
class Fit:
    """Predictors W (B, C, D) that minimise l on rows Z (B, n, D), and the problem in the space where it was solved."""

    loss: SoftmaxLoss  # on the span's rows
    span: Span
    reduced: Tensor  # X, (B, C, k)
    solution: Solution  # W


def fit_rows(
    rows: Tensor,
    labels: Tensor,
    weights: Tensor,
    num_classes: int,
    ridge: float,
    *,
    solver: Minimiser | None = None,
    space: SpaceName = "auto",
    start: Tensor | None = None,
) -> Fit:
    """Solve a batch of problems in the conventions of `linear_loss`."""
    span = Span.of(rows, space)
    loss = SoftmaxLoss(span.rows, labels, weights, num_classes, ridge)
    begin = loss.zero
    if start is not None:  # from a confident mistake it is a long way back: zero where that has the lower loss
        projected = span.project(start)
        begin = torch.where((loss.value(projected) < loss.value(begin))[:, None, None], projected, begin)
    solution = (solver or Newton()).minimise(loss, begin)
    return Fit(loss, span, solution.value, replace(solution, value=span.lift(solution.value)))


def implicit_vjp(fit: Fit, cotangent: Tensor, solver: LinearSolver | None = None) -> tuple[Tensor, Solution]:
    """Pull a cotangent v (B, C, D) of the predictors W(Z) back to their rows Z, (B, n, D), by the solution of A h = v.

    The invariant: dl/dW = (r (S - Y))^T Z + ridge W = 0, whatever Z. When Z moves, A dW + d_Z(dl/dW) = 0, where A = H
    is the Hessian, which is symmetric. So <v, dW> = -<h, d_Z(dl/dW)> with A h = v, which is <gradient, dZ> for

        gradient = -r [(S - Y) h + J(U) W],    U = Z h^T                                    (proposition 1 of the paper)

    v, and so h, need not lie in the span of the rows. A maps the span to itself and is ridge times the identity on what
    is orthogonal to it, so the two are solved apart. `solver` is conjugate gradients unless given.
    """
    loss, span = fit.loss, fit.span
    hessian = loss.hessian(fit.reduced)
    inside = span.project(cotangent)
    solution = (solver or CG()).solve(hessian, inside)
    h = span.lift(solution.value)
    if span.basis is not None:
        h = h + (cotangent - span.lift(inside)) / loss.ridge
    S = hessian.probabilities
    curved = softmax_jacobian(S, logits_of(solution.value, loss.rows))  # U: the rows do not see what is orthogonal
    moved = softmax_residual(S, loss.targets) @ h + curved @ fit.solution.value
    return -loss.weights.unsqueeze(-1) * moved, replace(solution, value=h)


def solve_predictor(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    ridge: float,
    *,
    sample_weight: Tensor | None = None,
    solver: Minimiser | None = None,
    space: SpaceName = "auto",
    start: Tensor | None = None,
) -> Solution:
    """argmin over W of the mean cross-entropy of W on (features, labels) + ridge/2 |W|^2.

    features       (n, d) or, for several environments at once, (B, n, d)
    labels         (n,) or (B, n) integers in 0..num_classes-1
    sample_weight  (n,) or (B, n), scaled to sum to one; 0 for the padding of environments of unequal size
    start          (C, d + 1) or (B, C, d + 1); a solver that converges is only faster for it

    Returns a Solution whose value is (C, d + 1) or (B, C, d + 1), bias last, without a gradient.
    """
    batched = check_problem(features, labels, sample_weight)
    ridge, num_classes = convert("ridge", ridge, Positive), check_count("num_classes", num_classes)
    if solver is not None:
        check_solver("solver", solver, "minimise")
    if start is not None:
        check_start(start, features, num_classes, len(features) if batched else 1)
    if not (solver and solver.captures):
        check_labels(labels, num_classes)
        check_problem_values(features, sample_weight)
    with torch.no_grad(), full_precision(features.device):
        rows = with_bias(features.detach().to(working_dtype(features.dtype)))
        weights = torch.ones_like(rows[..., 0]) if sample_weight is None else sample_weight.to(rows.dtype)
        if not batched:
            rows, labels, weights = rows[None], labels[None], weights[None]
        rows = torch.where(weights.unsqueeze(-1) > 0, rows, 0)
        weights = weights / weights.sum(-1, keepdim=True)
        if start is not None:
            start = start.to(rows.dtype).expand(len(rows), -1, -1)
        solution = fit_rows(rows, labels, weights, num_classes, ridge, solver=solver, space=space, start=start).solution
    if batched:
        return solution
    return Solution(solution.value[0], solution.converged[0], solution.iterations, solution.residual[0])


def optimal_predictor(
    features: Tensor,
    labels: Tensor,
    num_classes: int,
    ridge: float,
    *,
    sample_weight: Tensor | None = None,
    solver: Minimiser | None = None,
    space: SpaceName = "auto",
) -> Tensor:
    """The value of `solve_predictor`; where float32 does not reach it, float64 does, at the cost of a second try.

    Unless the solver's number of iterations is fixed, a ConvergenceWarning says when neither has.
    """
    check_tensors(features=features)
    fixed = solver is not None and getattr(solver, "fixed", False)
    for attempt in attempts(features):
        solution = solve_predictor(
            attempt, labels, num_classes, ridge, sample_weight=sample_weight, solver=solver, space=space
        )
        if fixed or solution.all_converged:
            break
    else:
        warn_unless_converged(solution, PREDICTOR)
    return solution.value.to(working_dtype(features.dtype))
