"""What is audited, checked and laid out so that every fit and every test reads whole blocks of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError
from .folds import Codes, assign_folds

_SMALL = 1_000_000  # numbers; up to here float64 costs nothing, and all digits are exact
_CHUNK = 1 << 22  # numbers looked at at once
_ROWS_PER_COLUMN = 4  # rows that second moments are estimated from


@dataclass(frozen=True, eq=False)
class Samples:
    """Rows in the order of environment and fold; block (e, k) holds environment e's samples of fold k.

    rows    (n, d), the constant column not appended
    labels  (n,) index into classes
    bounds  (E * folds + 1,) where blocks begin and end
    """

    rows: Tensor
    labels: Tensor
    bounds: tuple[int, ...]
    folds: int
    environments: tuple[Any, ...]
    classes: tuple[Any, ...]
    grams: dict[int, Tensor] = field(default_factory=dict)

    def block(self, environment: int, fold: int) -> slice:
        place = environment * self.folds + fold
        return slice(self.bounds[place], self.bounds[place + 1])

    def environment(self, environment: int) -> slice:
        return slice(self.bounds[environment * self.folds], self.bounds[(environment + 1) * self.folds])

    def counts(self) -> NDArray[np.int64]:
        """Samples of each environment, fold and class, (E, folds, C)."""
        E, C = len(self.environments), len(self.classes)
        place = np.repeat(np.arange(E * self.folds), np.diff(self.bounds))
        found = np.bincount(place * C + self.labels.numpy(), minlength=E * self.folds * C)
        return found.reshape(E, self.folds, C)

    def gram(self, environment: int) -> Tensor:
        """About the sum of z z^T over an environment's rows z with the constant appended, (D, D); kept once known."""
        if environment not in self.grams:
            self.grams[environment] = _gram(self.rows[self.environment(environment)])
        return self.grams[environment]


def prepare(
    features: Any, labels: Any, environments: Any, folds: int | Sequence[int] | Codes, seed: int, standardise: bool
) -> Samples:
    vectors = _vectors(features)
    coded, classes = _codes(labels, len(vectors), "labels")
    places, names = _codes(environments, len(vectors), "environments")
    if len(names) < 2:
        raise InputError(f"environments hold {names[0]!r} alone: transfer needs at least two environments")
    if len(classes) < 2:
        raise InputError(f"labels hold {classes[0]!r} alone: there is nothing to predict; give two classes or more")
    held, number = _folds(folds, places, coded, seed)
    order = np.lexsort((held, places))
    rows = torch.from_numpy(vectors)[torch.from_numpy(order)]
    if rows.dtype == torch.float32 and rows.numel() <= _SMALL:
        rows = rows.double()
    if standardise:
        _standardise(rows)
    sizes = np.bincount(places * number + held, minlength=len(names) * number)
    bounds = (0, *np.cumsum(sizes).tolist())
    return Samples(rows, torch.from_numpy(coded[order]), bounds, number, names, classes)


def _vectors(features: Any) -> NDArray[Any]:
    """(n, d) of float32 or float64, finite; not copied where it is that already."""
    if isinstance(features, Tensor):
        features = features.detach().cpu()
        features = features.float() if features.dtype in (torch.float16, torch.bfloat16) else features
        features = features.numpy()
    elif hasattr(features, "to_numpy"):
        features = features.to_numpy()
    try:
        array = np.asarray(features)
        if array.dtype not in (np.float32, np.float64):
            exact = array.dtype.kind != "f" and np.can_cast(array.dtype, np.float32)
            array = array.astype(np.float32 if exact or array.dtype == np.float16 else np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"features are not all numbers ({error}): encode texts as numbers first") from None
    if array.ndim != 2 or not array.size:
        raise InputError(f"features of shape {array.shape} cannot be used: give (n, d), a row a sample")
    step = max(1, _CHUNK // array.shape[1])
    for start in range(0, len(array), step):
        bad = ~np.isfinite(array[start : start + step]).all(1)
        if bad.any():
            raise InputError(
                f"features hold nan or infinity, first in row {start + int(bad.argmax()) + 1}: leave such rows out, or "
                "fill them in"
            )
    return np.ascontiguousarray(array)


def _codes(values: Any, expected: int, noun: str) -> tuple[Codes, tuple[Any, ...]]:
    """Position of each value in the distinct ones, (n,), and those, sorted; texts that are all numbers, by value."""
    import pandas as pd

    from ..data.values import in_order

    given = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    if not hasattr(given, "dtype"):
        try:
            listed = list(given)
        except TypeError:
            raise InputError(f"{noun} are one {type(given).__name__}, not several: give one for each row") from None
        given = np.empty(len(listed), dtype=object)
        given[:] = listed
    if getattr(given, "ndim", 1) != 1 or len(given) != expected:
        raise InputError(
            f"{noun} of shape {np.shape(given)} do not go with {expected} rows of features: give one for each row"
        )
    try:
        found, distinct = pd.factorize(given)
    except TypeError as error:
        raise InputError(f"{noun} cannot be told apart ({error}): give numbers or texts") from None
    if (found < 0).any():
        raise InputError(f"{noun} are missing, first in row {int((found < 0).argmax()) + 1}: leave such rows out")
    names = [value.item() if isinstance(value, np.generic) else value for value in distinct]
    texts = in_order(names) if all(isinstance(name, str) for name in names) else []
    rank = {text: i for i, text in enumerate(texts)}
    try:
        ranked = sorted(range(len(names)), key=lambda i: rank[names[i]] if rank else names[i])
    except TypeError:
        ranked = sorted(range(len(names)), key=lambda i: (type(names[i]).__name__, str(names[i])))
    position = np.empty(len(names), np.int64)
    position[ranked] = np.arange(len(names))
    return position[found], tuple(names[i] for i in ranked)


def _folds(folds: int | Sequence[int] | Codes, places: Codes, labels: Codes, seed: int) -> tuple[Codes, int]:
    if isinstance(folds, int | np.integer) and not isinstance(folds, bool):
        if folds < 2:
            raise InputError(f"folds={folds} hold nothing out: give 2 or more")
        return assign_folds(places, labels, int(folds), seed), int(folds)
    given = np.asarray(folds)
    if given.shape != labels.shape or given.dtype.kind not in "iu":
        raise InputError("folds are neither a number of folds nor one whole number for each sample: give either")
    distinct, held = np.unique(given, return_inverse=True)
    if len(distinct) < 2:
        raise InputError("folds name one fold alone, so that nothing is left to fit on: give two folds or more")
    return held.astype(np.int64), len(distinct)


def _standardise(rows: Tensor) -> None:
    """Mean 0 and standard deviation 1 of every column over all samples, in place; constant columns become 0."""
    from ..data.moments import moments

    mean, scale = map(torch.from_numpy, moments(rows.numpy()))
    factor = torch.where(scale > 0, 1 / scale, 0).to(rows.dtype)
    for part in rows.split(max(1, _CHUNK // rows.shape[1])):
        part.sub_(mean.to(rows.dtype)).mul_(factor)


def _gram(rows: Tensor) -> Tensor:
    """n times an estimate of the mean z z^T from a few rows for each column, shrunk towards its diagonal.

    What is off the diagonal is noise in part, of variance about (s_ii s_jj + s_ij^2) / m, and is scaled down by the
    share of it that is not (Schaefer and Strimmer, 2005): features without correlation keep the diagonal alone.
    """
    n, d = rows.shape
    some = torch.nn.functional.pad(rows[:: max(1, n // (_ROWS_PER_COLUMN * d))], (0, 1), value=1.0)
    m = max(1, len(some))
    mean = some.mT @ some / m
    diagonal = mean.diagonal().clone()
    square = float(mean.square().sum() - diagonal.square().sum())
    noise = (float(diagonal.sum() ** 2 - diagonal.square().sum()) + square) / m
    mean *= max(0.0, 1 - noise / square) if square > 0 else 0.0
    mean.diagonal().copy_(diagonal)
    return mean * n
