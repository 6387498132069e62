"""Comparison of candidates in environments they were not trained on, and the choice of one.

A candidate is an estimator with a name, the comparison is a table, and `choose` is a function of that table alone.

Each environment is held out once and tested on; where there are more than trainings, several are held out of each.
With two environments, a training without one of them would have a
single environment, in which nothing can be learned about transfer: a fifth of each environment's rows is held out
instead, which says nothing about new environments. If environments are ordered in time, only the future is held out:
each from the third on, after training on the earlier ones.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..auditing.report import NEAR, pool
from ..data import EnvironmentSet
from ..data.splits import VALIDATION, hold_out
from ..data.values import in_time
from ..errors import InputError, listed
from ..models.blend import BLEND
from ..settings import as_json
from ..sklearn import LeaveOneEnvironmentOut
from .blending import FEWEST, blend_held_out
from .candidates import named, simplicity
from .decisions import Held, decide_held_out
from .metrics import METRICS, Metric, row_losses, row_scores
from .trainings import Curve, Kept, Stopped, train_all

CLOSE = 0.02  # of the lowest loss: a candidate that is clearly more accurate may have so much more
WORTH = 0.005  # of accuracy: a candidate is not taken if it costs more than this
SURELY = 2.0  # standard errors that the average must be behind, so that one of trees or networks is taken in its place


@dataclass(frozen=True)
class Comparison:
    """Candidates of a fit, compared in environments that were held out.

    Attributes
    ----------
    held
        "environments" were held out, or "rows" of each environment.
    accuracy
        Environments x candidates: accuracy of the mean probabilities over seeds. If the metric is of decisions, the
        threshold is learned from the other environments, or from the earlier ones.
    loss
        Environments x candidates: mean log loss.
    summary
        Candidates x columns: `mean` and `worst` accuracy over environments, each counted the same; `mean_loss` and
        `worst_loss` of the metric, likewise; `loss`, the pooled metric, in which an environment counts by the precision
        of its own; `gap`, `gap_error`, `worst_gap`, `worst_error`, differences to the best candidate and their standard
        errors, see `summarise`.
    rows
        Environment -> number of rows tested on with each seed.
    seeds
        Seeds of the trainings.
    left_out
        Number of environments that were not held out.
    together
        Largest number of environments that were held out of one training.
    frequent
        Environment -> accuracy of the class that is most frequent in the rows trained on; {}: not known.
    curves
        Candidate -> loss curve of its first training, if it is trained in steps.
    probabilities
        Candidate -> mean probabilities over seeds, (n, C); nan in rows that were not held out.
    metric
        Metric of `summary`.
    order
        Environments in the order of time, if only later ones were held out; otherwise ().
    members
        Candidate -> weight in the weighted average; {}: there is no average.
    stopped
        Candidates that were not trained to the end. They are in no other attribute.
    dropped
        Environment -> columns that were left out as unstable when it was held out; {}: no column was to be left out.

    Examples
    --------
    >>> import pandas as pd
    >>> from transferrisk.fitting import Comparison
    >>> accuracy = pd.DataFrame({"erm": [0.8], "trm": [0.9]}, index=["north"])
    >>> comparison = Comparison("environments", accuracy, 1 - accuracy, accuracy.T, {"north": 10})
    >>> comparison.metric
    'log_loss'
    """

    held: Held
    accuracy: pd.DataFrame
    loss: pd.DataFrame
    summary: pd.DataFrame
    rows: Mapping[str, int]
    seeds: tuple[int, ...] = (0,)
    left_out: int = 0
    together: int = 1
    frequent: Mapping[str, float] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    probabilities: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    metric: Metric = "log_loss"
    order: tuple[str, ...] = ()
    members: Mapping[str, float] = field(default_factory=dict)
    stopped: Mapping[str, Stopped] = field(default_factory=dict)
    dropped: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Return the comparison in the types of JSON."""
        what: str = self.metric
        if what not in ("log_loss", "brier"):
            what = METRICS[what].replace("1 -", "one minus").replace(" ", "_").lower()
        named_so = {
            "mean": "mean_accuracy",
            "worst": "worst_accuracy",
            "loss": f"pooled_{what}",
            "mean_loss": f"mean_{what}",
            "worst_loss": f"worst_{what}",
            "gap": "difference_to_best",
            "gap_error": "standard_error_of_difference_to_best",
            "worst_gap": "worst_difference_to_best",
            "worst_error": "standard_error_of_worst_difference_to_best",
        }
        algorithms = self.summary.rename(columns=named_so).to_dict("index")
        for name, found in algorithms.items():
            found["accuracy"] = self.accuracy[name].to_dict()
            found["log_loss"] = self.loss[name].to_dict()
            if name == BLEND:
                found["weights"] = dict(self.members)
        return {
            "held_out": self.held,
            "metric": self.metric,
            "environments": list(self.accuracy.index),
            "environments_not_held_out": self.left_out,
            "environments_held_out_together": self.together,
            "order": list(self.order) or None,
            "rows": dict(self.rows),
            "seeds": list(self.seeds),
            "accuracy_of_most_frequent_training_class": dict(self.frequent),
            "algorithms": algorithms,
            "stopped": as_json(self.stopped),
            "unstable_columns_left_out": as_json(self.dropped),
        }


def compare(
    candidates: Mapping[str, Any],
    X: NDArray[Any] | Mapping[str, Any],
    samples: EnvironmentSet,
    seeds: Sequence[int] = (0,),
    folds: int | None = None,
    workers: int = 1,
    on_trained: Callable[[int, int], None] = lambda done, total: None,
    metric: Metric = "log_loss",
    ordered: bool = False,
    kept: Kept | None = None,
    blend: bool = False,
    race: bool = False,
) -> Comparison:
    """Cross-validate estimators, each with every seed as its `random_state`.

    X           rows as the estimators take them, in the order of `samples`; or such rows by candidate
    folds       largest number of trainings of a candidate: with more environments, each training holds out several,
                drawn by the first seed; if they are ordered, the last are held out, each by itself; None: one training
                for each environment
    workers     number of processes that train at once
    on_trained  called with (trainings done, trainings in all)
    ordered     hold out the future only
    kept        folder of finished trainings, also of a comparison that was killed
    blend       add the weighted average of the candidates, see `blending`; possible if `can_blend`
    race        stop candidates that are `far_behind`; only if the metric is log loss and unordered environments are
                held out
    """
    y = samples.labels.numpy()
    held, splits = split_rows(samples, folds, seeds, ordered)
    order = tuple(in_time(samples.environment_names)) if ordered and held == "environments" else ()
    names, environments = np.array(order or samples.environment_names, dtype=object), numbered_in_time(samples, order)
    racing = race and metric == "log_loss" and held == "environments" and not ordered
    trained, stopped = train_all(candidates, X, samples, splits, workers, on_trained, kept, racing)
    probabilities: dict[str, NDArray[np.float64]] = {}
    curves: dict[str, Curve] = {}
    times = np.zeros((len(y), 1))
    for seed, folds_of_seed in splits.items():
        for place, (_, test) in enumerate(folds_of_seed):
            times[test] += 1
            for name in candidates:
                if name not in stopped:
                    part = trained[seed, name, place]
                    probabilities.setdefault(name, np.zeros((len(y), len(samples.class_names))))
                    probabilities[name][test] += part.probabilities
                    if part.curve is not None:
                        curves.setdefault(name, part.curve)
    tested, members = np.flatnonzero(times), dict[str, float]()
    for name, given in probabilities.items():
        with np.errstate(invalid="ignore"):
            given /= times
        if not np.isfinite(given[tested]).all():
            raise InputError(f"probabilities must be finite, got others from {named(name)}: compare without it")
    if blend and len(probabilities) > 1:
        blended, members = blend_held_out(y, probabilities, environments, bool(order))
        if len(members) > 1:  # else it is that member
            probabilities[BLEND] = blended
    index = environments[tested]
    right, losses, scores = pd.DataFrame(index=index), pd.DataFrame(index=index), pd.DataFrame(index=index)
    for name, given in probabilities.items():
        labels, chances = y[tested], given[tested]
        decided = decide_held_out(labels, chances, index, metric, bool(order))
        right[name] = (decided == labels).astype(float)
        losses[name] = row_losses(labels, chances)
        scores[name] = 0.0
        for place in np.unique(index):
            own = index == place
            scores.loc[own, name] = row_scores(labels[own], chances[own], decided[own], metric)
    if scores.isna().all(axis=None):
        raise InputError(f"metric {metric} needs two classes in an environment that is held out: choose another")
    accuracy, loss = right.groupby(level=0).mean(), losses.groupby(level=0).mean()
    summary = pd.concat([pd.DataFrame({"mean": accuracy.mean(), "worst": accuracy.min()}), summarise(scores)], axis=1)
    chosen = names[accuracy.index].tolist()
    frequent = {}
    for train, test in splits[seeds[0]] if held == "environments" else ():
        for place in np.unique(environments[test]):
            frequent[names[place]] = most_frequent(y[train], y[test[environments[test] == place]])
    return Comparison(
        held,
        accuracy.set_axis(chosen),
        loss.set_axis(chosen),
        summary,
        dict(zip(chosen, right.groupby(level=0).size().tolist(), strict=True)),
        tuple(seeds),
        len(names) - len(chosen),
        max(len(np.unique(environments[test])) for _, test in splits[seeds[0]]) if held == "environments" else 1,
        frequent,
        curves,
        probabilities,
        metric,
        order,
        members,
        stopped,
    )


def numbered_in_time(samples: EnvironmentSet, order: Sequence[str]) -> NDArray[np.int64]:
    """Return the number of each row's environment, (n,): its place in `order`, or among the names if that is ()."""
    places = pd.Index(order or samples.environment_names).get_indexer(samples.environment_names)
    return np.asarray(places[samples.environments.numpy()], dtype=np.int64)


def can_blend(samples: EnvironmentSet, folds: int | None, seed: int, ordered: bool) -> bool:
    """Return whether a comparison holds out enough environments to learn the weights of an average."""
    held, splits = split_rows(samples, folds, (seed,), ordered)
    environments = samples.environments.numpy()
    return held == "environments" and sum(len(np.unique(environments[test])) for _, test in splits[seed]) >= FEWEST


def split_rows(
    samples: EnvironmentSet, most: int | None, seeds: Sequence[int], ordered: bool
) -> tuple[Held, dict[int, list[Any]]]:
    """Return what is held out, and by seed the (rows to train on, rows to test on) of each training.

    Environments are not held out if a single class would be left to train on.
    """
    y, environments = samples.labels.numpy(), samples.environments.numpy()
    if len(samples.environment_names) > 2:
        splitter = LeaveOneEnvironmentOut(most, ordered=ordered, random_state=seeds[0])
        by_name = np.array(samples.environment_names, dtype=object)[environments]
        splits = splitter.split(y, environments=by_name if ordered else environments)
        usable = [(train, test) for train, test in splits if len(np.unique(y[train])) > 1]
        if usable:
            return "environments", dict.fromkeys(seeds, usable)
    drawn = {seed: hold_out(samples, VALIDATION, seed) for seed in seeds}
    return "rows", {seed: [(train.numpy(), test.numpy())] for seed, (train, test) in drawn.items()}


def most_frequent(trained: NDArray[np.integer[Any]], tested: NDArray[np.integer[Any]]) -> float:
    """Return the accuracy on the tested labels of always saying the most frequent of those trained on."""
    return float((tested == np.bincount(trained).argmax()).mean())


def summarise(scores: pd.DataFrame) -> pd.DataFrame:
    """Compute the columns of `Comparison.summary` that are of its metric, by candidate.

    scores  tested rows x candidates, the smaller the better, as from `metrics.row_scores`; the index is the
            environment; nan in environments for which the metric is not defined

    `loss` is pooled by a random-effects model (`auditing.report`): an environment with few rows counts less than one
    with many. The gap to the best candidate is pooled from differences of the same rows. Its standard error is for the
    mean over these environments, not over all possible ones: with few environments, that would let any simple
    candidate pass. In the worst environment, rows are compared in pairs if it is the same for both candidates.
    """
    scores = scores.dropna()
    groups = scores.groupby(level=0)
    means, rows = groups.mean(), groups.size()
    own = _error_variances(groups.var(ddof=0), rows)
    loss = pd.Series({name: pool(means[name], own[name]).mean for name in scores})
    best, worst = loss.idxmin(), means.idxmax()
    apart = scores.sub(scores[best], axis=0).groupby(level=0)
    gaps, paired = apart.mean(), _error_variances(apart.var(ddof=0), rows)
    found = {}
    for name in scores:
        gap, error = pool(gaps[name], paired[name]).mean, float(np.sqrt(paired[name].sum()) / len(paired))
        same = worst[name] == worst[best]
        variance = paired[name][worst[name]] if same else own[name][worst[name]] + own[best][worst[best]]
        mean, highest = means[name].mean(), means[name].max()
        found[name] = (loss[name], mean, highest, gap, error, highest - means[best].max(), float(np.sqrt(variance)))
    found[best] = (loss[best], means[best].mean(), means[best].max(), 0.0, 0.0, 0.0, 0.0)
    columns = ["loss", "mean_loss", "worst_loss", "gap", "gap_error", "worst_gap", "worst_error"]
    return pd.DataFrame.from_dict(found, "index", columns=columns)


def _error_variances(spreads: pd.DataFrame, rows: pd.Series) -> pd.DataFrame:
    """Return the error variances of the means of environments, environments x candidates.

    Two rows with the mean variance of all environments are added, so that a few equal rows do not make a mean certain.
    """
    return (spreads.mul(rows, axis=0) + 2 * spreads.mean()).div((rows + 2) * rows, axis=0)


@dataclass(frozen=True)
class Choice:
    """A candidate and the reason why it was chosen."""

    algorithm: str
    why: str


def choose(comparison: Comparison) -> Choice:
    """Choose the simplest candidate that is as good as the best in loss and in accuracy.

    1. Candidates within one standard error of the lowest loss, in the mean and in the worst environment; and ones whose
       loss is within 2 % of the lowest, where they are more accurate than all of those by more than half a point.
    2. Of these, the ones whose mean accuracy is within half a point of the highest among them.
    3. Of these, the simplest; of those as simple, such as all networks, the one with the lowest loss.
    4. If that is trees or a network, the average of candidates is taken in its place, unless its loss is above the
       lowest by more than two standard errors. Which of several similar candidates did best here is partly luck, and
       an average does not depend on it.

    Where no environment could be held out, the choice goes by rows that were, and says that nothing is known about new
    environments.
    """
    found, what = comparison.summary, METRICS[comparison.metric]
    where = "on held-out rows" if comparison.held == "rows" else "in held-out environments"
    lowest = found["loss"].idxmin()
    near = (found["gap"] <= found["gap_error"].clip(NEAR)) & (found["worst_gap"] <= found["worst_error"].clip(NEAR))
    near[lowest] = True
    close = found["gap"] <= CLOSE * found["loss"][lowest]
    near |= close & (found["mean"] > found["mean"][near].max() + WORTH)
    accurate = found["mean"] >= found["mean"][near].max() - WORTH
    order = sorted(found.index[near & accurate], key=lambda name: (simplicity(name), found["loss"][name]))
    taken = order[0]
    if simplicity(taken) > 1 and BLEND in found.index:
        behind, error = found.loc[BLEND, ["gap", "gap_error"]]
        taken = BLEND if behind <= max(SURELY * error, NEAR) else taken
    reached = f"pooled {what} of {found['loss'][taken]:.3f} {where}"
    if len(found) == 1:
        why = f"the only candidate, with a {reached}"
    elif taken == lowest:
        why = f"with the lowest {reached}"
        if others := [named(name) for name in order if name != taken]:
            why += f". Within the error, {listed(others)} {'is' if len(others) == 1 else 'are'} as good, but "
            why += "an average depends less on luck" if taken == BLEND else "not simpler"
    else:
        gap, error = found.loc[taken, ["gap", "gap_error"]]
        apart = f"a difference of {gap:.3f} with a standard error of {error:.3f}" if gap > NEAR else "hardly less"
        why = f"with a {reached}. The lowest is {found['loss'][lowest]:.3f}, of {named(lowest)} ({apart}), "
        points = 100 * (found["mean"][taken] - found["mean"][lowest])
        if taken == BLEND:
            why += "but an average depends less on luck"
        else:
            why += "which is less simple" if accurate[lowest] else f"which is {points:.1f} points less accurate"
    if comparison.held == "rows":
        why += ". This says nothing about new environments: with data from a third environment, each could be held out"
    return Choice(taken, why)
