"""Comparison of candidates in environments they were not trained on, by scikit-learn's cross-validation.

A candidate is an estimator with a name, the comparison is a table, and `choose` is a function of that table alone.

Each environment is held out once and tested on. With two environments a training without one of them would have a
single one, in which there is no transfer to look at: then a fifth of each environment's rows is held out instead,
which says nothing about new environments. Where environments follow each other in time, only the future is held out:
each from the third on, with training on the earlier ones.

A candidate that is far behind after two environments is not trained further (`far_behind`), where that is asked for.

Trainings that are done are kept in a folder (`Kept`), so that a comparison that was killed goes on where it stopped.
"""

from __future__ import annotations

import fnmatch
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import numpy as np
import pandas as pd
import sklearn
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import cross_validate
from sklearn.utils.parallel import Parallel, delayed

from ..auditing.report import pool
from ..data import EnvironmentSet
from ..data.splits import VALIDATION, hold_out
from ..data.values import in_time
from ..errors import InputError, listed
from ..files import whole_file
from ..models.blend import BLEND
from ..settings import as_json
from ..sklearn import LeaveOneEnvironmentOut
from ..solvers import threads_set
from .blending import FEWEST, blend_held_out
from .candidates import named, simplicity
from .decisions import Held, decide_held_out
from .metrics import METRICS, Metric, row_losses, row_scores

Curve = tuple[tuple[int, ...], tuple[float, ...]]
"""(steps, losses) of a training"""

POINTS = 100  # of a training curve
NEAR = 0.001  # of the metric: what is no further from the best counts as good, however sure the difference is
WORTH = 0.005  # of accuracy: a candidate is not taken where it costs more than this
RACED = 2  # environments after which candidates may be stopped
FAR, FAR_BEHIND = 3.0, 0.01  # standard errors, and log loss, that one is behind then: on 35 real tables stopping at 2
# to 5 errors left the quality of the choice as it was, and after one environment in place of two made it worse


@dataclass(frozen=True)
class Comparison:
    """The candidates of a fit, compared in environments that were held out.

    Attributes
    ----------
    held
        "environments", or "rows" of each environment.
    accuracy
        Environments tested on x candidates: the share of rows that came out right, over all seeds; where the metric is
        about decisions, by the threshold that the other environments give, or the earlier ones.
    loss
        Environments x candidates: the mean log loss.
    summary
        Candidates x columns: `mean` and `worst` accuracy over the environments, each counting the same; `mean_loss`
        and `worst_loss` of the metric, likewise; `loss`, its mean in which each environment counts by how surely its
        own is known; `gap`, `gap_error`, `worst_gap`, `worst_error`, the differences to the best candidate with their
        standard errors, see `summarise`.
    rows
        Environment -> how many rows were tested on, each seed.
    seeds
        Those of the trainings.
    left_out
        How many more environments there are that were not held out.
    frequent
        Environment -> accuracy of the most frequent class of the rows trained on; {}: not known.
    curves
        Candidate -> its first training, of those that are trained in steps.
    probabilities
        Candidate -> (n, C), the mean over seeds; nan in rows that were not held out.
    metric
        What `loss` and the columns after it are of.
    order
        Environments in the order of time, where only the later ones were held out; (): in any order.
    members
        Candidate -> its weight in the average, where there is one; {}: there is none.
    stopped
        Candidates that were not trained to the end, which are in none of the others.

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
    frequent: Mapping[str, float] = field(default_factory=dict)
    curves: Mapping[str, Curve] = field(default_factory=dict)
    probabilities: Mapping[str, NDArray[np.float64]] = field(default_factory=dict)
    metric: Metric = "log_loss"
    order: tuple[str, ...] = ()
    members: Mapping[str, float] = field(default_factory=dict)
    stopped: Mapping[str, Stopped] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """The comparison in the types of JSON."""
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
            "order": list(self.order) or None,
            "rows": dict(self.rows),
            "seeds": list(self.seeds),
            "accuracy_of_most_frequent_class": dict(self.frequent),
            "algorithms": algorithms,
            "stopped": as_json(self.stopped),
        }


@dataclass(frozen=True)
class Stopped:
    """A candidate that was not trained further, since it was far behind.

    Attributes
    ----------
    accuracy
        Environment -> accuracy, of those that it was tested on.
    behind, error
        Its mean log loss there less that of the best so far, and the standard error of this.
    """

    accuracy: Mapping[str, float]
    behind: float
    error: float


class Part(NamedTuple):
    """What one training predicted for the rows that it was tested on, (n, C), and its loss curve, where it has one."""

    probabilities: NDArray[np.float64]
    curve: Curve | None


@dataclass(frozen=True)
class Kept:
    """Trainings that are done, each a file in a folder, named by a digest of all that its predictions depend on.

    digests  candidate -> digest of its parameters, the data, and the versions of what computes
    say      called with a line where trainings are found
    """

    folder: Path
    digests: Mapping[str, str]
    say: Callable[[str], None]

    def path(self, name: str, seed: int, rows: Any) -> Path:
        """File of a candidate's training on the first and its test on the second of two arrays of rows."""
        return self.folder / f"{joblib.hash((self.digests[name], seed, *rows), 'sha1')}.npz"


def read_part(path: Path, rows: int, classes: int) -> Part | None:
    """A training that was kept; None where there is none, or the file is damaged or another training's."""
    damaged = OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError
    with suppress(*damaged), np.load(path, allow_pickle=False) as file:
        chances, steps, losses = (file[name] for name in ("probabilities", "steps", "losses"))
        if str(file["digest"]) == path.stem and chances.shape == (rows, classes) and np.isfinite(chances).all():
            return Part(chances, (tuple(steps.tolist()), tuple(losses.tolist())) if len(steps) else None)
    return None


def write_part(path: Path, part: Part) -> None:
    """Keep a training. Where that is not possible nothing is lost but the time that it took."""
    steps, losses = part.curve or ((), ())
    with suppress(OSError), whole_file(path) as temporary, temporary.open("wb") as file:
        np.savez(file, digest=path.stem, probabilities=part.probabilities, steps=steps, losses=losses)


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

    X           rows as the estimators take them, with the labels and environments of `samples`; or by candidate
    folds       environments to hold out at most, drawn by the first seed or, where they are ordered, the last; None:
                all
    workers     processes that train at the same time
    on_trained  called with (trainings done, trainings in all)
    ordered     hold out the future only
    kept        where trainings that are done are kept, and those of a comparison that was killed are found
    blend       whether the average of the candidates is one more, see `blending`; where `can_blend` says so
    race        whether candidates that are `far_behind` are trained no further; where the metric is log loss and whole
                environments, in no order, are held out
    """
    y = samples.labels.numpy()
    held, splits = _split(samples, folds, seeds, ordered)
    order = tuple(in_time(samples.environment_names)) if ordered and held == "environments" else ()
    names, environments = np.array(order or samples.environment_names, dtype=object), numbered_in_time(samples, order)
    racing = race and metric == "log_loss" and held == "environments" and not ordered
    trained, stopped = _train_all(candidates, X, samples, splits, workers, on_trained, kept, racing)
    candidates = {name: one for name, one in candidates.items() if name not in stopped}
    found = {name: np.zeros((len(y), len(samples.class_names))) for name in candidates}
    times = np.zeros(len(y))
    curves: dict[str, Curve] = {}
    for seed, folds_of_seed in splits.items():
        times[np.concatenate([test for _, test in folds_of_seed])] += 1
        for name in candidates:
            for place, (_, test) in enumerate(folds_of_seed):
                part = trained[seed, name, place]
                found[name][test] += part.probabilities
                if part.curve is not None and name not in curves:
                    curves[name] = part.curve
    with np.errstate(invalid="ignore"):
        probabilities = {name: given / times[:, None] for name, given in found.items()}
    tested, members = np.flatnonzero(times), dict[str, float]()
    if wrong := [named(name) for name, given in probabilities.items() if not np.isfinite(given[tested]).all()]:
        raise InputError(f"probabilities must be finite, got others from {listed(wrong)}: compare without")
    if blend and len(probabilities) > 1:
        blended, members = blend_held_out(y, probabilities, environments, bool(order))
        if len(members) > 1:  # else it is that member
            probabilities[BLEND] = blended
    index = environments[tested]
    right, losses, scores = (pd.DataFrame(index=index) for _ in range(3))
    for name, given in probabilities.items():
        labels, chances = y[tested], given[tested]
        decided = decide_held_out(labels, chances, index, metric, bool(order))
        right[name] = (decided == labels).astype(float)
        losses[name] = row_losses(labels, chances)
        scores[name] = 0.0
        for own in (index == place for place in np.unique(index)):
            scores.loc[own, name] = row_scores(labels[own], chances[own], decided[own], metric)
    if scores.isna().all(axis=None):
        raise InputError(f"metric {metric} needs two classes in an environment that is held out: choose another")
    accuracy, loss = right.groupby(level=0).mean(), losses.groupby(level=0).mean()
    summary = pd.concat([pd.DataFrame({"mean": accuracy.mean(), "worst": accuracy.min()}), summarise(scores)], axis=1)
    chosen = names[accuracy.index].tolist()
    counts = pd.Series(index).map(dict(enumerate(names))).value_counts()
    frequent = {}
    if held == "environments":
        frequent = {names[environments[test[0]]]: most_frequent(y[train], y[test]) for train, test in splits[seeds[0]]}
    return Comparison(
        held,
        accuracy.set_axis(chosen),
        loss.set_axis(chosen),
        summary,
        {name: int(counts[name]) for name in chosen},
        tuple(seeds),
        len(names) - len(chosen),
        frequent,
        curves,
        probabilities,
        metric,
        order,
        members,
        stopped,
    )


def numbered_in_time(samples: EnvironmentSet, order: Sequence[str]) -> NDArray[np.int64]:
    """Number of each row's environment, (n,): its place in the order of time, or where that is () among the names."""
    names = list(order or samples.environment_names)
    places = np.array([names.index(name) for name in samples.environment_names])
    return np.asarray(places[samples.environments.numpy()])


def can_blend(samples: EnvironmentSet, folds: int | None, seed: int, ordered: bool) -> bool:
    """Tell whether a comparison holds out enough environments to learn the weights of an average from."""
    held, splits = _split(samples, folds, (seed,), ordered)
    return held == "environments" and len(splits[seed]) >= FEWEST


def _train_all(
    candidates: Mapping[str, Any],
    X: NDArray[Any] | Mapping[str, Any],
    samples: EnvironmentSet,
    splits: Mapping[int, Sequence[Any]],
    workers: int,
    on_trained: Callable[[int, int], None],
    kept: Kept | None,
    racing: bool,
) -> tuple[dict[tuple[int, str, int], Part], dict[str, Stopped]]:
    """The parts of all trainings, by seed, candidate and place of the split: those that were kept, and the others.

    With `racing`, candidates that are `far_behind` at places of the first seed are trained no further, and come second.
    """
    y, classes = samples.labels.numpy(), len(samples.class_names)
    environments = samples.environments.numpy()  # and not their names: joblib takes long to hash an array of objects
    trainings = {
        (seed, name, place): rows
        for seed, folds in splits.items()
        for place, rows in enumerate(folds)  # the inner one is the candidate: all of a place take the same rows
        for name in candidates
    }
    done: dict[tuple[int, str, int], Part] = {}
    paths = {} if kept is None else {key: kept.path(key[1], key[0], rows) for key, rows in trainings.items()}
    for key, path in paths.items():
        if (part := read_part(path, len(trainings[key][1]), classes)) is not None:
            done[key] = part
    if kept is not None and done:
        kept.say(f"{len(done)} of {len(trainings)} trainings of the comparison were done before and are not repeated")
    first, folds = next(iter(splits.items()))
    rounds = [trainings]
    if racing:
        places = {key: max(RACED, key[2] + 1) if key[0] == first else len(folds) + 1 for key in trainings}
        rounds = [
            {key: trainings[key] for key in trainings if places[key] == one} for one in sorted({*places.values()})
        ]
    stopped: dict[str, Stopped] = {}

    def tell() -> None:
        """What is not needed any more counts as done."""
        on_trained(sum(key in done or key[1] in stopped for key in trainings), len(trainings))

    tell()
    # One thread for each process: numbers then do not depend on how many processes there are.
    alone = threads_set(None if workers == 1 and samples.inputs[:1].dim() == 4 else 1)
    processes = joblib.parallel_config(backend="loky", inner_max_num_threads=1)
    with sklearn.config_context(enable_metadata_routing=True), alone, processes:
        for number, trained_now in enumerate(rounds):
            work = (
                delayed(_train_part)(
                    key, candidates[key[1]], X[key[1]] if isinstance(X, Mapping) else X, y, environments, rows
                )
                for key, rows in trained_now.items()
                if key not in done and key[1] not in stopped
            )
            for key, (labels, chances, curve) in Parallel(n_jobs=workers, return_as="generator_unordered")(work):
                whole = np.zeros((len(chances), classes))
                whole[:, labels] = chances
                done[key] = Part(whole, curve)
                if key in paths:
                    write_part(paths[key], done[key])
                tell()
            if racing and number + RACED < len(folds):
                tested = {samples.environment_names[environments[test[0]]]: y[test] for _, test in folds}
                running = {
                    name: dict(zip(tested, (done[first, name, n].probabilities for n in range(number + RACED))))  # noqa: B905
                    for name in candidates
                    if name not in stopped
                }
                if behind := far_behind(running, tested):
                    stopped |= behind
                    tell()
    return done, stopped


def far_behind(
    probabilities: Mapping[str, Mapping[str, NDArray[np.float64]]], labels: Mapping[str, NDArray[Any]]
) -> dict[str, Stopped]:
    """Candidates that are behind the best so far in log loss, beyond `FAR` standard errors, and no more accurate.

    A constant and a linear model stay: they take no time, and others are seen beside them.

    probabilities  candidate -> environment that was held out -> (n, C)
    labels         environment -> (n,)
    """
    losses = {name: [row_losses(labels[e], one) for e, one in given.items()] for name, given in probabilities.items()}
    right = {
        name: {e: float((one.argmax(1) == labels[e]).mean()) for e, one in given.items()}
        for name, given in probabilities.items()
    }
    best = min(losses, key=lambda name: float(np.mean([one.mean() for one in losses[name]])))
    found = {}
    for name, own in losses.items():
        apart = [mine - its for mine, its in zip(own, losses[best], strict=True)]
        gap = pool([one.mean() for one in apart], [one.var() / len(one) for one in apart], evenly=True)
        ahead = sum(right[name].values()) > sum(right[best].values())
        if simplicity(name) > 1 and gap.mean > max(FAR * gap.error, FAR_BEHIND) and not ahead:
            found[name] = Stopped(right[name], gap.mean, gap.error)
    return found


def _train_part(
    key: tuple[int, str, int], candidate: Any, X: Any, y: NDArray[Any], environments: NDArray[Any], rows: Any
) -> tuple[Any, tuple[NDArray[Any], NDArray[np.float64], Curve | None]]:
    """Cross-validate one candidate on one split: the key, and classes, probabilities and loss curve."""
    drawn = fnmatch.filter(candidate.get_params(), "*random_state")
    (fitted,) = cross_validate(
        clone(candidate).set_params(**dict.fromkeys(drawn, key[0])),
        X,
        y,
        cv=[rows],
        params={"environments": environments},
        scoring=_keep_probabilities,
        return_estimator=True,
        error_score="raise",
    )["estimator"]
    return key, (fitted.classes_, fitted.probabilities_, curve_of(fitted))


def _split(
    samples: EnvironmentSet, most: int | None, seeds: Sequence[int], ordered: bool
) -> tuple[Held, dict[int, list[Any]]]:
    """Tell what is held out, and by seed the (rows to train on, rows to test on) of each training.

    An environment without which a single class would be left stays.
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


def _keep_probabilities(estimator: Any, X: Any, y: NDArray[Any]) -> float:
    """Accuracy as a scorer; the probabilities stay with the estimator, which comes back from its process."""
    estimator.probabilities_ = estimator.predict_proba(X)
    return float((estimator.classes_[estimator.probabilities_.argmax(1)] == y).mean())


def curve_of(estimator: Any) -> Curve | None:
    """Loss curve of a fitted estimator, averaged to `POINTS` points at most; None where it has none."""
    last = estimator[-1] if hasattr(estimator, "steps") else estimator
    if not hasattr(last, "loss_curve_"):
        return None
    count = min(POINTS, len(last.loss_curve_))
    steps, losses = np.array_split(last.loss_steps_, count), np.array_split(last.loss_curve_, count)
    return tuple([int(part[-1]) for part in steps]), tuple([float(part.mean()) for part in losses])


def most_frequent(trained: NDArray[np.integer[Any]], tested: NDArray[np.integer[Any]]) -> float:
    """Accuracy on the tested labels of always saying the most frequent of those trained on."""
    return float((tested == np.bincount(trained).argmax()).mean())


def summarise(scores: pd.DataFrame) -> pd.DataFrame:
    """loss, mean_loss, worst_loss, gap, gap_error, worst_gap and worst_error of a `Comparison`, by candidate.

    scores  tested rows x candidates, the smaller the better, as `metrics.row_scores` gives them; its index is the
            environment; nan in environments in which there are none

    Means over environments are those of a random-effects model (`auditing.report`): an environment with few rows, in
    which little is known, counts less than one with many. The gap to the best candidate is pooled from the differences
    of the same rows; its standard error is that of their mean over these environments, not over all that there may be,
    which with few of them would let anything simple pass. The worst environment of a candidate need not be that of the
    best one; where it is the same, rows are compared in pairs there too.
    """
    scores = scores.dropna()
    groups = scores.groupby(level=0)
    means, rows = groups.mean(), groups.size()
    own = _error_variances(groups.var(ddof=0), rows)
    loss = pd.Series({name: _pooled(means[name], own[name])[0] for name in scores})
    best, worst = loss.idxmin(), means.idxmax()
    apart = scores.sub(scores[best], axis=0).groupby(level=0)
    gaps, paired = apart.mean(), _error_variances(apart.var(ddof=0), rows)
    found = {}
    for name in scores:
        gap, error = _pooled(gaps[name], paired[name])[0], float(np.sqrt(paired[name].sum()) / len(paired))
        same = worst[name] == worst[best]
        variance = paired[name][worst[name]] if same else own[name][worst[name]] + own[best][worst[best]]
        highest = means[name].max()
        found[name] = (
            loss[name],
            means[name].mean(),
            highest,
            gap,
            error,
            highest - means[best].max(),
            float(np.sqrt(variance)),
        )
    found[best] = (loss[best], means[best].mean(), means[best].max(), 0.0, 0.0, 0.0, 0.0)
    columns = ["loss", "mean_loss", "worst_loss", "gap", "gap_error", "worst_gap", "worst_error"]
    return pd.DataFrame.from_dict(found, "index", columns=columns)


def _error_variances(spreads: pd.DataFrame, rows: pd.Series) -> pd.DataFrame:
    """Error variances of the means of environments, from the variances of their rows, environments x candidates.

    Two rows are added that vary as those of all environments do: rows that came out alike do not make a mean certain.
    """
    return (spreads.mul(rows, axis=0) + 2 * spreads.mean()).div((rows + 2) * rows, axis=0)


def _pooled(values: pd.Series, variances: pd.Series) -> tuple[float, float]:
    pooled = pool(values.to_numpy(), variances.to_numpy())
    return pooled.mean, pooled.error


@dataclass(frozen=True)
class Choice:
    algorithm: str
    why: str


def choose(comparison: Comparison) -> Choice:
    """Choose the simplest candidate that is as good as the best in loss and in accuracy.

    1. Candidates within one standard error of the lowest loss, in the mean and in the worst environment.
    2. Of these, the ones whose mean accuracy is within half a point of the highest among them.
    3. Of these, the simplest; of those as simple, such as all networks, the one with the lowest loss.

    Where no environment could be held out, the choice goes by rows that were, and says that nothing is known about new
    environments.
    """
    found, what = comparison.summary, METRICS[comparison.metric]
    where = "in environments later than those trained on" if comparison.order else "in environments not trained on"
    if comparison.held == "rows":
        where = "on held-out rows"
    lowest = found["loss"].idxmin()
    near = (found["gap"] <= found["gap_error"].clip(NEAR)) & (found["worst_gap"] <= found["worst_error"].clip(NEAR))
    near[lowest] = True
    accurate = found["mean"] >= found["mean"][near].max() - WORTH
    order = sorted(found.index[near & accurate], key=lambda name: (simplicity(name), found["loss"][name]))
    taken = order[0]
    reached = f"pooled {what} of {found['loss'][taken]:.3f} {where}"
    if len(found) == 1:
        why = f"no other was compared; {reached}"
    elif taken == lowest:
        why = f"lowest {reached}"
        if others := [named(name) for name in order[1:]]:
            why += f"; {listed(others)} {'is' if len(others) == 1 else 'are'} as good within the error, but not simpler"
    else:
        gap, error = found.loc[taken, ["gap", "gap_error"]]
        apart = f"a difference of {gap:.3f} with a standard error of {error:.3f}" if gap > NEAR else "hardly less"
        why = f"{reached}; {named(lowest)} has {found['loss'][lowest]:.3f}, {apart}, "
        points = 100 * (found["mean"][taken] - found["mean"][lowest])
        why += "so the simpler one is taken" if accurate[lowest] else f"but an accuracy {points:.1f} points lower"
    if comparison.held == "rows":
        why += (
            "; with so few environments none could be held out, so nothing here says how the model does in a new one: "
            "data from a third environment would"
        )
    return Choice(taken, why)
