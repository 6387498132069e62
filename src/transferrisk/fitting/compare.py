"""Which algorithm does best in environments it has not seen: each is held out once, and tested on.

With two environments a training without one of them would have a single one, in which there is no transfer to look at.
Then a fifth of each environment's rows is held out instead, which says nothing about new environments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import Generator, Tensor

from ..data import EnvironmentSet
from ..data.splits import VALIDATION, hold_out
from ..experiments.executors import Slot
from ..experiments.local_executor import run_jobs
from ..training import OnStep
from .source import Source
from .trial import Outcome, Recipe, correct, fit_rows

Held = Literal["environments", "rows"]
OnTrials = Callable[[int, int], None]
"""(steps done, steps in all), of all trainings together"""


@dataclass(frozen=True)
class Trial:
    """A training of the comparison. Pickled for another process, so it carries what it needs.

    held_out  the environment that is left out and tested on; None: rows of each environment
    """

    source: Source
    recipe: Recipe
    algorithm: str
    given: Mapping[str, Any]
    held_out: str | None
    seed: int

    def split(self) -> tuple[Tensor, Tensor]:
        """Positions of the rows to train on and of those to test on."""
        samples = self.source.samples
        if self.held_out is None:
            return hold_out(samples, VALIDATION, self.seed)
        away = samples.environments == samples.environment_names.index(self.held_out)
        return (~away).nonzero().flatten(), away.nonzero().flatten()

    def __call__(self, on_step: OnStep) -> Tried:
        rows, tested = self.split()
        outcome = fit_rows(self.source, self.algorithm, self.given, rows, self.recipe, self.seed, on_step)
        right = correct(outcome, self.source, tested)
        index = self.source.samples.environments[tested]
        names = self.source.samples.environment_names
        by_name = {names[e]: right[index == e] for e in index.unique().tolist()}
        return Tried(self.algorithm, self.seed, by_name, outcome.curve)


@dataclass(frozen=True)
class Tried:
    """How an algorithm did: by environment, whether each tested row came out right (m,)."""

    algorithm: str
    seed: int
    right: Mapping[str, Tensor]
    curve: tuple[tuple[int, ...], tuple[float, ...]]


@dataclass(frozen=True)
class Comparison:
    """
    held         what was held out: whole environments, or rows of each
    environments those tested on, in order
    left_out     how many more there are that were not held out
    accuracy     algorithm -> environment -> share of rows that came out right, over all seeds
    rows         environment -> how many rows were tested on, each seed
    noise        algorithm -> standard error of its difference in mean accuracy to the best, over the rows tested on
    worst_noise  likewise of its difference in worst accuracy
    frequent     environment -> accuracy of always saying the most frequent class of the rows trained on; {}: not known
    """

    held: Held
    environments: tuple[str, ...]
    left_out: int
    accuracy: Mapping[str, Mapping[str, float]]
    rows: Mapping[str, int]
    noise: Mapping[str, float]
    worst_noise: Mapping[str, float]
    seeds: tuple[int, ...]
    curves: Mapping[str, tuple[tuple[int, ...], tuple[float, ...]]]
    frequent: Mapping[str, float] = field(default_factory=dict)

    def mean(self, algorithm: str) -> float:
        """Over the environments, each counting the same."""
        return sum(self.accuracy[algorithm].values()) / len(self.environments)

    def worst(self, algorithm: str) -> float:
        return min(self.accuracy[algorithm].values())

    @property
    def best(self) -> str:
        """Of the highest mean accuracy, the first when they tie."""
        return max(self.accuracy, key=self.mean)

    def to_dict(self) -> dict[str, Any]:
        """Of JSON's types alone."""
        return {
            "held_out": self.held,
            "environments": list(self.environments),
            "environments_not_held_out": self.left_out,
            "rows": dict(self.rows),
            "seeds": list(self.seeds),
            "accuracy_of_most_frequent_class": dict(self.frequent),
            "algorithms": {
                name: {
                    "mean_accuracy": self.mean(name),
                    "worst_accuracy": self.worst(name),
                    "accuracy": dict(accuracy),
                    "standard_error_of_difference_to_best": self.noise[name],
                    "standard_error_of_worst_difference_to_best": self.worst_noise[name],
                }
                for name, accuracy in self.accuracy.items()
            },
        }


def compare(
    source: Source,
    recipe: Recipe,
    algorithms: Mapping[str, Mapping[str, Any]],
    seeds: Sequence[int],
    most: int,
    workers: int,
    on_trials: OnTrials,
) -> Comparison:
    """The algorithms, with their settings, on each environment; on `most` of them, drawn by the first seed."""
    names = source.samples.environment_names
    held: Held = "environments" if len(names) > 2 else "rows"
    chosen = _drawn(names, most, seeds[0]) if held == "environments" else names
    places: Sequence[str | None] = chosen if held == "environments" else (None,)
    trials = [
        Trial(source, recipe, name, given, place, seed)
        for seed in seeds
        for place in places
        for name, given in algorithms.items()
    ]
    tried: dict[int, Tried] = {}
    steps: dict[int, int] = {}

    def on_step(position: int, done: int, total: int) -> None:
        steps[position] = done
        on_trials(sum(steps.values()), len(trials) * total)

    for position, result in _run(trials, workers, on_step):
        tried |= {position: result}
    summary = summarise([tried[i] for i in range(len(trials))], held, chosen, len(names) - len(chosen))
    return replace(summary, frequent=most_frequent(source.samples, chosen)) if held == "environments" else summary


def most_frequent(samples: EnvironmentSet, held_out: Sequence[str]) -> dict[str, float]:
    """Accuracy, in each environment held out, of always saying the most frequent class of the others."""
    counts = samples.group_counts()
    rows = {name: counts[samples.environment_names.index(name)] for name in held_out}
    return {name: float(own[(counts.sum(0) - own).argmax()] / own.sum()) for name, own in rows.items()}


def summarise(tried: Sequence[Tried], held: Held, environments: tuple[str, ...], left_out: int) -> Comparison:
    right: dict[str, dict[str, list[Tensor]]] = {}
    for one in tried:
        for name, values in one.right.items():
            right.setdefault(one.algorithm, {}).setdefault(name, []).append(values.double())
    # Of each row, the share of seeds by which it came out right; where rows are drawn by seed, one after the other.
    shares = {
        algorithm: {
            name: torch.stack(found[name]).mean(0) if held == "environments" else torch.cat(found[name])
            for name in environments
        }
        for algorithm, found in right.items()
    }
    accuracy = {a: {name: float(share.mean()) for name, share in found.items()} for a, found in shares.items()}
    best = max(accuracy, key=lambda a: sum(accuracy[a].values()))
    seeds = tuple(dict.fromkeys(one.seed for one in tried))
    # Rows that one seed after the other draws are the same again and again: they count as those of one.
    repeats = 1 if held == "environments" else len(seeds)
    rows = {name: len(share) // repeats for name, share in shares[best].items()}
    return Comparison(
        held,
        environments,
        left_out,
        accuracy,
        rows,
        {algorithm: standard_error(shares[best], found, rows) for algorithm, found in shares.items()},
        {algorithm: worst_standard_error(shares[best], found, rows) for algorithm, found in shares.items()},
        seeds,
        {one.algorithm: one.curve for one in reversed(tried)},
    )


def standard_error(one: Mapping[str, Tensor], other: Mapping[str, Tensor], rows: Mapping[str, int]) -> float:
    """Of the difference in mean accuracy over these environments, in which other rows might have been drawn.

    Rows are compared in pairs. How the difference varies between environments does not count: an algorithm that gains
    in one alone, which is what it is for, would have a standard error as large as its gain.
    """
    variances = [_variance(one[name] - other[name], rows[name]) for name in one]
    return float(sum(variances) ** 0.5 / len(variances))


def worst_standard_error(one: Mapping[str, Tensor], other: Mapping[str, Tensor], rows: Mapping[str, int]) -> float:
    """Of the difference in the accuracy of the worst environment, in pairs of rows where it is the same one."""
    first, second = (min(shares, key=lambda name: float(shares[name].mean())) for shares in (one, other))
    if first == second:
        return float(_variance(one[first] - other[first], rows[first]) ** 0.5)
    return float((_variance(one[first], rows[first]) + _variance(other[second], rows[second])) ** 0.5)


def _variance(values: Tensor, rows: int) -> float:
    """Of the mean of so many rows."""
    return float(values.var(correction=0)) / rows


def _drawn(names: tuple[str, ...], most: int, seed: int) -> tuple[str, ...]:
    order = torch.randperm(len(names), generator=Generator().manual_seed(60_000 + seed))[:most]
    return tuple(names[i] for i in sorted(order.tolist()))


def _run(
    trials: Sequence[Trial], workers: int, on_step: Callable[[int, int, int], None]
) -> Iterator[tuple[int, Tried]]:
    """Images in this process with all its threads; vectors, where one is enough, in several processes."""
    if trials[0].source.kind != "images":
        yield from run_jobs([partial(_in_slot, trial) for trial in trials], workers, on_step)
        return
    for position, trial in enumerate(trials):
        yield position, trial(partial(on_step, position))


def _in_slot(job: Callable[[OnStep], Any], slot: Slot) -> Any:
    return job(slot.on_step)


def final(trial: Trial, on_step: Callable[[int, int, int], None]) -> Outcome:
    """The algorithm on all rows, in this process; none is left to test it on."""
    rows = torch.arange(len(trial.source.samples))

    def job(step: OnStep) -> Outcome:
        return fit_rows(trial.source, trial.algorithm, trial.given, rows, trial.recipe, trial.seed, step)

    if trial.source.kind == "images":
        return job(lambda done, total: on_step(0, done, total))
    outcome: Outcome
    ((_, outcome),) = run_jobs([partial(_in_slot, job)], 1, on_step)
    return outcome
