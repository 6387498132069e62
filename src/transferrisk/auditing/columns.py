"""Effects of each column on the label in every environment, and how much they differ between environments.

A column is one or more features, such as the 0/1 features of its categories. Its effect in environment e is the slope
a_e of the following model, fitted by maximum likelihood to the samples of e alone:

    log p(y = c | x) = a_e s_c(x) + b_ec - log sum,        prior a_e ~ N(0, SPREAD^2), against separation

The score s_c(x) is linear in the column's features, the same in all environments, and has unit scale. For two classes
s_1 - s_0 has standard deviation 1 over all samples, so that a_e is the change of the log-odds per standard deviation of
the column; for more classes, the mean of var(s_c - s_c') over pairs of classes is 1. Intercepts b_ec absorb the label
shares. Effects can therefore be compared between environments, and between columns of any kind.

    one feature and two classes   s is the feature: a positive effect favours the second class
    otherwise                     s is the predictor of this column alone, fitted within all environments: a positive
                                  effect agrees with the environments as a whole, a negative one opposes them

Effects are those of each column alone, not adjusted for the others. `pool` has the model of their differences.
"""

from __future__ import annotations

import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from operator import attrgetter
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError, listed
from ..functional import SoftmaxLoss
from ..functional.linear_loss import logits_of, one_hot, row_losses
from ..reports import Cell, Chapter, Forest, Section, Spread, Table
from ..reports.elements import Entry, number
from ..settings import Bound, Count, Seed, as_json, convert
from ..solvers import threads_set
from .report import NEAR, Estimate, Floats, Pooled, pool, t_quantile
from .samples import (
    CHUNK,
    GRID,
    GROUPS,
    MOST,
    TOLERANCE,
    Codes,
    Samples,
    arrange_samples,
    choose_ridge,
    fit,
    held_out_losses,
    loss_on,
    pooled_change,
    thin_samples,
)

SPREAD = 2.5  # deviation of the prior of an effect
_RIDGE = 1e-3  # of the predictor that is the score of a column
_BINS = 10  # least number of bins of a numeric column, to tell the environment by; else two per environment
_STEPS = 50  # most steps of Newton's method
_TELLING = 0.25  # share of the way from chance to certainty above which a column reveals the environment
_ROWS = 3_000  # samples that predictors without a column are fitted to and tested on
_REFIT_WAY_OUT = "regard the findings about columns as rough, or leave out those that nearly repeat others"
_WAY_OUT = "regard the effect of this column as rough, or merge its rare categories"
LEVEL, MATERIAL = 0.01, 0.3
"""Limits of `unstable`: the p-value of Q over all columns, and the deviation tau between environments.

At tau = MATERIAL, a predictor with the mean effect loses about tau^2 / 8 = 0.01 nats in an environment like these.
"""


@dataclass(frozen=True, eq=False)
class ColumnEffect:
    """Effects of a column in E environments, and the change of loss without it.

    effects     (E,) log-odds per standard deviation, with intervals; nan if an environment has one class or value
    pooled      mean and heterogeneity of the effects, and the prediction interval of a new environment's effect
    chance      p-value of Q: how often environments with equal effects would differ as much
    recognised  share of samples whose environment is recognised from the column, including its missing values, each
                environment counted the same; `ColumnReport.chance` is the share that would be right by chance
    told_by     by what: "values", "categories" or "missing values"; "" if `recognised` is near chance
    loss        held-out loss of a predictor without the column, less that of one with it, pooled evenly over
                environments left out of fitting; positive: the column helps in new environments. None: not fitted
    risk        transfer risk without the column, less that with it; nan: not fitted
    suspect     value that may mean missing -> where it is; it is taken as missing here
    """

    name: str
    effects: Estimate
    pooled: Pooled
    chance: float
    recognised: float
    told_by: str
    loss: Pooled | None
    risk: float
    suspect: Mapping[float, str] = field(default_factory=dict)

    @property
    def reverses(self) -> bool:
        """Whether the intervals of its effects lie above zero in one environment and below zero in another."""
        return bool((self.effects.low > 0).any() and (self.effects.high < 0).any())


@dataclass(frozen=True, eq=False)
class ColumnReport:
    """The columns of a table, least stable first: sorted by tau, then by the size of their mean effect.

    chance         share of samples whose environment would be recognised by chance
    held_out       mean loss of linear predictors in environments that they were not fitted on; nan: not fitted
    transfer_risk  mean over Q of the largest loss of Q's predictor in an environment P != Q
    """

    environments: tuple[Any, ...]
    classes: tuple[Any, ...]
    columns: tuple[ColumnEffect, ...]
    chance: float
    held_out: float
    transfer_risk: float
    ridge: float
    confidence: float
    seconds: float

    def __getitem__(self, name: str) -> ColumnEffect:
        for column in self.columns:
            if column.name == name:
                return column
        raise InputError(f"name must be a column, got {name!r}")

    @property
    def sentences(self) -> tuple[str, ...]:
        """The findings in words, four at most."""
        names, lines = unstable(self), []
        first = self[names[0]] if names else self.columns[0]
        if not names:
            lines.append(
                "No column's effect on the label differs so much between environments that its sign could change in a "
                "new one."
            )
        if names or first.chance < LEVEL / len(self.columns):
            effects = first.effects.value
            low, high = int(np.nanargmin(effects)), int(np.nanargmax(effects))
            how = "changes sign" if first.reverses else "differs" if names else "differs most"
            lines.append(
                f"The effect of {first.name} on the label {how} between environments: from {number(effects[low], 2)} "
                f"in {self.environments[low]} to {number(effects[high], 2)} in {self.environments[high]} (log-odds per "
                "standard deviation)."
            )
        if names:
            if first.loss is not None and np.isfinite(first.loss.mean):
                verb = "rises" if first.loss.mean > 0 else "falls"
                lines[0] += f" Without it, a linear model's loss in held-out environments {verb} by "
                lines[0] += f"{abs(first.loss.mean):.3f}."
            lines[0] += f" The effect also differs for {listed(names[1:], 5)}." if names[1:] else ""
        found, codes = [], []
        for one in self.columns:
            for value, places in one.suspect.items():
                found.append(f"{one.name} is {value:g} in {places}")
                codes.append(f"{one.name}={value:g}")
        if found:
            lines.append(
                f"{listed(found, 3)}: this is taken as missing where columns are judged, and as a number elsewhere. "
                f"If it means missing, add --missing {','.join(codes)}."
            )
        telling = sorted(filter(attrgetter("told_by"), self.columns), key=attrgetter("recognised"), reverse=True)
        if telling:
            most = telling[0]
            also = f" The same holds for {listed(map(attrgetter('name'), telling[1:]), 5)}." if telling[1:] else ""
            lines.append(
                f"{most.name} reveals the environment: from its {most.told_by} alone it is recognised in "
                f"{100 * most.recognised:.1f} % of samples (by chance: {100 * self.chance:.1f} %).{also}"
            )
        return tuple(lines)

    @property
    def warning(self) -> str:
        """Caution about a model that uses unstable columns; "" if there are none."""
        names = unstable(self)
        if not names:
            return ""
        differ = "their relations to the label differ" if names[1:] else "its relation to the label differs"
        lines = [f"Take care with {listed(map(repr, names), 5)}: {differ} between environments."]
        reversing = filter(attrgetter("reverses"), map(self.__getitem__, names))
        if turned := list(map(repr, map(attrgetter("name"), reversing))):
            lines.append(f"The relation of {listed(turned, 5)} changes sign, so a new environment may reverse it.")
        loss = self[names[0]].loss
        if loss is not None and np.isfinite(loss.mean):
            lines.append(
                f"In held-out environments, a linear model has a log loss of {self.held_out:.3f} with {names[0]!r} and "
                f"{self.held_out + loss.mean:.3f} without it."
            )
        return " ".join(lines)

    @property
    def advice(self) -> str:
        """What to do about unstable columns; "" if there are none.

        Dropping them is recommended only where held-out losses support it; otherwise it is offered.
        """
        names = unstable(self)
        if not names:
            return ""
        changes = [loss.mean for name in names if (loss := self[name].loss) is not None and np.isfinite(loss.mean)]
        dropped, them = listed(map(repr, names), 5), "them" if names[1:] else "it"
        if len(changes) < len(names):
            why = f"What a linear model loses without {them} is not known."
        elif max(changes) <= -NEAR:
            return (
                f"Next: run trm fit with --drop-unstable, which leaves out {dropped}. In held-out environments, a "
                f"linear model does better without {them}."
            )
        else:
            why = (
                f"In the environments at hand, a linear model does no better without {them}, which says nothing about "
                "one that breaks the relation."
            )
        return (
            "Next: if a new environment may break this relation, run trm fit with --drop "
            f"{shlex.quote(','.join(names))}, which compares without {them}. {why}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the findings as JSON types, with None for nan."""
        columns = []
        for one in self.columns:
            effects = {key: np.asarray(getattr(one.effects, key)).tolist() for key in ("value", "low", "high")}
            columns.append(
                {
                    "name": one.name, "effects": effects, "pooled": _json_pooled(one.pooled), "chance": one.chance,
                    "recognised": one.recognised, "told_by": one.told_by, "loss": one.loss and _json_pooled(one.loss),
                    "risk": one.risk, "suspect": {f"{value:g}": places for value, places in one.suspect.items()},
                }
            )  # fmt: skip
        found: dict[str, Any] = as_json(
            {
                "environments": list(map(str, self.environments)), "columns": columns, "chance": self.chance,
                "held_out": self.held_out, "transfer_risk": self.transfer_risk, "ridge": self.ridge,
                "unstable": unstable(self), "sentences": self.sentences,
            }
        )  # fmt: skip
        return found


def column_effects(
    features: Any,
    groups: Mapping[str, Sequence[int]],
    labels: Any,
    environments: Any,
    *,
    missing: Mapping[str, int] = MappingProxyType({}),
    suspects: Mapping[str, Mapping[float, str]] = MappingProxyType({}),
    refit: bool = True,
    rows: int = _ROWS,
    confidence: float = 0.95,
    seed: int = 0,
) -> ColumnReport:
    """Estimate the effects of columns on the label in every environment, and how much they differ.

    features    (n, d), finite, as a schema encodes them; they are standardised here
    groups      column -> indices of its features; see `samples.column_groups`
    labels      (n,), as for `audit`; environments are (n,) too
    missing     column -> index of its missing-value indicator; see `samples.column_groups`
    suspects    column -> its values that may mean missing, and are so in `features` -> where they are
    refit       whether to fit linear predictors without each column, which `ColumnEffect.loss` and `risk` need
    rows        approximate number of samples for these fits, drawn from every environment

    If there are more than 100 000 samples, about so many are drawn, evenly from all environments.
    """
    from scipy.special import chdtrc

    begun = time.perf_counter()
    refit, rows, seed = convert("refit", refit, bool), convert("rows", rows, Count), convert("seed", seed, Seed)
    confidence = convert("confidence", confidence, Annotated[float, Bound(above=0, below=1)])
    samples = thin_samples(arrange_samples(features, labels, environments, 2, seed, True), MOST, seed)
    d = samples.rows.shape[1] - 1
    places: dict[str, list[int]] = {}
    for name, indices in groups.items():
        places[name] = list(map(int, indices))
        if not places[name] or min(places[name]) < 0 or max(places[name]) >= d:
            raise InputError(f"groups[{name!r}] must be indices of features, 0 to {d - 1}, got {list(indices)}")
    with torch.no_grad(), threads_set(1):  # the problems are many and small
        values, errors = _slopes(samples, list(places.values()))
        without = refit_without(samples, list(places.values()), rows, seed) if refit else Refitted.none(places)
    sizes = samples.counts.sum((1, 2))
    half = t_quantile(confidence, np.maximum(1, sizes - 2)) * errors
    found = []
    for k, name in enumerate(places):
        effects = Estimate(values[k], values[k] - half[k], values[k] + half[k])
        pooled = pool(values[k], errors[k] ** 2, confidence)
        chance = float(chdtrc(pooled.k - 1, pooled.q)) if pooled.k > 1 else float("nan")  # chi-square above Q
        recognised, told_by = _reveal_environment(samples, places[name], missing.get(name))
        refitted = without.losses[k], without.risks[k]
        suspect = suspects.get(name, {})
        found.append(ColumnEffect(name, effects, pooled, chance, recognised, told_by, *refitted, suspect))
    tau = np.nan_to_num(list(map(attrgetter("pooled.tau"), found)))
    mean = np.abs(np.nan_to_num(list(map(attrgetter("pooled.mean"), found))))
    ordered = tuple(map(found.__getitem__, np.lexsort((-mean, -tau))))
    return ColumnReport(
        samples.environments, samples.classes, ordered, 1 / len(samples.environments), without.held_out,
        without.risk, without.ridge, confidence, time.perf_counter() - begun,
    )  # fmt: skip


def unstable(report: ColumnReport, level: float = LEVEL, material: float = MATERIAL) -> tuple[str, ...]:
    """Return the names of the columns to drop, least stable first; never all of them.

    A column is unstable if its effects differ by more than chance (Q's p-value is below level / number of columns), if
    their deviation tau is above `material`, and if the sign of its effect in a new environment is uncertain: the
    prediction interval includes zero, or there are too few environments for one. The legend of `column_sections` says
    so to readers.
    """
    names = []
    for one in report.columns:
        beyond_chance = one.chance < level / len(report.columns)
        if beyond_chance and one.pooled.tau > material and not (one.pooled.low > 0 or one.pooled.high < 0):
            names.append(one.name)
    return tuple(names[: max(0, len(report.columns) - 1)])


def column_sections(report: ColumnReport, most: int = 10) -> list[Section]:
    """Return the sections of a page on columns: a table of the `most` least stable, and a plot of their effects.

    >>> Page(title, lead, [*sections, *column_sections(report)], settings, command)
    """
    worst, fitted = report.columns[:most], report.columns[0].loss is not None
    dropped = unstable(report)
    columns = ["Column", "Mean effect", "In a new environment", "Tau", "I², %", "Environment recognised, %"]
    columns += ["Loss without", "Risk without"] if fitted else []
    rows: list[list[Entry]] = []
    marked: list[int] = []
    for place, one in enumerate(worst):
        marked += [place] if one.name in dropped else []
        interval = f"{number(one.pooled.low, 2)} to {number(one.pooled.high, 2)}"
        p_value = "< 0.001" if one.chance < 0.001 else number(one.chance, 3)
        spread = {"": f"Q {number(one.pooled.q, 1)}, p {p_value}"}
        asked = []
        for value, where in one.suspect.items():
            asked.append(f"{value:g} in {where}, taken as missing here")
        named = Cell(one.name, below={"": listed(asked)}) if asked else one.name
        row: list[Entry] = [named, one.pooled.mean, interval if np.isfinite(one.pooled.low) else None]
        row += [one.pooled.tau, Cell(number(100 * one.pooled.i2, 0), one.pooled.i2, below=spread)]
        told = {"": f"by its {one.told_by}"} if one.told_by else {}
        row.append(Cell(number(100 * one.recognised, 1), one.recognised, below=told))
        for change in () if one.loss is None else (one.loss.mean, one.risk):
            row.append(Cell(f"{'+' if change >= 0.0005 else ''}{number(change, 3)}", change))
        rows.append(row)
    level = LEVEL / len(report.columns)
    legend = (
        f"Bold: columns that --drop-unstable leaves out, where p is below {level:.2g}, tau is above {MATERIAL}, and "
        "the sign in a new environment is uncertain. "
    )
    note = (legend if marked else "") + (
        "Effects are log-odds per standard deviation of the column, of each column alone. In a new environment: "
        f"{100 * report.confidence:g} % prediction interval. Tau: standard deviation of the effects between "
        "environments beyond chance, with I², Cochran's Q and its p-value. Environment recognised: share of samples "
        f"whose environment can be told from the column alone; {100 * report.chance:.1f} % by chance."
    )
    if fitted:
        note += (
            f" Loss without, risk without: change if the column is left out. With all columns, a linear model's "
            f"loss in held-out environments is {report.held_out:.3f}, and the transfer risk is "
            f"{report.transfer_risk:.3f}."
        )
    title = "Columns, least stable first"
    title += f": {len(worst)} of {len(report.columns)}" if len(worst) < len(report.columns) else ""
    table = Table(title, columns, rows, digits=2, emphasised=marked, note=note)
    spreads = {}
    for one in worst:
        intervals = np.stack([one.effects.value, one.effects.low, one.effects.high], 1)
        spreads[one.name] = Spread(
            dict(zip(map(str, report.environments), map(tuple, intervals.tolist()), strict=True)),
            one.pooled.mean,
            t_quantile(report.confidence, max(1, one.pooled.k - 1)) * one.pooled.error,
            (one.pooled.low, one.pooled.high),
        )
    forest = Forest("Effects on the label in every environment", spreads, "log-odds per standard deviation")
    return [Chapter("Effects of columns", [table, forest], report.sentences)]


def _json_pooled(found: Pooled) -> dict[str, float]:
    return {name: getattr(found, name) for name in ("mean", "error", "tau2", "q", "i2", "low", "high", "k")}


def _score(samples: Samples, indices: Sequence[int]) -> Tensor:
    """Return s (n, C) in float64, see the module; all zero for a column that does not vary."""
    C, values = len(samples.classes), samples.rows[:, indices]
    if len(indices) == 1 and C == 2:
        logits = values.double() * torch.tensor([-0.5, 0.5], dtype=torch.float64)
    else:
        within = values.clone()
        for e in range(len(samples.environments)):
            within[samples.span(e)] -= within[samples.span(e)].mean(0)
        rows = torch.cat([within, torch.ones_like(within[:, :1])], 1)
        weights = rows.new_empty(1, len(rows))
        for e in range(len(samples.environments)):
            own = samples.span(e)
            weights[:, own] = 1 / (len(samples.environments) * (own.stop - own.start))
        predictor = fit(SoftmaxLoss(rows, samples.labels, weights, C, _RIDGE, True), way_out=_WAY_OUT).value
        logits = (values @ predictor[0, :, :-1].mT).double()
    scale = (2 / (C - 1) * logits.var(0).sum()).sqrt()
    return logits / scale if scale > 1e-9 else torch.zeros_like(logits)


def _slopes(samples: Samples, columns: Sequence[Sequence[int]]) -> tuple[Floats, Floats]:
    """Return the effects a_e and their standard errors, (K, E) each; nan where they cannot be estimated.

    Columns are processed together, in groups of at most `CHUNK` scores.
    """
    E, C = len(samples.environments), len(samples.classes)
    values, errors = np.full((2, len(columns), E), np.nan)
    step = max(1, CHUNK // (len(samples.labels) * C))
    for begin in range(0, len(columns), step):
        scores = torch.stack(list(map(partial(_score, samples), columns[begin : begin + step])))
        for e in range(E):
            own = samples.span(e)
            s = scores[:, own]  # (K, n, C)
            there = samples.counts[e].sum(0) > 0
            varies = ((s - s.mean(1, keepdim=True)).abs().amax((1, 2)) > 1e-6).numpy()
            if there.sum() < 2 or not varies.any():
                continue
            targets = one_hot(samples.labels[own], C, torch.float64)[:, there]
            places = begin + np.flatnonzero(varies)
            values[places, e], errors[places, e] = _newton(s[varies][:, :, there], targets)
    return values, errors


def _newton(s: Tensor, targets: Tensor) -> tuple[Floats, Floats]:
    """Return the slope of s (K, n, C) for targets (n, C) and its error, by Newton's method on (a, b_1..b_C).

    Let p be the probabilities and m = sum_c p_c s_c for every sample. The Hessian of the loss has the blocks

        aa  sum p_c (s_c - m)^2,    ab_c  sum p_c (s_c - m),    bb  diag(sum p) - sum p p^T
    """
    K, n, C = s.shape
    start = torch.cat([torch.zeros(1, dtype=s.dtype), targets.mean(0).log()])
    theta, prior = start.repeat(K, 1), torch.full((1 + C,), 1e-6 * n, dtype=s.dtype)  # the second fixes the sum of b
    prior[0] = SPREAD**-2
    hessian = s.new_empty(K, 1 + C, 1 + C)
    for _ in range(_STEPS):
        p = torch.softmax(theta[:, None, :1] * s + theta[:, None, 1:], -1)  # (K, n, C)
        slope = torch.einsum("knc,knc->k", p - targets, s)
        gradient = torch.cat([slope[:, None], (p - targets).sum(1)], 1) + prior * (theta - start)
        centred = s - (p * s).sum(2, keepdim=True)
        hessian[:, 0, 0] = (p * centred.square()).sum((1, 2))
        hessian[:, 0, 1:] = hessian[:, 1:, 0] = (p * centred).sum(1)
        hessian[:, 1:, 1:] = torch.diag_embed(p.sum(1)) - p.mT @ p
        hessian += prior.diag()
        step = torch.linalg.solve(hessian, gradient)
        theta = theta - step * (2 / step.abs().amax(1, keepdim=True)).clamp(max=1)
        if step.abs().max() < 1e-9:
            break
    variance = torch.linalg.inv(hessian)[:, 0, 0]
    return theta[:, 0].numpy(), variance.sqrt().numpy()


def _reveal_environment(samples: Samples, indices: Sequence[int], missing: int | None = None) -> tuple[float, str]:
    """Return `ColumnEffect.recognised` and `told_by`, from a column's 0/1 features and bins of its first other one.

    The likeliest environment of each bin is found on one half of the samples, and tested on the other. It is due
    to missing values if they alone reveal nearly as much as the whole column.
    """
    E, key, has_number = len(samples.environments), np.zeros(len(samples.labels), np.int64), False
    bins = max(_BINS, 2 * E)
    for i in indices:
        values = samples.rows[:, i].numpy()
        distinct = np.unique(values)
        if len(distinct) > 2:
            if has_number:
                continue
            has_number = True
            edges = np.unique(np.quantile(values, np.linspace(0, 1, bins + 1)[1:-1]))
            code = np.searchsorted(edges, values)
        else:
            code = (values > distinct[0]).astype(np.int64)
        key = np.unique(key * (bins + 2) + code, return_inverse=True)[1]
    place, half = np.empty((2, len(key)), np.int64)
    for e in range(E):
        for k in range(2):
            place[samples.span(e, k)], half[samples.span(e, k)] = e, k
    counts = np.zeros((2, key.max() + 1, E))
    np.add.at(counts, (half, key, place), 1)
    sizes = counts.sum(1)  # (2, E)
    shares = counts / np.maximum(sizes, 1)[:, None]
    right = []
    for train, test in ((0, 1), (1, 0)):
        likeliest = (shares[train] + 1e-9 * shares[train].sum(1, keepdims=True)).argmax(1)  # (bins,)
        hit = shares[test][np.arange(len(likeliest)), likeliest]
        right.append(hit.sum() / E)
    share, chance = float(np.mean(right)), 1 / E
    if share - chance <= _TELLING * (1 - chance):
        return share, ""
    if missing is not None and _reveal_environment(samples, [missing])[0] - chance > 0.75 * (share - chance):
        return share, "missing values"
    others = [i for i in indices if i != missing]
    whole = all(len(samples.rows[:, i].unique()) <= 2 for i in others)
    return share, "categories" if whole and len(others) > 1 else "values"


# ---- predictors without a column


@dataclass(frozen=True)
class Refitted:
    """Linear predictors with all columns, and the changes without each column."""

    held_out: float
    risk: float
    ridge: float
    losses: Sequence[Pooled | None]
    risks: Sequence[float]

    @classmethod
    def none(cls, columns: Mapping[str, Any]) -> Refitted:
        nan = float("nan")
        return cls(nan, nan, nan, [None] * len(columns), [nan] * len(columns))


def refit_without(samples: Samples, columns: Sequence[Sequence[int]], rows: int, seed: int) -> Refitted:
    """Fit predictors on all environments but a few, and on single ones; then again without each column.

    Each of up to `GROUPS` environments is left out alone, and has a predictor of its own. If there are more, as many
    groups of environments are left out in turn, and as many environments, drawn at random, have their own predictor;
    all are tested on. For both kinds of predictor, the ridge with the least loss in other environments is taken.
    """
    drawn = np.random.default_rng(seed).permutation(len(samples.environments))
    homes = np.sort(drawn[:GROUPS])
    used = drawn % GROUPS != np.arange(len(homes))[:, None]
    each = np.full(len(drawn), -(-rows // len(drawn)))
    each[homes] = -(-rows // len(homes))
    samples = thin_samples(samples, each, seed)
    best, ridge, others = choose_ridge(samples, used, _REFIT_WAY_OUT)
    least, home_ridge, start = np.inf, GRID[0], None
    for candidate in GRID:
        risk, start = _home_risk(samples, homes, candidate, start)
        if risk < least:
            least, home_ridge, home = risk, candidate, start
    full, losses, risks = held_out_losses(samples, used, others), [], []
    for indices in columns:
        blank = samples.rows.clone()
        blank[:, indices] = 0  # with a ridge, the same as without the column
        fewer = replace(samples, rows=blank, moments={})
        away = fit(loss_on(fewer, used, ridge), others, TOLERANCE, way_out=_REFIT_WAY_OUT).value
        losses.append(pooled_change(full, held_out_losses(fewer, used, away)))
        risks.append(_home_risk(fewer, homes, home_ridge, home)[0] - least)
    return Refitted(best, least, ridge, losses, risks)


def _home_risk(samples: Samples, homes: Codes, ridge: float, start: Tensor | None) -> tuple[float, Tensor]:
    """Fit a predictor on each home Q alone; return the mean over Q of its largest loss in an environment P != Q.

    The predictors (H, C, D), returned as well, are fitted one after the other, so that each uses only its rows.
    """
    E, fitted = len(samples.environments), []
    for place, e in enumerate(homes):
        loss = loss_on(samples, np.arange(E)[None] == e, ridge)
        before = None if start is None else start[place : place + 1]
        fitted.append(fit(loss, before, TOLERANCE, way_out=_REFIT_WAY_OUT).value)
    predictors, matrix = torch.cat(fitted), np.empty((len(homes), E))
    for p in range(E):
        here = samples.span(p)
        targets = one_hot(samples.labels[here], len(samples.classes), predictors.dtype)
        matrix[:, p] = row_losses(logits_of(predictors, samples.rows[here]), targets).mean(1).double().numpy()
    matrix[np.arange(len(homes)), homes] = -np.inf
    return float(matrix.max(1).mean()), predictors
