"""`audit`: will predictors fitted on these features in one environment work in another?"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError
from ..functional import uniform_weights, worst_weights
from ..functional.checks import check_count, check_number, check_ridge
from .bootstrap import Estimate, Floats, after_choice, largest_deviations, resampled_means
from .matrix import GRID, Scores, fit_chosen, fit_folds, fit_without, held_out, scores
from .report import Audit, WorstPair
from .samples import Samples, prepare
from .sentences import remarks_of, sentences

Progress = Callable[[str, int, int], None]

_HELPERS = 5  # environments tried as an addition to the worst pair's training, those first that do best there


def audit(
    features: Any,
    labels: Any,
    environments: Any,
    *,
    ridge: float | None = None,
    folds: int | Sequence[int] | NDArray[np.int64] = 5,
    bootstrap: int = 200,
    seed: int = 0,
    confidence: float = 0.95,
    standardise: bool = True,
    progress: Progress | None = None,
) -> Audit:
    """How well linear predictors on these features transfer between environments, on held-out samples.

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
    progress      called with (what, done, total) on the way

    For each fold a predictor is fitted on one environment's samples outside the fold, and tested on every environment's
    samples in it. Losses are cross-entropies. See `Audit` for what comes back.
    """
    begun = time.perf_counter()
    _check(ridge, bootstrap, seed, confidence)
    samples = prepare(features, labels, environments, folds, seed, standardise)
    E = len(samples.environments)
    tell = _Steps(progress, E + 3)
    with torch.no_grad():
        fitted = []
        for e in range(E):
            fitted.append(fit_chosen(samples, e, ridge))
            tell(f"fitted on {samples.environments[e]}")
        own = torch.stack([value for value, _ in fitted])  # (E, folds, C, D)
        ridges = np.array([chosen for _, chosen in fitted])
        single = held_out(samples, own, range(E))
        matrix_seconds = time.perf_counter() - begun
        shared = _shared_ridge(samples, ridges)
        pooled = fit_folds(samples, range(E), shared, own.nanmean(0)).value
        tell("fitted on all")
        without = fit_without(samples, shared, pooled.nanmean(0).expand(E, -1, -1)).value
        tell("fitted on all but one")
        several = scores(samples, lambda e, k: torch.stack([pooled[k], without[e]]), 2, range(E))
        judge = _Judge(samples, single, several, bootstrap, seed, confidence)
        worst, by_accuracy = judge.worst_pairs(shared, own)
        tell("tested")
    found = judge.audit(worst, by_accuracy, ridges, shared)
    settings = {
        "folds": samples.folds, "bootstrap": bootstrap, "seed": seed, "confidence": confidence,
        "standardise": standardise, "ridge": ridge,
    }  # fmt: skip
    seconds = {"matrix": matrix_seconds, "all": time.perf_counter() - begun}
    found = replace(found, settings=settings, seconds=seconds)
    return replace(found, sentences=sentences(found))


class _Judge:
    """Means over held-out samples, of the environments one by one, and in every draw."""

    def __init__(
        self, samples: Samples, single: Scores, several: Scores, bootstrap: int, seed: int, confidence: float
    ) -> None:
        self.samples, self.confidence, self.seed, self.bootstrap = samples, confidence, seed, bootstrap
        self.counts = samples.counts()
        self.remarks, self.judged = remarks_of(samples.environments, samples.classes, self.counts)
        E = len(samples.environments)
        every = torch.cat([single.loss, single.correct, several.loss, several.correct, several.slope[:1]])
        means, draws = self._means(every)  # (2E + 5, E), (B, 2E + 5, E)
        self.loss, self.losses = means[:E], draws[:, :E]
        self.right, self.rights = means[E : 2 * E], draws[:, E : 2 * E]
        self.rest, self.rests = means[2 * E :], draws[:, 2 * E :]

    def _means(self, values: Tensor) -> tuple[Floats, Floats]:
        """Of values (R, n) by environment, (R, E), and of their draws, (B, R, E)."""
        generator = torch.Generator().manual_seed(self.seed)
        parts = [values[:, self.samples.environment(e)] for e in range(len(self.samples.environments))]
        means = np.stack([part.double().mean(1).numpy() for part in parts], -1)
        return means, np.stack([resampled_means(part, self.bootstrap, generator) for part in parts], -1)

    def _estimate(self, value: Any, draws: Floats) -> Estimate:
        return Estimate.of(value, draws, self.confidence)

    def _risk(self, rule: Callable[[Tensor, Tensor], Tensor]) -> Estimate:
        """Mean over judged Q of M[Q, P] weighted by the rule over judged P != Q.

        Weights stay in every draw what they are without drawing: a maximum taken anew in each would be larger, not less
        certain.
        """
        those = np.flatnonzero(self.judged)
        if len(those) < 2:
            return Estimate(np.nan, np.nan, np.nan)
        matrix = self.loss[np.ix_(those, those)]
        weights = rule(torch.from_numpy(matrix), ~torch.eye(len(those), dtype=torch.bool)).numpy()

        def of(matrix: Floats) -> Floats:
            return np.asarray((weights * matrix).sum(-1).mean(-1))

        return self._estimate(of(matrix), of(self.losses[:, those][:, :, those]))

    def worst_pairs(self, ridge: float, own: Tensor) -> tuple[WorstPair | None, WorstPair | None]:
        """By loss and by accuracy, which need not be the same."""
        both = np.outer(self.judged, self.judged) & ~np.eye(len(self.judged), dtype=bool)
        if not both.any():
            return None, None
        losses, rights = _above_own(self.losses), -_above_own(self.rights)
        lost, missed = np.where(both, _above_own(self.loss), -np.inf), np.where(both, -_above_own(self.right), -np.inf)
        places = [np.unravel_index(int(by.argmax()), by.shape) for by in (lost, missed)]
        first, second = ((int(q), int(p)) for q, p in places)
        by_loss = largest_deviations(lost[both], losses[:, both])
        by_accuracy = largest_deviations(missed[both], rights[:, both])

        def pair(q: int, p: int) -> WorstPair:
            excess = after_choice(lost[q, p], losses[:, q, p], by_loss, self.confidence)
            points = after_choice(missed[q, p], rights[:, q, p], by_accuracy, self.confidence)
            return WorstPair(q, p, excess, points, *self._helper(q, p, by_accuracy, ridge, own))

        worst = pair(*first)
        return worst, worst if second == first else pair(*second)

    def _helper(
        self, q: int, p: int, deviations: Floats, ridge: float, own: Tensor
    ) -> tuple[int | None, Estimate | None]:
        """The environment that, added to q's training samples, helps most at p, and what it brings there.

        It is chosen among several, at a pair chosen among many, by whose deviations (B,) its interval is widened too.
        """
        others = [int(r) for r in np.argsort(self.loss[:, p], kind="stable") if r not in (q, p) and self.judged[r]]
        others = others[:_HELPERS]
        if not others:
            return None, None
        together = [fit_folds(self.samples, [q, r], ridge, (own[q] + own[r]) / 2).value for r in others]
        tested = held_out(self.samples, torch.stack([*together, own[q]]), [p]).correct
        means, draws = (found[..., p] for found in self._means(tested))  # (R + 1,), (B, R + 1)
        brought, drawn = means[:-1] - means[-1], draws[:, :-1] - draws[:, -1:]
        deviations = np.maximum(deviations, largest_deviations(brought, drawn))
        best = int(brought.argmax())
        return others[best], after_choice(brought[best], drawn[:, best], deviations, self.confidence)

    def _unseen(self) -> Estimate:
        """Accuracy that environments lose by not being trained on, (E,): they are compared, so all hold at once."""
        value = np.diag(self.right) - self.rest[3]
        draws = np.diagonal(self.rights, axis1=1, axis2=2) - self.rests[:, 3]
        value, draws = np.where(self.judged, value, np.nan), np.where(self.judged, draws, np.nan)
        deviations = largest_deviations(value[self.judged], draws[:, self.judged])
        return after_choice(value, draws, deviations, self.confidence)

    def audit(
        self, worst: WorstPair | None, by_accuracy: WorstPair | None, ridges: Floats, pooled_ridge: float
    ) -> Audit:
        pooled, left_out = ([self._estimate(self.rest[i], self.rests[:, i]) for i in rows] for rows in ((0, 2), (1, 3)))
        return Audit(
            environments=self.samples.environments,
            classes=self.samples.classes,
            loss=self._estimate(self.loss, self.losses),
            accuracy=self._estimate(self.right, self.rights),
            pooled_loss=pooled[0],
            pooled_accuracy=pooled[1],
            left_out_loss=left_out[0],
            left_out_accuracy=left_out[1],
            unseen=self._unseen(),
            transfer_risk=self._risk(worst_weights),
            mean_transfer_risk=self._risk(uniform_weights),
            irm=self._estimate(self.rest[4] ** 2, self.rests[:, 4] ** 2),
            worst=worst,
            worst_by_accuracy=by_accuracy,
            counts=self.counts.sum(1),
            ridges=ridges,
            pooled_ridge=pooled_ridge,
            judged=self.judged,
            remarks=self.remarks,
            settings={},
            seconds={},
        )


def _shared_ridge(samples: Samples, ridges: Floats) -> float:
    """The geometric mean of the judged environments' ridges; of all that have one where none is judged."""
    _, judged = remarks_of(samples.environments, samples.classes, samples.counts())
    known = np.isfinite(ridges)
    chosen = ridges[judged & known] if (judged & known).any() else ridges[known]
    return float(np.exp(np.log(chosen).mean())) if len(chosen) else GRID[0]


def _above_own(matrix: Floats) -> Floats:
    """M[Q, P] - M[P, P] of (..., E, E)."""
    return matrix - np.diagonal(matrix, axis1=-2, axis2=-1)[..., None, :]


class _Steps:
    def __init__(self, progress: Progress | None, total: int) -> None:
        self.progress, self.total, self.done = progress, total, 0

    def __call__(self, what: str) -> None:
        self.done += 1
        if self.progress is not None:
            self.progress(what, self.done, self.total)


def _check(ridge: float | None, bootstrap: int, seed: int, confidence: float) -> None:
    if ridge is not None:
        check_ridge(ridge)
    check_count("bootstrap", bootstrap)
    if not 0 < check_number("confidence", confidence) < 1:
        raise InputError(f"confidence={confidence} is not between 0 and 1: give a share such as 0.95")
    if not (isinstance(seed, int | np.integer) and 0 <= seed < 2**63):
        raise InputError(f"seed={seed!r} is out of range: give a whole number from 0 to 2^63 - 1")
