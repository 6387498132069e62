"""The samples of an audit: checked, and laid out so that every fit and every test reads whole blocks of rows."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError
from ..settings import Bound, convert

if TYPE_CHECKING:
    from ..data import EnvironmentSet, Options, Splits
    from ..data.schema import Schema

Codes = NDArray[np.int64]
Folds = int | Sequence[int] | Codes
FoldCount = Annotated[int, Bound(least=2)]

MOST = 100_000  # samples that columns and shifts are judged by; more would not change what is said
_SMALL = 1_000_000  # numbers; up to here float64 costs nothing, and all digits are exact
CHUNK = 1 << 22  # numbers looked at at once
_ROWS_PER_COLUMN = 4  # rows that second moments are estimated from
_LARGEST_GRAM = 4096  # columns; above, only the diagonal of second moments is used


@dataclass(frozen=True, eq=False)
class Samples:
    """Rows in the order of environment and fold.

    rows    (n, D), the constant last
    labels  (n,) index into classes
    order   (n,) which of the samples given it is
    bounds  (E * folds + 1,) where the folds of the environments begin and end
    counts  (E, folds, C) samples of each environment, fold and class
    """

    rows: Tensor
    labels: Tensor
    order: Codes
    bounds: tuple[int, ...]
    counts: Codes
    folds: int
    environments: tuple[Any, ...]
    classes: tuple[Any, ...]
    moments: dict[int, Tensor] = field(default_factory=dict)  # kept by `gram`

    def span(self, environment: int, fold: int | None = None) -> slice:
        """Return the rows of an environment: those of a fold, or all."""
        first, count = environment * self.folds + (fold or 0), self.folds if fold is None else 1
        return slice(self.bounds[first], self.bounds[first + count])

    def gram(self, environments: Sequence[int]) -> Tensor:
        """About the mean of z z^T over the rows z of these environments, as `functional.SoftmaxLoss` takes it.

        It is estimated from a few rows for each column, and shrunk towards its diagonal: what is off the diagonal is
        noise in part, of variance about (s_ii s_jj + s_ij^2) / m, and is scaled down by the share of it that is not
        (Schaefer and Strimmer, 2005), so that features without correlation keep the diagonal alone. Where there are
        very many columns, that diagonal is all that comes back, (1, 1, D).
        """
        total = torch.zeros(())
        for e in environments:
            if e not in self.moments:
                rows = self.rows[self.span(e)]
                n, D = rows.shape
                some = rows[:: max(1, n // (_ROWS_PER_COLUMN * D))]
                m = max(1, len(some))
                if D > _LARGEST_GRAM:
                    mean = some.square().sum(0, keepdim=True) / m
                else:
                    mean = some.mT @ some / m
                    diagonal = mean.diagonal().clone()
                    square = float(mean.square().sum() - diagonal.square().sum())
                    noise = (float(diagonal.sum() ** 2 - diagonal.square().sum()) + square) / m
                    mean *= max(0.0, 1 - noise / square) if square > 0 else 0.0
                    mean.diagonal().copy_(diagonal)
                self.moments[e] = mean * n
            total = total + self.moments[e]
        return (total / total[-1, -1].clamp(min=1)).unsqueeze(0)

    @cached_property
    def _sums(self) -> Tensor:
        """Number, sums and sums of squares of each environment's columns, (E, 3, D), in float64."""
        found = torch.zeros(len(self.environments), 3, self.rows.shape[1], dtype=torch.float64)
        for e in range(len(found)):
            span = self.span(e)
            found[e, 0] = span.stop - span.start
            for part in self.rows[span].split(max(1, CHUNK // self.rows.shape[1])):
                found[e, 1] += part.sum(0, dtype=torch.float64)
                found[e, 2] += part.double().square().sum(0)
        return found

    def variances_without(self, environment: int) -> Tensor:
        """Variance of every column over the samples of all other environments, (D,); 0 where only rounding is left."""
        number, sums, squares = self._sums.sum(0) - self._sums[environment]
        mean, square = sums / number, squares / number
        variance = square - mean.square()
        return torch.where(variance > 1e-12 * square, variance, 0).to(self.rows.dtype)


class Audited(NamedTuple):
    """The arguments of `audit`, as data sets and models give them."""

    features: Tensor  # (n, d)
    labels: NDArray[np.object_]  # (n,) names
    environments: NDArray[np.object_]
    groups: Mapping[str, Sequence[int]] | None = None  # of a table, the features of each column
    missing: Mapping[str, int] = MappingProxyType({})  # the feature that says where a column has no value
    whole: Tensor | None = None  # (n, d') features with every missing-value indicator, which the indices above are of


def read_features(
    given: str, options: Options, of_images: Callable[[EnvironmentSet], Tensor | None] | None = None
) -> Audited:
    """Return the features of a file or a data set as they are.

    of_images  features of images, (n, d), or None where it has none of them; images are refused without it
    """
    from ..data.catalogue import load_data, set_name
    from ..data.sets.tables import read_table, review_table
    from .predictors import settle_indicators

    name = set_name(given, options)
    if name.startswith("table:"):
        table = read_table(name.removeprefix("table:"), options)
        schema = settle_indicators(table.schema, table.declared, table.frame, table.labels, table.environments)
        data = review_table(table, schema)
        groups, missing = column_groups(table.schema), missing_features(table.schema)
        whole = table.data.inputs[:]
        return join_sets([data], [data.inputs[:]])._replace(groups=groups, missing=missing, whole=whole)
    if name.startswith("folder:"):
        options = replace(options, lazy=True)  # images are read once, or refused, for which one is enough to decode
    sets = unseen_sets(load_data(name, options))
    if sets[0].inputs[:1].dim() != 2:
        found = [None if of_images is None else of_images(one) for one in sets]
        if all(one is not None for one in found):
            return join_sets(sets, [one for one in found if one is not None])
        raise InputError(
            f"{name} must hold features, got images: add --model with a folder of trm train or trm fit, whose features "
            "of them are audited"
        )
    return join_sets(sets, [one.inputs[:] for one in sets])


def column_groups(schema: Schema) -> dict[str, list[int]]:
    """The features' indices of each column of a `data.schema.Schema`, in the encoding "features"."""
    groups, place = {}, 0
    for column in schema.columns:
        if column.features:
            groups[column.name] = list(range(place, place + len(column.features)))
        place += len(column.features)
    return groups


def missing_features(schema: Schema) -> dict[str, int]:
    """The index of the feature that says where a column has no value, by column; see `column_groups`."""
    groups, found = column_groups(schema), {}
    for column in schema.columns:
        if column.missing and column.indicator:
            found[column.name] = groups[column.name][-1]
    return found


def unseen_sets(data: EnvironmentSet | Splits) -> list[EnvironmentSet]:
    """Return the whole of a set or, where it is divided, the splits that are not trained on."""
    from ..data import Splits

    return [data.training_domain, data.test] if isinstance(data, Splits) else [data]


def join_sets(sets: Sequence[EnvironmentSet], features: Sequence[Tensor]) -> Audited:
    """Return one set after the other, each with its features."""
    labels, environments = [], []
    for one in sets:
        labels.append(np.array(one.class_names, dtype=object)[one.labels.numpy()])
        environments.append(np.array(one.environment_names, dtype=object)[one.environments.numpy()])
    return Audited(torch.cat(list(features)), np.concatenate(labels), np.concatenate(environments))


def arrange_samples(
    features: Any, labels: Any, environments: Any, folds: Folds, seed: int, standardise: bool
) -> Samples:
    """Check the arguments of `audit`, and order the samples by environment and fold.

    Where features are standardised, columns that do not vary become 0.
    """
    from ..data.values import Standardise

    vectors = _vectors(features)
    coded, classes = _codes(labels, len(vectors), "labels")
    places, names = _codes(environments, len(vectors), "environments")
    if len(names) < 2:
        raise InputError(f"environments must hold two values or more, got {names[0]!r} alone: transfer needs two")
    if len(classes) < 2:
        raise InputError(f"labels must hold two classes or more, got {classes[0]!r} alone: there is nothing to predict")
    if np.ndim(folds) == 0:
        number: int = convert("folds", folds, FoldCount)
        held = assign_folds(places, coded, number, seed)
    else:
        given = np.asarray(folds)
        if given.shape != coded.shape or given.dtype.kind not in "iu":
            raise InputError(
                f"folds must be a number of folds or one integer for each of {len(coded)} samples, got {given.dtype} "
                f"of shape {given.shape}"
            )
        distinct, held = np.unique(given, return_inverse=True)
        number = len(distinct)
        if number < 2:
            raise InputError(f"folds must name two folds or more, got {distinct[0]} alone: nothing is left to fit on")
    shape = len(names), number, len(classes)
    counts = np.bincount(np.ravel_multi_index((places, held, coded), shape), minlength=math.prod(shape)).reshape(shape)
    order = np.lexsort((held, places))
    n, d = vectors.shape
    rows = torch.ones(n, d + 1, dtype=torch.float64 if vectors.size <= _SMALL else torch.from_numpy(vectors[:0]).dtype)
    transform = Standardise.fit(vectors, dtype=rows.dtype) if standardise else torch.nn.Identity()
    step = max(1, CHUNK // d)
    for begin in range(0, n, step):
        rows[begin : begin + step, :-1] = transform(torch.from_numpy(vectors[order[begin : begin + step]]))
    bounds = (0, *np.cumsum(counts.sum(2)).tolist())
    return Samples(rows, torch.from_numpy(coded[order]), order, bounds, counts, number, names, classes)


def thin_samples(samples: Samples, most: int | Codes, seed: int) -> Samples:
    """About `most` samples or fewer, in all or of each environment, (E,); those of a fold are drawn at random."""
    E, F, C = samples.counts.shape
    if np.ndim(most) == 0 and len(samples.labels) <= int(most):
        return samples
    each = np.broadcast_to(-(-np.asarray(most) // (E * F if np.ndim(most) == 0 else F)), E).clip(1)
    rng, kept, counts = np.random.default_rng(seed), [], np.zeros((E, F, C), np.int64)
    for e in range(E):
        for k in range(F):
            own = samples.span(e, k)
            chosen = own.start + np.sort(rng.permutation(own.stop - own.start)[: each[e]])
            counts[e, k] = np.bincount(samples.labels[chosen].numpy(), minlength=C)
            kept.append(chosen)
    chosen = np.concatenate(kept)
    bounds = (0, *np.cumsum(counts.sum(2)).tolist())
    places = torch.from_numpy(chosen)
    rows, labels, order = samples.rows[places], samples.labels[places], samples.order[chosen]
    return replace(samples, rows=rows, labels=labels, order=order, bounds=bounds, counts=counts, moments={})


def assign_folds(environments: Codes, labels: Codes, folds: int, seed: int) -> Codes:
    """The fold 0..folds-1 that each sample is held out in, (n,), at random from `seed`.

    Classes of an environment are dealt out one after the other, as cards are: a class differs between two folds by at
    most one sample, and so does the environment.
    """
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    order = shuffled[np.lexsort((labels[shuffled], environments[shuffled]))]
    places = environments[order]
    first = np.r_[True, places[1:] != places[:-1]]
    begin = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    assigned = np.empty(len(order), np.int64)
    # An environment begins where the one before would have gone on, so that small ones do not all fill fold 0.
    assigned[order] = (np.arange(len(order)) - begin + places) % folds
    return assigned


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
        raise InputError(f"features must be numbers, got others ({error}): encode texts as numbers first") from None
    if array.ndim != 2 or not array.size:
        raise InputError(f"features must have the shape (n, d), a row for each sample, got {array.shape}")
    step = max(1, CHUNK // array.shape[1])
    for start in range(0, len(array), step):
        bad = ~np.isfinite(array[start : start + step]).all(1)
        if bad.any():
            raise InputError(
                f"features must be finite, got nan or infinity, first in row {start + int(bad.argmax()) + 1}: leave "
                "such rows out, or fill them in"
            )
    return np.ascontiguousarray(array)


def _codes(values: Any, expected: int, noun: str) -> tuple[Codes, tuple[Any, ...]]:
    """Position of each value in the distinct ones, (n,), and those, sorted; texts that are all numbers, by value."""
    import pandas as pd

    from ..data.values import in_order

    given = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    if not isinstance(getattr(given, "dtype", None), np.dtype | pd.api.extensions.ExtensionDtype):
        try:  # a list, or a column of another library such as polars
            values = list(given)
        except TypeError:
            raise InputError(f"{noun} must be one for each row, got one {type(given).__name__} in all") from None
        given = np.empty(len(values), dtype=object)
        given[:] = values
    if getattr(given, "ndim", 1) != 1 or len(given) != expected:
        raise InputError(f"{noun} must be one for each of {expected} rows of features, got shape {np.shape(given)}")
    try:
        found, distinct = pd.factorize(given)
    except TypeError as error:
        raise InputError(f"{noun} must be numbers or texts, got values that cannot be compared ({error})") from None
    if (found < 0).any():
        raise InputError(f"{noun} are missing, first in row {int((found < 0).argmax()) + 1}: leave such rows out")
    names = pd.Index(distinct).tolist()
    if set(map(type, names)) == {str}:
        ordered = in_order(names)
    else:
        try:
            ordered = sorted(names)
        except TypeError:
            ordered = sorted(names, key=lambda name: (type(name).__name__, str(name)))
    rank = dict(zip(ordered, range(len(ordered)), strict=True))
    return np.array(list(map(rank.__getitem__, names)))[found], tuple(ordered)
