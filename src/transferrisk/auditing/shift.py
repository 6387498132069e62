"""Parts of a held-out environment's excess loss: the shifts of the inputs, of the label shares, and of the relation.

Environment T is compared with the other environments S, each counted the same. Every sample has the loss l of a model
that was not fitted on its environment. Following Cai, Namkoong and Yadlowsky (2023), inputs are compared where both
have some: let pi(x) be the probability that x belongs to T, where S and T are equally likely. Samples of S weighted by
pi, and samples of T weighted by 1 - pi, then both follow the shared distribution, proportional to
s(x) t(x) / (s(x) + t(x)).

    excess   = E_T[l] - E_S[l]                                          = labels + inputs + relation
    labels   = E_S'[l] - E_S[l],                 S' is S with the class shares of T
    relation = E_T[(1 - pi) l] / E_T[1 - pi] - E_S'[pi l] / E_S'[pi]    other losses at the same inputs
    inputs   = the rest: the change of loss from S' to the shared distribution, and from there to T

A shift of inputs alone may change the label shares, and a shift of label shares changes the inputs. The parts are
therefore computed twice, with S' as above and with S' = S, where labels have no part, and the result with the smaller
part of the relation is taken. The relation's part is thus what neither a shift of inputs nor one of label shares
explains.

pi is a linear classifier on the features and the squares of those that are not 0/1, fitted on one half of the samples
and applied to the other. Many features are replaced by their principal components. Differences that the classifier
cannot see count as a part of the relation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError, listed
from ..functional import SoftmaxLoss
from ..reports import Bar, Bars, Cell, Chapter, Section, Table
from ..reports.elements import Entry, number
from ..settings import Count, Seed, as_json, convert
from ..solvers import threads_set
from .report import Floats
from .samples import MOST, Samples, arrange_samples, fit, thin_samples

_RIDGE = 1e-3  # of the classifier
_ROWS = 4000  # samples of either side that the classifier is fitted on; fewer of the others if T is small
_SEEN = 32  # features of the classifier, beside their squares
_SHOWN = 10  # environments in the drawing, and at either end of the table
_FEW = 20  # samples; a smaller environment is not explained
_SURE = 2.0  # standard errors
_WAY_OUT = "regard the findings about shifts as rough, or leave out features that nearly repeat others"


@dataclass(frozen=True)
class Shift:
    """The excess loss of an environment over the others, and its three parts, which add up to it; nan for few samples.

    chance  standard error of the excess, from the spread of losses
    error   standard error of the relation's part, from the spread of losses
    shared  overlap of the inputs, 0 to 1: the mean of 4 pi (1 - pi); if it is small, the parts are rough
    """

    environment: Any
    samples: int
    loss: float
    excess: float
    chance: float
    inputs: float
    labels: float
    relation: float
    error: float
    shared: float

    @property
    def kind(self) -> str:
        """The largest part: "inputs", "label shares" or "relation".

        It is "unclear" if the relation's part is the largest but within chance, and "" if the excess is within chance.
        """
        if not self.excess > _SURE * self.chance:
            return ""
        if self.relation >= max(self.inputs, self.labels):
            return "relation" if self.relation > _SURE * self.error else "unclear"
        return "inputs" if self.inputs >= self.labels else "label shares"

    @property
    def sentence(self) -> str:
        """The finding in words, and whether minimising the transfer risk can help."""
        name = self.environment
        if np.isnan(self.excess):
            return f"{name} has too few samples to explain its loss."
        if not self.kind:
            return f"{name} does not clearly have a higher loss than the other environments when it is left out."
        advice = _ADVICE[self.kind]
        if self.kind in ("inputs", "label shares") and self.relation > max(_SURE * self.error, 0.25 * self.excess):
            advice += " The relation's part is what TRM is made for."
        return (
            f"When {name} is left out of training, its loss is {self.excess:.3f} higher than that of the other "
            f"environments: {number(self.inputs, 3)} by a shift of the inputs, {number(self.labels, 3)} by a shift of "
            f"the label shares, and {number(self.relation, 3)} because the same inputs go with other labels (a shift "
            "of the relation). "
            f"{advice}"
        )


_ADVICE = {
    "inputs": "The inputs count most, and TRM cannot help with them. More training rows that resemble a new "
    "environment, or a larger weight for such rows, could help.",
    "label shares": "The label shares count most, and TRM cannot help with them. Probabilities corrected by the label "
    "shares of a new environment could help.",
    "relation": "The relation counts most, which is what TRM is made for.",
    "unclear": "The relation counts most, but its part could be chance.",
}


def decompose_shift(
    losses: Any, features: Any, labels: Any, environments: Any, *, rows: int = _ROWS, seed: int = 0
) -> tuple[Shift, ...]:
    """Divide every environment's excess loss into the shift of inputs, of label shares, and of the relation.

    losses    (n,) loss of each sample by a model that was not fitted on its environment, such as -log of the
              probability of its class
    features  (n, d) encoded features; labels and environments are (n,), as for `audit`
    rows      largest number of samples of either side that each classifier of environments is fitted on
    """
    rows, seed = convert("rows", rows, Count), convert("seed", seed, Seed)
    samples = arrange_samples(features, labels, environments, 2, seed, True)
    given = np.asarray(losses, float)
    if given.shape != (len(samples.labels),) or not np.isfinite(given).all():
        raise InputError(
            f"losses must be one finite number for each of {len(samples.labels)} samples, got shape {given.shape}"
        )
    return shifts_in(samples, given, rows, seed)


def shifts_in(samples: Samples, losses: Floats, rows: int = _ROWS, seed: int = 0) -> tuple[Shift, ...]:
    """Return `decompose_shift` for arranged samples, whose folds with even numbers are one half."""
    samples = thin_samples(samples, MOST, seed)
    loss = losses[samples.order]
    place, half = np.empty((2, len(loss)), np.int64)
    for e in range(len(samples.environments)):
        for k in range(samples.folds):
            place[samples.span(e, k)], half[samples.span(e, k)] = e, k % 2
    labels, sizes = samples.labels.numpy(), np.bincount(place)
    nan, found = float("nan"), []
    with torch.no_grad(), threads_set(1):  # the problems are many and small
        seen = _classifier_features(samples.rows[:, :-1], rows)
        for e, name in enumerate(samples.environments):
            target, size = place == e, int(sizes[e])
            if size < _FEW:
                found.append(Shift(name, size, float(loss[target].mean()), nan, nan, nan, nan, nan, nan, nan))
                continue
            source = np.where(target, 0.0, 1 / np.maximum(sizes, 1)[place])  # each other environment counts the same
            (own, own_error), (usual, usual_error) = _mean(loss, target / size), _mean(loss, source)
            excess, chance = own - usual, float(np.hypot(own_error, usual_error))
            here = np.bincount(labels, weights=target / size)  # shares of the classes
            elsewhere = np.bincount(labels, weights=source / source.sum())
            ratio = np.divide(here, elsewhere, out=np.zeros(len(here)), where=elsewhere > 0)
            both = []
            for weights in filter(np.any, (source, source * ratio[labels])):
                by_labels = _mean(loss, weights)[0] - usual
                pi = _membership(target, weights, half, seen, rows, seed)
                after, before = _mean(loss, np.where(target, 1 - pi, 0)), _mean(loss, weights * pi)
                relation, error = after[0] - before[0], float(np.hypot(after[1], before[1]))
                shared = float(4 * np.average(pi * (1 - pi), weights=weights / weights.sum() + target / size))
                parts = excess - by_labels - relation, by_labels, relation
                both.append(Shift(name, size, own, excess, chance, *parts, error, shared))
            smallest = np.abs(list(map(attrgetter("relation"), both))).argmin()
            found.append(both[smallest])
    return tuple(found)


def shift_sentences(shifts: Sequence[Shift]) -> tuple[str, ...]:
    """Return one or two sentences: on the environment with the largest excess loss, and on how often a part leads."""
    if np.isfinite(list(map(attrgetter("excess"), shifts))).sum() < 2:
        return (
            f"Fewer than two environments have {_FEW} samples or more, so their losses when they are left out of "
            "training cannot be compared.",
        )
    losing = sorted(filter(attrgetter("kind"), shifts), key=attrgetter("excess"), reverse=True)
    if not losing:
        return ("No environment clearly has a higher loss than the others when it is left out of training.",)
    lines = [losing[0].sentence]
    if losing[1:]:
        largest = []
        for kind, count in Counter(map(attrgetter("kind"), losing)).most_common():
            largest.append(f"{kind if kind == 'unclear' else f'that of the {kind}'} in {count}")
        lines.append(
            f"{len(losing)} of {len(shifts)} environments have a clearly higher loss than the others when they are "
            f"left out of training. The largest shift is {listed(largest)}."
        )
    return tuple(lines)


def shift_sections(shifts: Sequence[Shift]) -> list[Section]:
    """Return the sections of a page: sentences, bars of the parts, and a table, largest excess loss first."""
    excesses = np.array(list(map(attrgetter("excess"), shifts)))
    ordered = list(map(shifts.__getitem__, np.argsort(-excesses, kind="stable")))  # nan last
    rows: list[list[Entry]] = []
    bars: dict[str, list[Bar]] = {}
    for one in ordered:
        relation: Entry = one.relation
        excess: Entry = one.excess
        if np.isfinite(one.excess):
            relation = Cell(f"{number(one.relation, 3)} ± {number(one.error, 3)}", one.relation)
            excess = Cell(f"{number(one.excess, 3)} ± {number(one.chance, 3)}", one.excess)
        row: list[Entry] = [str(one.environment), one.samples, one.loss, excess, one.inputs, one.labels]
        rows.append([*row, relation, one.shared])
        if one.kind and len(bars) < _SHOWN:
            reach = _SURE * one.error
            bars[f"{one.environment}, {number(one.excess, 3)} above the others"] = [
                Bar("inputs", one.inputs),
                Bar("label shares", one.labels),
                Bar("relation", one.relation, one.relation - reach, one.relation + reach),
            ]
    note = (
        "Loss: log loss of the environment when it is left out of training. Excess: this loss less "
        "that of the other environments, ± its standard error. It is the sum of the shifts of the inputs, of the "
        "label shares, and of the relation between inputs and labels (± its standard error). Overlap: 1 if its inputs "
        "are like those of the others; if it is small, the three parts are rough."
    )
    columns = ["Environment", "Samples", "Loss", "Excess", "Inputs", "Label shares", "Relation", "Overlap"]
    table = Table("Loss when left out of training", columns, rows, digits=3, note=note, fold=_SHOWN)
    drawn = [Bars("Excess loss by kind of shift", bars, unit="loss")] if bars else []
    return [Chapter("Why the loss is higher in some environments", [*drawn, table], shift_sentences(ordered))]


def shifts_json(shifts: Sequence[Shift]) -> dict[str, Any]:
    """Return the parts and the findings as JSON types, with None for nan."""
    each = [asdict(one) | {"environment": str(one.environment), "kind": one.kind} for one in shifts]
    found: dict[str, Any] = as_json({"environments": each, "sentences": shift_sentences(shifts)})
    return found


def _classifier_features(features: Tensor, rows: int) -> Tensor:
    """Return the features, the squares of those with more than two values, and the constant.

    More than `_SEEN` features are replaced by their principal components, estimated from about this many rows.
    """
    if features.shape[1] > _SEEN:
        some = features[:: max(1, len(features) // rows)].double()
        features = features @ torch.linalg.eigh(some.mT @ some)[1][:, -_SEEN:].to(features.dtype)
        features = features / features.std(0).clamp(min=1e-6)
    values = features.sort(0).values
    continuous = (values[1:] != values[:-1]).sum(0) > 1  # more than two distinct values
    squares = features[:, continuous].clamp(-5, 5).square()
    squares = (squares - squares.mean(0)) / squares.std(0).clamp(min=1e-6)
    return torch.cat([features.clamp(-10, 10), squares, torch.ones_like(features[:, :1])], 1)


def _mean(values: Floats, weights: Floats) -> tuple[float, float]:
    """Return the weighted mean and its standard error."""
    share = weights / weights.sum()
    mean = float(share @ values)
    return mean, float(np.sqrt((share**2 * (values - mean) ** 2).sum()))


def _membership(
    target: NDArray[np.bool_], source: Floats, half: NDArray[np.int64], seen: Tensor, rows: int, seed: int
) -> Floats:
    """Return pi (n,), the probability that a sample belongs to the target, by the classifier of the other half."""
    rng, most = np.random.default_rng(seed), min(rows, max(_ROWS // 4, 4 * int(target.sum())))
    own, others = np.flatnonzero(target), np.flatnonzero(source)
    chosen = np.concatenate([rng.permutation(own)[:most], rng.permutation(others)[:most]])
    is_target = torch.from_numpy(target[chosen].astype(np.int64))
    weights = np.zeros((2, len(chosen)))
    for k in range(2):
        for side in (target[chosen].astype(float), source[chosen]):
            other_half = side * (half[chosen] != k)
            weights[k] += 0.5 * other_half / max(other_half.sum(), 1e-300)
    problem = SoftmaxLoss(seen[chosen], is_target, torch.from_numpy(weights).to(seen.dtype), 2, _RIDGE, True)
    predictors = fit(problem, tolerance=1e-6, way_out=_WAY_OUT).value
    logits = torch.einsum("kcd,nd->nkc", predictors, seen)[np.arange(len(seen)), half]
    found: Floats = torch.softmax(logits, -1)[:, 1].double().numpy()
    return found
