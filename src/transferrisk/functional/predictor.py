"""w(Q; Phi): the exact ridge-regularised minimiser, and products with its inverse Hessian."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor

from ..errors import ConvergenceWarning, InputError, warn
from ..solvers import CG, Linearisation, LinearSolver, Minimiser, Newton, Solution, euclidean
from .checks import (
    check_count,
    check_finite,
    check_labels,
    check_ridge,
    check_solver,
    check_start,
    check_tensors,
)
from .linear_loss import Hessian, cross_entropy, logits_of, loss, one_hot, softmax_residual, with_bias
from .precision import full_precision, in_enough_precision, working_dtype
from .reduction import SpaceName, choose_reduction


@dataclass(frozen=True)
class SoftmaxProblem:
    """l(W) of `linear_loss` as a `solvers.Problem`."""

    rows: Tensor  # (B, n, D)
    targets: Tensor  # (B, n, C)
    weights: Tensor  # (B, n)
    ridge: float

    @cached_property
    def norms(self) -> Tensor:
        """|Z_i|, (B, n)."""
        return self.rows.square().sum(-1).sqrt()

    @cached_property
    def unit(self) -> Tensor:
        """The predictor that moves some logit by one, (B,)."""
        return 1 / self.norms.amax(-1).clamp(min=torch.finfo(self.rows.dtype).tiny)

    def linearise(self, x: Tensor) -> Linearisation:
        probabilities = torch.softmax(logits_of(x, self.rows), -1)
        residual = self.weights.unsqueeze(-1) * softmax_residual(probabilities, self.targets)
        return Linearisation(
            gradient=torch.add(residual.mT @ self.rows, x, alpha=self.ridge),
            scale=(residual.abs().sum(-1) * self.norms).sum(-1),
            hessian=Hessian(self.rows, probabilities, self.weights, self.ridge),
        )

    def along(self, x: Tensor, direction: Tensor, steps: Tensor) -> Tensor:
        logits, change = logits_of(x, self.rows), logits_of(direction, self.rows)
        moved = logits + steps[..., None, None] * change  # (T, B, n, C)
        square, cross, curve = euclidean(x, x), euclidean(x, direction), euclidean(direction, direction)
        norm = square + 2 * steps * cross + steps.square() * curve
        return cross_entropy(moved, self.targets, self.weights) + 0.5 * self.ridge * norm

    def safe_step(self, direction: Tensor, slope: Tensor, curvature: Tensor) -> Tensor:
        """The minimiser of an upper bound of f along the direction.

        With b the largest spread max_c U_ic - min_c U_ic of the logits' change over rows, the third central
        moment is at most b times the variance, so f''' <= b f'' and f'(t) <= f'(0) + f''(0) (e^(bt) - 1) / b,
        which is zero at t = log(1 + b |f'(0)| / f''(0)) / b.
        """
        change = logits_of(direction, self.rows)
        spread = change.amax(-1) - change.amin(-1)  # (B, n)
        largest = torch.where(self.weights > 0, spread, 0).amax(-1)
        smallest = torch.finfo(slope.dtype).tiny
        newton = slope.abs() / curvature.clamp(min=smallest)
        bounded = torch.log1p(largest * newton) / largest.clamp(min=smallest)
        return torch.where(largest * newton > 1e-4, bounded, newton)


def solve_rows(
    rows: Tensor,
    targets: Tensor,
    weights: Tensor,
    ridge: float,
    *,
    solver: Minimiser | None = None,
    space: SpaceName = "auto",
    start: Tensor | None = None,
) -> Solution:
    """The minimisers of a batch of problems in the conventions of `linear_loss`: value (B, C, D)."""
    solver = solver or Newton()
    reduction = choose_reduction(rows, space)
    if reduction is None:
        problem = SoftmaxProblem(rows, targets, weights, ridge)
        return solver.minimise(problem, _better_start(problem, start))
    problem = SoftmaxProblem(reduction.rows, targets, weights, ridge)
    projected = None if start is None else reduction.project(start)
    solution = solver.minimise(problem, _better_start(problem, projected))
    return replace(solution, value=reduction.lift(solution.value))


def _better_start(problem: SoftmaxProblem, start: Tensor | None) -> Tensor:
    """The start, but zero where zero has the lower loss: from a confident mistake it is a long way back."""
    zero = problem.rows.new_zeros(len(problem.rows), problem.targets.shape[-1], problem.rows.shape[-1])
    if start is None:
        return zero
    at_start, at_zero = (loss(x, problem.rows, problem.targets, problem.weights, problem.ridge) for x in (start, zero))
    return torch.where((at_start < at_zero)[:, None, None], start, zero)


def inverse_hessian_product(
    hessian: Hessian, rhs: Tensor, *, solver: LinearSolver | None = None, space: SpaceName = "auto"
) -> Solution:
    """h = H^-1 rhs for rhs (B, C, D); `solver` is conjugate gradients unless given.

    In the n x C space mind that rhs, and so h, does not lie in the span of the rows. H maps the span to itself and is
    ridge times the identity on what is orthogonal to it, so the two parts are solved apart.
    """
    solver = solver or CG()
    reduction = choose_reduction(hessian.rows, space)
    if reduction is None:
        return solver.solve(hessian, rhs)
    inside = reduction.project(rhs)
    solution = solver.solve(replace(hessian, rows=reduction.rows), inside)
    outside = rhs - reduction.lift(inside)
    return replace(solution, value=reduction.lift(solution.value) + outside / hessian.ridge)


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
    check_tensors(features=features, labels=labels)
    check_ridge(ridge)
    num_classes = check_count("num_classes", num_classes)
    if solver is not None:
        check_solver("solver", solver, "minimise")
    batched = features.dim() == 3
    if features.dim() not in (2, 3) or labels.shape != features.shape[:-1]:
        raise InputError(
            f"features of shape {tuple(features.shape)} and labels of shape {tuple(labels.shape)} do not go together: "
            "give (n, d) and (n,), or (B, n, d) and (B, n)"
        )
    if not labels.numel():
        raise InputError(f"features of shape {tuple(features.shape)} hold no sample: there is nothing to fit")
    if start is not None:
        check_start(start, features, num_classes, len(features) if batched else 1)
    if sample_weight is not None:
        check_tensors(sample_weight=sample_weight)
        if sample_weight.shape != labels.shape:
            raise InputError(
                f"sample_weight of shape {tuple(sample_weight.shape)} is not one weight a sample: give "
                f"{tuple(labels.shape)}, as of the labels"
            )
    if not (solver and solver.captures):
        check_labels(labels, num_classes)
        _check_values(features, sample_weight)
    with torch.no_grad(), full_precision(features.device):
        rows = with_bias(features.detach().to(working_dtype(features.dtype)))
        weights = torch.ones_like(rows[..., 0]) if sample_weight is None else sample_weight.to(rows.dtype)
        if not batched:
            rows, labels, weights = rows[None], labels[None], weights[None]
        rows = torch.where(weights.unsqueeze(-1) > 0, rows, 0)
        weights = weights / weights.sum(-1, keepdim=True)
        if start is not None:
            start = start.to(rows.dtype).expand(len(rows), -1, -1)
        targets = one_hot(labels, num_classes, rows.dtype)
        solution = solve_rows(rows, targets, weights, ridge, solver=solver, space=space, start=start)
    if batched:
        return solution
    return Solution(solution.value[0], solution.converged[0], solution.iterations, solution.residual[0])


def _check_values(features: Tensor, sample_weight: Tensor | None) -> None:
    """Finite features where they count, weights that are weights."""
    if sample_weight is not None:
        if not bool(sample_weight.isfinite().all()):
            raise InputError("sample_weight holds nan or infinity: give finite weights")
        if bool((sample_weight < 0).any()) or not bool((sample_weight.sum(-1) > 0).all()):
            raise InputError("sample_weight must not be negative, and must be positive somewhere in every environment")
        features = torch.where(sample_weight.unsqueeze(-1) > 0, features, 0)
    check_finite(features)


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

    def solve(features: Tensor) -> Solution:
        return solve_predictor(
            features, labels, num_classes, ridge, sample_weight=sample_weight, solver=solver, space=space
        )

    check_tensors(features=features)
    if solver is not None and getattr(solver, "fixed", False):
        return solve(features).value
    solution = in_enough_precision(solve, features, lambda s: s.all_converged)
    warn_unless_converged(solution, PREDICTOR)
    return solution.value


PREDICTOR = "the optimal predictor"
INVERSE = "the implicit gradient's linear system"


def warn_unless_converged(solution: Solution, what: str) -> None:
    """For answers that were computed `in_enough_precision`: float64 is no way out any more."""
    if not solution.all_converged:
        iterations = "1 iteration" if solution.iterations == 1 else f"{solution.iterations} iterations"
        warn(
            f"{what} was not solved to tolerance after {iterations}, in float64 (residual "
            f"{float(solution.residual.max()):.2g}); raise ridge, scale the features down, or allow the solver more "
            "iterations",
            ConvergenceWarning,
        )
