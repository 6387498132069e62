"""Samples of an audit, and linear predictors of them.

Samples are read, checked, and laid out so that every fit and every test reads whole blocks of rows. `settle_indicators`
compares predictors with and without a table's missing-value indicators in environments that they were not fitted on.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import compress
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import ConvergenceWarning, InputError, describe_values, warn
from ..functional import SoftmaxLoss
from ..functional.linear_loss import logits_of, one_hot, row_losses
from ..settings import Bound, convert
from ..solvers import LBFGS, Solution
from .report import Floats, Pooled, pool

if TYPE_CHECKING:
    import pandas as pd

    from ..data import EnvironmentSet, Options, Splits
    from ..data.infer import Declared
    from ..data.schema import Schema

Codes = NDArray[np.int64]
Folds = int | Sequence[int] | Codes
FoldCount = Annotated[int, Bound(least=2)]

MOST = 100_000  # samples that columns and shifts are judged by; more would not change the findings
_SMALL = 1_000_000  # numbers up to which float64 costs nothing, so that all digits are exact
CHUNK = 1 << 22  # numbers processed at once
_ROWS_PER_COLUMN = 4  # rows, per column, that second moments are estimated from
_LARGEST_GRAM = 4096  # columns; above, only the diagonal of second moments is used

GRID = (1e-1, 1e-2, 1e-3, 1e-4)
"""Ridges that cross-validation chooses from, strongest first: each fit starts where the one before ended."""
GROUPS = 10  # groups of environments that are left out in turn
TOLERANCE = 1e-8  # of the minimised loss; losses in other environments are then accurate to about 1e-4
WORKED_ON = 1 << 20  # numbers of rows, or of logits, that are processed at once
_JOINED = 1 << 16  # numbers of rows up to which folds are processed together, though each is held out from some fit
_INDICATOR_ROWS = 3000  # samples that missing-value indicators are judged by
_INDICATORS_WAY_OUT = "say whether missing-value indicators are used, with --missing-indicators always or never"


@dataclass(frozen=True, eq=False)
class Samples:
    """Rows in the order of environment and fold.

    rows    (n, D), the constant last
    labels  (n,) index into classes
    order   (n,) position among the samples given
    bounds  (E * folds + 1,) bounds of the environments' folds
    counts  (E, folds, C) number of samples of each environment, fold and class
    """

    rows: Tensor
    labels: Tensor
    order: Codes
    bounds: tuple[int, ...]
    counts: Codes
    folds: int
    environments: tuple[Any, ...]
    classes: tuple[Any, ...]
    moments: dict[int, Tensor] = field(default_factory=dict)  # cache of `gram`

    def span(self, environment: int, fold: int | None = None) -> slice:
        """Return the rows of an environment, or of one of its folds."""
        first, count = environment * self.folds + (fold or 0), self.folds if fold is None else 1
        return slice(self.bounds[first], self.bounds[first + count])

    def gram(self, environments: Sequence[int]) -> Tensor:
        """Return roughly the mean of z z^T over the rows z of these environments, for `functional.SoftmaxLoss`.

        It is estimated from a few rows per column and shrunk towards its diagonal (Schaefer and Strimmer, 2005):
        entries off the diagonal have noise of variance about (s_ii s_jj + s_ij^2) / m, and are scaled by the share of
        their squares that is not noise, so that uncorrelated features keep the diagonal alone. With very many columns,
        only the diagonal is returned, (1, 1, D).
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


class Audited(NamedTuple):
    """The arguments of `audit`, read from a data set or a model."""

    features: Tensor  # (n, d)
    labels: NDArray[np.object_]  # (n,) names
    environments: NDArray[np.object_]
    groups: Mapping[str, Sequence[int]] | None = None  # column of a table -> its features in `whole`
    missing: Mapping[str, int] = MappingProxyType({})  # column -> its missing-value indicator in `whole`
    whole: Tensor | None = None  # (n, d') features with every missing-value indicator
    suspects: Mapping[str, Mapping[float, str]] = MappingProxyType({})  # see `tables.Table.suspects`


def read_features(
    given: str,
    options: Options,
    of_images: Callable[[EnvironmentSet], Tensor | None] | None = None,
    drop_small: bool = False,
) -> Audited:
    """Return the features of a file or a data set.

    of_images   function that computes features of images, (n, d), or returns None if it cannot; images are refused
                without it
    drop_small  whether to leave out environments with few rows
    """
    from ..data.catalogue import load_data, set_name
    from ..data.environments import large_environments
    from ..data.sets.tables import read_table, review_table

    name = set_name(given, options)
    if name.startswith("table:"):
        table = read_table(name.removeprefix("table:"), options)
        if drop_small:  # before anything is inferred from the rows
            table = table.only(large_environments(table.sizes, name, drop_small))
        schema = settle_indicators(table.schema, table.declared, table.frame, table.labels, table.environments)
        data = review_table(table, schema)
        judged = table.without_suspects() if table.suspects else table
        groups, missing = column_groups(judged.schema)
        return join_sets([data], [data.inputs[:]])._replace(
            groups=groups, missing=missing, whole=judged.data.inputs[:], suspects=table.suspects
        )
    if name.startswith("folder:"):
        options = replace(options, lazy=True)  # images are read once; to refuse them, one is decoded
    sets = unseen_sets(load_data(name, options), name, drop_small)
    if sets[0].inputs[:1].dim() != 2:
        found = [None if of_images is None else of_images(one) for one in sets]
        if all(one is not None for one in found):
            return join_sets(sets, [one for one in found if one is not None])
        raise InputError(
            f"{name} must hold features, got images: add --model with a folder of trm train or trm fit, whose features "
            "of them are audited"
        )
    return join_sets(sets, [one.inputs[:] for one in sets])


def column_groups(schema: Schema) -> tuple[dict[str, list[int]], dict[str, int]]:
    """Return the indices of each column's features, and of its missing-value indicator, in the form "features"."""
    groups: dict[str, list[int]] = {}
    missing, place = {}, 0
    for column in schema.columns:
        if column.features:
            groups[column.name] = list(range(place, place + len(column.features)))
        place += len(column.features)
        if column.missing and column.indicator:
            missing[column.name] = place - 1
    return groups, missing


def unseen_sets(data: EnvironmentSet | Splits, name: str, drop_small: bool = False) -> list[EnvironmentSet]:
    """Return the set itself or, if it is split, the splits that are not trained on.

    `drop_small` leaves out environments with few rows in all.
    """
    from ..data import Splits
    from ..data.environments import large_environments

    sets = [data.training_domain, data.test] if isinstance(data, Splits) else [data]
    if not drop_small:
        return sets
    sizes: Counter[str] = Counter()
    for one in sets:
        sizes.update(dict(zip(one.environment_names, one.group_counts().sum(1).tolist(), strict=True)))
    large = large_environments(sizes, name, drop_small)
    kept = [[own for own in one.environment_names if own in large] for one in sets]
    return [one.only(names) for one, names in zip(sets, kept, strict=True) if names]


def join_sets(sets: Sequence[EnvironmentSet], features: Sequence[Tensor]) -> Audited:
    """Concatenate sets, each with its features."""
    labels, environments = [], []
    for one in sets:
        labels.append(np.array(one.class_names, dtype=object)[one.labels.numpy()])
        environments.append(np.array(one.environment_names, dtype=object)[one.environments.numpy()])
    return Audited(torch.cat(list(features)), np.concatenate(labels), np.concatenate(environments))


def arrange_samples(
    features: Any, labels: Any, environments: Any, folds: Folds, seed: int, standardise: bool
) -> Samples:
    """Check the arguments of `audit`, and order the samples by environment and fold.

    If features are standardised, columns that do not vary become 0.
    """
    from ..data.values import moments, standardised

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
    if standardise:
        mean, scale = moments(vectors)
        scale[scale == 0] = np.inf
    step = max(1, CHUNK // d)
    for begin in range(0, n, step):
        part = vectors[order[begin : begin + step]]
        part = standardised(part.astype(np.float64), mean, scale) if standardise else part
        rows[begin : begin + step, :-1] = torch.from_numpy(part)
    bounds = (0, *np.cumsum(counts.sum(2)).tolist())
    return Samples(rows, torch.from_numpy(coded[order]), order, bounds, counts, number, names, classes)


def thin_samples(samples: Samples, most: int | Codes, seed: int) -> Samples:
    """Draw about `most` samples, in all or of each environment (E,), at random within every fold."""
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
    """Return the fold 0..folds-1 that each sample is held out in, (n,), at random from `seed`.

    The classes of an environment are dealt out one after the other, like cards: the numbers of samples of a class, and
    of an environment, differ between folds by at most one.
    """
    shuffled = np.random.default_rng(seed).permutation(len(labels))
    order = shuffled[np.lexsort((labels[shuffled], environments[shuffled]))]
    places = environments[order]
    first = np.r_[True, places[1:] != places[:-1]]
    begin = np.maximum.accumulate(np.where(first, np.arange(len(order)), 0))
    assigned = np.empty(len(order), np.int64)
    # Environments begin with different folds, so that small ones do not all fill fold 0.
    assigned[order] = (np.arange(len(order)) - begin + places) % folds
    return assigned


def _vectors(features: Any) -> NDArray[Any]:
    """Return finite features (n, d) in float32 or float64, without a copy if they are that already."""
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
    """Return the index of each value among the distinct ones, (n,), and these, sorted; texts of numbers by value."""
    import pandas as pd

    from ..data.values import in_order

    given = values.detach().cpu().numpy() if isinstance(values, Tensor) else values
    wanted = f"{noun} must be one for each of {expected} rows of features"
    if isinstance(given, str) or getattr(given, "ndim", 1) != 1:
        raise InputError(f"{wanted}, got {describe_values(given)}: give the values, such as table['site']")
    if not isinstance(getattr(given, "dtype", None), np.dtype | pd.api.extensions.ExtensionDtype):
        try:  # a list, or a column of another library such as polars
            values = list(given)
        except TypeError:
            raise InputError(f"{wanted}, got {describe_values(given)}") from None
        given = np.empty(len(values), dtype=object)
        given[:] = values
    if len(given) != expected:
        raise InputError(f"{wanted}, got {len(given)}")
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


# ---- linear predictors


def fit(loss: SoftmaxLoss, start: Tensor | None = None, tolerance: float | None = None, *, way_out: str) -> Solution:
    """Minimise every problem of the loss, from a start (K, C, D) or from zero; a problem without rows yields nan.

    tolerance  tolerance of `solvers.LBFGS` in float64
    way_out    advice that ends the warning about a rough fit
    """
    there = loss.weights.any(1)
    begin = loss.rows.new_zeros(len(there), loss.num_classes, loss.rows.shape[1])
    begin = begin if start is None else start.nan_to_num(0)
    value = torch.full_like(begin, torch.nan)
    if not bool(there.any()):
        return Solution(value, ~there, 0, value[:, 0, 0])
    exact = loss.rows.dtype == torch.float64
    solution = LBFGS(tolerance if exact else None).minimise(loss.only(there), begin[there])
    if not bool(solution.converged.all()):
        warn(
            f"a linear predictor with the ridge {loss.ridge:g} is fitted only roughly, after {solution.iterations} "
            f"iterations: {way_out}",
            ConvergenceWarning,
        )
    value[there] = solution.value
    residual, converged = value[:, 0, 0].clone(), ~there
    residual[there], converged[there] = solution.residual, solution.converged
    return Solution(value, converged, solution.iterations, residual)


def loss_on(samples: Samples, used: NDArray[np.bool_], ridge: float) -> SoftmaxLoss:
    """Return K losses, the k-th on the environments used[k], or on their folds: (K, E) or (K, E, folds).

    Rows are processed by folds: a long fold in chunks, short ones several at once.
    """
    K, E, D, C = *used.shape[:2], samples.rows.shape[1], len(samples.classes)
    folds = np.broadcast_to(used.reshape(K, E, -1), (K, E, samples.folds))
    weights = torch.from_numpy(np.repeat(folds.reshape(K, -1), np.diff(samples.bounds), 1)).to(samples.rows.dtype)
    environments = np.flatnonzero(folds.any((0, 2))).tolist()
    chunks: list[slice] = []
    longest = max(1, WORKED_ON // max(D, K * C))
    for e in environments:
        for k in range(samples.folds):
            block = samples.span(e, k)
            before = chunks[-1] if chunks else None
            if before and block.start == before.stop and (block.stop - before.start) * D <= _JOINED:
                chunks[-1] = slice(before.start, block.stop)
                continue
            edges = [*range(block.start, block.stop, longest), block.stop]
            chunks += map(slice, edges, edges[1:])
    weights = weights / weights.sum(1, keepdim=True).clamp(min=1)
    gram = samples.gram(environments)
    return SoftmaxLoss(samples.rows, samples.labels, weights, C, ridge, True, gram, chunks)


def choose_ridge(samples: Samples, used: NDArray[np.bool_], way_out: str) -> tuple[float, float, Tensor]:
    """Return the least mean `held_out_losses`, its ridge, and the predictors fitted on `used` (G, E)."""
    best, ridge, start = np.inf, GRID[0], None
    for candidate in GRID:
        start = fit(loss_on(samples, used, candidate), start, TOLERANCE, way_out=way_out).value
        mean = float(np.nanmean(list(map(np.mean, held_out_losses(samples, used, start)))))
        if mean < best:
            best, ridge, others = mean, candidate, start
    return best, ridge, others


def held_out_losses(samples: Samples, used: NDArray[np.bool_], predictors: Tensor) -> list[Floats]:
    """Return the losses of each environment's samples by the predictor (G, C, D) that left it out, by `used` (G, E)."""
    found = []
    for e, group in enumerate(used.argmin(0)):
        own = samples.span(e)
        targets = one_hot(samples.labels[own], len(samples.classes), predictors.dtype)
        found.append(row_losses(logits_of(predictors[group], samples.rows[own]), targets).double().numpy())
    return found


def pooled_change(before: Sequence[Floats], after: Sequence[Floats]) -> Pooled:
    """Pool the mean change of each environment's losses, each environment counted the same."""
    means, errors = np.full((2, len(before)), np.nan)
    for e, change in enumerate(map(np.subtract, after, before)):
        means[e] = change.mean()
        errors[e] = change.var() / len(change) if len(change) > 1 else np.nan
    return pool(means, errors, evenly=True)


def settle_indicators(
    schema: Schema, declared: Declared, frame: pd.DataFrame, labels: Any, environments: Any
) -> Schema:
    """Return the schema, with missing-value indicators only if they help in new environments.

    Missing values may reveal the environment, and a relation learnt from them then does not transfer. All indicators
    that are not declared are kept or dropped together. They are kept if linear predictors with them have a lower loss
    in held-out environments of these rows, (n,) labels and environments, than predictors of the same ridge without
    them, by more than the standard error of the mean difference over environments. This error comes from how much
    environments differ, but is not below what the spread of their samples allows, so that a few environments that
    agree by luck do not decide. Environments count the same: weighted by their errors, indicators of pure noise would
    seem to help in half of all tables. With two environments, indicators are left out.
    """
    if declared.others != "auto":
        return schema
    bare = schema
    with suppress(InputError):  # nothing else varies, so that the indicators have to stay
        bare = schema.without_indicators(list(compress(declared.indicators, declared.indicators.values())))
    several = len(np.unique(np.asarray(environments))) > 2 and len(np.unique(np.asarray(labels))) > 1
    if bare == schema or not several:
        return bare
    without, whole = (
        thin_samples(arrange_samples(one.encode(frame).features, labels, environments, 2, 0, True), _INDICATOR_ROWS, 0)
        for one in (bare, schema)
    )  # the same rows in the same order
    drawn = np.random.default_rng(0).permutation(len(whole.environments))
    used = drawn % GROUPS != np.arange(min(GROUPS, len(drawn)))[:, None]
    _, ridge, predictors = choose_ridge(without, used, _INDICATORS_WAY_OUT)
    again = fit(loss_on(whole, used, ridge), tolerance=TOLERANCE, way_out=_INDICATORS_WAY_OUT).value
    change = pooled_change(held_out_losses(without, used, predictors), held_out_losses(whole, used, again))
    return schema if -change.mean > change.error else bare
