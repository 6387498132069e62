"""Comparison of candidates in environments they were not trained on, by scikit-learn's cross-validation.

A candidate is an estimator with a name, the comparison is a table, and `choose` is a function of that table alone.

Each environment is held out once and tested on. With two environments a training without one of them would have a
single one, in which there is no transfer to look at: then a fifth of each environment's rows is held out instead,
which says nothing about new environments.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import joblib
import numpy as np
import pandas as pd
import sklearn
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import cross_validate

from ..data import EnvironmentSet
from ..data.environments import VALIDATION, hold_out
from ..errors import listed
from ..sklearn import LeaveOneEnvironmentOut
from ..solvers import threads_set

Curve = tuple[tuple[int, ...], tuple[float, ...]]
"""(steps, losses) of a training"""
Held = Literal["environments", "rows"]

ORDER = ("erm", "reweight", "groupdro", "vrex", "irm", "fish", "mldg", "trm-direct", "trm")
"""From the simplest to the one with the most to it; others, the user's own, come last."""
EXACT = 1e-9  # difference below which means tie, but for rounding
POINTS = 100  # of a training curve


@dataclass(frozen=True)
class Comparison:
    """
    held         what was held out: whole environments, or rows of each
    accuracy     environments tested on x candidates: the share of rows that came out right, over all seeds
    summary      candidates x mean, worst: accuracy over the environments, each counting the same; and x mean_error,
                 worst_error: the standard errors of the difference to the best candidate's, see `summarise`
    rows         environment -> how many rows were tested on, each seed
    seeds        those of the trainings
    left_out     how many more environments there are that were not held out
    frequent     environment -> accuracy of the most frequent class of the rows trained on; {}: not known
    curves       candidate -> its first training
    """

    held: Held
    accuracy: pd.DataFrame
    summary: pd.DataFrame
    rows: Mapping[str, int]
    seeds: tuple[int, ...] = (0,)
    left_out: int = 0
    frequent: Mapping[str, float] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The comparison in the types of JSON."""
        named = {
            "mean": "mean_accuracy",
            "worst": "worst_accuracy",
            "mean_error": "standard_error_of_difference_to_best",
            "worst_error": "standard_error_of_worst_difference_to_best",
        }
        algorithms = self.summary.rename(columns=named).to_dict("index")
        for name, found in algorithms.items():
            found["accuracy"] = self.accuracy[name].to_dict()
        return {
            "held_out": self.held,
            "environments": list(self.accuracy.index),
            "environments_not_held_out": self.left_out,
            "rows": dict(self.rows),
            "seeds": list(self.seeds),
            "accuracy_of_most_frequent_class": dict(self.frequent),
            "algorithms": algorithms,
        }


def compare(
    candidates: Mapping[str, Any],
    X: NDArray[Any],
    samples: EnvironmentSet,
    seeds: Sequence[int] = (0,),
    folds: int | None = None,
    workers: int = 1,
    on_trained: Callable[[int, int], None] = lambda done, total: None,
) -> Comparison:
    """Cross-validate estimators, each with every seed as its `random_state`.

    X           rows as the estimators take them, with the labels and environments of `samples`
    folds       environments to hold out at most, drawn by the first seed; None: all
    workers     processes that train at the same time
    on_trained  called with (trainings done, trainings in all)
    """
    y, environments = samples.labels.numpy(), samples.environments.numpy()
    names = np.array(samples.environment_names, dtype=object)
    held, splits = _split(samples, folds, seeds)
    by_seed: list[pd.DataFrame] = []
    curves: dict[str, Curve] = {}
    done, total = 0, len(candidates) * sum(map(len, splits.values()))
    # One thread for each process: numbers then do not depend on how many processes there are.
    alone = threads_set(None if workers == 1 and samples.inputs[:1].dim() == 4 else 1)
    processes = joblib.parallel_config(backend="loky", inner_max_num_threads=1)
    with sklearn.config_context(enable_metadata_routing=True), alone, processes:
        for seed, parts in splits.items():
            right = pd.DataFrame(index=environments[np.concatenate([test for _, test in parts])])
            for name, candidate in candidates.items():
                drawn = fnmatch.filter(candidate.get_params(), "*random_state")
                fitted = cross_validate(
                    clone(candidate).set_params(**dict.fromkeys(drawn, seed)),
                    X,
                    y,
                    cv=parts,
                    params={"environments": names[environments]},
                    scoring=_keep_right,
                    n_jobs=workers,
                    return_estimator=True,
                    error_score="raise",
                )["estimator"]
                right[name] = np.concatenate([estimator.right_ for estimator in fitted]).astype(float)
                curves.setdefault(name, curve_of(fitted[0]))
                done += len(parts)
                on_trained(done, total)
            by_seed.append(right)
    if held == "environments":  # which have the same rows by every seed
        accuracy, summary, rows = summarise(sum(by_seed) / len(seeds))
    else:
        accuracy, summary, rows = summarise(pd.concat(by_seed), repeats=len(seeds))
    chosen = names[accuracy.index]
    frequent = most_frequent(samples.group_counts().numpy())[accuracy.index] if held == "environments" else ()
    return Comparison(
        held,
        accuracy.set_axis(chosen),
        summary,
        dict(zip(chosen, rows.tolist(), strict=True)),
        tuple(seeds),
        len(names) - len(chosen),
        dict(zip(chosen, map(float, frequent), strict=False)),
        curves,
    )


def _split(samples: EnvironmentSet, most: int | None, seeds: Sequence[int]) -> tuple[Held, dict[int, list[Any]]]:
    """Tell what is held out, and by seed the (rows to train on, rows to test on) of each training.

    An environment without which a single class would be left stays.
    """
    y = samples.labels.numpy()
    if len(samples.environment_names) > 2:
        splitter = LeaveOneEnvironmentOut(most, random_state=seeds[0])
        parts = splitter.split(y, environments=samples.environments.numpy())
        usable = [(train, test) for train, test in parts if len(np.unique(y[train])) > 1]
        if usable:
            return "environments", dict.fromkeys(seeds, usable)
    drawn = {seed: hold_out(samples, VALIDATION, seed) for seed in seeds}
    return "rows", {seed: [(train.numpy(), test.numpy())] for seed, (train, test) in drawn.items()}


def _keep_right(estimator: Any, X: NDArray[Any], y: NDArray[Any]) -> float:
    """Accuracy as a scorer; which rows came out right stays with the estimator, which comes back from its process."""
    estimator.right_ = estimator.predict(X) == y
    return float(estimator.right_.mean())


def curve_of(estimator: Any) -> Curve:
    """Loss curve of a fitted estimator, averaged to `POINTS` points at most."""
    last = estimator[-1] if hasattr(estimator, "steps") else estimator
    count = min(POINTS, len(last.loss_curve_))
    steps, losses = np.array_split(last.loss_steps_, count), np.array_split(last.loss_curve_, count)
    return tuple([int(part[-1]) for part in steps]), tuple([float(part.mean()) for part in losses])


def most_frequent(counts: NDArray[np.integer[Any]]) -> NDArray[np.float64]:
    """Accuracy in each environment (E,) of always saying the most frequent class of the others; counts are (E, C)."""
    guess = (counts.sum(0) - counts).argmax(1)
    return np.asarray(counts[np.arange(len(counts)), guess] / counts.sum(1))


def summarise(right: pd.DataFrame, repeats: int = 1) -> tuple[pd.DataFrame, pd.DataFrame, pd.Series]:
    """`accuracy`, `summary` and `rows` of a `Comparison`.

    right    tested rows x candidates: 1 where a row came out right, or the share of seeds; its index is the environment
    repeats  how often each row is among them: rows that seed after seed draws are no more rows

    The standard errors are those of a difference between two candidates, had other rows of the same environments been
    drawn. Rows are compared in pairs, except for the worst accuracy where that is not in the same environment. How the
    difference varies between environments does not count: a candidate that gains in one alone, which is what it is
    for, would have a standard error as large as its gain.
    """
    groups = right.groupby(level=0)
    accuracy, rows = groups.mean(), groups.size() // repeats
    best, worst = accuracy.mean().idxmax(), accuracy.idxmin()
    # Variances of the accuracy, environments x candidates: each candidate's own, and of its difference to the best.
    own = groups.var(ddof=0).div(rows, axis=0)
    paired = right.sub(right[best], axis=0).groupby(level=0).var(ddof=0).div(rows, axis=0)
    of_worst = [
        paired.at[place, name] if place == worst[best] else own.at[place, name] + own.at[worst[best], best]
        for name, place in worst.items()
    ]
    summary = pd.DataFrame(
        {
            "mean": accuracy.mean(),
            "worst": accuracy.min(),
            "mean_error": np.sqrt(paired.sum()) / len(rows),
            "worst_error": np.sqrt(of_worst),
        }
    )
    return accuracy, summary, rows


@dataclass(frozen=True)
class Choice:
    algorithm: str
    why: str


def choose(comparison: Comparison) -> Choice:
    """Choose the simplest candidate within one standard error of the best, in mean and in worst accuracy.

    Where no environment could be held out, TRM if it took part: it is the one that looks at transfer while training.
    """
    found = comparison.summary
    best = found["mean"].idxmax()
    gap, worst_gap = found["mean"][best] - found["mean"], found["worst"][best] - found["worst"]
    simpler = [*filter(found.index.__contains__, ORDER), *found.index.difference(ORDER, sort=False)]
    top = gap.index[gap < EXACT]
    if comparison.held == "rows":
        return _choose_by_rows([name for name in simpler if name in top], "trm" in simpler)
    near = [name for name in simpler if gap[name] <= found["mean_error"][name]]
    taken = next(name for name in near if worst_gap[name] <= found["worst_error"][name])
    reached = f"mean accuracy of {100 * found['mean'][taken]:.1f} % in environments it was not trained on"
    if len(found) == 1:
        return Choice(taken, f"no other was compared; {reached}")
    tied = listed(top.drop(taken)) if taken in top else ""
    start = f"{reached}, tied with {tied}" if tied else f"highest {reached}" if taken == best else reached
    beside = near[0] if taken == best else taken  # the one whose distance to the best is told
    error, worst_error = 100 * found.loc[beside, ["mean_error", "worst_error"]]
    more = "more" if worst_gap[beside] >= 0 else "less"
    worst = f"{100 * abs(worst_gap[beside]):.2f} points {more} in the worst environment"
    if beside == best:
        return Choice(best, f"{start}; the simpler one is taken" if tied else start)
    if taken == best:
        return Choice(
            best,
            f"{start}; {beside} is simpler and within the standard error of it, but {best} has {worst}, beyond the "
            f"standard error of {worst_error:.2f}",
        )
    if tied:
        differs = f"; {best} has {worst}, within {worst_error:.2f}" if abs(worst_gap[taken]) >= EXACT else ""
        return Choice(taken, f"{start}{differs}; the simpler one is taken")
    return Choice(
        taken,
        f"{start}; {best} has {100 * gap[taken]:.2f} points more, within the standard error of {error:.2f}, and "
        f"{worst}, within {worst_error:.2f}, so the simpler one is taken",
    )


def _choose_by_rows(top: Sequence[str], with_trm: bool) -> Choice:
    """The choice where accuracy was measured in environments that were trained on: `top` has the highest."""
    if with_trm:
        return Choice(
            "trm",
            "no environment could be held out, so how well a model transfers cannot be compared; trm is taken because "
            "it minimises the risk of transfer between the environments",
        )
    first, *tied = top
    tie = f", tied with {listed(tied)}; the simpler one is taken" if tied else ""
    return Choice(
        first,
        f"no environment could be held out; {first} is the most accurate on held-out rows, which says nothing about "
        f"new environments{tie}",
    )


def beside_a_guess(comparison: Comparison, algorithm: str) -> str:
    """Clause for a mean accuracy that is not better than that of the most frequent class; "" if it is better."""
    guess = np.mean(list(comparison.frequent.values())) if comparison.frequent else -1.0
    if comparison.summary["mean"][algorithm] > guess + EXACT:
        return ""
    return (
        "; its mean is not better than always saying the most frequent class of the rows trained on, which reaches "
        f"{100 * guess:.1f} %"
    )
