"""Transfer risk and gradient by the kernels of `kernels`: the same as `transfer.transfer_risk`, without its launches.

    K = Z Z^T      ->  solve   ->  W = A^T Z,  logits of every W on every sample
    logits         ->  pairs   ->  matrix, weights, B = share r (S - Y),  v = B^T Z,  T = Z v^T
    T              ->  invert  ->  h = v / ridge + X^T Z
    gradient       =   sum_Q B W(Q)  -  lambda [ r J(U) W + r (S - Y) h ]

Iterations end when the answer is good, on the device: nothing waits for it, so the whole can be captured in a CUDA
graph. Good is: the gradient that is left bounds the error of W by 0.001 |W|. In float32; a batch whose features are too large for that shows in the residuals, not in an error.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from ..solvers import Solution
from .grouping import Grouped
from .precision import full_precision
from .transfer import Transfer, bounded, with_gradient

Rule = Literal["given", "worst", "uniform"]
RULES: dict[Rule, int] = {"given": 0, "worst": 1, "uniform": 2}

TOLERANCE = 1e-3  # of the predictors
INVERSE_TOLERANCE, ROUNDS = 1e-2, 3  # of a round of refinement, and their number
MOST_NEWTON, MOST_PRODUCTS = 40, 300
LARGEST_SIDE, LARGEST_TILE = 128, 4096  # rows, and rows times classes, that fit a multiprocessor
GOOD = 0.01  # bound of the relative error below which a solution counts as converged


def power_of_two(number: int) -> int:
    """The smallest that is not below `number`."""
    return 1 << (number - 1).bit_length()


def fits(capacity: int, num_classes: int) -> bool:
    """Whether environments of this size can be handled by one multiprocessor each."""
    rows, classes = side(capacity), max(16, power_of_two(num_classes))
    return rows <= LARGEST_SIDE and rows * classes <= LARGEST_TILE


def side(capacity: int) -> int:
    """N, the rows of a tile that holds this many samples."""
    return max(16, power_of_two(capacity))


def fused_transfer_risk(
    features: Tensor,
    grouped: Grouped,
    queries: Tensor,
    alpha: Tensor,
    rule: Rule,
    ridge: float,
    gradient_matching: float = 1.0,
    bound: float | None = None,
) -> Transfer:
    """features (n, d) float32, and the same grouped with N = side(...); queries (m,), alpha (m, E)."""
    wants_gradient = torch.is_grad_enabled() and features.requires_grad
    with torch.no_grad(), full_precision(features.device):
        result, gradient = _transfer(grouped, queries, alpha, rule, ridge, gradient_matching, bound, wants_gradient)
        if gradient is None:
            return result
        gradient = grouped.ungroup(gradient)[:, :-1]
    return replace(result, risk=with_gradient(features, result.risk, gradient))


def _transfer(
    grouped: Grouped,
    queries: Tensor,
    alpha: Tensor,
    rule: Rule,
    ridge: float,
    gradient_matching: float,
    bound: float | None,
    wants_gradient: bool,
) -> tuple[Transfer, Tensor | None]:
    """And the gradient with respect to the rows, (E, N, D)."""
    from . import kernels

    rows, labels, num_classes = grouped.rows, grouped.labels, grouped.num_classes
    E, N, D = rows.shape
    m, CP = len(queries), max(16, power_of_two(num_classes))
    options = {"N": N, "CP": CP, "num_warps": 4 if N * CP <= 1024 else 8, "num_stages": 1}
    weights, flat = grouped.weights.contiguous(), rows.reshape(E * N, D)
    asked = rows if m == E else rows[queries]  # queries of all environments come in order

    def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=rows.device)

    gram = asked @ asked.mT  # (m, N, N)
    coefficients, residuals, iterations = new(m, N, CP), new(m), new(m, dtype=torch.int32)
    kernels.solve[(m,)](
        gram, labels, weights, queries, coefficients, residuals, iterations,
        num_classes, ridge, TOLERANCE, MOST_NEWTON, MOST_PRODUCTS, INNER="tf32", **options,
    )  # fmt: skip
    predictors = new(2, m, CP, D)  # W, and later h
    W = torch.bmm(coefficients.mT, asked, out=predictors[0])
    error = flat @ W.reshape(m * CP, D).mT  # (E N, m CP), logits first
    matrix, shares = new(m, E), new(m, E)
    own, probabilities = new(m, N, CP), new(m, N, CP)
    kernels.pairs[(m,)](
        error, labels, weights, alpha, queries, matrix, shares, own, probabilities,
        E, num_classes, m, RULE=RULES[rule], **options,
    )  # fmt: skip
    mean = torch.where(shares > 0, shares * matrix, 0).sum(-1)
    risk = mean.sum() / (shares.sum(-1) > 0).sum()
    solution = _solution(W, num_classes, residuals / ridge, iterations)
    if not wants_gradient:
        return Transfer(risk, matrix, shares, solution, None), None
    gradient = (error @ W.reshape(m * CP, D)).reshape(E, N, D)
    if gradient_matching == 0:
        return Transfer(risk, matrix, shares, solution, None), gradient

    v = (error.mT @ flat).reshape(m, CP, D)
    targets = asked @ v.mT  # (m, N, CP)
    curved, found = new(m, N, CP), new(m, dtype=torch.int32)
    kernels.invert[(m,)](
        gram, weights, queries, probabilities, targets, coefficients, curved, residuals, found,
        ridge, INVERSE_TOLERANCE, ROUNDS, MOST_PRODUCTS, INNER="tf32", **options,
    )  # fmt: skip
    h = torch.baddbmm(v, coefficients.mT, asked, beta=1 / ridge, out=predictors[1])
    moved = torch.baddbmm(curved @ W, own, h)  # (m, N, D)
    inverse = _solution(h, num_classes, residuals / ridge, found)
    gradient = _with_implicit(gradient, moved, queries, gradient_matching, bound)
    return Transfer(risk, matrix, shares, solution, inverse), gradient


def _solution(value: Tensor, num_classes: int, bound: Tensor, iterations: Tensor) -> Solution:
    """`bound` of the error of each; it counts as converged below a hundredth of its norm."""
    return Solution(value[:, :num_classes], bound <= GOOD * value.flatten(1).norm(dim=1), iterations, bound)


def _with_implicit(direct: Tensor, moved: Tensor, queries: Tensor, matching: float, bound: float | None) -> Tensor:
    if bound is None and len(queries) == len(direct):
        return torch.add(direct, moved, alpha=-matching)
    through = torch.zeros_like(direct).index_copy(0, queries, -matching * moved)
    return direct + (through if bound is None else bounded(through, direct, bound))
