"""Trainings of a comparison, by scikit-learn's cross-validation: each candidate on each split of the rows.

Finished trainings are kept in a folder (`Kept`), so that a comparison that was killed goes on where it stopped. A
candidate that is far behind after two environments is not trained further (`far_behind`), if that is asked for.
"""

from __future__ import annotations

import fnmatch
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import joblib
import numpy as np
import sklearn
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.model_selection import cross_validate
from sklearn.utils.parallel import Parallel, delayed

from ..auditing.samples import pooled_change
from ..data import EnvironmentSet
from ..files import whole_file
from ..solvers import threads_set
from .candidates import simplicity
from .metrics import row_losses

Curve = tuple[tuple[int, ...], tuple[float, ...]]
"""(steps, losses) of a training"""
Training = tuple[int, str, int]
"""(seed, candidate, place of the split)"""

POINTS = 100  # largest number of points of a loss curve
RACED = 2  # environments tested on after which candidates may be stopped
FAR, FAR_BEHIND = 1.5, 0.01  # standard errors, and log loss, that one is behind then: on 21 real tables, stopping at 1
# to 3 errors left the quality of the average as it was; after one environment in place of two, choices were worse


class Part(NamedTuple):
    """Predictions of one training for its test rows, (n, C), and its loss curve, if it has one."""

    probabilities: NDArray[np.float64]
    curve: Curve | None


@dataclass(frozen=True)
class Kept:
    """Folder of finished trainings; the name of a file is a hash of all that its predictions depend on.

    digests  candidate -> hash of its parameters, the data and the versions of libraries
    say      called with a line if trainings are found
    """

    folder: Path
    digests: Mapping[str, str]
    say: Callable[[str], None]

    def path(self, name: str, seed: int, rows: Any) -> Path:
        """Return the file of a candidate's training on the first and test on the second of two arrays of rows."""
        return self.folder / f"{joblib.hash((self.digests[name], seed, *rows), 'sha1')}.npz"


def read_part(path: Path, rows: int, classes: int) -> Part | None:
    """Read a training; None if there is no file, or it is damaged or of another training."""
    damaged = OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError
    with suppress(*damaged), np.load(path, allow_pickle=False) as file:
        chances, steps, losses = map(file.__getitem__, ("probabilities", "steps", "losses"))
        if str(file["digest"]) == path.stem and chances.shape == (rows, classes) and np.isfinite(chances).all():
            return Part(chances, (tuple(steps.tolist()), tuple(losses.tolist())) if len(steps) else None)
    return None


def write_part(path: Path, part: Part) -> None:
    """Write a training to its file; a failure is ignored, since it costs nothing but the time to train again."""
    steps, losses = part.curve or ((), ())
    with suppress(OSError), whole_file(path) as temporary, temporary.open("wb") as file:
        np.savez(file, digest=path.stem, probabilities=part.probabilities, steps=steps, losses=losses)


@dataclass(frozen=True)
class Stopped:
    """A candidate that was not trained further, since it was far behind.

    accuracy  environment that it was tested on -> its accuracy there
    behind    its mean log loss there less that of the best candidate so far
    error     standard error of `behind`
    """

    accuracy: Mapping[str, float]
    behind: float
    error: float


def train_all(
    candidates: Mapping[str, Any],
    X: NDArray[Any] | Mapping[str, Any],
    samples: EnvironmentSet,
    splits: Mapping[int, Sequence[Any]],
    workers: int,
    on_trained: Callable[[int, int], None],
    kept: Kept | None,
    racing: bool,
) -> tuple[dict[Training, Part], dict[str, Stopped]]:
    """Return the results of all trainings, found in `kept` or trained now, and the candidates that were stopped.

    With `racing`, candidates that are `far_behind` after a split of the first seed are trained no further.
    """
    y, classes = samples.labels.numpy(), len(samples.class_names)
    environments = samples.environments.numpy()  # and not their names: joblib takes long to hash an array of objects
    first, folds = next(iter(splits.items()))
    tested = np.cumsum([len(np.unique(environments[test])) for _, test in folds])
    least = int(np.searchsorted(tested, RACED)) + 1  # splits before the first race
    trainings: dict[Training, Any] = {}
    rounds: dict[int, list[Training]] = {}  # number of splits after which a round of trainings ends -> the trainings
    paths: dict[Training, Path] = {}
    done: dict[Training, Part] = {}
    for seed, of_seed in splits.items():
        for place, rows in enumerate(of_seed):
            end = max(least, place + 1) if racing and seed == first else len(folds) + 1
            for name in candidates:  # candidates vary fastest, so that they share the encoded rows of a split
                key = seed, name, place
                trainings[key] = rows
                rounds.setdefault(end, []).append(key)
                if kept is not None:
                    paths[key] = kept.path(name, seed, rows)
                    if (part := read_part(paths[key], len(rows[1]), classes)) is not None:
                        done[key] = part
    if kept is not None and done:
        kept.say(f"{len(done)} of {len(trainings)} trainings of the comparison were done before and are not repeated")
    stopped: dict[str, Stopped] = {}

    def tell() -> None:
        """Report progress; trainings of stopped candidates count as done."""
        on_trained(sum(key in done or key[1] in stopped for key in trainings), len(trainings))

    tell()
    # One thread for each process, so that numbers do not depend on the number of processes.
    alone = threads_set(None if workers == 1 and samples.inputs[:1].dim() == 4 else 1)
    processes = joblib.parallel_config(backend="loky", inner_max_num_threads=1)
    with sklearn.config_context(enable_metadata_routing=True), alone, processes:
        for end, keys in rounds.items():
            work = (
                delayed(_train_part)(
                    key, candidates[key[1]], X[key[1]] if isinstance(X, Mapping) else X, y, environments, trainings[key]
                )
                for key in keys
                if key not in done and key[1] not in stopped
            )
            for key, (seen, chances, curve) in Parallel(n_jobs=workers, return_as="generator_unordered")(work):
                whole = np.zeros((len(chances), classes))
                whole[:, seen] = chances
                done[key] = Part(whole, curve)
                if key in paths:
                    write_part(paths[key], done[key])
                tell()
            if end < len(folds):
                rows = np.concatenate([test for _, test in folds[:end]])
                by_environment = {e: environments[rows] == e for e in np.unique(environments[rows])}
                predicted = {}
                for name in candidates:
                    if name not in stopped:
                        chances = np.concatenate([done[first, name, place].probabilities for place in range(end)])
                        predicted[name] = [chances[own] for own in by_environment.values()]
                labels = {samples.environment_names[e]: y[rows[own]] for e, own in by_environment.items()}
                stopped |= far_behind(predicted, labels)
                tell()
    return done, stopped


def far_behind(
    predicted: Mapping[str, Sequence[NDArray[np.float64]]], labels: Mapping[str, NDArray[Any]]
) -> dict[str, Stopped]:
    """Return the candidates whose log loss is above the best by more than `FAR` standard errors, and their gaps.

    A candidate that is more accurate than the best is not among them, nor are a constant and a linear model, which
    take no time and serve as a reference.

    predicted  candidate -> probabilities (n, C) in each environment that was held out
    labels     environment -> (n,), in the same order
    """
    losses, right = {}, {}
    for name, given in predicted.items():
        losses[name] = list(map(row_losses, labels.values(), given))
        right[name] = {e: float((one.argmax(1) == labels[e]).mean()) for e, one in zip(labels, given, strict=True)}
    best = min(losses, key=lambda name: float(np.mean([*map(np.mean, losses[name])])))
    found = {}
    for name, own in losses.items():
        gap = pooled_change(losses[best], own)
        ahead = sum(right[name].values()) > sum(right[best].values())
        if simplicity(name) > 1 and gap.mean > max(FAR * gap.error, FAR_BEHIND) and not ahead:
            found[name] = Stopped(right[name], gap.mean, gap.error)
    return found


def _train_part(
    key: Training, candidate: Any, X: Any, y: NDArray[Any], environments: NDArray[Any], rows: Any
) -> tuple[Any, tuple[NDArray[Any], NDArray[np.float64], Curve | None]]:
    """Cross-validate one candidate on one split; return the key, and classes, probabilities and loss curve."""
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


def _keep_probabilities(estimator: Any, X: Any, y: NDArray[Any]) -> float:
    """Score by accuracy, and leave the probabilities on the estimator, which comes back from its process."""
    estimator.probabilities_ = estimator.predict_proba(X)
    return float((estimator.classes_[estimator.probabilities_.argmax(1)] == y).mean())


def curve_of(estimator: Any) -> Curve | None:
    """Return the loss curve of a fitted estimator, averaged to `POINTS` points at most; None if it has none."""
    last = estimator[-1] if hasattr(estimator, "steps") else estimator
    if not hasattr(last, "loss_curve_"):
        return None
    count = min(POINTS, len(last.loss_curve_))
    steps, losses = np.array_split(last.loss_steps_, count), np.array_split(last.loss_curve_, count)
    return tuple([int(part[-1]) for part in steps]), tuple([float(part.mean()) for part in losses])
