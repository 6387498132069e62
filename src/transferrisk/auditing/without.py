"""Linear predictors without each column: what their held-out loss and their transfer risk would be.

Fits begin at those with all columns, and use a few thousand samples of the environments alike, since only differences
are asked for.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..functional import SoftmaxLoss
from ..functional.linear_loss import logits_of, one_hot, row_losses
from .pooling import Pooled, pool
from .report import Floats
from .run import GRID, fit
from .samples import Samples


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


def refit_without(samples: Samples, columns: Sequence[Sequence[int]]) -> Refitted:
    """Fit predictors on all other environments, and on each alone; then again without each column, from these."""
    best, ridge, start = np.inf, GRID[0], None
    for candidate in GRID:
        start = fit(_loss(samples, candidate, own=False), start).value
        mean = float(np.nanmean([rows.mean() for rows in _tested(samples, start)]))
        if mean < best:
            best, ridge, others = mean, candidate, start
    home = fit(_loss(samples, ridge, own=True)).value
    full, risk = _tested(samples, others), _risk(samples, home)
    losses, risks = [], []
    for indices in columns:
        rows = samples.rows.clone()
        rows[:, indices] = 0  # under a ridge the same as without them
        fewer = Samples(rows, samples.labels, samples.bounds, samples.counts, 1, samples.environments, samples.classes)
        again = _tested(fewer, fit(_loss(fewer, ridge, own=False), others).value)
        change = [after - before for after, before in zip(again, full, strict=True)]
        errors = [float(one.var() / len(one)) if len(one) > 1 else np.nan for one in change]
        losses.append(pool([float(one.mean()) for one in change], errors))
        risks.append(_risk(fewer, fit(_loss(fewer, ridge, own=True), home).value) - risk)
    return Refitted(best, risk, ridge, losses, risks)


def _loss(samples: Samples, ridge: float, own: bool) -> SoftmaxLoss:
    """The loss of E problems: on the samples of each environment alone, or on those of all others."""
    E = len(samples.environments)
    weights = samples.rows.new_full((E, len(samples.rows)), float(not own))
    for e in range(E):
        weights[e, samples.span(e)] = float(own)
    weights /= weights.sum(1, keepdim=True).clamp(min=1)
    chunks = [samples.span(e) for e in range(E)]
    return SoftmaxLoss(
        samples.rows, samples.labels, weights, len(samples.classes), ridge, True, samples.gram(range(E)), chunks
    )


def _tested(samples: Samples, predictors: Tensor) -> list[Floats]:
    """Losses of each environment's samples by its own predictor among (E, C, D)."""
    found = []
    for e, predictor in enumerate(predictors):
        own = samples.span(e)
        targets = one_hot(samples.labels[own], len(samples.classes), predictor.dtype)
        found.append(row_losses(logits_of(predictor, samples.rows[own]), targets).double().numpy())
    return found


def _risk(samples: Samples, predictors: Tensor) -> float:
    """Mean over Q of the largest mean loss of its predictor in an environment P != Q."""
    E = len(samples.environments)
    matrix = np.full((E, E), -np.inf)
    for p in range(E):
        here = samples.span(p)
        targets = one_hot(samples.labels[here], len(samples.classes), predictors.dtype)
        matrix[:, p] = row_losses(logits_of(predictors, samples.rows[here]), targets).mean(1).double().numpy()
    np.fill_diagonal(matrix, -np.inf)
    return float(matrix.max(1).mean())


def thin_samples(samples: Samples, most: int, seed: int) -> Samples:
    """About `most` samples or fewer, with one fold, those of an environment drawn at random."""
    E, C = len(samples.environments), len(samples.classes)
    rng, kept, counts = np.random.default_rng(seed), [], np.zeros((E, 1, C), np.int64)
    for e in range(E):
        own = samples.span(e)
        chosen = own.start + np.sort(rng.permutation(own.stop - own.start)[: max(1, -(-most // E))])
        counts[e, 0] = np.bincount(samples.labels[chosen].numpy(), minlength=C)
        kept.append(chosen)
    order = torch.from_numpy(np.concatenate(kept))
    bounds = (0, *np.cumsum(counts.sum((1, 2))).tolist())
    return Samples(samples.rows[order], samples.labels[order], bounds, counts, 1, samples.environments, samples.classes)
