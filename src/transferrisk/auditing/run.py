"""`audit`: will predictors fitted on these features in one environment work in another?

`training.evaluate` has the transfer matrix of a model in training, from one split in halves.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ConvergenceWarning, warn
from ..functional import BlockLoss, uniform_weights, worst_weights
from ..functional.linear_loss import logits_of, one_hot, row_losses
from ..functional.penalties import scale_slopes
from ..settings import Bound, Count, Positive, Seed, convert
from ..solvers import LBFGS, Solution
from .intervals import Drawn, Estimate, Floats, draw_means
from .report import Audit, WorstPair, remarks_of
from .samples import Folds, Samples, arrange_samples

Progress = Callable[[str, int, int], None]

GRID = (1e-1, 1e-2, 1e-3, 1e-4)
"""Ridges that cross-validation chooses from, strongest first: each fit starts where the one before ended."""
_HELPERS = 5  # environments tried as an addition to the worst pair's training, those first that do best there
_CHUNK = 1 << 20  # numbers of rows that are tested at once


def audit(
    features: Any,
    labels: Any,
    environments: Any,
    *,
    ridge: float | None = None,
    folds: Folds = 5,
    bootstrap: int = 200,
    seed: int = 0,
    confidence: float = 0.95,
    standardise: bool = True,
    progress: Progress | None = None,
) -> Audit:
    """Tell how well linear predictors on these features transfer between environments, on held-out samples.

    features      (n, d) array, tensor or table of numbers
    labels        (n,) numbers, texts or anything else that can be told apart; environments likewise
    ridge         of every predictor; None: each environment's own, by cross-validation with the folds of the audit (its
                  diagonal is the score that was selected by), and for predictors of several environments the geometric
                  mean of those of the judged ones
    folds         how many, dealt out by environment and class; or the fold of each sample, (n,), to keep together what
                  belongs together; the draws of the bootstrap do not, and take samples one by one: where several come
                  from one patient or one film, true intervals are wider than those given
    bootstrap     draws behind each interval, of which the middle `confidence` is taken; predictors are not refitted.
                  Intervals of what is named for being the worst or the best allow for that choice
    standardise   bring every feature to mean 0 and deviation 1 over all samples, so that one ridge suits all
    progress      called with ("auditing", done, total) on the way

    For each fold a predictor is fitted on one environment's samples outside the fold, and tested on every environment's
    samples in it. Losses are cross-entropies. See `Audit` for what comes back.
    """
    begun = time.perf_counter()
    ridge, bootstrap = convert("ridge", ridge, Positive | None), convert("bootstrap", bootstrap, Count)
    seed, standardise = convert("seed", seed, Seed), convert("standardise", standardise, bool)
    confidence = convert("confidence", confidence, Annotated[float, Bound(above=0, below=1)])
    samples = arrange_samples(features, labels, environments, folds, seed, standardise)
    E = len(samples.environments)
    tell = progress or _tell_nobody
    with torch.no_grad():
        fitted = []
        for e in range(E):
            fitted.append(fit_home(samples, e, ridge))
            tell("auditing", e + 1, E + 3)
        own = torch.stack([value for value, _ in fitted])  # (E, folds, C, D)
        ridges = np.array([chosen for _, chosen in fitted])
        single = held_out_scores(samples, own, range(E))
        matrix_seconds = time.perf_counter() - begun
        counts = samples.counts()
        remarks, judged = remarks_of(samples.environments, samples.classes, counts)
        shared = _shared_ridge(ridges, judged)
        pooled = fit(fold_loss(samples, range(E), shared), own.nanmean(0)).value
        tell("auditing", E + 1, E + 3)
        without = fit(without_loss(samples, shared), pooled.nanmean(0).expand(E, -1, -1)).value
        tell("auditing", E + 2, E + 3)
        several = scores(samples, lambda e, k: torch.stack([pooled[k], without[e]]), 2, range(E))
        judge = _Judge(samples, judged, bootstrap, seed, confidence)
        tested = judge.means(torch.cat([single.loss, single.correct, several.loss, several.correct, several.slope[:1]]))
        loss, right, rest = tested[:E], tested[E : 2 * E], tested[2 * E :]
        worst, by_accuracy = judge.worst_pairs(loss, right, own, shared)
        tell("auditing", E + 3, E + 3)
    return Audit(
        environments=samples.environments,
        classes=samples.classes,
        loss=loss.estimate(confidence),
        accuracy=right.estimate(confidence),
        pooled_loss=rest[0].estimate(confidence),
        pooled_accuracy=rest[2].estimate(confidence),
        left_out_loss=rest[1].estimate(confidence),
        left_out_accuracy=rest[3].estimate(confidence),
        unseen=judge.unseen(right, rest[3]),
        transfer_risk=judge.risk(loss, worst_weights),
        mean_transfer_risk=judge.risk(loss, uniform_weights),
        irm=rest[4].map(np.square).estimate(confidence),
        worst=worst,
        worst_by_accuracy=by_accuracy,
        counts=counts.sum(1),
        ridges=ridges,
        pooled_ridge=shared,
        judged=judged,
        remarks=remarks,
        settings={
            "folds": samples.folds, "bootstrap": bootstrap, "seed": seed, "confidence": confidence,
            "standardise": standardise, "ridge": ridge,
        },
        seconds={"matrix": matrix_seconds, "all": time.perf_counter() - begun},
    )  # fmt: skip


def _tell_nobody(what: str, done: int, total: int) -> None:
    pass


def fold_loss(samples: Samples, environments: Sequence[int], ridge: float) -> BlockLoss:
    """For each fold the loss on these environments' samples outside of it."""
    blocks = [samples.block(e, k) for e in environments for k in range(samples.folds)]
    included = ~torch.eye(samples.folds, dtype=torch.bool).repeat(1, len(environments))
    return _loss(samples, blocks, included, environments, ridge)


def without_loss(samples: Samples, ridge: float) -> BlockLoss:
    """For each environment the loss on all samples of the others."""
    E = len(samples.environments)
    blocks = [samples.environment(e) for e in range(E)]
    return _loss(samples, blocks, ~torch.eye(E, dtype=torch.bool), range(E), ridge)


def _loss(
    samples: Samples, blocks: Sequence[slice], included: Tensor, environments: Sequence[int], ridge: float
) -> BlockLoss:
    gram = samples.gram(environments)
    return BlockLoss(samples.rows, samples.labels, blocks, included, len(samples.classes), ridge, gram)


def fit(loss: BlockLoss, start: Tensor | None = None) -> Solution:
    """Minimise every problem of the loss, from a start (K, C, D) or from zero; nan answers one that has no row."""
    there = loss.sizes > 0
    shape = (len(there), loss.num_classes, loss.rows.shape[1])
    start = loss.rows.new_zeros(shape) if start is None else start.nan_to_num(0)
    value = torch.full_like(start, torch.nan)
    if not bool(there.any()):
        return Solution(value, ~there, 0, value[:, 0, 0])
    solution = LBFGS().minimise(loss.only(there), start[there])
    if not solution.all_converged:
        warn(
            f"a predictor of the audit was not fitted to tolerance after {solution.iterations} iterations: raise "
            "ridge, or standardise the features",
            ConvergenceWarning,
        )
    value[there] = solution.value
    residual, converged = value[:, 0, 0].clone(), ~there
    residual[there], converged[there] = solution.residual, solution.converged
    return Solution(value, converged, solution.iterations, residual)


def fit_home(samples: Samples, environment: int, ridge: float | None) -> tuple[Tensor, float]:
    """Predictors of one environment, (folds, C, D), and their ridge.

    Unless it is given, the ridge is that of the least held-out loss there; nan where that cannot be known, as in an
    environment whose samples all lie in one fold.
    """
    if ridge is not None:
        return fit(fold_loss(samples, [environment], ridge)).value, ridge
    best, start, chosen = torch.inf, None, None
    for candidate in GRID:
        start = fit(fold_loss(samples, [environment], candidate), start).value
        own = held_out_scores(samples, start.unsqueeze(0), [environment]).loss
        mean = float(own[:, samples.environment(environment)].nanmean())
        if mean < best:
            best, chosen = mean, (start, candidate)
    if chosen is None:
        assert start is not None
        return start, torch.nan
    return chosen


def _shared_ridge(ridges: Floats, judged: NDArray[np.bool_]) -> float:
    """The geometric mean of the judged environments' ridges; of all that have one where none is judged."""
    there = np.isfinite(ridges)
    chosen = ridges[judged & there] if (judged & there).any() else ridges[there]
    return float(np.exp(np.log(chosen).mean())) if len(chosen) else GRID[0]


@dataclass(frozen=True)
class Scores:
    """What R predictors do on n samples, (R, n) each; nan where a predictor does not exist."""

    loss: Tensor
    correct: Tensor  # 1 or 0
    slope: Tensor  # derivative of the loss by a scale of the logits, whose mean, squared, is IRMv1's penalty


def held_out_scores(samples: Samples, predictors: Tensor, environments: Sequence[int]) -> Scores:
    """Predictors (R, folds, C, D) on the samples of the fold they belong to; nan outside the environments named."""
    return scores(samples, lambda environment, fold: predictors[:, fold], len(predictors), environments)


def scores(
    samples: Samples, of_block: Callable[[int, int], Tensor], number: int, environments: Sequence[int]
) -> Scores:
    """`of_block` gives the predictors (R, C, D) to test on a block (environment, fold)."""
    loss, correct, slope = samples.rows.new_full((3, number, len(samples.labels)), torch.nan)
    step = max(1, _CHUNK // samples.rows.shape[1])
    for e in environments:
        for k in range(samples.folds):
            predictors, block = of_block(e, k), samples.block(e, k)
            for begin in range(block.start, block.stop, step):
                part = slice(begin, min(begin + step, block.stop))
                logits = logits_of(predictors, samples.rows[part])  # (R, m, C)
                targets = one_hot(samples.labels[part], logits.shape[-1], logits.dtype)
                right = (logits.argmax(-1) == samples.labels[part]).to(logits.dtype)
                loss[:, part], slope[:, part] = row_losses(logits, targets), scale_slopes(logits, targets)
                correct[:, part] = torch.where(loss[:, part].isnan(), torch.nan, right)
    return Scores(loss, correct, slope)


@dataclass(frozen=True, eq=False)
class _Judge:
    """What means over held-out samples say, in the data and in every draw of them."""

    samples: Samples
    judged: NDArray[np.bool_]
    bootstrap: int
    seed: int
    confidence: float

    def means(self, values: Tensor) -> Drawn:
        """Of values (R, n) by environment, (R, E); draws are the same in every call."""
        generator = torch.Generator().manual_seed(self.seed)
        found = [
            draw_means(values[:, self.samples.environment(e)], self.bootstrap, generator)
            for e in range(len(self.samples.environments))
        ]
        return Drawn(np.stack([one.value for one in found], -1), np.stack([one.draws for one in found], -1))

    def risk(self, loss: Drawn, rule: Callable[[Tensor, Tensor], Tensor]) -> Estimate:
        """Mean over judged Q of M[Q, P] weighted by the rule over judged P != Q.

        Weights stay in every draw what they are without drawing: a maximum taken anew in each would be larger, not less
        certain.
        """
        those = np.flatnonzero(self.judged)
        if len(those) < 2:
            return Estimate(np.nan, np.nan, np.nan)
        matrix = loss.map(lambda values: values[..., those[:, None], those])
        weights = rule(torch.from_numpy(matrix.value), ~torch.eye(len(those), dtype=torch.bool)).numpy()
        return matrix.map(lambda values: (weights * values).sum(-1).mean(-1)).estimate(self.confidence)

    def unseen(self, right: Drawn, left_out: Drawn) -> Estimate:
        """Accuracy that environments lose by not being trained on, (E,): they are compared, so all hold at once."""
        lost = right.map(_diagonal) - left_out
        deviations = lost[self.judged].largest_deviations()
        return lost.map(lambda values: np.where(self.judged, values, np.nan)).estimate_chosen(
            deviations, self.confidence
        )

    def worst_pairs(
        self, loss: Drawn, right: Drawn, own: Tensor, ridge: float
    ) -> tuple[WorstPair | None, WorstPair | None]:
        """By loss and by accuracy, which need not be the same."""
        both = np.outer(self.judged, self.judged) & ~np.eye(len(self.judged), dtype=bool)
        if not both.any():
            return None, None
        lost, missed = loss.map(_above_own), right.map(lambda values: -_above_own(values))
        by_loss, by_accuracy = lost[both].largest_deviations(), missed[both].largest_deviations()
        pairs: dict[tuple[int, int], WorstPair] = {}
        found = []
        for by in (lost, missed):
            place = int(np.where(both, by.value, -np.inf).argmax())
            q, p = divmod(place, len(both))
            if (q, p) not in pairs:
                others = [int(r) for r in np.argsort(loss.value[:, p], kind="stable") if r not in (q, p)]
                excess = lost[q, p].estimate_chosen(by_loss, self.confidence)
                points = missed[q, p].estimate_chosen(by_accuracy, self.confidence)
                helper = self._helper(q, p, [r for r in others if self.judged[r]], own, ridge, by_accuracy)
                pairs[q, p] = WorstPair(q, p, excess, points, *helper)
            found.append(pairs[q, p])
        return found[0], found[1]

    def _helper(
        self, q: int, p: int, others: Sequence[int], own: Tensor, ridge: float, deviations: Floats
    ) -> tuple[int | None, Estimate | None]:
        """The environment that, added to q's training samples, helps most at p, and what it brings there.

        It is chosen among several, at a pair chosen among many, by whose deviations (B,) its interval is widened too.
        """
        others = others[:_HELPERS]
        if not others:
            return None, None
        together = [fit(fold_loss(self.samples, [q, r], ridge), (own[q] + own[r]) / 2).value for r in others]
        tested = held_out_scores(self.samples, torch.stack([*together, own[q]]), [p]).correct
        right = self.means(tested)[:, p]  # (R + 1,)
        brought = right[:-1] - right[-1:]
        best = int(brought.value.argmax())
        deviations = np.maximum(deviations, brought.largest_deviations())
        return others[best], brought[best].estimate_chosen(deviations, self.confidence)


def _diagonal(matrix: Floats) -> Floats:
    """M[P, P] of (..., E, E)."""
    return np.diagonal(matrix, axis1=-2, axis2=-1)


def _above_own(matrix: Floats) -> Floats:
    """M[Q, P] - M[P, P] of (..., E, E)."""
    return matrix - _diagonal(matrix)[..., None, :]
