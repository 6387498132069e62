"""Transfer matrix, transfer risk, and its exact gradient with respect to the features.

In the conventions of `linear_loss`, for the optimal predictors W(Q), (m, C, D), of m queries Q among E environments:

    matrix    M[Q, P] = cross-entropy of W(Q) on P, without the ridge     (m, E)
    risk      R       = (1/m) sum_Q sum_{P != Q} a_P(Q) M[Q, P]           eq. 1 of the paper, as a mean over Q
    v_Q               = sum_P a_P(Q) dM[Q, P]/dW,    H_Q h_Q = v_Q        (C, D) each

    direct    dR/dZ_P =  (1/m) sum_Q a_P(Q) r_P (S_P - Y_P) W(Q)          (n, D), with S_P under W(Q)
    implicit  dR/dZ_Q = -(1/m) r_Q [(S_Q - Y_Q) h_Q + J(U) W(Q)],         (n, D), with U = Z_Q h_Q^T

Invariant: if every W(Q) minimises its loss, direct + implicit is the total derivative of R with respect to the rows.
The implicit part is `predictor.implicit_vjp`. The rows of a batch are gathered by environment into one padded tensor
(`group`), so that the same few matrix products handle all environments, of any sizes.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..settings import Positive, convert
from ..solvers import LinearSolver, Minimiser, Solution
from ..solvers.minimisers import check_solver
from ..solvers.protocols import holds, joined
from .checks import check_count, check_environments, check_finite, check_labels, check_shapes, working_dtype
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
from .weights import WeightRule, worst_weights

MOST_LOGITS = (1 << 27, 1 << 27), (1 << 20, 1 << 25)
"""Logits to compute at once, and to keep for the gradient: on a GPU, and on a CPU, where the former fit its cache."""


@dataclass(frozen=True)
class Grouped:
    """A batch as E environments of up to N rows each, in the conventions of `linear_loss`.

    Rows of padding have weight zero and all-zero features, the constant included, so that they change nothing.
    """

    rows: Tensor  # (E, N, D)
    labels: Tensor  # (E, N), -1 for padding
    weights: Tensor  # (E, N) share of each sample in its environment, 1/n_e unless samples have weights; 0 for padding
    counts: Tensor | None  # (E,) n_e; None: the batch is in blocks
    num_classes: int
    slots: Tensor | None  # (n,) position of each sample among the (E N) rows; None: the batch is in blocks
    samples: int = 0  # n_e of every environment of a batch in blocks

    @cached_property
    def targets(self) -> Tensor:
        """One-hot labels Y, (E, N, C)."""
        return one_hot(self.labels, self.num_classes, self.rows.dtype)

    def ungroup(self, values: Tensor) -> Tensor:
        """Return values (E, N, ...) of the rows in the order of the batch, (n, ...)."""
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
    """Return a batch of features (n, d), labels (n,) and index (n,) in 0..E-1, grouped by environment.

    capacity        N. None: the largest n_e, which is read from the device; nothing else is
    sample_weights  (n,) to divide by their sum for the share of each sample in its environment; an environment whose
                    weights are all zero counts as absent

    Samples of an environment that exceeds the capacity, and samples whose label or index is out of range, get the
    weight nan, so that they cannot go unnoticed.
    """
    n = len(features)
    wrong = (labels < 0) | (labels >= num_classes) | (index < 0) | (index >= num_environments)
    index = index.clamp(0, num_environments - 1)
    counts = index.new_zeros(num_environments).scatter_add_(0, index, torch.ones_like(index))
    size = capacity if capacity is not None else max(int(counts.max()), 1)
    order = torch.argsort(index, stable=True)
    first = counts.cumsum(0) - counts  # (E,) begin of each environment in the sorted order
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
    """Result of `transfer_risk`.

    Attributes
    ----------
    risk
        Risk R, a scalar, with its gradient.
    matrix
        Matrix M[Q, P], (m, E), without a gradient; nan where Q or P is absent.
    weights
        Weights a_P(Q), (m, E), in this risk.
    solution
        Predictors W(Q), (m, C, D).
    inverse
        Solutions h_Q, (m, C, D). None without an implicit gradient.
    moved
        Weights after a step of exponentiated gradient, (m, E), which fused kernels take along. None otherwise.

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
        """Return the result in another floating type; the gradient passes through.

        Parameters
        ----------
        dtype
            Floating type.

        Returns
        -------
        Transfer
            The result in this type.
        """
        return replace(
            self,
            risk=self.risk.to(dtype),
            matrix=self.matrix.to(dtype),
            weights=self.weights.to(dtype),
            solution=self.solution.to(dtype),
            inverse=None if self.inverse is None else self.inverse.to(dtype),
        )


def bounded(gradient: Tensor, reference: Tensor, bound: float) -> Tensor:
    """Return the gradient, scaled down if its norm is above bound times the reference's.

    The norms leave out the last column, the constant, which is not part of the features.
    """
    norm, allowed = gradient[..., :-1].norm(), bound * reference[..., :-1].norm()
    return gradient * torch.where(norm > allowed, allowed / norm, 1.0)


class WithGradient(torch.autograd.Function):
    """The risk as a function of the features, whose derivative, in both modes, is by a gradient in closed form."""

    @staticmethod
    def forward(features: Tensor, risk: Tensor, gradient: Tensor) -> Tensor:
        return risk.view_as(risk)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor, Tensor], output: Tensor) -> None:
        features, _, gradient = inputs
        ctx.save_for_backward(features, gradient)
        ctx.save_for_forward(gradient)

    @staticmethod
    def backward(ctx: Any, upstream: Tensor) -> tuple[Tensor, None, None]:
        features, gradient = ctx.saved_tensors
        return upstream * _Once.apply(features, gradient), None, None  # type: ignore[no-untyped-call]  # torch's apply

    @staticmethod
    def jvp(ctx: Any, tangent: Tensor, *_: None) -> Tensor:
        gradient: Tensor = ctx.saved_tensors[0]
        return (gradient * tangent).sum()


class _Once(torch.autograd.Function):
    """The gradient as a function of the features, which refuses to be differentiated: `once_differentiable` of torch
    would silently give zero where the upstream gradient is a constant.
    """

    @staticmethod
    def forward(features: Tensor, gradient: Tensor) -> Tensor:
        return gradient.view_as(gradient)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, Tensor], output: Tensor) -> None:
        pass

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

        R = (1/m) sum_Q sum_{P != Q} a_P(Q) M[Q, P],    M[Q, P] the cross-entropy on P of the optimal predictor of Q

    The gradient is computed along with the risk if the features require one; it cannot be differentiated again. A
    sample whose label or index is out of range makes the risk nan.

    Parameters
    ----------
    features, labels
        Features (n, d), and class of each sample, (n,) in 0..C-1.
    index
        Environment of each sample, (n,) in 0..E-1.
    num_environments, num_classes
        Numbers E and C.
    ridge
        Strength of the penalty ridge/2 |W|^2, bias included.
    weights
        Rule for a_P(Q): `worst_weights`, `uniform_weights` or `given_weights(alpha)`.
    gradient_matching
        Factor of the implicit gradient, the paper's lambda. 1 is exact, 0 leaves the direct part.
    bound
        Largest norm of the implicit gradient, as a multiple of the direct one's. None: no bound.
    queries
        Environments Q to average over, (m,); one that is named twice counts twice. None: all.
    solver, space
        See `solve_predictor`.
    implicit
        Linear solver for h_Q. None: conjugate gradients to rounding level.
    start
        Start of the search for every W(Q), (C, d + 1). None: zero.
    capacity
        Largest number of samples of an environment, with which nothing is read from the device. None: it is read.
    sample_weights
        How much each sample counts within its environment, (n,) >= 0. None: all the same.

    Returns
    -------
    Transfer
        Risk, matrix, weights, and how well the predictors were solved.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import transfer_risk
    >>> features = torch.randn(60, 5, requires_grad=True)
    >>> transfer_risk(features, torch.randint(2, (60,)), torch.arange(60) % 3, 3, 2, ridge=1e-2).risk.backward()
    >>> features.grad.shape
    torch.Size([60, 5])
    """
    labels, index = check_shapes(features, labels, index, "index")
    ridge = convert("ridge", ridge, Positive)
    if solver is not None and not hasattr(solver, "minimise"):
        check_solver("solver", solver, "minimise")
    if implicit is not None and not hasattr(implicit, "solve"):
        check_solver("implicit", implicit, "solve")
    tangent = forward_ad.unpack_dual(features).tangent  # of forward mode
    wants_gradient = tangent is not None or (torch.is_grad_enabled() and features.requires_grad)
    features = features.to(working_dtype(features.dtype))
    with torch.no_grad(), full_precision(features.device):
        grouped = group(features.detach(), labels, index, num_environments, num_classes, capacity, sample_weights)
        everyone = torch.arange(num_environments, device=index.device)
        queries = everyone if queries is None else queries
        logits = grouped.labels.numel() * num_classes  # logits of one predictor
        most, kept = MOST_LOGITS[queries.device.type == "cpu"]
        fits, solutions, tested, residuals = [], [], [], []
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
            solutions.append(fit.solution)
            tested.append((grouped.weights * losses).sum(-1))
            if wants_gradient:  # residuals are kept if there is room, else computed again
                residuals.append(residual if len(queries) * logits <= kept else None)
        matrix = torch.cat(tested)  # (m, E)
        solution = joined(solutions)
        assert grouped.counts is not None  # `group` counts them
        present = grouped.counts > 0
        both = present[queries].unsqueeze(-1) & present
        counted = both & (queries.unsqueeze(-1) != everyone)
        used = weights(matrix, counted)
        share = used / counted.any(-1).sum()  # (m, E), for the mean over the queries that are present
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
                    through_predictors.index_add_(0, queries[some], moved, alpha=gradient_matching)
                    inverses.append(h)
            if bound is not None:
                through_predictors = bounded(through_predictors, direct, bound)
            inverse = joined(inverses) if inverses else None
            gradient = grouped.ungroup(direct + through_predictors)[:, :-1]
    if wants_gradient:
        risk = WithGradient.apply(features, risk, gradient)  # type: ignore[no-untyped-call]  # torch's apply
    return Transfer(risk, torch.where(both, matrix, torch.nan), used, solution, inverse)


def _tested(fit: Fit, grouped: Grouped) -> tuple[Tensor, Tensor]:
    """Return the loss of each predictor on each row, (m, E, N), and the residuals S - Y, (m, E N, C)."""
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
    """Return M[Q, P]: the cross-entropy on P (column) of the optimal predictor of Q (row).

    Predictors that float32 cannot resolve are solved in float64; a ConvergenceWarning tells if that does not suffice
    either, unless the solver runs a fixed number of iterations.

    Parameters
    ----------
    features, labels
        Features (n, d), and class of each sample, (n,) in 0..C-1.
    environments
        Id of the environment of each sample, (n,) any integers.
    num_classes
        Number C of classes. None: the largest label + 1.
    ridge
        Strength of the penalty ridge/2 |W|^2, bias included.
    solver, space
        See `solve_predictor`.

    Returns
    -------
    Tensor
        Matrix M, (E, E), with the ids in sorted order and without a gradient.

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
        if fixed or holds(result.solution.converged.all()):
            break
    else:
        warn_not_converged(result.solution, PREDICTOR)
    return result.matrix.to(working_dtype(features.dtype))
