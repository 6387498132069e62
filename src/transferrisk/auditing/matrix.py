"""The predictors of an audit, and what each does on every sample that it was not fitted on.

`training.evaluate` has the transfer matrix of a model in training, from one split in halves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .fits import CHUNK, Block, Fits, fit
from .samples import Samples

GRID = (1e-1, 1e-2, 1e-3, 1e-4)
"""Ridges that cross-validation chooses from, strongest first: each fit starts where the one before ended."""


@dataclass(frozen=True)
class Scores:
    """Of R predictors on n samples, (R, n); nan where a predictor does not exist."""

    loss: Tensor
    correct: Tensor  # 1 or 0
    slope: Tensor  # derivative of the loss by a scale of the logits, whose mean, squared, is IRMv1's penalty


def fit_folds(samples: Samples, environments: Sequence[int], ridge: float, start: Tensor | None = None) -> Fits:
    """For each fold a predictor fitted on these environments' samples outside of it: value (folds, C, D)."""
    F = samples.folds
    spans = [samples.block(e, k) for e in environments for k in range(F)]
    included = ~torch.eye(F, dtype=torch.bool).repeat(1, len(environments))
    return fit(
        _blocks(samples, spans), included, len(samples.classes), ridge, _gram(samples, environments), start=start
    )


def fit_without(samples: Samples, ridge: float, start: Tensor) -> Fits:
    """For each environment a predictor fitted on all samples of the others: value (E, C, D)."""
    E = len(samples.environments)
    blocks = _blocks(samples, [samples.environment(e) for e in range(E)])
    included = ~torch.eye(E, dtype=torch.bool)
    return fit(blocks, included, len(samples.classes), ridge, _gram(samples, range(E)), start=start)


def fit_chosen(samples: Samples, environment: int, ridge: float | None) -> tuple[Tensor, float]:
    """`fit_folds` on one environment, and its ridge: unless given, the one with the least held-out loss there.

    The ridge is nan where that cannot be known, as of an environment whose samples all lie in one fold.
    """
    if ridge is not None:
        return fit_folds(samples, [environment], ridge).value, ridge
    best, start, chosen = torch.inf, None, None
    for candidate in GRID:
        start = fit_folds(samples, [environment], candidate, start).value
        own = held_out(samples, start.unsqueeze(0), [environment]).loss
        mean = float(own[:, samples.environment(environment)].nanmean())
        if mean < best:
            best, chosen = mean, (start, candidate)
    if chosen is None:
        assert start is not None
        return start, torch.nan
    return chosen


def held_out(samples: Samples, predictors: Tensor, environments: Sequence[int]) -> Scores:
    """Predictors (R, folds, C, D) on the samples of the fold they belong to; nan outside the environments named."""

    def of_block(environment: int, fold: int) -> Tensor:
        return predictors[:, fold]

    return scores(samples, of_block, len(predictors), environments)


def scores(
    samples: Samples, of_block: Callable[[int, int], Tensor], number: int, environments: Sequence[int]
) -> Scores:
    """`of_block` gives the predictors (R, C, D) to test on a block."""
    shape = (number, len(samples.labels))
    loss, correct, slope = (torch.full(shape, torch.nan, dtype=samples.rows.dtype) for _ in range(3))
    step = max(1, CHUNK // samples.rows.shape[1])
    for e in environments:
        for k in range(samples.folds):
            predictors, block = of_block(e, k), samples.block(e, k)
            for begin in range(block.start, block.stop, step):
                part = slice(begin, min(begin + step, block.stop))
                out = _score(predictors, samples.rows[part], samples.labels[part])
                loss[:, part], correct[:, part], slope[:, part] = out
    return Scores(loss, correct, slope)


def _score(predictors: Tensor, rows: Tensor, labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Loss, whether right, and slope of R predictors on m rows, each (R, m)."""
    R, C, D = predictors.shape
    stacked = predictors.reshape(R * C, D)
    logits = torch.addmm(stacked[:, -1:], stacked[:, :-1], rows.mT).view(R, C, len(rows))
    true = labels.expand(R, 1, -1)
    own = logits.gather(1, true).squeeze(1)
    mean = (torch.softmax(logits, 1) * logits).sum(1)
    right = (logits.argmax(1) == labels).to(rows.dtype)
    return torch.logsumexp(logits, 1) - own, torch.where(own.isnan(), own, right), mean - own


def _blocks(samples: Samples, spans: Sequence[slice]) -> list[Block]:
    return [(samples.rows[span], samples.labels[span]) for span in spans]


def _gram(samples: Samples, environments: Sequence[int]) -> Tensor:
    total = samples.gram(environments[0]).clone()
    for e in environments[1:]:
        total += samples.gram(e)
    return total / total[-1, -1].clamp(min=1)
