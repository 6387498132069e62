"""Why a held-out environment loses more than the others: by its inputs, by its label shares, or by the relation.

Environment T is compared with the other environments S, each counted the same. Every sample has the loss l of a model
that was not fitted on its environment. After Cai, Namkoong and Yadlowsky (2023), inputs are compared where both have
some: with pi(x) the probability that x is of T where S and T are equally likely, samples of S weighted by pi and those
of T by 1 - pi are both of the shared distribution, proportional to s(x) t(x) / (s(x) + t(x)).

    excess   = E_T[l] - E_S[l]                                          = labels + inputs + relation
    labels   = E_S'[l] - E_S[l],                 S' is S with the class shares of T
    relation = E_T[(1 - pi) l] / E_T[1 - pi] - E_S'[pi l] / E_S'[pi]    other losses at the same inputs
    inputs   = the rest: what S' and T lose in passing to the shared distribution and from it

A shift of inputs alone may change the shares of labels, and one of labels changes inputs. So this is computed twice,
with S' as above, and with S' = S, where labels have no part; the one that leaves less to the relation is taken. The
relation's part is thus what neither a shift of inputs nor one of labels explains.

pi is a linear classifier on the features and the squares of those that are not 0/1, fitted on one half of the samples
and used on the other. What it cannot see counts as a part of the relation.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError
from ..functional import SoftmaxLoss
from ..reports import Cell, Chapter, Section, Table
from ..reports.values import Entry, number
from ..settings import Count, Seed, convert
from .report import Floats
from .run import fit
from .samples import arrange_samples

_RIDGE = 1e-3  # of the classifier
_ROWS = 4000  # samples of either side that it is fitted on
_FEW = 20  # samples of an environment below which nothing is said
_SURE = 2.0  # standard errors


@dataclass(frozen=True)
class Shift:
    """The excess loss of an environment beside the others, and its parts, which add up to it.

    error   standard error of the relation's part, from the spread of losses; nan, as all else, for few samples
    shared  overlap of the inputs, 0 to 1: the mean of 4 pi (1 - pi); where it is small, parts are rough
    """

    environment: Any
    samples: int
    loss: float
    excess: float
    inputs: float
    labels: float
    relation: float
    error: float
    shared: float

    @property
    def sentence(self) -> str:
        """The finding in words, and whether minimising the transfer risk can help."""
        name = self.environment
        if np.isnan(self.excess):
            return f"{name} has too few samples to tell why its loss differs."
        start = f"{name} loses {abs(self.excess):.3f} {'more' if self.excess > 0 else 'less'} than the others"
        if self.excess <= 0:
            return f"{start}."
        start += (
            f": {number(self.inputs, 3)} by its inputs, {number(self.labels, 3)} by its label shares and "
            f"{number(self.relation, 3)} by another relation of label and inputs."
        )
        if self.relation < _SURE * self.error or self.relation < 0.25 * self.excess:
            largest = "inputs" if self.inputs >= self.labels else "label shares"
            way = "samples with such inputs" if largest == "inputs" else "the expected label shares"
            return f"{start} Its {largest} count most, which TRM cannot change: {way} would help."
        return f"{start} The relation's part is where TRM can help."


def decompose_shift(
    losses: Any, features: Any, labels: Any, environments: Any, *, rows: int = _ROWS, seed: int = 0
) -> tuple[Shift, ...]:
    """Tell for every environment what of its excess loss is the shift of inputs, of label shares, of the relation.

    losses    (n,) of each sample, by a model that was not fitted on its environment, such as -log of the held-out
              probability of its class
    features  (n, d) as encoded; labels and environments (n,), as `audit` takes them
    rows      samples that each classifier of environments is fitted on at most, of either side
    """
    rows, seed = convert("rows", rows, Count), convert("seed", seed, Seed)
    samples = arrange_samples(features, labels, environments, 2, seed, True)
    given = np.asarray(losses, float)
    if given.shape != (len(samples.labels),) or not np.isfinite(given).all():
        raise InputError(
            f"losses must be one finite number for each of {len(samples.labels)} samples, got shape {given.shape}"
        )
    marked = arrange_samples(np.arange(len(given), dtype=float)[:, None], labels, environments, 2, seed, False)
    order = marked.rows[:, 0].long().numpy()
    loss, coded = given[order], samples.labels.numpy()
    place, half = np.empty((2, len(loss)), np.int64)
    for e in range(len(samples.environments)):
        for k in range(2):
            place[samples.span(e, k)], half[samples.span(e, k)] = e, k
    seen = _with_squares(samples.rows[:, :-1])
    found = []
    for e, name in enumerate(samples.environments):
        found.append(_shift_of(name, place == e, place, half, loss, coded, seen, rows, seed))
    return tuple(found)


def shift_sections(shifts: Sequence[Shift]) -> list[Section]:
    """The sections of a page: a table of all environments, those that lose most first, and sentences on the worst."""
    ordered = sorted(shifts, key=lambda one: -np.nan_to_num(one.excess, nan=-np.inf))
    rows: list[list[Entry]] = []
    for one in ordered:
        relation = Cell(f"{number(one.relation, 3)} ± {number(one.error, 3)}", one.relation)
        parts: list[Entry] = [one.loss, one.excess, one.inputs, one.labels, relation, one.shared]
        rows.append([str(one.environment), one.samples, *parts])
    note = (
        "Held-out loss of each environment, and what it loses more than the others by its inputs, by its label shares "
        "and by the relation of label and inputs, with a standard error. Overlap: 1 where its inputs are those of the "
        "others; where it is small, the parts are rough."
    )
    columns = ["Environment", "Samples", "Loss", "More than others", "Inputs", "Label shares", "Relation", "Overlap"]
    table = Table("Parts of the loss in held-out environments", columns, rows, digits=3, note=note)
    lines = [one.sentence for one in ordered if one.excess > 0][:3]
    return [Chapter("The kind of shift", [table], lines)]


def _with_squares(features: Tensor) -> Tensor:
    """The features, the squares of those with more than two values, and the constant."""
    continuous = [i for i in range(features.shape[1]) if len(features[:, i].unique()) > 2]
    squares = features[:, continuous].clamp(-5, 5).square()
    squares = (squares - squares.mean(0)) / squares.std(0).clamp(min=1e-6)
    return torch.cat([features.clamp(-10, 10), squares, torch.ones_like(features[:, :1])], 1)


def _shift_of(
    name: Any,
    target: NDArray[np.bool_],
    place: NDArray[np.int64],
    half: NDArray[np.int64],
    loss: Floats,
    labels: NDArray[np.int64],
    seen: Tensor,
    rows: int,
    seed: int,
) -> Shift:
    nan, size = float("nan"), int(target.sum())
    if size < _FEW:
        return Shift(name, size, float(loss[target].mean()), nan, nan, nan, nan, nan, nan)
    sizes = np.bincount(place)
    source = np.where(target, 0.0, 1 / np.maximum(sizes, 1)[place])  # each other environment counts the same
    excess = float(loss[target].mean() - np.average(loss, weights=source))
    shares = [np.bincount(labels, weights=one, minlength=labels.max() + 1) for one in (target / size, source)]
    ratio = np.divide(shares[0], shares[1] / shares[1].sum(), out=np.zeros(len(shares[0])), where=shares[1] > 0)
    best: Shift | None = None
    for weights in (source, source * ratio[labels]):
        if not weights.any():
            continue
        by_labels = float(np.average(loss, weights=weights) - np.average(loss, weights=source))
        pi = _membership(target, weights, half, seen, rows, seed)
        there, here = np.where(target, 1 - pi, 0), weights * pi
        after, before = _mean(loss, there), _mean(loss, here)
        relation, error = after[0] - before[0], float(np.hypot(after[1], before[1]))
        shared = float(4 * np.average(pi * (1 - pi), weights=weights / weights.sum() + target / size))
        inputs = excess - by_labels - relation
        one = Shift(name, size, float(loss[target].mean()), excess, inputs, by_labels, relation, error, shared)
        best = one if best is None or abs(one.relation) < abs(best.relation) else best
    assert best is not None
    return best


def _mean(values: Floats, weights: Floats) -> tuple[float, float]:
    """The weighted mean and its standard error."""
    share = weights / weights.sum()
    mean = float(share @ values)
    return mean, float(np.sqrt((share**2 * (values - mean) ** 2).sum()))


def _membership(
    target: NDArray[np.bool_], source: Floats, half: NDArray[np.int64], seen: Tensor, rows: int, seed: int
) -> Floats:
    """pi, (n,): probability that a sample is of the target, by the classifier fitted on the other half."""
    rng = np.random.default_rng(seed)
    chosen = np.concatenate([rng.permutation(np.flatnonzero(side))[:rows] for side in (target, source > 0)])
    is_target = torch.from_numpy(target[chosen].astype(np.int64))
    weights = np.zeros((2, len(chosen)))
    for k in range(2):
        for side in (target[chosen].astype(float), source[chosen]):
            own = side * (half[chosen] != k)
            weights[k] += 0.5 * own / max(own.sum(), 1e-300)
    problem = SoftmaxLoss(seen[chosen], is_target, torch.from_numpy(weights).to(seen.dtype), 2, _RIDGE, True)
    with torch.no_grad():
        logits = torch.einsum("kcd,nd->nkc", fit(problem).value, seen)[np.arange(len(seen)), half]
        found: Floats = torch.softmax(logits, -1)[:, 1].double().numpy()
    return found
