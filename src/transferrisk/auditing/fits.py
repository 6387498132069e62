"""Fits of linear predictors, for every part of an audit and for what is asked about columns and shifts."""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import ConvergenceWarning, warn
from ..functional import SoftmaxLoss
from ..solvers import LBFGS, Solution

GRID = (1e-1, 1e-2, 1e-3, 1e-4)
"""Ridges that cross-validation chooses from, strongest first: each fit starts where the one before ended."""


def fit(loss: SoftmaxLoss, start: Tensor | None = None, tolerance: float | None = None, *, way_out: str) -> Solution:
    """Minimise every problem of the loss, from a start (K, C, D) or from zero; nan answers one that has no row.

    tolerance  of float64, as `solvers.LBFGS` takes it
    way_out    what the user can do about a rough fit, in words that end the warning
    """
    there = loss.weights.any(1)
    begin = loss.rows.new_zeros(len(there), loss.num_classes, loss.rows.shape[1])
    begin = begin if start is None else start.nan_to_num(0)
    value = torch.full_like(begin, torch.nan)
    if not bool(there.any()):
        return Solution(value, ~there, 0, value[:, 0, 0])
    exact = loss.rows.dtype == torch.float64
    solution = LBFGS(tolerance if exact else None).minimise(loss.only(there), begin[there])
    if not bool(solution.converged.all()):
        warn(
            f"a linear predictor with the ridge {loss.ridge:g} is fitted only roughly, after {solution.iterations} "
            f"iterations: {way_out}",
            ConvergenceWarning,
        )
    value[there] = solution.value
    residual, converged = value[:, 0, 0].clone(), ~there
    residual[there], converged[there] = solution.residual, solution.converged
    return Solution(value, converged, solution.iterations, residual)
