"""w(Q; Phi): the exact ridge-regularised minimiser, and products with its inverse Hessian."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ..errors import ConvergenceWarning, InputError
from ..solvers import CG, Linearisation, LinearSolver, Minimiser, Newton, Product, Solution
from .checks import check_labels, check_ridge
from .linear_loss import Hessian, cross_entropy, one_hot, softmax_jacobian, softmax_residual, with_bias
from .precision import full_precision, working_dtype
from .spaces import PredictorSpace, SampleSpace, Space

SpaceName = Literal["auto", "predictor", "sample"]


def choose_space(rows: Tensor, space: SpaceName = "auto") -> Space:
    """n x C when there are fewer rows than columns: a Hessian product then costs n^2 C instead of 2 n D C."""
    if space == "auto":
        space = "sample" if rows.shape[1] < rows.shape[2] else "predictor"
    if space not in ("sample", "predictor"):
        raise InputError(f"space={space!r} is not known: use 'auto', 'predictor' (d x C) or 'sample' (n x C)")
    return SampleSpace(rows) if space == "sample" else PredictorSpace(rows)


@dataclass(frozen=True)
class SoftmaxProblem:
    """l(W) of `linear_loss` as a `solvers.Problem`, in either space."""

    space: Space
    targets: Tensor  # (B, n, C)
    weights: Tensor  # (B, n)
    ridge: float

    def dot(self, x: Tensor, y: Tensor) -> Tensor:
        return self.space.dot(x, y)

    def linearise(self, x: Tensor) -> Linearisation:
        x = self.space.refresh(x)
        probabilities = torch.softmax(self.space.logits(x), -1)
        residual = self.weights.unsqueeze(-1) * softmax_residual(probabilities, self.targets)
        norms = self.space.rows.square().sum(-1).sqrt()
        return Linearisation(
            gradient=self.space.adjoint(residual) + self.ridge * x,
            scale=(residual.abs().sum(-1) * norms).sum(-1),
            product=hessian_product(self.space, probabilities, self.weights, self.ridge),
        )

    def along(self, x: Tensor, direction: Tensor, steps: Tensor) -> Tensor:
        logits, change = self.space.logits(x), self.space.logits(direction)
        moved = logits + steps[..., None, None] * change  # (T, B, n, C)
        norm = self.dot(x, x) + 2 * steps * self.dot(x, direction) + steps.square() * self.dot(direction, direction)
        return cross_entropy(moved, self.targets, self.weights) + 0.5 * self.ridge * norm

    def safe_step(self, direction: Tensor, slope: Tensor, curvature: Tensor) -> Tensor:
        """The minimiser of an upper bound of f along the direction.

        With b the largest spread max_c U_ic - min_c U_ic of the logits' change over rows, the third central
        moment is at most b times the variance, so f''' <= b f'' and f'(t) <= f'(0) + f''(0) (e^(bt) - 1) / b,
        which is zero at t = log(1 + b |f'(0)| / f''(0)) / b.
        """
        change = self.space.logits(direction)
        spread = change.amax(-1) - change.amin(-1)  # (B, n)
        largest = torch.where(self.weights > 0, spread, 0).amax(-1)
        newton = -slope / curvature.clamp(min=torch.finfo(slope.dtype).tiny)
        bounded = torch.log1p(largest * newton) / largest.clamp(min=torch.finfo(slope.dtype).tiny)
        return torch.where(largest * newton > 1e-4, bounded, newton)


def hessian_product(space: Space, probabilities: Tensor, weights: Tensor, ridge: float) -> Product:
    """V -> H[V] on vectors of the space: `softmax_jacobian` with all that does not change computed once."""
    weighted = weights.unsqueeze(-1) * probabilities
    top = probabilities.argmax(-1, keepdim=True)

    def product(vector: Tensor) -> Tensor:
        change = space.logits(vector)
        change = change - change.gather(-1, top)
        mean = (probabilities * change).sum(-1, keepdim=True)
        return torch.add(space.adjoint(weighted * (change - mean)), vector, alpha=ridge)

    return product


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
    chosen = choose_space(rows, space)
    problem = SoftmaxProblem(chosen, targets, weights, ridge)
    if start is None:
        start = rows.new_zeros(len(rows), targets.shape[-1], rows.shape[-1])
    solution = (solver or Newton()).minimise(problem, chosen.start(start))
    return replace(solution, value=chosen.predictor(solution.value))


def inverse_hessian_product(
    hessian: Hessian, rhs: Tensor, *, solver: LinearSolver | None = None, space: SpaceName = "auto"
) -> Solution:
    """h = H^-1 rhs for rhs (B, C, D).

    In the n x C space h is not in the span of the rows, because rhs is not. But h = (rhs - A^T Z) / ridge for
    coefficients A that solve the Hessian's system there: with U = Z rhs^T

        r J(U - K A) = ridge A     or     H[A] = r J(U).

    `solver` is conjugate gradients unless given; only those work in either space.
    """
    solver = solver or CG()
    chosen = choose_space(hessian.rows, space)
    if not isinstance(solver, CG) or isinstance(chosen, PredictorSpace):
        return solver.solve(hessian, rhs)
    weights, ridge = hessian.weights, hessian.ridge
    curved = softmax_jacobian(hessian.probabilities, hessian.rows @ rhs.mT)
    product = hessian_product(chosen, hessian.probabilities, weights, ridge)
    solution = solver.run(product, chosen.adjoint(weights.unsqueeze(-1) * curved), chosen.dot)
    # H h - rhs = -(H[A] - r J(U))^T Z / ridge
    value = (rhs - chosen.predictor(solution.value)) / ridge
    return replace(solution, value=value, residual=solution.residual / ridge)


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
    start          (C, d + 1) or (B, C, d + 1); only the speed depends on it, and the n x C space ignores it

    Returns a Solution whose value is (C, d + 1) or (B, C, d + 1), bias last, without a gradient.
    """
    check_ridge(ridge)
    batched = features.dim() == 3
    if features.dim() not in (2, 3) or labels.shape != features.shape[:-1]:
        raise InputError(
            f"features of shape {tuple(features.shape)} and labels of shape {tuple(labels.shape)} do not go together: "
            "give (n, d) and (n,), or (B, n, d) and (B, n)"
        )
    if not (solver and solver.fixed):
        check_labels(labels, num_classes)
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
    """The value of `solve_predictor`, with a ConvergenceWarning where the solver did not arrive."""
    solution = solve_predictor(
        features, labels, num_classes, ridge, sample_weight=sample_weight, solver=solver, space=space
    )
    if not (solver and solver.fixed):
        warn_unless_converged(solution)
    return solution.value


def warn_unless_converged(solution: Solution) -> None:
    if not solution.all_converged:
        warnings.warn(
            f"the predictor was not solved to tolerance after {solution.iterations} iterations (gradient norm "
            f"{float(solution.residual.max()):.2g}); raise ridge, scale the features down, or use float64",
            ConvergenceWarning,
            stacklevel=3,
        )
