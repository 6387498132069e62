"""Transfer matrix, transfer risk, and its exact gradient with respect to the features.

In the conventions of `linear_loss`, for predictors W(Q), Q one of m queries among E environments:

    matrix    M[Q, P] = cross-entropy of W(Q) on P                        (no ridge)
    risk      R       = (1/m) sum_Q sum_{P != Q} a_P(Q) M[Q, P]           (eq. 1 of the paper, as a mean over Q)
    v_Q               = sum_P a_P(Q) dM[Q, P]/dW,    h_Q = H_Q^-1 v_Q

    direct    dR/dZ_P =  (1/m) sum_Q a_P(Q) r_P (S_P - Y_P) W(Q)          with S_P under W(Q)
    implicit  dR/dZ_Q = -(1/m) r_Q [(S_Q - Y_Q) h_Q + J(U) W(Q)],         U = Z_Q h_Q^T

With W(Q) solved, direct + implicit is the total derivative; the implicit part is `predictor.implicit_vjp`. A batch's
rows are gathered by environment into one padded tensor (`group`), so that all environments are handled by the same few
matrix products, whatever their sizes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ..settings import Positive, convert
from ..solvers import LinearSolver, Minimiser, Solution
from ..solvers.minimisers import check_solver
from ..solvers.protocols import joined
from .checks import check_count, check_environments, check_finite, check_labels, check_shapes, integers, working_dtype
from .linear_loss import losses_and_residuals, one_hot, with_bias
from .predictor import (
    PREDICTOR,
    Fit,
    SpaceName,
    attempts,
    fit_rows,
    full_precision,
    implicit_vjp,
    warn_not_converged,
)

LEAST_WEIGHT = 1e-30
MOST_LOGITS = (1 << 27, 1 << 27), (1 << 20, 1 << 25)
"""Logits that are worked on at once, and that are kept: on a GPU, and on a CPU, where those worked on fit its cache."""
WeightRule = Callable[[Tensor, Tensor], Tensor]
"""(M (m, E), which pairs count (m, E) bool) -> weights a_P(Q) (m, E), zero where a pair does not count."""


@dataclass(frozen=True)
class Grouped:
    """E environments of up to N samples each; `linear_loss` explains rows, targets and weights.

    Padding has weight zero and all-zero features, the constant column included, so it changes nothing.
    """

    rows: Tensor  # (E, N, D)
    labels: Tensor  # (E, N), -1 for padding
    weights: Tensor  # (E, N) each sample's share of its environment, 1/n_e unless weighted; 0 for padding
    counts: Tensor | None  # (E,) samples of each environment; None: see `samples`
    num_classes: int
    slots: Tensor | None  # (n,) where each sample went in the flattened (E N); None: see `samples`
    samples: int = 0  # of each environment, where these are in blocks, one environment after the other

    @cached_property
    def targets(self) -> Tensor:
        """(E, N, C)"""
        return one_hot(self.labels, self.num_classes, self.rows.dtype)

    def ungroup(self, values: Tensor) -> Tensor:
        """(E, N, ...) back to the order of the batch, (n, ...)."""
        if self.slots is None:
            return values[:, : self.samples].flatten(0, 1)
        return values.flatten(0, 1).index_select(0, self.slots)


def group(
    features: Tensor,
    labels: Tensor,
    index: Tensor,
    num_environments: int,
    num_classes: int,
    capacity: int | None = None,
    sample_weights: Tensor | None = None,
) -> Grouped:
    """features (n, d), labels (n,), index (n,) in 0..E-1.

    `capacity` is N. Without it N is the largest count, which must be read from the device; with it nothing
    is read. What cannot be placed rightly must not go unnoticed: the samples of an environment that does not
    fit, and samples whose label or index is out of range, get the weight nan. `sample_weights` (n,) decide a sample's
    share of its environment; one whose weights are all zero counts as absent.
    """
    n = len(features)
    wrong = (labels < 0) | (labels >= num_classes) | (index < 0) | (index >= num_environments)
    index = index.clamp(0, num_environments - 1)
    counts = index.new_zeros(num_environments).scatter_add_(0, index, torch.ones_like(index))
    size = capacity if capacity is not None else max(int(counts.max()), 1)
    order = torch.argsort(index, stable=True)
    first = counts.cumsum(0) - counts  # (E,) where each environment starts in the sorted order
    ranks = torch.empty_like(order).scatter_(0, order, torch.arange(n, device=index.device)) - first[index]
    slots = index * size + ranks.clamp(max=size - 1)

    def place(values: Tensor, padding: int = 0) -> Tensor:
        padded = values.new_full((num_environments * size, *values.shape[1:]), padding)
        return padded.index_copy(0, slots, values).reshape(num_environments, size, *values.shape[1:])

    share = torch.where(counts > size, torch.nan, 1 / counts.clamp(min=1).to(features.dtype))[index]
    if sample_weights is not None:
        given = sample_weights.to(features.dtype)
        total = place(given).sum(-1)  # (E,)
        share = torch.where(share.isnan(), share, given / torch.where(total > 0, total, 1)[index])
        counts = torch.where(total > 0, counts, 0)
    share = torch.where(wrong, torch.nan, share)
    return Grouped(place(with_bias(features)), place(labels, -1), place(share), counts, num_classes, slots)


@dataclass(frozen=True)
class Transfer:
    """The result of one evaluation of the transfer risk.

    Attributes
    ----------
    risk
        Scalar; carries the gradient.
    matrix
        (m, E) M[Q, P], detached; nan where Q or P is absent.
    weights
        (m, E) a_P(Q) that was used.
    solution
        W(Q), (m, C, D).
    inverse
        h_Q, (m, C, D); None where no implicit gradient was asked for.
    moved
        (m, E) the weights after a step of exponentiated gradient, where that came along.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import transfer_risk
    >>> found = transfer_risk(torch.randn(60, 5), torch.randint(2, (60,)), torch.arange(60) % 3, 3, 2, ridge=1e-2)
    >>> found.matrix.shape, found.risk.shape
    (torch.Size([3, 3]), torch.Size([]))
    """

    risk: Tensor
    matrix: Tensor
    weights: Tensor
    solution: Solution
    inverse: Solution | None
    moved: Tensor | None = None

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
    """Return the same weight for every environment but Q (sum-sum).

    Parameters
    ----------
    matrix, counted
        M[Q, P] (m, E), and which pairs count, (m, E) bool.

    Returns
    -------
    Tensor
        (m, E), zero where a pair does not count.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import uniform_weights
    >>> uniform_weights(torch.tensor([[0.1, 0.5, 0.3]]), torch.tensor([[False, True, True]]))
    tensor([[0.0000, 0.5000, 0.5000]])
    """
    return counted.to(matrix.dtype) / counted.sum(-1, keepdim=True).clamp(min=1)


def worst_weights(matrix: Tensor, counted: Tensor) -> Tensor:
    """Return all weight on the environment with the largest loss (sum-sup, exactly).

    Parameters
    ----------
    matrix, counted
        M[Q, P] (m, E), and which pairs count, (m, E) bool.

    Returns
    -------
    Tensor
        (m, E), zero where a pair does not count.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import worst_weights
    >>> worst_weights(torch.tensor([[0.1, 0.5, 0.3]]), torch.tensor([[False, True, True]]))
    tensor([[0., 1., 0.]])
    """
    worst = torch.where(counted, matrix, -torch.inf).argmax(-1, keepdim=True)
    return torch.zeros_like(matrix).scatter_(-1, worst, 1.0) * counted


def given_weights(alpha: Tensor) -> WeightRule:
    """Return a rule with the weights alpha, shared out among the environments that are present.

    Parameters
    ----------
    alpha
        (m, E).

    Returns
    -------
    WeightRule
        A rule that `transfer_risk` takes as `weights`.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import given_weights
    >>> given_weights(torch.tensor([[0.0, 0.25, 0.75]]))(torch.ones(1, 3), torch.tensor([[False, True, True]]))
    tensor([[0.0000, 0.2500, 0.7500]])
    """

    def rule(matrix: Tensor, counted: Tensor) -> Tensor:
        kept = torch.where(counted, alpha.to(matrix.dtype), 0)
        return kept / kept.sum(-1, keepdim=True).clamp(min=torch.finfo(kept.dtype).tiny)

    return rule


def exponentiated_gradient(weights: Tensor, gains: Tensor, rate: float, moved: Tensor) -> Tensor:
    """Take a step of exponentiated gradient ascent on a simplex, over the last dimension (eq. 3 of the paper).

    weights_i <- weights_i exp(rate gains_i), normalised. Only entries in `moved` take part: they share the
    mass they had, and the others keep theirs, so an absent environment neither gains nor loses. No weight falls below
    `LEAST_WEIGHT`, from where it can come back; from zero it could not.

    Parameters
    ----------
    weights, gains
        (..., E), a point of the simplex in each row, and what each entry would gain.
    rate
        Of the step.
    moved
        (..., E) bool, the entries that take part.

    Returns
    -------
    Tensor
        The new weights.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import exponentiated_gradient
    >>> exponentiated_gradient(torch.tensor([0.5, 0.5]), torch.tensor([0.0, 1.0]), 1.0, torch.tensor([True, True]))
    tensor([0.2689, 0.7311])
    """
    mass = torch.where(moved, weights, 0).sum(-1, keepdim=True)
    logits = torch.where(moved, weights.clamp(min=LEAST_WEIGHT).log() + rate * gains, -torch.inf)
    shares = torch.softmax(logits, -1).nan_to_num(0.0)  # nan: a row with nothing to move
    return torch.where(moved, (mass * shares).clamp(min=LEAST_WEIGHT), weights)


def bounded(gradient: Tensor, reference: Tensor, bound: float) -> Tensor:
    """The gradient, scaled down where needed so that its norm is at most bound times the reference's.

    The constant column, last, is not part of the features and does not count.
    """
    norm, allowed = gradient[..., :-1].norm(), bound * reference[..., :-1].norm()
    return gradient * torch.where(norm > allowed, allowed / norm, 1.0)


class WithGradient(torch.autograd.Function):
    """The risk as a function of the features, with a gradient in closed form as its backward."""

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
    """Return the transfer risk of features, with its exact gradient.

    The gradient is computed along with the risk, when the features ask for one; it cannot be differentiated
    again. Labels and index are taken as they are; a sample whose label or index is out of range makes the risk nan.

    Parameters
    ----------
    features, labels
        (n, d), and (n,) in 0..C-1.
    index
        (n,) the environment of each sample, 0..E-1.
    num_environments, num_classes
        E and C.
    ridge
        Strength of the penalty.
    weights
        How P is chosen, given Q: `worst_weights`, `uniform_weights` or `given_weights`.
    gradient_matching
        Lambda, the factor of the implicit gradient; 0 leaves the direct one alone.
    bound
        Keeps the implicit gradient's norm at most this multiple of the direct one's.
    queries
        (m,) the environments Q to average over; None: all.
    solver, space
        See `solve_predictor`.
    implicit
        How H^-1 v is solved; None: conjugate gradients to rounding level.
    start
        (C, D) where the search for every W(Q) starts.
    capacity
        See `group`.
    sample_weights
        (n,) how much each sample counts within its environment; None: all the same.

    Returns
    -------
    Transfer
        Risk, matrix and weights, and how well the predictors were solved.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import transfer_risk
    >>> features = torch.randn(60, 5, requires_grad=True)
    >>> transfer_risk(features, torch.randint(2, (60,)), torch.arange(60) % 3, 3, 2, ridge=1e-2).risk.backward()
    >>> features.grad.shape
    torch.Size([60, 5])
    """
    ridge, labels, index = convert("ridge", ridge, Positive), integers("labels", labels), integers("index", index)
    wants_gradient = torch.is_grad_enabled() and features.requires_grad
    features = features.to(working_dtype(features.dtype))
    with torch.no_grad(), full_precision(features.device):
        grouped = group(features.detach(), labels, index, num_environments, num_classes, capacity, sample_weights)
        everyone = torch.arange(num_environments, device=index.device)
        queries = everyone if queries is None else queries
        logits = grouped.labels.numel() * num_classes  # of one query
        most, kept = MOST_LOGITS[queries.device.type == "cpu"]
        fits, tested, residuals = [], [], []
        for some in queries.split(max(1, most // logits)):
            fit = fit_rows(
                grouped.rows[some],
                grouped.labels[some],
                grouped.weights[some],
                num_classes,
                ridge,
                solver=solver,
                space=space,
                start=None if start is None else start.detach().to(features.dtype).expand(len(some), -1, -1),
            )
            losses, residual = _tested(fit, grouped)
            fits.append(fit)
            tested.append((grouped.weights * losses).sum(-1))
            if wants_gradient:  # kept where there is room, else computed again
                residuals.append(residual if len(queries) * logits <= kept else None)
        matrix = torch.cat(tested)  # (m, E)
        solution = joined([fit.solution for fit in fits])
        assert grouped.counts is not None  # `group` counts them
        present = grouped.counts > 0
        both = present[queries].unsqueeze(-1) & present
        counted = both & (queries.unsqueeze(-1) != everyone)
        used = weights(matrix, counted)
        share = used / counted.any(-1).sum()  # mean over the queries that are present
        risk = (share * matrix).sum()
        inverse = None
        if wants_gradient:
            direct, through_predictors = torch.zeros_like(grouped.rows), torch.zeros_like(grouped.rows)
            inverses, first = [], 0
            for fit, before in zip(fits, residuals, strict=True):
                some = slice(first, first + len(fit.reduced))
                first = some.stop
                residual = _tested(fit, grouped)[1] if before is None else before
                residual.mul_((share[some].unsqueeze(-1) * grouped.weights).flatten(1).unsqueeze(-1))
                direct += fit.at_rows(residual).view_as(direct)
                if gradient_matching > 0:
                    moved, h = implicit_vjp(fit, residual.mT @ grouped.rows.flatten(0, 1), implicit)
                    through_predictors.index_copy_(0, queries[some], gradient_matching * moved)
                    inverses.append(h)
            if bound is not None:
                through_predictors = bounded(through_predictors, direct, bound)
            inverse = joined(inverses) if inverses else None
            gradient = grouped.ungroup(direct + through_predictors)[:, :-1]
    if wants_gradient:
        risk = WithGradient.apply(features, risk, gradient)  # type: ignore[no-untyped-call]  # torch's apply
    return Transfer(risk, torch.where(both, matrix, torch.nan), used, solution, inverse)


def _tested(fit: Fit, grouped: Grouped) -> tuple[Tensor, Tensor]:
    """The losses of every sample by every predictor, (m, E, N), and the residuals S - Y, (m, E N, C)."""
    logits = fit.logits(grouped.rows.flatten(0, 1))
    losses, residuals = losses_and_residuals(logits, grouped.labels.flatten())
    return losses.unflatten(-1, grouped.labels.shape), residuals


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
    """Return M[Q, P]: the cross-entropy on P (column) of the predictor fitted on Q (row).

    Where float32 does not reach the predictors, float64 does, at the cost of a second try; unless the solver's number
    of iterations is fixed, a ConvergenceWarning says when neither has.

    Parameters
    ----------
    features, labels
        (n, d), and (n,) in 0..C-1.
    environments
        (n,) any integers.
    num_classes
        C; None: the largest label + 1.
    ridge
        Strength of the penalty.
    solver, space
        See `solve_predictor`.

    Returns
    -------
    Tensor
        (E, E), ids in sorted order, without a gradient.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import transfer_matrix
    >>> transfer_matrix(torch.randn(60, 5), torch.randint(2, (60,)), torch.arange(60) % 3, ridge=1e-2).shape
    torch.Size([3, 3])
    """
    labels, environments = check_shapes(features, labels, environments)
    if solver is not None:
        check_solver("solver", solver, "minimise")
    ids = check_environments(environments)
    classes = check_labels(labels, None if num_classes is None else check_count("num_classes", num_classes))
    check_finite(features, environments)
    index, fixed = torch.searchsorted(ids, environments), solver is not None and solver.fixed
    for attempt in attempts(features.detach()):
        result = transfer_risk(attempt, labels, index, len(ids), classes, ridge, solver=solver, space=space)
        if fixed or bool(result.solution.converged.all()):
            break
    else:
        warn_not_converged(result.solution, PREDICTOR)
    return result.matrix.to(working_dtype(features.dtype))
