"""Transfer matrix, transfer risk, and its exact gradient with respect to the features.

In the conventions of `linear_loss`, for predictors W(Q), Q one of m queries among E environments:

    matrix    M[Q, P] = cross-entropy of W(Q) on P                        (no ridge)
    risk      R       = (1/m) sum_Q sum_{P != Q} a_P(Q) M[Q, P]           (eq. 1 of the paper, as a mean over Q)
    v_Q               = sum_P a_P(Q) dM[Q, P]/dW,    h_Q = H_Q^-1 v_Q

    direct    dR/dZ_P =  (1/m) sum_Q a_P(Q) r_P (S_P - Y_P) W(Q)          with S_P under W(Q)
    implicit  dR/dZ_Q = -(1/m) r_Q [(S_Q - Y_Q) h_Q + J(U) W(Q)],         U = Z_Q h_Q^T

The implicit part is `predictor.implicit_vjp`. With W(Q) solved, direct + implicit is the total derivative.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..settings import Positive, convert
from ..solvers import LinearSolver, Minimiser, Solution
from ..solvers.named import check_solver
from .checks import check_count, check_environments, check_finite, check_labels, check_shapes, working_dtype
from .grouping import Grouped, group
from .linear_loss import cross_entropy, softmax_residual
from .precision import PREDICTOR, attempts, full_precision, warn_unless_converged
from .predictor import Fit, SpaceName, fit_rows, implicit_vjp

WeightRule = Callable[[Tensor, Tensor], Tensor]
"""(M (m, E), which pairs count (m, E) bool) -> weights a_P(Q) (m, E), zero where a pair does not count."""


@dataclass(frozen=True)
class Transfer:
    """The result of one evaluation of the transfer risk."""

    risk: Tensor  # scalar; carries the gradient
    matrix: Tensor  # (m, E) M[Q, P], detached; nan where Q or P is absent
    weights: Tensor  # (m, E) a_P(Q) that was used
    solution: Solution  # W(Q), (m, C, D)
    inverse: Solution | None  # h_Q, (m, C, D); None where no implicit gradient was asked for
    moved: Tensor | None = None  # (m, E) the weights after a step of exponentiated gradient, where that came along

    def to(self, dtype: torch.dtype) -> Transfer:
        """The same, of another floating type; the gradient passes."""
        return replace(
            self,
            risk=self.risk.to(dtype),
            matrix=self.matrix.to(dtype),
            weights=self.weights.to(dtype),
            solution=self.solution.to(dtype),
            inverse=None if self.inverse is None else self.inverse.to(dtype),
        )


def uniform_weights(matrix: Tensor, counted: Tensor) -> Tensor:
    """Sum-sum: the same weight for every environment but Q."""
    return counted.to(matrix.dtype) / counted.sum(-1, keepdim=True).clamp(min=1)


def worst_weights(matrix: Tensor, counted: Tensor) -> Tensor:
    """Sum-sup, exactly: all weight on the environment with the largest loss."""
    worst = torch.where(counted, matrix, -torch.inf).argmax(-1, keepdim=True)
    return torch.zeros_like(matrix).scatter_(-1, worst, 1.0) * counted


def given_weights(alpha: Tensor) -> WeightRule:
    """The weights alpha (m, E), shared out among the environments that are present."""

    def rule(matrix: Tensor, counted: Tensor) -> Tensor:
        kept = torch.where(counted, alpha.to(matrix.dtype), 0)
        return kept / kept.sum(-1, keepdim=True).clamp(min=torch.finfo(kept.dtype).tiny)

    return rule


def cross_logits(predictors: Tensor, rows: Tensor) -> Tensor:
    """Logits of every W(Q) on every environment, (m, E, N, C)."""
    return torch.einsum("qcd,pnd->qpnc", predictors, rows)


def direct_gradient(residual: Tensor, predictors: Tensor) -> Tensor:
    """sum_Q a_P(Q) r_P (S_P - Y_P) W(Q), (E, N, D); `residual` (m, E, N, C) holds all but the last factor."""
    return torch.einsum("qpnc,qcd->pnd", residual, predictors)


def predictor_gradient(residual: Tensor, rows: Tensor) -> Tensor:
    """v_Q, (m, C, D)."""
    return torch.einsum("qpnc,pnd->qcd", residual, rows)


def feature_gradient(
    grouped: Grouped,
    queries: Tensor,
    fit: Fit,
    logits: Tensor,
    share: Tensor,
    gradient_matching: float,
    bound: float | None,
    implicit: LinearSolver | None,
) -> tuple[Tensor, Solution | None]:
    """dR/dZ, (E, N, D), for R = sum over `share` (m, E) times M; `logits` are `cross_logits`. And h_Q."""
    predictors = fit.solution.value
    probabilities = torch.softmax(logits, -1)
    residual = share[..., None, None] * grouped.weights.unsqueeze(-1) * softmax_residual(probabilities, grouped.targets)
    direct = direct_gradient(residual, predictors)
    if gradient_matching == 0:
        return direct, None
    moved, h = implicit_vjp(fit, predictor_gradient(residual, grouped.rows), implicit)
    through_predictor = torch.zeros_like(direct).index_copy(0, queries, gradient_matching * moved)
    if bound is not None:
        through_predictor = bounded(through_predictor, direct, bound)
    return direct + through_predictor, h


def bounded(gradient: Tensor, reference: Tensor, bound: float) -> Tensor:
    """The gradient, scaled down where needed so that its norm is at most bound times the reference's.

    The constant column, last, is not part of the features and does not count.
    """
    norm, allowed = gradient[..., :-1].norm(), bound * reference[..., :-1].norm()
    return gradient * torch.where(norm > allowed, allowed / norm, 1.0)


def with_gradient(features: Tensor, risk: Tensor, gradient: Tensor) -> Tensor:
    """The risk, as a function of the features whose gradient is this."""
    value: Tensor = _WithGradient.apply(features, risk, gradient)  # type: ignore[no-untyped-call]  # torch's apply
    return value


class _WithGradient(torch.autograd.Function):
    """The risk, with the closed-form gradient as its backward."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, risk: Tensor, gradient: Tensor) -> Tensor:
        ctx.save_for_backward(features, gradient)
        return risk.view_as(risk)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        features, gradient = ctx.saved_tensors
        return upstream * _Once.apply(features, gradient), None, None  # type: ignore[no-untyped-call]  # torch's apply


class _Once(torch.autograd.Function):
    """A gradient that depends on the features, but not in a way that is written down here."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, gradient: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[None, None]:
        raise RuntimeError("the gradient of the transfer risk cannot be differentiated again: it is first order only")


def transfer_risk(
    features: Tensor,
    labels: Tensor,
    index: Tensor,
    num_environments: int,
    num_classes: int,
    ridge: float,
    *,
    weights: WeightRule = worst_weights,
    gradient_matching: float = 1.0,
    bound: float | None = None,
    queries: Tensor | None = None,
    solver: Minimiser | None = None,
    implicit: LinearSolver | None = None,
    space: SpaceName = "auto",
    start: Tensor | None = None,
    capacity: int | None = None,
    sample_weights: Tensor | None = None,
) -> Transfer:
    """Transfer risk of features (n, d) with labels (n,) and environment index (n,) in 0..E-1.

    queries            (m,) the environments Q to average over; None: all
    gradient_matching  lambda, the factor of the implicit gradient; 0 leaves the direct one alone
    bound              keeps the implicit gradient's norm at most this multiple of the direct one's
    implicit           how H^-1 v is solved; None: conjugate gradients to rounding level
    start              (C, D) where the search for every W(Q) starts
    capacity           see `grouping.group`
    sample_weights     (n,) how much each sample counts within its environment; None: all the same

    The gradient is computed along with the risk, when the features ask for one; it cannot be differentiated
    again. Labels and index are taken as they are; a sample whose label or index is out of range makes the risk nan.
    """
    ridge = convert("ridge", ridge, Positive)
    wants_gradient = torch.is_grad_enabled() and features.requires_grad
    features = features.to(working_dtype(features.dtype))
    with torch.no_grad(), full_precision(features.device):
        grouped = group(features.detach(), labels, index, num_environments, num_classes, capacity, sample_weights)
        everyone = torch.arange(num_environments, device=index.device)
        queries = everyone if queries is None else queries
        fit = fit_rows(
            grouped.rows[queries],
            grouped.labels[queries],
            grouped.weights[queries],
            num_classes,
            ridge,
            solver=solver,
            space=space,
            start=None if start is None else start.detach().to(features.dtype).expand(len(queries), -1, -1),
        )
        logits = cross_logits(fit.solution.value, grouped.rows)
        matrix = cross_entropy(logits, grouped.targets, grouped.weights)  # (m, E)
        both = grouped.present[queries].unsqueeze(-1) & grouped.present
        counted = both & (queries.unsqueeze(-1) != everyone)
        used = weights(matrix, counted)
        share = used / counted.any(-1).sum()  # mean over the queries that are present
        risk = (share * matrix).sum()
        inverse = None
        if wants_gradient:
            gradient, inverse = feature_gradient(
                grouped, queries, fit, logits, share, gradient_matching, bound, implicit
            )
            gradient = grouped.ungroup(gradient)[:, :-1]
    if wants_gradient:
        risk = with_gradient(features, risk, gradient)
    return Transfer(risk, torch.where(both, matrix, torch.nan), used, fit.solution, inverse)


def transfer_matrix(
    features: Tensor,
    labels: Tensor,
    environments: Tensor,
    num_classes: int | None = None,
    ridge: float = 1e-3,
    *,
    solver: Minimiser | None = None,
    space: SpaceName = "auto",
) -> Tensor:
    """M[Q, P], (E, E): cross-entropy on P (column) of the predictor fitted on Q (row), ids in sorted order.

    Where float32 does not reach the predictors, float64 does, at the cost of a second try; unless the solver's number
    of iterations is fixed, a ConvergenceWarning says when neither has.
    """
    check_shapes(features, labels, environments)
    if solver is not None:
        check_solver("solver", solver, "minimise")
    ids = check_environments(environments)
    classes = check_labels(labels, None if num_classes is None else check_count("num_classes", num_classes))
    check_finite(features, environments)
    index, fixed = torch.searchsorted(ids, environments), solver is not None and solver.fixed
    for attempt in attempts(features.detach()):
        result = transfer_risk(attempt, labels, index, len(ids), classes, ridge, solver=solver, space=space)
        if fixed or result.solution.all_converged:
            break
    else:
        warn_unless_converged(result.solution, PREDICTOR)
    return result.matrix.to(working_dtype(features.dtype))
