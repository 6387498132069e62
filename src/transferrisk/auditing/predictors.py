"""Linear predictors of samples: fits, and what is lost in environments that a predictor was not fitted on.

`refit_without` asks that of every column, and `settle_indicators` of a table's missing-value indicators. Their fits
begin at those with all columns, and use a few thousand samples of the environments alike, since only differences are
asked for. The number of fits does not grow with that of environments.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
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
GROUPS = 10  # of environments that are left out in turn
_TOLERANCE = 1e-8  # of the loss that is minimised; losses in other environments are then right to about 1e-4
_COLUMNS_WAY_OUT = "take what is said about columns as rough, or leave out those that nearly repeat others"
_INDICATOR_ROWS = 3000  # samples that missing-value indicators are judged by
_INDICATORS_WAY_OUT = "say whether missing-value indicators are used, with --missing-indicators always or never"


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


def choose_ridge(samples: Samples, groups: Codes, way_out: str) -> tuple[float, float, Tensor]:
    """The least mean loss of predictors in environments they were not fitted on, its ridge, and these predictors."""
    best, ridge, start = np.inf, GRID[0], None
    for candidate in GRID:
        start = fit_without_groups(samples, groups, candidate, start, way_out)
        mean = float(np.nanmean(list(map(np.mean, held_out_losses(samples, groups, start)))))
        if mean < best:
            best, ridge, others = mean, candidate, start
    return best, ridge, others


def fit_without_groups(samples: Samples, groups: Codes, ridge: float, start: Tensor | None, way_out: str) -> Tensor:
    """Fit predictors on all environments but those of each group, (G, C, D); `fit` has the way out."""
    weights = samples.rows.new_ones(int(groups.max()) + 1, len(samples.rows))
    for e, group in enumerate(groups):
        weights[group, samples.span(e)] = 0
    return _minimum(samples.rows, samples.labels, weights, samples, range(len(groups)), ridge, start, way_out)


def held_out_losses(samples: Samples, groups: Codes, predictors: Tensor) -> list[Floats]:
    """Losses of each environment's samples by the predictor, of (G, C, D), of the group it is in."""
    found = []
    for e, group in enumerate(groups):
        own = samples.span(e)
        targets = one_hot(samples.labels[own], len(samples.classes), predictors.dtype)
        found.append(row_losses(logits_of(predictors[group], samples.rows[own]), targets).double().numpy())
    return found


def _minimum(
    rows: Tensor,
    labels: Tensor,
    weights: Tensor,
    samples: Samples,
    environments: Sequence[int],
    ridge: float,
    start: Tensor | None,
    way_out: str,
) -> Tensor:
    weights = weights / weights.sum(1, keepdim=True).clamp(min=1)
    gram = samples.gram(environments)
    loss = SoftmaxLoss(rows, labels, weights, len(samples.classes), ridge, True, gram)
    return fit(loss, start, _TOLERANCE, way_out=way_out).value


@dataclass(frozen=True)
class Refitted:
    """Linear predictors with all columns, and the changes without each of them."""

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
    """Fit predictors on all environments but a few, and on single ones; then again without each column, from these.

    Up to `GROUPS` environments each is left out alone, and each has a predictor of its own. Of more, so many groups
    are left out in turn, and so many environments, drawn at random, have their own predictor; all are tested on. The
    ridge is the one with the least loss in environments that a predictor was not fitted on, for both kinds of it.
    """
    drawn = np.random.default_rng(seed).permutation(len(samples.environments))
    groups, homes = drawn % GROUPS, np.sort(drawn[:GROUPS])
    each = np.full(len(drawn), -(-rows // len(drawn)))
    each[homes] = -(-rows // len(homes))
    samples = thin_samples(samples, each, seed)
    best, ridge, others = choose_ridge(samples, groups, _COLUMNS_WAY_OUT)
    least, home_ridge, at_home = np.inf, GRID[0], None
    for candidate in GRID:
        at_home = _fit_homes(samples, homes, candidate, at_home)
        if (risk := _risk(samples, homes, at_home)) < least:
            least, home_ridge, home = risk, candidate, at_home
    full, losses, risks = held_out_losses(samples, groups, others), [], []
    for indices in columns:
        blank = samples.rows.clone()
        blank[:, indices] = 0  # under a ridge the same as without them
        fewer = replace(samples, rows=blank, moments={})
        again = held_out_losses(fewer, groups, fit_without_groups(fewer, groups, ridge, others, _COLUMNS_WAY_OUT))
        change = [after - before for after, before in zip(again, full, strict=True)]
        errors = [float(one.var() / len(one)) if len(one) > 1 else np.nan for one in change]
        losses.append(pool([float(one.mean()) for one in change], errors, evenly=True))
        risks.append(_risk(fewer, homes, _fit_homes(fewer, homes, home_ridge, home)) - least)
    return Refitted(best, least, ridge, losses, risks)


def _fit_homes(samples: Samples, homes: Codes, ridge: float, start: Tensor | None = None) -> Tensor:
    """The predictors on each of these environments alone, (H, C, D)."""
    found = []
    for place, e in enumerate(homes):
        own = samples.span(e)
        rows, labels = samples.rows[own], samples.labels[own]
        before = None if start is None else start[place : place + 1]
        found.append(_minimum(rows, labels, rows.new_ones(1, len(rows)), samples, [e], ridge, before, _COLUMNS_WAY_OUT))
    return torch.cat(found)


def _risk(samples: Samples, homes: Codes, predictors: Tensor) -> float:
    """Mean over these Q of the largest mean loss of its predictor in an environment P != Q."""
    matrix = np.empty((len(homes), len(samples.environments)))
    for p in range(len(samples.environments)):
        here = samples.span(p)
        targets = one_hot(samples.labels[here], len(samples.classes), predictors.dtype)
        matrix[:, p] = row_losses(logits_of(predictors, samples.rows[here]), targets).mean(1).double().numpy()
    matrix[np.arange(len(homes)), homes] = -np.inf
    return float(matrix.max(1).mean())


def settle_indicators(
    schema: Schema, declared: Declared, frame: pd.DataFrame, labels: Any, environments: Any
) -> Schema:
    """Return the schema with missing-value indicators only where they help in new environments.

    What is missing may tell the environment, and then what is learnt from it does not transfer. All indicators that
    nothing is said about stay or go together. They stay where linear predictors with them lose less in held-out
    environments of these rows, (n,) labels and environments, than predictors of the same ridge without them, by more
    than the standard error of the mean difference over environments. That error is taken from how much environments
    differ, but not below what the spread of their samples allows, so that a few that agree by luck do not decide.
    Environments count the same: weighted by their errors, indicators of pure noise would seem to help in half of all
    tables. Two environments are too few to tell: the indicators are left out.
    """
    if declared.others != "auto":
        return schema
    bare = schema
    with suppress(InputError):  # nothing else varies, so that the indicators have to stay
        bare = schema.without_indicators([name for name, stays in declared.indicators.items() if stays])
    several = len(np.unique(np.asarray(environments))) > 2 and len(np.unique(np.asarray(labels))) > 1
    if bare == schema or not several:
        return bare
    without, whole = (
        thin_samples(arrange_samples(one.encode(frame).features, labels, environments, 2, 0, True), _INDICATOR_ROWS, 0)
        for one in (bare, schema)
    )  # the same rows in the same order
    groups = np.random.default_rng(0).permutation(len(whole.environments)) % GROUPS
    _, ridge, predictors = choose_ridge(without, groups, _INDICATORS_WAY_OUT)
    before = held_out_losses(without, groups, predictors)
    after = held_out_losses(whole, groups, fit_without_groups(whole, groups, ridge, None, _INDICATORS_WAY_OUT))
    gains = [was - now for was, now in zip(before, after, strict=True)]
    pooled = pool([one.mean() for one in gains], [one.var() / len(one) for one in gains], evenly=True)
    return schema if pooled.mean > pooled.error else bare
