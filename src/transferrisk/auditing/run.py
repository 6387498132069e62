"""`audit`: held-out transfer of linear predictors on given features from each environment to every other.

`training.evaluate` has the transfer matrix of a model in training, from one split in halves.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError, counted, listed
from ..functional import SoftmaxLoss
from ..functional.linear_loss import logits_of, one_hot, row_losses, scale_slopes
from ..settings import Bound, Count, Positive, Seed, convert
from ..solvers import threads_set
from .report import Audit, Estimate, Floats, WorstPair
from .samples import CHUNK, GRID, WORKED_ON, Folds, Samples, arrange_samples, fit, loss_on
from .shift import shifts_in

Progress = Callable[[str, int, int], None]
Judged = NDArray[np.bool_]

_HELPERS = 5  # environments that are tried as an addition to the worst pair's training, the best there first
_DRAWN = 1 << 23  # samples that are drawn at once
_ONE_THREAD = 1 << 22  # numbers of rows up to which threads cost more than they save, tenfold on a busy machine
_MOST_PAIRS = 1 << 26  # pairs of environments in all draws
_MOST_LOGITS = 1 << 31  # logits of all predictors on all samples
_LEFT_OUT = 1 << 20  # weights of rows that are held at once when each environment is left out
_WAY_OUT = "give a larger one with ridge"


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
    """Measure on held-out samples how well linear predictors on these features transfer between environments.

    For each fold, a predictor is fitted on one environment's samples outside the fold, and tested on every
    environment's samples in the fold. Losses are cross-entropies.

    Parameters
    ----------
    features
        (n, d) array, tensor or table of numbers.
    labels
        (n,) class of each sample: numbers or texts.
    environments
        (n,) environment of each sample: numbers or texts.
    ridge
        Ridge of every predictor. None: each environment's own, chosen by the held-out loss in it, on the folds of the
        audit; predictors of several environments have the geometric mean of the judged environments' ridges.
    folds
        Number of folds, which share out every environment and class evenly; or the fold of each sample, (n,), so that
        samples of one group stay together. The bootstrap draws samples one by one all the same: if several come from
        one patient or one film, true intervals are wider than those given.
    bootstrap
        Number of draws for each interval; predictors are not refitted. Intervals of a value that is named for being
        the worst or the best allow for that choice.
    seed
        Random seed of the folds and of the bootstrap.
    confidence
        Share of the draws inside an interval.
    standardise
        Whether to bring every feature to mean 0 and standard deviation 1 over all samples, so that one ridge suits all.
    progress
        Function called with ("auditing", done, total).

    Returns
    -------
    Audit
        The transfer matrix, the risks and the worst pair, with intervals.

    Examples
    --------
    >>> import numpy as np
    >>> from transferrisk import audit
    >>> rng = np.random.default_rng(0)
    >>> y, site = rng.integers(2, size=300), np.repeat(["A", "B", "C"], 100)
    >>> report = audit(rng.normal(size=(300, 4)) + y[:, None], y, site, bootstrap=20)
    >>> bool((report.accuracy.value > 0.7).all())
    True
    """
    begun = time.perf_counter()
    ridge, bootstrap = convert("ridge", ridge, Positive | None), convert("bootstrap", bootstrap, Count)
    seed, standardise = convert("seed", seed, Seed), convert("standardise", standardise, bool)
    confidence = convert("confidence", confidence, Annotated[float, Bound(above=0, below=1)])
    samples = arrange_samples(features, labels, environments, folds, seed, standardise)
    E, F, C, n = len(samples.environments), samples.folds, len(samples.classes), len(samples.labels)
    if E * E * (1 + bootstrap) > _MOST_PAIRS:
        raise InputError(
            f"environments must be at most {math.isqrt(_MOST_PAIRS // (1 + bootstrap))} with bootstrap={bootstrap}, "
            f"got {E}, since every pair of them is judged in every draw: merge small ones, or lower bootstrap"
        )
    if E * n * C > _MOST_LOGITS:
        raise InputError(
            f"environments x samples x classes must be at most {_MOST_LOGITS:.0e}, got {E} x {n} x {C}, since every "
            "environment's predictor is tested on all samples: merge environments or classes, or take fewer samples"
        )
    tell = progress or _tell_nobody
    with torch.no_grad(), threads_set(1 if samples.rows.numel() <= _ONE_THREAD else None):
        fitted, ridges = [], np.empty(E)
        for e in range(E):
            value, ridges[e] = fit_home(samples, e, ridge)
            fitted.append(value)
            tell("auditing", e + 1, E + 3)
        own = torch.stack(fitted)  # (E, folds, C, D)
        matrix_seconds = time.perf_counter() - begun
        remarks, judged = _remarks(samples)
        has_ridge = np.isfinite(ridges)
        chosen = ridges[judged & has_ridge if (judged & has_ridge).any() else has_ridge]
        shared = float(np.exp(np.log(chosen).mean())) if len(chosen) else GRID[0]
        pooled = fit(held_out_loss(samples, range(E), shared), own.nanmean(0), way_out=_WAY_OUT).value
        tell("auditing", E + 1, E + 3)
        without = fit_without_each(samples, shared, standardise, pooled.nanmean(0))
        tell("auditing", E + 2, E + 3)
        judge = _Judge(samples, judged, bootstrap, seed, confidence)

        left_out, means = np.full(len(samples.labels), np.nan), []
        for e in range(E):
            single = scores(samples, own, e)
            several = scores(samples, torch.stack([pooled, without[e].expand_as(pooled)]), e)
            left_out[samples.order[samples.span(e)]] = several.loss[1].double().numpy()
            found = torch.cat([single.loss, single.correct, several.loss, several.correct, several.slope[:1]])
            means.append(draw_means(found, bootstrap, (seed, e)))
        tested = np.stack(means, -1)
        loss, right, rest = tested[:, :E], tested[:, E : 2 * E], tested[:, 2 * E :]
        lost = np.diagonal(right, axis1=1, axis2=2) - rest[:, 3]
        worst, by_accuracy = judge.worst_pairs(loss, right, own, shared)
        shifts = shifts_in(samples, left_out, seed=seed) if np.isfinite(left_out).all() else ()
        tell("auditing", E + 3, E + 3)
    return Audit(
        environments=samples.environments,
        classes=samples.classes,
        loss=estimate(loss, confidence),
        accuracy=estimate(right, confidence),
        pooled_loss=estimate(rest[:, 0], confidence),
        pooled_accuracy=estimate(rest[:, 2], confidence),
        left_out_loss=estimate(rest[:, 1], confidence),
        left_out_accuracy=estimate(rest[:, 3], confidence),
        unseen=estimate(np.where(judged, lost, np.nan), confidence, largest_deviations(lost[:, judged])),
        transfer_risk=judge.risk(loss, worst=True),
        mean_transfer_risk=judge.risk(loss, worst=False),
        irm=estimate(rest[:, 4] ** 2, confidence),
        worst=worst,
        worst_by_accuracy=by_accuracy,
        shifts=shifts,
        counts=samples.counts.sum(1),
        ridges=ridges,
        pooled_ridge=shared,
        judged=judged,
        remarks=remarks,
        settings={
            "folds": F, "bootstrap": bootstrap, "seed": seed, "confidence": confidence, "standardise": standardise,
            "ridge": ridge,
        },
        seconds={"matrix": matrix_seconds, "all": time.perf_counter() - begun},
    )  # fmt: skip


def _tell_nobody(what: str, done: int, total: int) -> None:
    pass


def held_out_loss(samples: Samples, environments: Sequence[int], ridge: float) -> SoftmaxLoss:
    """Return the loss on these environments' samples outside each fold."""
    used = np.zeros((samples.folds, len(samples.environments), samples.folds), bool)
    used[:, environments] = ~np.eye(samples.folds, dtype=bool)[:, None]
    return loss_on(samples, used, ridge)


def fit_without_each(samples: Samples, ridge: float, standardise: bool, start: Tensor) -> Tensor:
    """Fit a predictor on all environments but one, for each, (E, C, D), as if the environment had never been seen.

    The bias is not penalised, and features are standardised by the samples that the predictor is fitted on. The free
    bias absorbs the means; dividing a feature by its standard deviation equals a ridge with the variance as a factor.
    """
    E, (n, D) = len(samples.environments), samples.rows.shape
    shares = samples.rows.new_ones(E, D)
    if standardise:
        sums = torch.zeros(3, E, D, dtype=torch.float64)  # number, sum and sum of squares of each column
        for e in range(E):
            for part in samples.rows[samples.span(e)].split(max(1, CHUNK // D)):
                sums[0, e] += len(part)
                sums[1, e] += part.sum(0, dtype=torch.float64)
                sums[2, e] += part.double().square().sum(0)
        number, total, squares = sums.sum(1, keepdim=True) - sums  # over all other environments
        square = squares / number
        variance = square - (total / number).square()
        shares = torch.where(variance > 1e-12 * square, variance, 1).to(shares.dtype)  # 1 where only rounding is left
    shares[:, -1] = 0
    found, others = [], ~np.eye(E, dtype=bool)
    step = max(1, min(_LEFT_OUT // n, 16))
    for begin in range(0, E, step):
        loss = replace(loss_on(samples, others[begin : begin + step], ridge), shares=shares[begin : begin + step])
        found.append(fit(loss, start.expand(len(loss.weights), -1, -1), way_out=_WAY_OUT).value)
    return torch.cat(found)


def fit_home(samples: Samples, environment: int, ridge: float | None) -> tuple[Tensor, float]:
    """Fit the predictors of one environment, (folds, C, D), and choose their ridge.

    Unless given, the ridge has the least held-out loss in the environment; nan if there is no such loss, because all
    its samples lie in one fold.
    """
    if ridge is not None:
        return fit(held_out_loss(samples, [environment], ridge), way_out=_WAY_OUT).value, ridge
    best, start, chosen = torch.inf, None, None
    for candidate in GRID:
        start = fit(held_out_loss(samples, [environment], candidate), start, way_out=_WAY_OUT).value
        mean = float(scores(samples, start.unsqueeze(0), environment).loss.nanmean())
        if mean < best:
            best, chosen = mean, (start, candidate)
    if chosen is None:
        assert start is not None
        return start, torch.nan
    return chosen


@dataclass(frozen=True)
class Scores:
    """Results of R predictors on m samples, (R, m) each; nan if a predictor does not exist."""

    loss: Tensor
    correct: Tensor  # 1 or 0
    slope: Tensor  # derivative of the loss by a scale of the logits, whose mean, squared, is IRMv1's penalty


def scores(samples: Samples, predictors: Tensor, environment: int) -> Scores:
    """Test predictors (R, folds, C, D) on an environment's samples, each on the fold it was not fitted on."""
    here = samples.span(environment)
    loss, correct, slope = samples.rows.new_full((3, len(predictors), here.stop - here.start), torch.nan)
    step = max(1, WORKED_ON // max(samples.rows.shape[1], predictors[:, 0, :, 0].numel()))
    for k in range(samples.folds):
        block = samples.span(environment, k)
        for begin in range(block.start, block.stop, step):
            rows = slice(begin, min(begin + step, block.stop))
            part = slice(rows.start - here.start, rows.stop - here.start)
            logits = logits_of(predictors[:, k], samples.rows[rows])  # (R, m, C)
            targets = one_hot(samples.labels[rows], logits.shape[-1], logits.dtype)
            right = (logits.argmax(-1) == samples.labels[rows]).to(logits.dtype)
            loss[:, part], slope[:, part] = row_losses(logits, targets), scale_slopes(logits, targets)
            correct[:, part] = torch.where(loss[:, part].isnan(), torch.nan, right)
    return Scores(loss, correct, slope)


def _remarks(samples: Samples) -> tuple[dict[Any, str], Judged]:
    """Return remarks on environments by name, and which environments can be judged, (E,).

    An environment with fewer than two samples a fold, a single class, or a single fold cannot be judged.
    """
    remarks, judged, F = {}, np.ones(len(samples.environments), bool), samples.folds
    classes = samples.classes
    for e, name in enumerate(samples.environments):
        by_class, by_fold = samples.counts[e].sum(0), samples.counts[e].sum(1)
        size, absent, rare = int(by_class.sum()), by_class == 0, by_class < F
        if size < 2 * F:
            remarks[name] = f"is too small to judge: {counted(size, 'sample')} in {F} folds"
        elif by_fold.max() == size:
            remarks[name] = "has all its samples in one fold, so that nothing is left to fit on, and cannot be judged"
        elif absent.sum() == len(classes) - 1:
            remarks[name] = f"has class {classes[by_class.argmax()]} alone and cannot be judged"
        elif absent.any():
            remarks[name] = f"has no sample of class {listed(compress(classes, absent), 5)}"
            continue
        elif rare.any():
            remarks[name] = (
                f"has too few samples of class {listed(compress(classes, rare), 5)} for every fold to hold one"
            )
            continue
        judged[e] = name not in remarks
    return remarks, judged


@dataclass(frozen=True, eq=False)
class _Judge:
    """Bootstrap intervals of statistics of held-out samples. Arrays (1 + B, ...) hold a statistic and B draws of it.

    Samples of an environment are drawn with replacement, the same draw for all predictors, so that differences between
    predictors stay paired. Predictors are not fitted again: intervals cover the test, not the fit. Samples are drawn
    one by one: if several belong together, such as those of a patient, intervals are too narrow.
    """

    samples: Samples
    judged: Judged
    bootstrap: int
    seed: int
    confidence: float

    def risk(self, loss: Floats, worst: bool) -> Estimate:
        """Return the mean over judged Q of the largest M[Q, P] over judged P != Q, or of their mean.

        Every draw takes the P that is largest without drawing: a new maximum in each draw would be biased upwards.
        """
        those = np.flatnonzero(self.judged)
        if len(those) < 2:
            return Estimate(np.nan, np.nan, np.nan)
        matrix, others = loss[:, those[:, None], those], ~np.eye(len(those), dtype=bool)
        if worst:
            largest = np.where(others, matrix[0], -np.inf).argmax(1)
            return estimate(matrix[:, np.arange(len(those)), largest].mean(1), self.confidence)
        return estimate(matrix[:, others].mean(1), self.confidence)

    def worst_pairs(
        self, loss: Floats, right: Floats, own: Tensor, ridge: float
    ) -> tuple[WorstPair | None, WorstPair | None]:
        """Return the worst pairs by loss and by accuracy, each with the best addition to its training samples."""
        both = np.outer(self.judged, self.judged) & ~np.eye(len(self.judged), dtype=bool)
        if not both.any():
            return None, None
        lost = loss - np.diagonal(loss, axis1=1, axis2=2)[:, None]  # M[Q, P] - M[P, P]
        missed = np.diagonal(right, axis1=1, axis2=2)[:, None] - right
        by_loss, by_accuracy = largest_deviations(lost[:, both]), largest_deviations(missed[:, both])
        pairs: dict[tuple[int, int], WorstPair] = {}
        for by in (lost, missed):
            q, p = divmod(int(np.where(both, by[0], -np.inf).argmax()), len(both))
            if (q, p) in pairs:
                continue
            excess = estimate(lost[:, q, p], self.confidence, by_loss)
            points = estimate(missed[:, q, p], self.confidence, by_accuracy)
            helper, closed = None, None
            nearest = np.argsort(loss[0, :, p], kind="stable")
            others = nearest[self.judged[nearest] & (nearest != q) & (nearest != p)][:_HELPERS]
            if len(others):
                together = own[q].repeat(len(others) + 1, 1, 1, 1)  # the last one has no addition
                for i, r in enumerate(others.tolist()):
                    added = held_out_loss(self.samples, [q, r], ridge)
                    together[i] = fit(added, (own[q] + own[r]) / 2, way_out=_WAY_OUT).value
                correct = scores(self.samples, together, p).correct
                accuracy = draw_means(correct, self.bootstrap, (self.seed, p))  # (1 + B, R + 1)
                brought = accuracy[:, :-1] - accuracy[:, -1:]
                best = int(brought[0].argmax())
                # The helper is chosen among several, at a pair chosen among many: its interval allows for both.
                deviations = np.maximum(by_accuracy, largest_deviations(brought))
                helper, closed = int(others[best]), estimate(brought[:, best], self.confidence, deviations)
            pairs[q, p] = WorstPair(q, p, excess, points, helper, closed)
        found = list(pairs.values())
        return found[0], found[-1]


def draw_means(values: Tensor, draws: int, seed: Sequence[int]) -> Floats:
    """Return the means of values (R, m) over m samples, and over samples drawn again: (1 + draws, R), or nan if m = 0.

    The same seed draws the same samples.
    """
    R, m = values.shape
    found = np.full((1 + draws, R), np.nan)
    state = np.random.SeedSequence(seed).generate_state(1, np.uint64)
    generator = torch.Generator().manual_seed(int(state[0]))
    if not m:
        return found
    table = values.mT.double()
    found[0] = table.mean(0).numpy()
    step = max(1, _DRAWN // m)
    for begin in range(0, draws, step):
        number = min(step, draws - begin)
        drawn = torch.randint(m, (number, m), generator=generator)
        times = torch.zeros(number, m, dtype=torch.float64)
        times.scatter_add_(1, drawn, torch.ones(1, 1, dtype=torch.float64).expand(number, m))
        found[1 + begin : 1 + begin + number] = (times @ table / m).numpy()
    return found


def largest_deviations(draws: Floats) -> Floats:
    """Return max_i |draws_i - value_i| / s_i in each draw of (1 + B, N), (B,); s_i is the deviation of draws_i.

    Values that do not vary between draws are left out.
    """
    scale = draws[1:].std(0)
    varies = scale > 0
    if not varies.any():
        return np.zeros(len(draws) - 1)
    found: Floats = (np.abs(draws[1:] - draws[0])[:, varies] / scale[varies]).max(1)
    return found


def estimate(draws: Floats, confidence: float, deviations: Floats | None = None) -> Estimate:
    """Return a value and its interval by draws (1 + B, ...): the middle share of them, or value +- c s.

    The latter is for a value that is named because it came out largest or smallest: s is the standard deviation of its
    draws, and c the quantile of the largest `deviations` (B,) among all candidates, so that the intervals of all
    candidates hold at once, and that of the named one too (Westfall and Young's max-t).
    """
    if deviations is None:
        tail = (1 - confidence) / 2
        return Estimate(draws[0], *np.quantile(draws[1:], [tail, 1 - tail], axis=0))
    half = np.quantile(deviations, confidence) * draws[1:].std(0)
    return Estimate(draws[0], draws[0] - half, draws[0] + half)
