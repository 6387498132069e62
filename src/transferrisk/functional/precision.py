"""The precision in which the head is computed, and the warning where it was not enough."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor

from ..errors import ConvergenceWarning, warn
from ..solvers import Solution

PREDICTOR = "the optimal predictor"
INVERSE = "the implicit gradient's linear system"


def attempts(features: Tensor) -> Iterator[Tensor]:
    """The features, then the same in float64, for callers that the first answer does not satisfy."""
    yield features
    if features.dtype != torch.float64:
        yield features.double()


def warn_unless_converged(solution: Solution, what: str) -> None:
    """Warn of an answer that the last of the `attempts` has not reached: float64 is not a way out any more."""
    if not solution.all_converged:
        iterations = "1 iteration" if solution.iterations == 1 else f"{solution.iterations} iterations"
        warn(
            f"{what} was not solved to tolerance after {iterations}, in float64 (residual "
            f"{float(solution.residual.max()):.2g}); raise ridge, scale the features down, or allow the solver more "
            "iterations",
            ConvergenceWarning,
        )


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No autocast and no TF32: Newton's method cannot correct what a rounded product does to its gradient."""
    with torch.autocast(device.type, enabled=False), _ieee_products(device):
        yield


@contextmanager
def _ieee_products(device: torch.device) -> Iterator[None]:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    if device.type != "cuda" or before == "ieee":  # nothing to change, and so nothing to pin by restoring it
        yield
        return
    matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision = before
