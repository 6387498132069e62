"""Linear predictors of samples, and their losses in environments that they were not fitted on.

`refit_without` compares these losses with and without each column, and `settle_indicators` with and without a table's
missing-value indicators. Their fits use a few thousand samples, drawn evenly from the environments, since only
differences matter. The number of fits does not grow with the number of environments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from itertools import compress
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ConvergenceWarning, InputError, warn
from ..functional import SoftmaxLoss
from ..functional.linear_loss import logits_of, one_hot, row_losses
from ..solvers import LBFGS, Solution
from .report import Floats, Pooled, pool
from .samples import Codes, Samples, arrange_samples, thin_samples

if TYPE_CHECKING:
    import pandas as pd

    from ..data.infer import Declared
    from ..data.schema import Schema

GRID = (1e-1, 1e-2, 1e-3, 1e-4)
"""Ridges that cross-validation chooses from, strongest first: each fit starts where the one before ended."""
GROUPS = 10  # groups of environments that are left out in turn
_TOLERANCE = 1e-8  # of the minimised loss; losses in other environments are then accurate to about 1e-4
WORKED_ON = 1 << 20  # numbers of rows, or of logits, that are processed at once
_JOINED = 1 << 16  # numbers of rows up to which folds are processed together, though each is held out from some fit
_COLUMNS_WAY_OUT = "regard the findings about columns as rough, or leave out those that nearly repeat others"
_INDICATOR_ROWS = 3000  # samples that missing-value indicators are judged by
_INDICATORS_WAY_OUT = "say whether missing-value indicators are used, with --missing-indicators always or never"


def fit(loss: SoftmaxLoss, start: Tensor | None = None, tolerance: float | None = None, *, way_out: str) -> Solution:
    """Minimise every problem of the loss, from a start (K, C, D) or from zero; a problem without rows yields nan.

    tolerance  tolerance of `solvers.LBFGS` in float64
    way_out    advice that ends the warning about a rough fit
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


def loss_on(samples: Samples, used: NDArray[np.bool_], ridge: float) -> SoftmaxLoss:
    """Return K losses, the k-th on the environments used[k], or on their folds: (K, E) or (K, E, folds).

    Rows are processed by folds: a long fold in chunks, short ones several at once.
    """
    K, E, D, C = *used.shape[:2], samples.rows.shape[1], len(samples.classes)
    folds = np.broadcast_to(used.reshape(K, E, -1), (K, E, samples.folds))
    weights = torch.from_numpy(np.repeat(folds.reshape(K, -1), np.diff(samples.bounds), 1)).to(samples.rows.dtype)
    environments = np.flatnonzero(folds.any((0, 2))).tolist()
    chunks: list[slice] = []
    longest = max(1, WORKED_ON // max(D, K * C))
    for e in environments:
        for k in range(samples.folds):
            block = samples.span(e, k)
            before = chunks[-1] if chunks else None
            if before and block.start == before.stop and (block.stop - before.start) * D <= _JOINED:
                chunks[-1] = slice(before.start, block.stop)
                continue
            edges = [*range(block.start, block.stop, longest), block.stop]
            chunks += map(slice, edges, edges[1:])
    weights = weights / weights.sum(1, keepdim=True).clamp(min=1)
    gram = samples.gram(environments)
    return SoftmaxLoss(samples.rows, samples.labels, weights, C, ridge, True, gram, chunks)


def choose_ridge(samples: Samples, used: NDArray[np.bool_], way_out: str) -> tuple[float, float, Tensor]:
    """Return the least mean `held_out_losses`, its ridge, and the predictors fitted on `used` (G, E)."""
    best, ridge, start = np.inf, GRID[0], None
    for candidate in GRID:
        start = fit(loss_on(samples, used, candidate), start, _TOLERANCE, way_out=way_out).value
        mean = float(np.nanmean(list(map(np.mean, held_out_losses(samples, used, start)))))
        if mean < best:
            best, ridge, others = mean, candidate, start
    return best, ridge, others


def held_out_losses(samples: Samples, used: NDArray[np.bool_], predictors: Tensor) -> list[Floats]:
    """Return the losses of each environment's samples by the predictor (G, C, D) that left it out, by `used` (G, E)."""
    found = []
    for e, group in enumerate(used.argmin(0)):
        own = samples.span(e)
        targets = one_hot(samples.labels[own], len(samples.classes), predictors.dtype)
        found.append(row_losses(logits_of(predictors[group], samples.rows[own]), targets).double().numpy())
    return found


@dataclass(frozen=True)
class Refitted:
    """Linear predictors with all columns, and the changes without each column."""

    held_out: float
    risk: float
    ridge: float
    losses: Sequence[Pooled | None]
    risks: Sequence[float]

    @classmethod
    def none(cls, columns: Mapping[str, Any]) -> Refitted:
        nan = float("nan")
        return cls(nan, nan, nan, [None] * len(columns), [nan] * len(columns))


def refit_without(samples: Samples, columns: Sequence[Sequence[int]], rows: int, seed: int) -> Refitted:
    """Fit predictors on all environments but a few, and on single ones; then again without each column.

    Each of up to `GROUPS` environments is left out alone, and has a predictor of its own. If there are more, as many
    groups of environments are left out in turn, and as many environments, drawn at random, have their own predictor;
    all are tested on. For both kinds of predictor, the ridge with the least loss in other environments is taken.
    """
    drawn = np.random.default_rng(seed).permutation(len(samples.environments))
    homes = np.sort(drawn[:GROUPS])
    used = drawn % GROUPS != np.arange(len(homes))[:, None]
    each = np.full(len(drawn), -(-rows // len(drawn)))
    each[homes] = -(-rows // len(homes))
    samples = thin_samples(samples, each, seed)
    best, ridge, others = choose_ridge(samples, used, _COLUMNS_WAY_OUT)
    least, home_ridge, start = np.inf, GRID[0], None
    for candidate in GRID:
        risk, start = _home_risk(samples, homes, candidate, start)
        if risk < least:
            least, home_ridge, home = risk, candidate, start
    full, losses, risks = held_out_losses(samples, used, others), [], []
    for indices in columns:
        blank = samples.rows.clone()
        blank[:, indices] = 0  # with a ridge, the same as without the column
        fewer = replace(samples, rows=blank, moments={})
        away = fit(loss_on(fewer, used, ridge), others, _TOLERANCE, way_out=_COLUMNS_WAY_OUT).value
        losses.append(_pooled_change(full, held_out_losses(fewer, used, away)))
        risks.append(_home_risk(fewer, homes, home_ridge, home)[0] - least)
    return Refitted(best, least, ridge, losses, risks)


def _pooled_change(before: Sequence[Floats], after: Sequence[Floats]) -> Pooled:
    """Pool the mean change of each environment's losses, each environment counted the same."""
    means, errors = np.full((2, len(before)), np.nan)
    for e, change in enumerate(map(np.subtract, after, before)):
        means[e] = change.mean()
        errors[e] = change.var() / len(change) if len(change) > 1 else np.nan
    return pool(means, errors, evenly=True)


def _home_risk(samples: Samples, homes: Codes, ridge: float, start: Tensor | None) -> tuple[float, Tensor]:
    """Fit a predictor on each home Q alone; return the mean over Q of its largest loss in an environment P != Q.

    The predictors (H, C, D), returned as well, are fitted one after the other, so that each uses only its rows.
    """
    E, fitted = len(samples.environments), []
    for place, e in enumerate(homes):
        loss = loss_on(samples, np.arange(E)[None] == e, ridge)
        before = None if start is None else start[place : place + 1]
        fitted.append(fit(loss, before, _TOLERANCE, way_out=_COLUMNS_WAY_OUT).value)
    predictors, matrix = torch.cat(fitted), np.empty((len(homes), E))
    for p in range(E):
        here = samples.span(p)
        targets = one_hot(samples.labels[here], len(samples.classes), predictors.dtype)
        matrix[:, p] = row_losses(logits_of(predictors, samples.rows[here]), targets).mean(1).double().numpy()
    matrix[np.arange(len(homes)), homes] = -np.inf
    return float(matrix.max(1).mean()), predictors


def settle_indicators(
    schema: Schema, declared: Declared, frame: pd.DataFrame, labels: Any, environments: Any
) -> Schema:
    """Return the schema, with missing-value indicators only if they help in new environments.

    Missing values may reveal the environment, and a relation learnt from them then does not transfer. All indicators
    that are not declared are kept or dropped together. They are kept if linear predictors with them have a lower loss
    in held-out environments of these rows, (n,) labels and environments, than predictors of the same ridge without
    them, by more than the standard error of the mean difference over environments. This error comes from how much
    environments differ, but is not below what the spread of their samples allows, so that a few environments that
    agree by luck do not decide. Environments count the same: weighted by their errors, indicators of pure noise would
    seem to help in half of all tables. With two environments, indicators are left out.
    """
    if declared.others != "auto":
        return schema
    bare = schema
    with suppress(InputError):  # nothing else varies, so that the indicators have to stay
        bare = schema.without_indicators(list(compress(declared.indicators, declared.indicators.values())))
    several = len(np.unique(np.asarray(environments))) > 2 and len(np.unique(np.asarray(labels))) > 1
    if bare == schema or not several:
        return bare
    without, whole = (
        thin_samples(arrange_samples(one.encode(frame).features, labels, environments, 2, 0, True), _INDICATOR_ROWS, 0)
        for one in (bare, schema)
    )  # the same rows in the same order
    drawn = np.random.default_rng(0).permutation(len(whole.environments))
    used = drawn % GROUPS != np.arange(min(GROUPS, len(drawn)))[:, None]
    _, ridge, predictors = choose_ridge(without, used, _INDICATORS_WAY_OUT)
    again = fit(loss_on(whole, used, ridge), tolerance=_TOLERANCE, way_out=_INDICATORS_WAY_OUT).value
    change = _pooled_change(held_out_losses(without, used, predictors), held_out_losses(whole, used, again))
    return schema if -change.mean > change.error else bare
