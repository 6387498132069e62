"""Decisions that are learned from predictions in held-out environments: temperature, threshold and prediction sets.

Conventions:
    labels         (n,) whole numbers in 0..C-1
    probabilities  (n, C), rows sum to one
    environments   (n,) whole numbers or names; each environment counts the same, however many rows it has

A temperature or a threshold is kept only if it helps in environments that it was not learned from: it is learned once
without each environment and tested there, and nothing changes unless that is surely better on average. The figures of
an environment use the values that the others give (`others_of`), so that its own labels have no say in them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import log_softmax, softmax, stdtrit

from ..errors import InputError
from ..settings import Length, Positive, Settings, Share
from .metrics import OF_CONFUSION, Figures, Floats, Ints, decide, figures

Held = Literal["environments", "rows"]
TINY = float(np.finfo(np.float64).tiny)
LEVELS = np.round(np.arange(0.50, 0.995, 0.01), 2)  # coverages that can be asked for
TEMPERATURES = np.geomspace(0.2, 5, 81)
PerLevel = Annotated[tuple[Share, ...], Length(len(LEVELS))]
ROUNDING = 1e-6  # by which equal scores may differ, since a network computes in float32
MOST = 0.9  # share of new environments in which sets should reach their coverage


@dataclass(frozen=True)
class Calibration:
    """Temperature scaling: p becomes p^(1/T) / sum p^(1/T), which is softmax(logits / T)."""

    temperature: float = 1.0

    def apply(self, probabilities: Floats) -> NDArray[np.float64]:
        if self.temperature == 1:
            return probabilities.astype(np.float64)
        return np.asarray(softmax(_logs(probabilities) / self.temperature, axis=1))


def fit_calibrations(
    labels: Ints, probabilities: Floats, environments: NDArray[Any], ordered: bool = False
) -> list[Calibration]:
    """Learn for each environment the temperature that the others give (`others_of`), and last that of all.

    The temperature has the least log loss, with each environment counted the same. A constant is not calibrated.
    """
    groups = [(labels[rows], _logs(probabilities[rows])) for rows in _groups(environments)]
    if all((logs == logs[0]).all() for _, logs in groups):
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
        some = list(compress(groups, among))
        best = minimize_scalar(lambda log, some=some: np.mean([loss(g, np.exp(log)) for g in some]), bounds=tuple(ends))
        found.append(Calibration(float(np.exp(best.x))))
    return found


def others_of(count: int, ordered: bool = False) -> NDArray[np.bool_]:
    """Mark the environments from which to learn for each environment, (E, E): all others, or the earlier ones.

    ordered  environments follow each other in time, the larger number later
    """
    return np.tri(count, k=-1, dtype=bool) if ordered else ~np.eye(count, dtype=bool)


def fit_threshold(labels: Ints, probabilities: Floats, environments: NDArray[Any], metric: str) -> float | None:
    """Learn the threshold with the best metric, each environment counted the same; None: the more likely class."""
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
    """Return the predicted class, (n,), with the `fit_threshold` of each environment's `others_of`.

    Calibration does not change it: a temperature keeps the order of probabilities and the place of one half.
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
    """Return the choice with the least mean loss; None unless such choices help in environments they did not see.

    losses  environments x choices
    usual   the choice without any data

    The mean gain has to be above zero by a one-sided t-test at 5 %. Without a condition, on 30 real tables, a
    temperature for linear models was worse in 20 and better in 2 when tested in a new environment; with a gain above
    its standard error, temperatures learned from two or three environments still did more harm than good.
    """
    count = len(losses)
    if count < 2:
        return None
    gains = losses[:, usual] - losses[np.arange(count), (losses.sum(0) - losses).argmin(1)]
    best, least = int(losses.mean(0).argmin()), stdtrit(count - 1, 0.95) * gains.std(ddof=1) / count**0.5
    return best if best != usual and gains.mean() > least else None


def _groups(environments: NDArray[Any]) -> list[NDArray[np.intp]]:
    """Return the rows of each environment, in the order of `np.unique`."""
    _, counts = np.unique(environments, return_counts=True)
    return np.split(np.argsort(environments, kind="stable"), np.cumsum(counts)[:-1])


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
        """Return the classes in each row's set, (n, C)."""
        held = _scores(probabilities) <= self.quantiles[_level(coverage)] + ROUNDING
        held[np.arange(len(held)), probabilities.argmax(1)] = True
        return np.asarray(held)

    def coverage(self, labels: Ints, probabilities: Floats) -> tuple[float, ...]:
        """Return the share of rows whose set holds the true class, at each of `LEVELS`."""
        true = _scores(probabilities)[np.arange(len(labels)), labels, None]
        held = (true <= np.array(self.quantiles) + ROUNDING) | (probabilities.argmax(1) == labels)[:, None]
        return tuple(map(float, held.mean(0).round(4)))

    def expected(self, coverage: float = 0.9) -> dict[str, float]:
        """Return environment -> share of rows whose set held the true class when it was held out."""
        return {name: values[_level(coverage)] for name, values in self.seen.items()}


def _scores(probabilities: Floats) -> NDArray[np.float64]:
    """Return 1 - p, (n, C), by which quantiles and sets both go: 1 - (1 - p) is not always p."""
    return np.asarray(1 - probabilities.astype(np.float64))


def _level(coverage: float) -> int:
    """Return the place of the least level at or above `coverage`."""
    if not LEVELS[0] <= coverage <= LEVELS[-1]:
        raise InputError(f"coverage must be from {LEVELS[0]} to {LEVELS[-1]}, got {coverage}")
    return int(np.searchsorted(LEVELS, coverage - 1e-9))


def fit_conformal(labels: Ints, probabilities: Floats, environments: NDArray[Any]) -> Conformal:
    """Learn the quantiles of prediction sets from predictions for rows that were not trained on."""
    scores = _scores(probabilities)[np.arange(len(labels)), labels]
    own = np.array([_quantiles(scores[rows], LEVELS) for rows in _groups(environments)])  # (E, L)
    return Conformal(tuple(map(float, _quantiles(own, MOST))))


def _quantiles(values: Floats, level: Any) -> Floats:
    """Return the ceil((n + 1) level)-th least along the first axis; the largest possible, 1, of too few scores."""
    count = len(values)
    place = np.ceil((count + 1) * np.asarray(level) - 1e-9).astype(int) - 1
    ordered = np.sort(values, axis=0)
    if values.ndim > 1:  # over environments there is nothing beyond the largest
        return np.asarray(ordered[min(int(place), count - 1)])
    return np.where(place < count, ordered[np.minimum(place, count - 1)], 1.0)


@dataclass(frozen=True)
class Decision(Settings):
    """Temperature, threshold and sets of a model, and its figures when held out; kept as `about["decision"]`.

    held          "environments" were held out, or "rows" of environments that were trained on
    temperature   learned from all environments; the logits of the model's head are already divided by it
    threshold     probability of the second of two classes above which it is predicted; None: the more likely class
    metric        metric that the threshold is best for
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
        return bool({*self.temperatures.values()} - {1})


def learn_decision(
    labels: Ints,
    probabilities: Floats,
    environments: NDArray[Any],
    names: Sequence[str],
    metric: str = "log_loss",
    held: Held = "environments",
    ordered: bool = False,
) -> Decision:
    """Learn temperature, threshold and sets from the held-out predictions of one candidate.

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
