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
and used on the other; of many features it sees the principal components. What it cannot see counts as a part of the
relation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError
from ..functional import SoftmaxLoss
from ..reports import Bar, Bars, Cell, Chapter, Section, Table
from ..reports.values import Entry, number
from ..settings import Count, Seed, as_json, convert
from ..solvers import threads_set
from .predictors import fit
from .report import Floats
from .samples import MOST, Samples, arrange_samples, thin_samples

_RIDGE = 1e-3  # of the classifier
_ROWS = 4000  # samples of either side that it is fitted on; beside a small environment, fewer of the others
_SEEN = 32  # features that it sees, and their squares
_SHOWN = 10  # environments of a drawing, and of either end of a table
_FEW = 20  # samples of an environment below which nothing is said
_SURE = 2.0  # standard errors
_WAY_OUT = "take what is said about shifts as rough, or leave out features that nearly repeat others"


@dataclass(frozen=True)
class Shift:
    """The excess loss of an environment beside the others, and its parts, which add up to it.

    chance  standard error of the excess, from the spread of losses
    error   standard error of the relation's part, likewise; nan, as all else, for few samples
    shared  overlap of the inputs, 0 to 1: the mean of 4 pi (1 - pi); where it is small, parts are rough
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

        "unclear" where the last is the largest and within chance; "" where the excess itself is.
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
            return f"{name} has too few samples to tell why its loss differs."
        if not self.kind:
            return f"{name} does not clearly lose more than the other environments."
        advice = _ADVICE[self.kind]
        if self.kind in ("inputs", "label shares") and self.relation > max(_SURE * self.error, 0.25 * self.excess):
            advice += " With the last part TRM can help."
        return (
            f"When it is left out, {name} has a loss {self.excess:.3f} higher than the other environments: "
            f"{number(self.inputs, 3)} because its inputs differ, {number(self.labels, 3)} because its classes have "
            f"other shares, and {number(self.relation, 3)} because the same inputs go with other labels there. {advice}"
        )


_ADVICE = {
    "inputs": "The inputs count most, which TRM cannot change. More training rows like those of a new environment, or "
    "a larger weight for such rows, could help.",
    "label shares": "The class shares count most, which TRM cannot change. Probabilities corrected by the class shares "
    "of a new environment could help.",
    "relation": "The last part is the largest, and is where TRM can help.",
    "unclear": "The last part is the largest, but could be chance.",
}


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
    return shifts_in(samples, given, rows, seed)


def shifts_in(samples: Samples, losses: Floats, rows: int = _ROWS, seed: int = 0) -> tuple[Shift, ...]:
    """`decompose_shift` of samples that are arranged already; halves are every other fold."""
    samples = thin_samples(samples, MOST, seed)
    loss = losses[samples.order]
    place, half = np.empty((2, len(loss)), np.int64)
    for e in range(len(samples.environments)):
        for k in range(samples.folds):
            place[samples.span(e, k)], half[samples.span(e, k)] = e, k % 2
    found = []
    with torch.no_grad(), threads_set(1):  # the problems are many and small
        labels, seen = samples.labels.numpy(), _classifier_features(samples.rows[:, :-1], rows)
        for e, name in enumerate(samples.environments):
            found.append(_shift_of(name, place == e, place, half, loss, labels, seen, rows, seed))
    return tuple(found)


def shift_sentences(shifts: Sequence[Shift]) -> tuple[str, ...]:
    """The findings in words, two at most: the environment that loses most more than the others, and how many do."""
    losing = sorted((one for one in shifts if one.kind), key=lambda one: -one.excess)
    if not losing:
        return (
            "No environment clearly has a higher loss than the others when it is left out, so none is explained here.",
        )
    lines = [losing[0].sentence]
    if losing[1:]:
        counts = Counter(one.kind for one in losing if one.kind in ("inputs", "label shares", "relation")).most_common()
        told = ", ".join(f"the {kind} in {count}" for kind, count in counts)
        lines.append(
            f"{len(losing)} of {len(shifts)} environments lose more than the others. What counts most: {told}."
        )
    return tuple(lines)


def shift_sections(shifts: Sequence[Shift]) -> list[Section]:
    """The sections of a page: sentences, bars of the parts, and a table; the environments that lose most first."""
    ordered = sorted(shifts, key=lambda one: -np.nan_to_num(one.excess, nan=-np.inf))
    rows: list[list[Entry]] = []
    bars: dict[str, list[Bar]] = {}
    for one in ordered:
        relation = Cell(f"{number(one.relation, 3)} ± {number(one.error, 3)}", one.relation)
        excess = Cell(f"{number(one.excess, 3)} ± {number(one.chance, 3)}", one.excess)
        row: list[Entry] = [str(one.environment), one.samples, one.loss, excess, one.inputs, one.labels]
        rows.append([*row, relation, one.shared])
        if one.kind and len(bars) < _SHOWN:
            reach = _SURE * one.error
            bars[f"{one.environment}, {number(one.excess, 3)} more than the others"] = [
                Bar("inputs", one.inputs),
                Bar("label shares", one.labels),
                Bar("relation", one.relation, one.relation - reach, one.relation + reach),
            ]
    note = (
        "Loss of each environment when it was held out, and what it loses more than the others because its inputs "
        "differ, its label shares differ, or labels depend on inputs in another way (relation), with standard errors. "
        "Overlap: 1 where its inputs are like those of the others; where it is small, the parts are rough."
    )
    columns = ["Environment", "Samples", "Loss", "More than others", "Inputs", "Label shares", "Relation", "Overlap"]
    table = Table("Parts of the loss", columns, rows, digits=3, note=note, fold=_SHOWN)
    drawn = [Bars("What they lose more, by kind of shift", bars, unit="loss")] if bars else []
    return [Chapter("Why held-out environments lose more", [*drawn, table], shift_sentences(ordered))]


def shifts_json(shifts: Sequence[Shift]) -> dict[str, Any]:
    """The parts and the findings in the types of JSON; None where a number is not known."""
    each = [asdict(one) | {"environment": str(one.environment), "kind": one.kind} for one in shifts]
    found: dict[str, Any] = as_json({"environments": each, "sentences": shift_sentences(shifts)})
    return found


def _classifier_features(features: Tensor, rows: int) -> Tensor:
    """The features, the squares of those with more than two values, and the constant.

    Where there are more than `_SEEN` features, their principal components, of about so many rows, take their place.
    """
    if features.shape[1] > _SEEN:
        some = features[:: max(1, len(features) // rows)].double()
        features = features @ torch.linalg.eigh(some.mT @ some)[1][:, -_SEEN:].to(features.dtype)
        features = features / features.std(0).clamp(min=1e-6)
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
        return Shift(name, size, float(loss[target].mean()), nan, nan, nan, nan, nan, nan, nan)
    sizes = np.bincount(place)
    source = np.where(target, 0.0, 1 / np.maximum(sizes, 1)[place])  # each other environment counts the same
    (own, own_error), (usual, usual_error) = _mean(loss, target / size), _mean(loss, source)
    excess, chance = own - usual, float(np.hypot(own_error, usual_error))
    here = np.bincount(labels, weights=target / size)  # shares of the classes
    elsewhere = np.bincount(labels, weights=source / source.sum())
    ratio = np.divide(here, elsewhere, out=np.zeros(len(here)), where=elsewhere > 0)
    best: Shift | None = None
    for weights in (source, source * ratio[labels]):
        if not weights.any():
            continue
        by_labels = _mean(loss, weights)[0] - usual
        pi = _membership(target, weights, half, seen, rows, seed)
        after, before = _mean(loss, np.where(target, 1 - pi, 0)), _mean(loss, weights * pi)
        relation, error = after[0] - before[0], float(np.hypot(after[1], before[1]))
        shared = float(4 * np.average(pi * (1 - pi), weights=weights / weights.sum() + target / size))
        inputs = excess - by_labels - relation
        one = Shift(name, size, own, excess, chance, inputs, by_labels, relation, error, shared)
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
    rng, most = np.random.default_rng(seed), min(rows, max(_ROWS // 4, 4 * int(target.sum())))
    chosen = np.concatenate([rng.permutation(np.flatnonzero(side))[:most] for side in (target, source > 0)])
    is_target = torch.from_numpy(target[chosen].astype(np.int64))
    weights = np.zeros((2, len(chosen)))
    for k in range(2):
        for side in (target[chosen].astype(float), source[chosen]):
            own = side * (half[chosen] != k)
            weights[k] += 0.5 * own / max(own.sum(), 1e-300)
    problem = SoftmaxLoss(seen[chosen], is_target, torch.from_numpy(weights).to(seen.dtype), 2, _RIDGE, True)
    predictors = fit(problem, tolerance=1e-6, way_out=_WAY_OUT).value
    logits = torch.einsum("kcd,nd->nkc", predictors, seen)[np.arange(len(seen)), half]
    found: Floats = torch.softmax(logits, -1)[:, 1].double().numpy()
    return found
