"""Transfer risk and gradient by the Triton kernels of `kernels`: `transfer.transfer_risk` in a handful of launches.

    K = Z Z^T      ->  solve   ->  W = A^T Z,  logits of every W on every sample
    logits         ->  pairs   ->  matrix, weights, B = share r (S - Y),  v = B^T Z,  T = Z v^T
    T              ->  invert  ->  h = v / ridge + X^T Z
    gradient       =   sum_Q B W(Q)  -  lambda [ r J(U) W + r (S - Y) h ]

Iterations end on the device when the answer is good: the gradient that is left bounds the error of W by 0.001 |W|.
Nothing is read on the host, so that a CUDA graph can hold the whole. Coefficients A and X may be large and cancel, so
that sums of rows with them are in float64.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.util import find_spec
from typing import Literal

import torch
from torch import Tensor
from torch.autograd import forward_ad

from ..errors import InputError
from ..solvers import Solution
from .predictor import full_precision
from .transfer import Grouped, Transfer, WithGradient, bounded

Rule = Literal["given", "worst", "uniform"]
RULES: dict[Rule, int] = {"given": 0, "worst": 1, "uniform": 2}

TOLERANCE = 1e-3  # of the predictors
INVERSE_TOLERANCE, ROUND_TOLERANCE, ROUNDS = 1e-5, 1e-3, 3  # of the inverse, of a round of refinement, their number
MOST_NEWTON, MOST_PRODUCTS = 40, 300
LARGEST_SIDE, LARGEST_TILE = 128, 4096  # rows, and rows times classes, that fit a multiprocessor


def power_of_two(number: int) -> int:
    """Return the smallest power of two >= number."""
    return 1 << (number - 1).bit_length()


def fits(capacity: int, num_classes: int) -> bool:
    """Return whether one multiprocessor can handle an environment of this size."""
    rows, classes = side(capacity), max(16, power_of_two(num_classes))
    return rows <= LARGEST_SIDE and rows * classes <= LARGEST_TILE


def uses_kernels(asked: bool | None, features: Tensor, capacity: int, num_classes: int, default_solvers: bool) -> bool:
    """Return whether the kernels take a captured batch.

    asked            None: where they can; False: never; True: an error where they cannot
    default_solvers  whether the solvers are the default ones, which alone the kernels replace
    """
    can = (
        default_solvers
        and features.is_cuda
        and features.dtype != torch.float64
        and find_spec("triton") is not None
        and fits(capacity, num_classes)
    )
    if asked and not can:
        raise InputError(
            f"fused must be None or False for {capacity} samples an environment, {num_classes} classes and features of "
            f"type {features.dtype} on {features.device}, got True: it needs CUDA, Triton, float32 or less, at most "
            f"{LARGEST_SIDE} samples, the default solvers and no sample_weights"
        )
    return can and asked is not False


def side(capacity: int) -> int:
    """Return N, the number of rows of a tile that holds this many samples."""
    return max(16, power_of_two(capacity))


def group_fused(
    features: Tensor, labels: Tensor, environments: Tensor, ids: Tensor, num_classes: int, capacity: int
) -> Grouped:
    """Return what `transfer.group` does for a batch in blocks: equally many samples of each of the ids (E,), in order.

    It takes one launch. A sample whose label is out of range, or which is in the wrong block, gets the weight nan.
    """
    from . import kernels

    (n, d), E, N = features.shape, len(ids), side(capacity)
    block = n // E
    if E * block != n or block > capacity:
        raise InputError(
            f"features must have {E} blocks of equal size, at most {capacity}, got {n} rows: draw the same number from "
            "every environment, or leave out blocks=True"
        )
    device, width = features.device, power_of_two(d + 1)
    rows = torch.empty(E, N, d + 1, device=device)
    classes, weights = torch.empty(E, N, dtype=torch.int64, device=device), torch.empty(E, N, device=device)
    tile = min(N, 16)
    kernels.pack[(E, N // tile)](
        features.contiguous(), labels.contiguous(), environments.contiguous(), ids, rows, classes, weights,
        block, d, num_classes, 1 / block, N=N, D=d + 1, TILE=tile, WIDTH=width,
    )  # fmt: skip
    return Grouped(rows, classes, weights, None, num_classes, slots=None, samples=block)


def fused_transfer_risk(
    features: Tensor,
    grouped: Grouped,
    queries: Tensor,
    alpha: Tensor,
    rule: Rule,
    ridge: float,
    gradient_matching: float = 1.0,
    bound: float | None = None,
    rate: float = 0.0,
) -> Transfer:
    """Return the transfer risk of features (n, d), and its gradient, as `transfer.transfer_risk` does.

    grouped  the same batch by environment, with N = side(...)
    queries  (m,) environments Q
    alpha    (m, E) weights for the rule "given"; `Transfer.moved` is alpha after a step of exponentiated gradient
    rate     rate of this step
    """
    tangent = forward_ad.unpack_dual(features).tangent  # of forward mode
    wants_gradient = tangent is not None or (torch.is_grad_enabled() and features.requires_grad)
    with torch.no_grad(), full_precision(features.device):
        result, gradient = _transfer(
            grouped, queries, alpha.float(), rule, ridge, gradient_matching, bound, rate, wants_gradient
        )
        if gradient is None:
            return result
        gradient = grouped.ungroup(gradient)[:, :-1]
    risk: Tensor = WithGradient.apply(features, result.risk, gradient)  # type: ignore[no-untyped-call]  # torch's apply
    return replace(result, risk=risk)


def _transfer(
    grouped: Grouped,
    queries: Tensor,
    alpha: Tensor,
    rule: Rule,
    ridge: float,
    gradient_matching: float,
    bound: float | None,
    rate: float,
    wants_gradient: bool,
) -> tuple[Transfer, Tensor | None]:
    """Return the transfer risk, and its gradient with respect to the rows, (E, N, D)."""
    from . import kernels

    rows, labels, weights, num_classes = grouped.rows, grouped.labels, grouped.weights, grouped.num_classes
    E, N, D = rows.shape
    m, CP = len(queries), max(16, power_of_two(num_classes))
    options = {"N": N, "CP": CP, "num_warps": 4 if N * CP <= 1024 else 8, "num_stages": 1}
    inner = "tf32" if N <= D else "tf32x3"  # K has a null space where rows outnumber features: rounding must spare it
    flat = rows.view(E * N, D)
    asked = rows if m == E else rows[queries]  # queries of all environments come in order
    exact = asked.double()

    def new(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        return torch.empty(shape, dtype=dtype, device=rows.device)

    def found() -> tuple[Tensor, Tensor, Tensor]:
        """Return memory for residuals, whether they are good, and numbers of iterations."""
        return new(m), new(m, dtype=torch.bool), new(m, dtype=torch.int32)

    gram = exact @ exact.mT  # (m, N, N)
    coefficients, rough = new(m, N, CP, dtype=torch.float64), new(m, dtype=torch.bool)
    residuals, good, iterations = found()
    kernels.solve[(m,)](
        gram, labels, weights, queries, coefficients, residuals, good, rough, iterations,
        num_classes, ridge, TOLERANCE, MOST_NEWTON, MOST_PRODUCTS, INNER=inner, **options,
    )  # fmt: skip
    W = (coefficients.mT @ exact).float()  # (m, CP, D)
    solution = Solution(W[:, :num_classes], good, iterations, residuals)
    error = flat @ W.view(m * CP, D).mT  # (E N, m CP), logits at first
    risks, matrix, shares, moved = new(m), new(m, E), new(m, E), new(m, E)
    own, probabilities = new(m, N, CP), new(m, N, CP)
    kernels.pairs[(m,)](
        error, labels, weights, alpha, queries, risks, matrix, shares, moved, own, probabilities,
        E, num_classes, m, rate, RULE=RULES[rule], **options,
    )  # fmt: skip
    result = Transfer(risks.sum(), matrix, shares, solution, None, moved if rule == "given" else None)
    if not wants_gradient:
        return result, None
    if gradient_matching == 0:
        return result, (error @ W.view(m * CP, D)).view(E, N, D)

    v = (error.mT @ flat).view(m, CP, D)
    targets = asked @ v.mT  # (m, N, CP)
    # -lambda r J(U) W belongs to the rows of Q and the predictor of Q, for which `error` has a block of zeros; unless
    # the implicit part is needed by itself.
    apart = bound is not None
    if apart:
        curved, place = new(m, N, CP), {"factor": 1.0, "stride": CP, "across": 0, "along": N * CP}
    else:
        curved, place = error, {"factor": -gradient_matching, "stride": m * CP, "across": N * m * CP, "along": CP}
    residuals, good, iterations = found()
    kernels.invert[(m,)](
        gram, weights, queries, probabilities, targets, rough, coefficients, curved, residuals, good, iterations,
        ridge, ROUND_TOLERANCE, INVERSE_TOLERANCE, ROUNDS, MOST_PRODUCTS, **place, **options,
    )  # fmt: skip
    h = torch.baddbmm(v.double(), coefficients.mT, exact, beta=1 / ridge).float()
    result = replace(result, inverse=Solution(h[:, :num_classes], good, iterations, residuals))
    gradient = (error @ W.view(m * CP, D)).view(E, N, D)
    if apart or m < E:
        through = torch.baddbmm(curved @ W, own, h) if apart else own @ h  # (m, N, D)
        implicit = torch.zeros_like(gradient).index_copy(0, queries, -gradient_matching * through)
        return result, gradient + (implicit if bound is None else bounded(implicit, gradient, bound))
    return result, gradient.baddbmm_(own, h, alpha=-gradient_matching)
