"""Which algorithm does best in environments it has not seen, by scikit-learn's cross-validation over estimators.

Each environment is held out once and tested on. With two environments a training without one of them would have a
single one, in which there is no transfer to look at: then a fifth of each environment's rows is held out instead,
which says nothing about new environments.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import numpy as np
import sklearn
from joblib import parallel_config
from numpy.typing import NDArray
from sklearn.model_selection import cross_validate

from ..data import EnvironmentSet
from ..data.environments import VALIDATION, hold_out
from ..errors import listed
from ..sklearn import LeaveOneEnvironmentOut
from ..sklearn.classifier import threads_set

Held = Literal["environments", "rows"]
Right = NDArray[np.bool_]
Shares = NDArray[np.float64]
Folds = Sequence[tuple[NDArray[np.integer[Any]], NDArray[np.integer[Any]]]]
"""(rows to train on, rows to test on) of each training"""

ORDER = ("erm", "reweight", "groupdro", "vrex", "irm", "fish", "mldg", "trm-direct", "trm")
"""From the simplest to the one with the most to it; others, the user's own, come last."""
EXACT = 1e-9  # difference below which means tie, but for rounding
POINTS = 100  # of a training curve

Curve = tuple[tuple[int, ...], tuple[float, ...]]
"""(steps, losses) of a training"""


@dataclass(frozen=True)
class Trial:
    """How one training did: by environment, whether each tested row came out right, (m,)."""

    algorithm: str
    seed: int
    right: Mapping[str, Right]
    curve: Curve


@dataclass(frozen=True)
class Comparison:
    """
    held         what was held out: whole environments, or rows of each
    environments those tested on, in order
    left_out     how many more there are that were not held out
    accuracy     algorithm -> environment -> share of rows that came out right, over all seeds
    rows         environment -> how many rows were tested on, each seed
    noise        algorithm -> standard error of its difference in mean accuracy to the best, over the rows tested on
    worst_noise  algorithm -> standard error of its difference in worst accuracy to the best
    frequent     environment -> accuracy of the most frequent class of the rows trained on; {}: not known
    """

    held: Held
    environments: tuple[str, ...]
    left_out: int
    accuracy: Mapping[str, Mapping[str, float]]
    rows: Mapping[str, int]
    noise: Mapping[str, float]
    worst_noise: Mapping[str, float]
    seeds: tuple[int, ...]
    curves: Mapping[str, Curve]
    frequent: Mapping[str, float] = field(default_factory=dict)

    def mean(self, algorithm: str) -> float:
        """Mean accuracy over the environments, each counting the same."""
        return sum(self.accuracy[algorithm].values()) / len(self.environments)

    def worst(self, algorithm: str) -> float:
        return min(self.accuracy[algorithm].values())

    @property
    def best(self) -> str:
        """The algorithm with the highest mean accuracy, the first when they tie."""
        return max(self.accuracy, key=self.mean)

    def ranked(self) -> list[tuple[str, list[float], float, float]]:
        """(algorithm, accuracy in each environment, mean, worst), in the order they were compared in."""
        return [
            (name, [accuracy[e] for e in self.environments], self.mean(name), self.worst(name))
            for name, accuracy in self.accuracy.items()
        ]

    def to_dict(self) -> dict[str, Any]:
        """The comparison in the types of JSON."""
        return {
            "held_out": self.held,
            "environments": list(self.environments),
            "environments_not_held_out": self.left_out,
            "rows": dict(self.rows),
            "seeds": list(self.seeds),
            "accuracy_of_most_frequent_class": dict(self.frequent),
            "algorithms": {
                name: {
                    "mean_accuracy": self.mean(name),
                    "worst_accuracy": self.worst(name),
                    "accuracy": dict(accuracy),
                    "standard_error_of_difference_to_best": self.noise[name],
                    "standard_error_of_worst_difference_to_best": self.worst_noise[name],
                }
                for name, accuracy in self.accuracy.items()
            },
        }


def compare(
    X: NDArray[Any],
    samples: EnvironmentSet,
    candidate: Callable[[str, int], Any],
    algorithms: Sequence[str],
    seeds: Sequence[int],
    folds: int,
    workers: int,
    on_trained: Callable[[int, int], None] = lambda done, total: None,
) -> Comparison:
    """Cross-validate the estimator `candidate(algorithm, seed)` of each algorithm and seed.

    X           rows as the estimators take them, with the labels and environments of `samples`
    folds       environments to hold out at most, drawn by the first seed
    workers     processes that train at the same time
    on_trained  called with (trainings done, trainings in all)
    """
    y = samples.labels.numpy()
    names = np.array(samples.environment_names, dtype=object)[samples.environments.numpy()]
    held, by_seed = _folds(samples, folds, seeds)
    trials: list[Trial] = []
    total = len(algorithms) * sum(map(len, by_seed.values()))
    # One thread for each process: numbers then do not depend on how many processes there are.
    alone = threads_set(None if workers == 1 and samples.inputs[:1].dim() == 4 else 1)
    processes = parallel_config(backend="loky", inner_max_num_threads=1)
    with sklearn.config_context(enable_metadata_routing=True), alone, processes:
        for seed, cut in by_seed.items():
            for algorithm in algorithms:
                found = cross_validate(
                    candidate(algorithm, seed),
                    X,
                    y,
                    cv=cut,
                    params={"environments": names},
                    scoring=_keep_right,
                    n_jobs=workers,
                    return_estimator=True,
                    error_score="raise",
                )
                for estimator, (_, tested) in zip(found["estimator"], cut, strict=True):
                    right = {name: estimator.right_[names[tested] == name] for name in np.unique(names[tested])}
                    trials.append(Trial(algorithm, seed, right, curve_of(estimator)))
                on_trained(len(trials), total)
    chosen = tuple(name for name in samples.environment_names if name in {n for trial in trials for n in trial.right})
    summary = summarise(trials, held, chosen, len(samples.environment_names) - len(chosen))
    return replace(summary, frequent=most_frequent(samples, chosen)) if held == "environments" else summary


def _folds(samples: EnvironmentSet, most: int, seeds: Sequence[int]) -> tuple[Held, dict[int, Folds]]:
    """What is held out, and the rows of each training by seed; an environment that alone has a class stays."""
    y, environments = samples.labels.numpy(), samples.environments.numpy()
    if len(samples.environment_names) > 2:
        cut = list(LeaveOneEnvironmentOut(most, random_state=seeds[0]).split(y, environments=environments))
        cut = [(train, test) for train, test in cut if len(np.unique(y[train])) > 1]
        if cut:
            return "environments", dict.fromkeys(seeds, cut)
    drawn = {seed: hold_out(samples, VALIDATION, seed) for seed in seeds}
    return "rows", {seed: [(train.numpy(), test.numpy())] for seed, (train, test) in drawn.items()}


def _keep_right(estimator: Any, X: NDArray[Any], y: NDArray[Any]) -> float:
    """Accuracy as a scorer; which rows came out right stays with the estimator, which comes back from its process."""
    estimator.right_ = estimator.predict(X) == y
    return float(estimator.right_.mean())


def curve_of(estimator: Any) -> Curve:
    """The losses of a fitted estimator, averaged over as many stretches of its training as a curve shows."""
    last = estimator[-1] if hasattr(estimator, "steps") else estimator
    cuts = np.array_split(np.arange(len(last.loss_curve_)), min(POINTS, len(last.loss_curve_)))
    losses = np.array(last.loss_curve_)
    return tuple(last.loss_steps_[cut[-1]] for cut in cuts), tuple(float(losses[cut].mean()) for cut in cuts)


def most_frequent(samples: EnvironmentSet, held_out: Sequence[str]) -> dict[str, float]:
    """Accuracy, in each environment held out, of always saying the most frequent class of the others."""
    counts = samples.group_counts()
    rows = {name: counts[samples.environment_names.index(name)] for name in held_out}
    return {name: float(own[(counts.sum(0) - own).argmax()] / own.sum()) for name, own in rows.items()}


def summarise(trials: Sequence[Trial], held: Held, environments: tuple[str, ...], left_out: int) -> Comparison:
    right: dict[str, dict[str, list[Right]]] = {}
    for trial in trials:
        for name, values in trial.right.items():
            right.setdefault(trial.algorithm, {}).setdefault(name, []).append(values)
    # For each row, the share of seeds by which it came out right; rows that are drawn by seed follow each other.
    shares: dict[str, dict[str, Shares]] = {
        algorithm: {
            name: np.mean(found[name], axis=0) if held == "environments" else np.concatenate(found[name]).astype(float)
            for name in environments
        }
        for algorithm, found in right.items()
    }
    accuracy = {a: {name: float(share.mean()) for name, share in found.items()} for a, found in shares.items()}
    best = max(accuracy, key=lambda a: sum(accuracy[a].values()))
    seeds = tuple(dict.fromkeys(trial.seed for trial in trials))
    # Rows that one seed after the other draws are the same again and again: they count as those of one.
    repeats = 1 if held == "environments" else len(seeds)
    rows = {name: len(share) // repeats for name, share in shares[best].items()}
    return Comparison(
        held,
        environments,
        left_out,
        accuracy,
        rows,
        {algorithm: standard_error(shares[best], found, rows) for algorithm, found in shares.items()},
        {algorithm: worst_standard_error(shares[best], found, rows) for algorithm, found in shares.items()},
        seeds,
        {trial.algorithm: trial.curve for trial in reversed(trials)},
    )


def standard_error(one: Mapping[str, Shares], other: Mapping[str, Shares], rows: Mapping[str, int]) -> float:
    """Standard error of the difference in mean accuracy over these environments, had other rows of them been drawn.

    Rows are compared in pairs. How the difference varies between environments does not count: an algorithm that gains
    in one alone, which is what it is for, would have a standard error as large as its gain.
    """
    variances = [_variance(one[name] - other[name], rows[name]) for name in one]
    return float(sum(variances) ** 0.5 / len(variances))


def worst_standard_error(one: Mapping[str, Shares], other: Mapping[str, Shares], rows: Mapping[str, int]) -> float:
    """Standard error of the difference in the worst accuracy, in pairs of rows where it is the same environment."""
    first, second = (min(shares, key=lambda name: float(shares[name].mean())) for shares in (one, other))
    if first == second:
        return float(_variance(one[first] - other[first], rows[first]) ** 0.5)
    return float((_variance(one[first], rows[first]) + _variance(other[second], rows[second])) ** 0.5)


def _variance(values: Shares, rows: int) -> float:
    """Variance of the mean of so many rows."""
    return float(values.var()) / rows


@dataclass(frozen=True)
class Choice:
    algorithm: str
    why: str


def choose(comparison: Comparison) -> Choice:
    """The algorithm to take and why; the sentence says so where the most frequent class alone does as well."""
    choice = _choose(comparison)
    return replace(choice, why=choice.why + beside_a_guess(comparison, choice.algorithm))


def beside_a_guess(comparison: Comparison, algorithm: str) -> str:
    """A clause where the mean accuracy is not better than that of the most frequent class; "" where it is."""
    if not comparison.frequent:
        return ""
    guess = sum(comparison.frequent.values()) / len(comparison.frequent)
    if comparison.mean(algorithm) > guess + EXACT:
        return ""
    return (
        "; its mean is not better than always saying the most frequent class of the rows trained on, which reaches "
        f"{100 * guess:.1f} %"
    )


def _choose(comparison: Comparison) -> Choice:
    """The simplest of those within one standard error of the best, in mean accuracy and in the worst environment.

    Where no environment could be held out, TRM if it took part: it is the one that looks at transfer while training.
    """
    names = list(comparison.accuracy)
    simpler = sorted(names, key=lambda name: (ORDER.index(name) if name in ORDER else len(ORDER), names.index(name)))
    best = comparison.best
    if comparison.held == "rows":
        return _choose_by_rows(comparison, simpler)
    near = [name for name in simpler if _gap(comparison, name) <= comparison.noise[name]]
    taken = next(name for name in near if _worst_gap(comparison, name) <= comparison.worst_noise[name])
    reached = f"mean accuracy of {100 * comparison.mean(taken):.1f} % in environments it was not trained on"
    if len(names) == 1:
        return Choice(taken, f"no other was compared; {reached}")
    top = [name for name in names if _gap(comparison, name) < EXACT]
    tied = [name for name in top if name != taken] if taken in top else []
    if taken != best and tied:
        worst = f"; {best} has {_worst(comparison, taken)}, within {100 * comparison.worst_noise[taken]:.2f}"
        differs = abs(_worst_gap(comparison, taken)) >= EXACT
        return Choice(taken, f"{reached}, {_tied(tied)}{worst if differs else ''}; the simpler one is taken")
    if taken != best:
        return Choice(
            taken,
            f"{reached}; {best} has {100 * _gap(comparison, taken):.2f} points more, within the standard error of "
            f"{100 * comparison.noise[taken]:.2f}, and {_worst(comparison, taken)}, within "
            f"{100 * comparison.worst_noise[taken]:.2f}, so the simpler one is taken",
        )
    if near[0] == best:
        return Choice(best, f"{reached}, {_tied(tied)}; the simpler one is taken" if tied else f"highest {reached}")
    start = f"{reached}, {_tied(tied)}" if tied else f"highest {reached}"
    return Choice(
        best,
        f"{start}; {near[0]} is simpler and within the standard error of it, but {best} has "
        f"{_worst(comparison, near[0])}, beyond the standard error of {100 * comparison.worst_noise[near[0]]:.2f}",
    )


def _choose_by_rows(comparison: Comparison, simpler: Sequence[str]) -> Choice:
    if "trm" in simpler:
        return Choice(
            "trm",
            "no environment could be held out, so how well a model transfers cannot be compared; trm is taken because "
            "it minimises the risk of transfer between the environments",
        )
    first, *tied = [name for name in simpler if _gap(comparison, name) < EXACT]
    tie = f", {_tied(tied)}; the simpler one is taken" if tied else ""
    return Choice(
        first,
        f"no environment could be held out; {first} is the most accurate on held-out rows, which says nothing about "
        f"new environments{tie}",
    )


def _tied(names: Sequence[str]) -> str:
    return f"tied with {listed(names)}"


def _gap(comparison: Comparison, name: str) -> float:
    return comparison.mean(comparison.best) - comparison.mean(name)


def _worst_gap(comparison: Comparison, name: str) -> float:
    return comparison.worst(comparison.best) - comparison.worst(name)


def _worst(comparison: Comparison, name: str) -> str:
    """By how much the worst environment of the best algorithm is ahead of this one's."""
    gap = _worst_gap(comparison, name)
    return f"{100 * abs(gap):.2f} points {'more' if gap >= 0 else 'less'} in the worst environment"
