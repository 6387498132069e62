"""The optimal predictor w(Q; Phi) of an environment, its derivative with respect to the rows, and their precision.

W = argmin over W of l(W),    l the softmax loss + ridge/2 |W|^2 of `linear_loss`        (C, d + 1)
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ..errors import ConvergenceWarning, warn
from ..settings import Positive, convert
from ..solvers import CG, LinearSolver, Minimiser, Newton, Solution
from ..solvers.minimisers import check_solver
from ..solvers.protocols import holds
from .checks import (
    check_count,
    check_labels,
    check_problem,
    check_start,
    check_tensors,
    working_dtype,
)
from .linear_loss import SoftmaxLoss, logits_of, softmax_jacobian, softmax_residual, with_bias

SpaceName = Literal["auto", "predictor", "sample"]
PREDICTOR = "the optimal predictor"
INVERSE = "the implicit gradient's linear system"


def attempts(features: Tensor) -> Iterator[Tensor]:
    """Yield the features, then the same in float64, for callers that go on if the first answer is not good enough."""
    yield features
    if features.dtype != torch.float64:
        yield features.double()


def warn_not_converged(solution: Solution, name: str) -> None:
    """Warn that the last of the `attempts`, in float64, was not solved to tolerance."""
    iterations = "1 iteration" if solution.iterations == 1 else f"{solution.iterations} iterations"
    warn(
        f"{name} was not solved to tolerance after {iterations}, in float64 (residual "
        f"{float(solution.residual.max()):.2g}); raise ridge, centre the features or scale them down",
        ConvergenceWarning,
    )


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Switch off autocast and TF32 for the block: Newton's method cannot correct a gradient of rounded products."""
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    rounded = device.type == "cuda" and before != "ieee"  # otherwise nothing is changed, nor fixed by restoring it
    try:
        if rounded:
            matmul.fp32_precision = "ieee"
        with torch.autocast(device.type, enabled=False):
            yield
    finally:
        if rounded:
            matmul.fp32_precision = before


@dataclass(frozen=True)
class Fit:
    """Predictors W (B, C, D) that minimise l on rows Z (B, n, D), and the problem as it was solved.

    At the optimum a predictor lies in the span of its rows: ridge W = -(r (S - Y))^T Z. With Z = R Q^T, Q (D, k)
    orthonormal and k = min(n, D), it is W = X Q^T for some X (C, k). Q keeps norms, so that the problem in X is the
    same with rows R in place of Z. With far fewer rows than columns, its products do not depend on D.

    Coefficients of the rows themselves, W = A^T Z with the Gram matrix Z Z^T, would not do: where rows are nearly equal
    and their labels differ, A is huge and cancels in A^T Z, and float32 has no digits left.

    Attributes
    ----------
    loss
        Problem that was solved, with rows Z, or R if there is a basis.
    basis
        Basis Q, (B, D, k). None: the problem was solved with rows Z.
    reduced
        Solution X, (B, C, k), or W without a basis.
    solution
        Predictors W, (B, C, D), and how well they were solved.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import fit_rows
    >>> rows, labels = torch.randn(1, 20, 4), torch.randint(2, (1, 20))
    >>> fit_rows(rows, labels, torch.full((1, 20), 1 / 20), num_classes=2, ridge=1e-2).solution.converged
    tensor([True])
    """

    loss: SoftmaxLoss
    basis: Tensor | None
    reduced: Tensor
    solution: Solution

    def logits(self, rows: Tensor) -> Tensor:
        """Return the logits Z W^T of any rows.

        Parameters
        ----------
        rows
            Rows Z with a constant column, (n, D).

        Returns
        -------
        Tensor
            Logits, (B, n, C).
        """
        if self.basis is None or not self._is_shorter:
            return logits_of(self.solution.value, rows)
        return logits_of(self.reduced, rows @ self.basis)

    def at_rows(self, residuals: Tensor) -> Tensor:
        """Return the sum over the batch of T W, the transpose of `logits`.

        Parameters
        ----------
        residuals
            Residuals T, (B, n, C).

        Returns
        -------
        Tensor
            Sums, (n, D).
        """
        if self.basis is None or not self._is_shorter:
            return residuals.mT.flatten(0, 1).mT @ self.solution.value.flatten(0, 1)
        return ((residuals @ self.reduced) @ self.basis.mT).sum(0)

    @property
    def _is_shorter(self) -> bool:
        """Whether products with Q and X are less work than one with W."""
        assert self.basis is not None
        (D, k), C = self.basis.shape[1:], self.reduced.shape[1]
        return k * (C + D) < C * D


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
    """Return the optimal predictors of a batch of B problems, in the conventions of `linear_loss`.

    Parameters
    ----------
    rows
        Rows Z, (B, n, D), the constant included.
    labels, weights
        Label and weight of each row, (B, n).
    num_classes, ridge
        Number C of classes, and strength of the penalty.
    solver
        Minimiser. None: Newton to convergence.
    space
        "predictor" takes rows as they are, with D C unknowns; "sample" factors them first, with n C unknowns. "auto"
        factors on a CPU if that at least halves the products; on a GPU small products cost their launch alone.
    start
        Start of the search, (B, C, D), where its loss is lower than at zero. None: zero.

    Returns
    -------
    Fit
        Predictors, and how well they were solved.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import fit_rows
    >>> rows, labels = torch.randn(1, 20, 4), torch.randint(2, (1, 20))
    >>> fit = fit_rows(rows, labels, torch.full((1, 20), 1 / 20), num_classes=2, ridge=1e-2)
    >>> fit.solution.value.shape
    torch.Size([1, 2, 4])
    """
    if convert("space", space, SpaceName) == "auto":
        space = "sample" if rows.device.type == "cpu" and 2 * rows.shape[1] <= rows.shape[2] else "predictor"
    basis = None
    if space == "sample":
        basis, triangle = torch.linalg.qr(rows.mT)
        rows = triangle.mT
    loss = SoftmaxLoss(rows, labels, weights, num_classes, ridge)
    begin = rows.new_zeros(len(rows), num_classes, rows.shape[-1])
    if start is not None:  # zero where that has the lower loss: a confident mistake takes many iterations to undo
        start = start if basis is None else start @ basis
        at_zero, at_start = loss.along(begin, start, torch.arange(2, dtype=rows.dtype, device=rows.device)[:, None])
        begin = torch.where((at_start < at_zero)[:, None, None], start, begin)
    solution = (solver or Newton()).minimise(loss, begin)
    reduced = solution.value
    return Fit(loss, basis, reduced, solution if basis is None else replace(solution, value=reduced @ basis.mT))


def implicit_vjp(fit: Fit, cotangent: Tensor, solver: LinearSolver | None = None) -> tuple[Tensor, Solution]:
    """Pull a cotangent v of the predictors W(Z) back to their rows Z, by the solution h of H h = v.

    Invariant: dl/dW = (r (S - Y))^T Z + ridge W = 0 for every Z. When Z moves, H dW + d_Z(dl/dW) = 0 with the symmetric
    Hessian H, so that <v, dW> = -<h, d_Z(dl/dW)> = <gradient, dZ> with

        gradient = -r [(S - Y) h + J(U) W],    U = Z h^T                                    (proposition 1 of the paper)

    v, and so h, need not lie in the span of the rows. H maps the span to itself and is ridge times the identity on its
    orthogonal complement, so that the two parts are solved apart.

    Parameters
    ----------
    fit
        Predictors, from `fit_rows`.
    cotangent
        Cotangent v, (B, C, D).
    solver
        Linear solver. None: conjugate gradients.

    Returns
    -------
    tuple[Tensor, Solution]
        The gradient, (B, n, D), and h, (B, C, D), with how well it was solved.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import fit_rows, implicit_vjp
    >>> rows, labels = torch.randn(1, 20, 4), torch.randint(2, (1, 20))
    >>> fit = fit_rows(rows, labels, torch.full((1, 20), 1 / 20), num_classes=2, ridge=1e-2)
    >>> gradient, solution = implicit_vjp(fit, torch.ones(1, 2, 4))
    >>> gradient.shape
    torch.Size([1, 20, 4])
    """
    loss, basis = fit.loss, fit.basis
    hessian = loss.hessian(fit.reduced)
    inside = cotangent if basis is None else cotangent @ basis
    solution = (solver or CG()).solve(hessian, inside)
    curved = softmax_jacobian(hessian.probabilities, logits_of(solution.value, loss.rows))  # the rows lie in the span
    if basis is not None:
        orthogonal = (cotangent - inside @ basis.mT) / loss.ridge
        solution = replace(solution, value=solution.value @ basis.mT + orthogonal)
    residual = softmax_residual(hessian.probabilities, loss.targets)
    moved = residual @ solution.value + curved @ fit.solution.value
    return -loss.weights.unsqueeze(-1) * moved, solution


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
    """Solve W = argmin over W of the mean cross-entropy of W on (features, labels) + ridge/2 |W|^2.

    Parameters
    ----------
    features
        Features (n, d) or, for several environments at once, (B, n, d).
    labels
        Class of each sample, (n,) or (B, n) integers in 0..C-1.
    num_classes, ridge
        Number C of classes, and strength of the penalty, bias included.
    sample_weight
        Weight of each sample, (n,) or (B, n), scaled to sum to one; 0 for padding. None: all the same.
    solver
        Minimiser of `transferrisk.solvers`. None: Newton to convergence.
    space
        Unknowns to solve for: "auto", "predictor" (D C of them) or "sample" (n C), see `fit_rows`.
    start
        Start of the search, (C, d + 1) or (B, C, d + 1), which saves iterations. None: zero.

    Returns
    -------
    Solution
        W, (C, d + 1) or (B, C, d + 1), bias last and without a gradient, and how well it was solved.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import solve_predictor
    >>> solution = solve_predictor(torch.randn(60, 5), torch.randint(2, (60,)), num_classes=2, ridge=1e-3)
    >>> solution.value.shape, bool(solution.converged)
    (torch.Size([2, 6]), True)
    """
    if solver is not None:
        check_solver("solver", solver, "minimise")
    reads_values = solver is None or not solver.captures
    if isinstance(features, Tensor) and features.device.type == "cpu":  # where reading values costs nothing
        reads_values = True
    labels = check_problem(features, labels, sample_weight, reads_values)
    ridge, num_classes = convert("ridge", ridge, Positive), check_count("num_classes", num_classes)
    batched = features.dim() == 3
    if start is not None:
        check_start(start, features, num_classes, len(features) if batched else 1)
    if reads_values:
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
    start: Tensor | None = None,
) -> Tensor:
    """Return the optimal linear predictor W = argmin mean cross-entropy + ridge/2 |W|^2.

    A predictor that float32 cannot resolve is solved in float64; a ConvergenceWarning tells if that does not suffice
    either, unless the solver runs a fixed number of iterations.

    Parameters
    ----------
    features, labels, num_classes, ridge, sample_weight, solver, space, start
        See `solve_predictor`.

    Returns
    -------
    Tensor
        Predictor W, (C, d + 1) or (B, C, d + 1), bias last and without a gradient.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import optimal_predictor
    >>> optimal_predictor(torch.randn(60, 5), torch.randint(3, (60,)), num_classes=3, ridge=1e-3).shape
    torch.Size([3, 6])
    """
    check_tensors(features=features)
    fixed = solver is not None and getattr(solver, "fixed", False)
    for attempt in attempts(features):
        solution = solve_predictor(
            attempt, labels, num_classes, ridge, sample_weight=sample_weight, solver=solver, space=space, start=start
        )
        if fixed or holds(solution.converged.all()):
            break
    else:
        warn_not_converged(solution, PREDICTOR)
    return solution.value.to(working_dtype(features.dtype))
