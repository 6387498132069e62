"""Measures of predicted probabilities, and the decisions that are learned from predictions in held-out environments.

Conventions:
    labels         (n,) whole numbers in 0..C-1
    probabilities  (n, C), rows sum to one
    environments   (n,) whole numbers or names; each environment counts the same, however many rows it has
    confusion      (..., C, C) counts of rows, true class x predicted class

Of two classes, the second is the one that a threshold, F1 and AUROC are about, as in scikit-learn.

What is learned (temperature, threshold) is kept only where it helps in environments it was not learned from: it is
chosen once without each environment and tested there, and nothing changes unless that is better on average. What is
then said of an environment is with what the others lead to (`others_of`), so that its labels have no say in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax, xlogy
from scipy.stats import rankdata

from ..errors import InputError
from ..settings import Length, Measured, Positive, Settings, Share

Floats = NDArray[np.floating[Any]]
Ints = NDArray[np.integer[Any]]
Held = Literal["environments", "rows"]
Metric = Literal["log_loss", "accuracy", "brier", "balanced_accuracy", "f1", "auroc"]

METRICS = {
    "log_loss": "log loss",
    "accuracy": "error rate",
    "brier": "Brier score",
    "balanced_accuracy": "balanced error rate",
    "f1": "1 - F1",
    "auroc": "1 - AUROC",
}
"""What a choice can go by, and what is then as small as possible in held-out environments"""
TINY = float(np.finfo(np.float64).tiny)
LEVELS = np.round(np.arange(0.50, 0.995, 0.01), 2)  # coverages that can be asked for
TEMPERATURES = np.geomspace(0.2, 5, 81)
PerLevel = Annotated[tuple[Share, ...], Length(len(LEVELS))]
ROUNDING = 1e-6  # by which equal scores may differ, since a network computes in float32
MOST = 0.9  # of new environments in which sets are meant to reach their coverage


@dataclass(frozen=True)
class Figures:
    """How good predicted probabilities are.

    brier              mean squared error of the probabilities, summed over classes, halved for two, as scikit-learn's
    auroc              of each class against the others, averaged; nan where there is one class
    calibration_error  mean distance between probability and frequency, see `reliability`
    majority           share of the most frequent class: the accuracy of always guessing it
    entropy            log loss of always guessing by the shares of the classes
    """

    rows: int
    accuracy: Measured
    log_loss: Measured
    brier: Measured
    auroc: Measured
    calibration_error: Measured
    majority: Measured
    entropy: Measured


def figures(labels: Ints, probabilities: Floats, threshold: float | None = None) -> Figures:
    """All figures of some rows; nan if there are none. The accuracy is that of `decide`."""
    if not len(labels):
        return Figures(0, *[float("nan")] * 7)
    shares = np.bincount(labels, minlength=probabilities.shape[1]) / len(labels)
    return Figures(
        len(labels),
        float((decide(probabilities, threshold) == labels).mean()),
        float(row_losses(labels, probabilities).mean()),
        float(squared_errors(labels, probabilities).mean()),
        auroc(labels, probabilities),
        calibration_error(labels, probabilities),
        float(shares.max()),
        float(-xlogy(shares, shares).sum()),
    )


def row_losses(labels: Ints, probabilities: Floats) -> NDArray[np.float64]:
    """Log loss of each row, (n,); finite, also where the probability of what happened is zero."""
    chosen = probabilities[np.arange(len(labels)), labels].astype(np.float64)
    return np.asarray(-np.log(np.maximum(chosen, np.finfo(probabilities.dtype).eps)))


def squared_errors(labels: Ints, probabilities: Floats) -> NDArray[np.float64]:
    """Brier score of each row, (n,): sum_c (p_nc - [y_n = c])^2, halved for two classes."""
    classes = probabilities.shape[1]
    happened = np.eye(classes, dtype=probabilities.dtype)[labels]
    totals = ((probabilities - happened) ** 2).sum(1, dtype=np.float64)
    return np.asarray(totals / 2 if classes == 2 else totals)


def auroc(labels: Ints, probabilities: Floats) -> float:
    """Probability that a row of a class has more of it than a row of another, ties half; averaged over classes.

    Classes that all rows have, or none, are left out.
    """
    found, classes = [], probabilities.shape[1]
    for c in range(classes == 2, classes):
        positive = labels == c
        above = int(positive.sum())
        pairs = above * (len(labels) - above)
        if pairs:
            ranks = rankdata(probabilities[:, c])[positive].sum()
            found.append((ranks - above * (above + 1) / 2) / pairs)
    return float(np.mean(found)) if found else float("nan")


class Reliability(NamedTuple):
    """Mean probability, share of rows in which it happened, and number of rows, of each bin, (b,)."""

    probability: NDArray[np.float64]
    frequency: NDArray[np.float64]
    rows: Ints


def reliability(labels: Ints, probabilities: Floats, bins: int = 10) -> Reliability:
    """How often what was predicted happened, in bins with about as many rows each; equal probabilities share a bin.

    Of two classes, the probability of the second; of more, that of the most likely one.
    """
    if probabilities.shape[1] == 2:
        chance, happened = probabilities[:, 1], labels == 1
    else:
        chance, happened = probabilities.max(1), probabilities.argmax(1) == labels
    edges = np.unique(np.quantile(chance, np.linspace(0, 1, bins + 1)[1:-1])) if len(chance) else np.empty(0)
    place = np.searchsorted(edges, chance, side="left")
    rows = np.bincount(place, minlength=len(edges) + 1)
    full = rows > 0
    probability = np.bincount(place, chance, len(rows))[full] / rows[full]
    frequency = np.bincount(place, happened, len(rows))[full] / rows[full]
    return Reliability(probability, frequency, rows[full])


def calibration_error(labels: Ints, probabilities: Floats, bins: int = 10) -> float:
    """Mean over rows of the distance between probability and frequency in the row's bin of `reliability`."""
    found = reliability(labels, probabilities, bins)
    return float(np.average(np.abs(found.probability - found.frequency), weights=found.rows))


def confusion(labels: Ints, predicted: Ints, classes: int) -> NDArray[np.int64]:
    """Counts of rows, true class x predicted class."""
    return np.bincount(labels * classes + predicted, minlength=classes**2).reshape(classes, classes)


def per_class(matrix: NDArray[Any]) -> Floats:
    """Precision, recall and F1 of each class of a confusion, (..., C, 3); nan where there is no row to count."""
    right = np.diagonal(matrix, axis1=-2, axis2=-1)
    predicted, true = matrix.sum(-2), matrix.sum(-1)
    with np.errstate(invalid="ignore"):
        return np.stack([right / predicted, right / true, 2 * right / (predicted + true)], -1)


def _accuracy(matrix: NDArray[Any]) -> Any:
    return np.diagonal(matrix, axis1=-2, axis2=-1).sum(-1) / matrix.sum((-2, -1))


def _balanced(matrix: NDArray[Any]) -> Any:
    return np.nanmean(per_class(matrix)[..., 1], -1)


def _f1(matrix: NDArray[Any]) -> Any:
    f1 = per_class(matrix)[..., 2]
    return np.nan_to_num(f1[..., 1]) if matrix.shape[-1] == 2 else np.nanmean(f1, -1)


OF_CONFUSION = {"accuracy": _accuracy, "balanced_accuracy": _balanced, "f1": _f1}
"""Metrics of decisions, which a threshold can change, as functions of a confusion"""


def row_scores(labels: Ints, probabilities: Floats, decided: Ints, metric: str) -> NDArray[np.float64]:
    """A score of each row of an environment, (n,), the smaller the better; nan where the metric is not defined.

    The mean is the metric, or one minus it where more is better, and the variance over n is the error variance of that.
    A metric T that is not a mean of rows has the scores 1 - T - influence of the row, which sums to zero: the delta
    method for F1 and balanced accuracy, and for AUROC the variance of DeLong et al., 1988.
    """
    if metric == "log_loss":
        return row_losses(labels, probabilities)
    if metric == "brier":
        return squared_errors(labels, probabilities)
    if metric == "accuracy":
        return np.asarray(decided != labels, dtype=np.float64)
    classes = range(probabilities.shape[1])
    found = []  # T + influence of each class, (n,)
    for c in classes[1:] if len(classes) == 2 and metric != "balanced_accuracy" else classes:
        mine, said = labels == c, decided == c
        if metric == "auroc":
            found.append(_placements(mine, probabilities[:, c]))
        elif metric == "f1":  # mean of 2 mine said / mean of (mine + said)
            found.append(_ratio(2.0 * (mine & said), mine.astype(float) + said))
        else:
            found.append(_ratio((mine & said).astype(float), mine.astype(float)))
    defined = [one for one in found if one is not None]
    if not defined:
        return np.full(len(labels), np.nan if metric == "auroc" else 1.0)
    return np.asarray(1 - np.mean(defined, axis=0))


def _ratio(above: Floats, below: Floats) -> Floats | None:
    """mean(above) / mean(below) plus the influence of each row, (n,); None where there is nothing below."""
    if not below.any():
        return None
    value = above.mean() / below.mean()
    return np.asarray(value + (above - value * below) / below.mean())


def _placements(positive: NDArray[np.bool_], score: Floats) -> Floats | None:
    """AUROC plus the influence of each row, (n,); None where all rows are positive, or none."""
    groups = [np.sort(score[positive == other]) for other in (False, True)]
    if not all(map(len, groups)):
        return None
    found = np.empty(len(score))
    for own in (True, False):
        others, rows = groups[not own], positive == own
        below = (np.searchsorted(others, score[rows]) + np.searchsorted(others, score[rows], "right")) / 2
        beaten = below / len(others) if own else 1 - below / len(others)
        found[rows] = beaten.mean() + (beaten - beaten.mean()) * len(score) / rows.sum()
    return found


def decide(probabilities: Floats, threshold: float | None = None) -> NDArray[np.intp]:
    """The class decided for, (n,): the most likely one or, of two, the second where it is above the threshold."""
    if threshold is None or probabilities.shape[1] != 2:
        return np.asarray(probabilities.argmax(1))
    return (probabilities[:, 1] > threshold).astype(np.intp)


@dataclass(frozen=True)
class Calibration:
    """Probabilities p become p^(1/T) / sum p^(1/T), which is softmax(logits / T); T = 1 changes nothing."""

    temperature: float = 1.0

    def apply(self, probabilities: Floats) -> NDArray[np.float64]:
        if self.temperature == 1:
            return probabilities.astype(np.float64)
        return np.asarray(softmax(_logs(probabilities) / self.temperature, axis=1))


def fit_calibrations(
    labels: Ints, probabilities: Floats, environments: NDArray[Any], ordered: bool = False
) -> list[Calibration]:
    """For each environment the temperature that the others give, see `others_of`, and last that of all.

    It has the least log loss, each environment counted the same. A constant is not calibrated.
    """
    groups = [(labels[rows], _logs(probabilities[rows])) for rows in _groups(environments)]
    if all((logs == logs[0]).all() for _, logs in groups):  # the same for every row, whatever is in it
        return [Calibration()] * (len(groups) + 1)

    def loss(group: tuple[Ints, Floats], temperature: float) -> float:
        y, logs = group
        return float(-log_softmax(logs / temperature, axis=1)[np.arange(len(y)), y].mean())

    table = np.array([[loss(group, t) for t in TEMPERATURES] for group in groups])  # (E, G)
    usual, found = int(np.abs(TEMPERATURES - 1).argmin()), []
    for among in (*others_of(len(groups), ordered), np.ones(len(groups), bool)):
        place = _that_transfers(table[among], usual)
        if place is None:
            found.append(Calibration())
            continue
        ends = np.log(TEMPERATURES[[max(place - 1, 0), min(place + 1, len(TEMPERATURES) - 1)]])
        some = [group for group, one in zip(groups, among, strict=True) if one]
        best = minimize_scalar(lambda log, some=some: np.mean([loss(g, np.exp(log)) for g in some]), bounds=tuple(ends))
        found.append(Calibration(float(np.exp(best.x))))
    return found


def others_of(count: int, ordered: bool = False) -> NDArray[np.bool_]:
    """Tell by which environments something may be learned for each, (E, E): all others, or the earlier ones.

    ordered  environments follow each other in time, the larger number later
    """
    return np.tri(count, k=-1, dtype=bool) if ordered else ~np.eye(count, dtype=bool)


def fit_threshold(labels: Ints, probabilities: Floats, environments: NDArray[Any], metric: str) -> float | None:
    """The threshold for two classes with the best metric, each environment counted the same; None: the usual one."""
    of_confusion = OF_CONFUSION.get(metric)
    if of_confusion is None or probabilities.shape[1] != 2 or not len(labels):
        return None
    chance = probabilities[:, 1]
    grid = np.unique([0.5, *np.quantile(chance, np.linspace(0, 1, 201)[1:-1])])
    table = []
    for rows in _groups(environments):
        by_class = [np.sort(chance[rows][labels[rows] == c]) for c in (0, 1)]
        above = [len(values) - np.searchsorted(values, grid, side="right") for values in by_class]
        counts = np.bincount(labels[rows], minlength=2)
        table.append(1 - of_confusion(np.stack([[counts[c] - above[c], above[c]] for c in (0, 1)]).transpose(2, 0, 1)))
    place = _that_transfers(np.array(table), int(np.searchsorted(grid, 0.5)))
    return None if place is None else float(grid[place])


def decide_held_out(
    labels: Ints, probabilities: Floats, environments: NDArray[Any], metric: str, ordered: bool = False
) -> NDArray[np.intp]:
    """The class decided for, (n,), in each environment by `fit_threshold` of the others, see `others_of`.

    A temperature changes nothing about it, since it keeps the order of probabilities and the place of one half.
    """
    decided, groups = decide(probabilities), _groups(environments)
    if metric not in OF_CONFUSION or probabilities.shape[1] != 2:
        return decided
    for own, among in zip(groups, others_of(len(groups), ordered), strict=True):
        others = np.concatenate([own[:0], *compress(groups, among)])
        threshold = fit_threshold(labels[others], probabilities[others], environments[others], metric)
        decided[own] = decide(probabilities[own], threshold)
    return decided


def _that_transfers(losses: Floats, usual: int) -> int | None:
    """The choice with the least mean loss; None where choosing does not help in environments it did not see.

    losses  environments x choices
    usual   the choice that is made without looking

    It has to help by more than the standard error of what it brings. On 30 real tables, a temperature for linear models
    that helped at all on average was worse in 20 where it was then tested, and better in 2.
    """
    count = len(losses)
    if count < 2:
        return None
    gains = losses[:, usual] - losses[np.arange(count), (losses.sum(0) - losses).argmin(1)]
    best = int(losses.mean(0).argmin())
    return best if best != usual and gains.mean() > gains.std(ddof=1) / count**0.5 else None


def _groups(environments: NDArray[Any]) -> list[NDArray[np.intp]]:
    """Rows of each environment, in the order of `np.unique`."""
    _, places = np.unique(environments, return_inverse=True)
    return [np.flatnonzero(places == e) for e in range(int(places.max()) + 1)]


def _logs(probabilities: Floats) -> NDArray[np.float64]:
    return np.asarray(np.log(np.maximum(probabilities.astype(np.float64), TINY)))


@dataclass(frozen=True)
class Conformal(Settings):
    """Sets of classes that hold the true one in a stated share of rows of an environment not seen before.

    A set holds the classes with probability 1 - q or more, and always the most likely one. In each environment, q is
    the usual quantile of split conformal prediction, the ceil((n + 1) level)-th least of 1 - p(true class). Of these,
    the ceil((E + 1) 0.9)-th least is taken: if environments are drawn alike, sets reach the level in 90 % of new ones;
    with fewer than nine environments the largest is taken, and it is E / (E + 1) of them.

    quantiles  one q for each of `LEVELS`
    seen       environment -> coverage at each of `LEVELS` when it was held out, with q and temperature from the others
    """

    quantiles: PerLevel
    seen: Mapping[str, PerLevel] = field(default_factory=dict)

    def sets(self, probabilities: Floats, coverage: float = 0.9) -> NDArray[np.bool_]:
        """The classes in each row's set, (n, C)."""
        held = _scores(probabilities) <= self.quantiles[_level(coverage)] + ROUNDING
        held[np.arange(len(held)), probabilities.argmax(1)] = True
        return np.asarray(held)

    def coverage(self, labels: Ints, probabilities: Floats) -> tuple[float, ...]:
        """The share of rows whose set holds the true class, at each of `LEVELS`."""
        true = _scores(probabilities)[np.arange(len(labels)), labels, None]
        held = (true <= np.array(self.quantiles) + ROUNDING) | (probabilities.argmax(1) == labels)[:, None]
        return tuple(map(float, held.mean(0).round(4)))

    def expected(self, coverage: float = 0.9) -> dict[str, float]:
        """Environment -> the share of rows whose set held the true class when it was held out."""
        return {name: values[_level(coverage)] for name, values in self.seen.items()}


def _scores(probabilities: Floats) -> NDArray[np.float64]:
    """Return 1 - p, (n, C), by which quantiles and sets both go: 1 - (1 - p) is not always p."""
    return np.asarray(1 - probabilities.astype(np.float64))


def _level(coverage: float) -> int:
    """The place of the least level that is enough."""
    if not LEVELS[0] <= coverage <= LEVELS[-1]:
        raise InputError(f"coverage must be from {LEVELS[0]} to {LEVELS[-1]}, got {coverage}")
    return int(np.searchsorted(LEVELS, coverage - 1e-9))


def fit_conformal(labels: Ints, probabilities: Floats, environments: NDArray[Any]) -> Conformal:
    """Quantiles from predictions of rows that were not trained on."""
    scores = _scores(probabilities)[np.arange(len(labels)), labels]
    own = np.array([_quantiles(scores[rows], LEVELS) for rows in _groups(environments)])  # (E, L)
    return Conformal(tuple(map(float, _quantiles(own, MOST))))


def _quantiles(values: Floats, level: Any) -> Floats:
    """The ceil((n + 1) level)-th least along the first axis; the largest possible, 1, of scores that are too few."""
    count = len(values)
    place = np.ceil((count + 1) * np.asarray(level) - 1e-9).astype(int) - 1
    ordered = np.sort(values, axis=0)
    if values.ndim > 1:  # over environments there is nothing beyond the largest
        return np.asarray(ordered[min(int(place), count - 1)])
    return np.where(place < count, ordered[np.minimum(place, count - 1)], 1.0)


@dataclass(frozen=True)
class Decision(Settings):
    """What was learned from predictions in held-out environments; kept with a model as `about["decision"]`.

    held          what was held out: "environments", or "rows" of environments that were trained on
    temperature   already in the model's head, whose logits were divided by it; that of all environments
    threshold     of two classes, the probability of the second above which it is decided for; None: the likelier one
    metric        what the threshold was chosen for
    seen          environment -> its figures when it was held out, with temperature and threshold of the others
    temperatures  environment -> that temperature
    """

    held: Held = "environments"
    temperature: Positive = 1.0
    threshold: Share | None = None
    metric: str = "log_loss"
    conformal: Conformal | None = None
    seen: Mapping[str, Figures] = field(default_factory=dict)
    temperatures: Mapping[str, Positive] = field(default_factory=dict)

    @property
    def is_calibrated(self) -> bool:
        """True if the figures in `seen` are of probabilities that the other environments calibrate."""
        return any(temperature != 1 for temperature in self.temperatures.values())


def learn_decision(
    labels: Ints,
    probabilities: Floats,
    environments: NDArray[Any],
    names: Sequence[str],
    metric: str = "log_loss",
    held: Held = "environments",
    ordered: bool = False,
) -> Decision:
    """Temperature, threshold and sets from the held-out predictions of one candidate.

    probabilities  (n, C), nan in rows that were not held out
    environments   (n,), places in `names`
    ordered        environments follow each other in time, as in `names`: an environment's figures are by earlier ones
    """
    tested = np.isfinite(probabilities).all(1)
    if not tested.any():
        return Decision(held)
    y, raw, places = labels[tested], probabilities[tested], environments[tested]
    *without, calibration = fit_calibrations(y, raw, places, ordered)
    right = decide_held_out(y, raw, places, metric, ordered) == y
    seen, covered, temperatures, groups = {}, {}, {}, _groups(places)
    for own, among, others in zip(groups, others_of(len(groups), ordered), without, strict=True):
        name, chances = names[places[own[0]]], others.apply(raw[own])
        temperatures[name] = others.temperature
        seen[name] = replace(figures(y[own], chances), accuracy=float(right[own].mean()))
        if among.any():
            rows = np.concatenate([*compress(groups, among)])
            sets = fit_conformal(y[rows], others.apply(raw[rows]), places[rows])
            covered[name] = sets.coverage(y[own], chances)
    chances = calibration.apply(raw)
    conformal = replace(fit_conformal(y, chances, places), seen=covered)
    threshold = fit_threshold(y, chances, places, metric)
    return Decision(held, calibration.temperature, threshold, metric, conformal, seen, temperatures)
