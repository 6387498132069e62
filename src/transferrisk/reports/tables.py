"""From records to the numbers that are shown: mean and standard deviation over seeds."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from ..errors import InputError
from ..training.records import Record, Scores, mean_accuracy
from ..training.selection import Selection, select

NAMES = {
    "erm": "ERM",
    "reweight": "Reweight",
    "irm": "IRM",
    "vrex": "V-REx",
    "groupdro": "GroupDRO",
    "mldg": "MLDG",
    "fish": "Fish",
    "trm": "TRM",
    "trm-direct": "TRM without GM",
    "oracle": "Oracle",
}
"""How algorithms are called in tables and figures."""

SELECTION_NAMES = {
    "training_domain": "best accuracy on held-out data of the training environments",
    "test_domain": "best accuracy on held-out data of the test environment",
    "last": "the last evaluation of each run",
}


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation over seeds (0 for a single one, and not shown); nan where one is missing."""

    mean: float
    std: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        if any(map(math.isnan, values)):
            return cls(math.nan, math.nan, tuple(values))
        return cls(statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0, tuple(values))

    def percent(self) -> str:
        return self._with_spread(100, 1)

    def plain(self) -> str:
        return self._with_spread(1, 3)

    def _with_spread(self, unit: float, digits: int) -> str:
        if math.isnan(self.mean):
            return "\N{EN DASH}"
        spread = f" ± {unit * self.std:.{digits}f}" if len(self.values) > 1 else ""
        return f"{unit * self.mean:.{digits}f}{spread}"


@dataclass(frozen=True)
class Row:
    """One algorithm over its seeds, at the selected evaluation of each run."""

    algorithm: str
    name: str
    seeds: tuple[int, ...]  # of the runs, as in `values` of the summaries
    test: Summary  # accuracy, mean over test environments
    train: dict[str, Summary]  # accuracy by training environment
    transfer_risk: Summary
    transfer_matrix: list[list[float]]  # mean over seeds
    environments: tuple[str, ...]  # rows and columns of the matrix
    seconds: Summary  # of training, whole runs


def summarise(records: Sequence[Record], by: Selection = "training_domain") -> list[Row]:
    """One row an algorithm, in the order of the records."""
    if not records:
        raise InputError("there are no records to report on: run an experiment first")
    selected = select(records, by)
    rows = []
    for algorithm in dict.fromkeys(record.algorithm for record in records):
        runs = [record for record in selected if record.algorithm == algorithm]
        finished = select([record for record in records if record.algorithm == algorithm], "last")
        matrices = [run.transfer_matrix for run in runs]
        size = range(len(matrices[0]))
        rows.append(
            Row(
                algorithm=algorithm,
                name=NAMES.get(algorithm, algorithm),
                seeds=tuple(run.seed for run in runs),
                test=Summary.of([mean_accuracy(run.test) for run in runs]),
                train={name: _accuracies([run.train for run in runs], name) for name in runs[0].train},
                transfer_risk=Summary.of([run.transfer_risk for run in runs]),
                transfer_matrix=[[statistics.mean(m[q][p] for m in matrices) for p in size] for q in size],
                environments=tuple(runs[0].training_domain),
                seconds=Summary.of([run.seconds for run in finished]),
            )
        )
    return rows


def _accuracies(scores: Sequence[dict[str, Scores]], environment: str) -> Summary:
    return Summary.of([by_name[environment].accuracy for by_name in scores])


def caption(rows: Sequence[Row]) -> str:
    """What the numbers of a table are."""
    fewest, most = min(len(row.seeds) for row in rows), max(len(row.seeds) for row in rows)
    if most == 1:
        return "One seed, so nothing says how much is chance"
    return f"Mean ± standard deviation over {most if fewest == most else f'{fewest} to {most}'} seeds"


def verdict(rows: Sequence[Row], ours: str = "trm", baseline: str = "erm") -> str:
    """One or two sentences that say what the table means."""
    by_name = {row.algorithm: row for row in rows}
    if ours not in by_name or baseline not in by_name:
        best = max(rows, key=lambda row: row.test.mean)
        return f"{best.name} is the most accurate in the unseen environment, at {best.test.percent()} %."
    a, b = by_name[ours], by_name[baseline]
    pairs = _by_seed(a, b)
    x, y = map(statistics.mean, zip(*pairs, strict=True)) if pairs else (a.test.mean, b.test.mean)
    accuracy = (
        f"In the environment it has not seen, {a.name} gets {100 * x:.1f} % right where {b.name} gets "
        f"{100 * y:.1f} %: {_gain(pairs)}{'' if set(a.seeds) == set(b.seeds) or not pairs else ' that both have'}."
    )
    if math.isnan(a.transfer_risk.mean) or math.isnan(b.transfer_risk.mean):
        return accuracy
    return (
        f"{accuracy} On its features, a predictor fitted in one training environment loses "
        f"{_compared(a.transfer_risk.mean, b.transfer_risk.mean)} in the other (transfer risk "
        f"{a.transfer_risk.mean:.3f} against {b.transfer_risk.mean:.3f})."
    )


def _by_seed(ours: Row, theirs: Row) -> list[tuple[float, float]]:
    """Test accuracies of both, on each seed that both have; the mean where there are several runs of one."""

    def accuracy(row: Row, seed: int) -> float:
        return statistics.mean(value for s, value in zip(row.seeds, row.test.values, strict=True) if s == seed)

    common = sorted(set(ours.seeds) & set(theirs.seeds))
    return [(accuracy(ours, seed), accuracy(theirs, seed)) for seed in common]


def _gain(accuracies: Sequence[tuple[float, float]]) -> str:
    """The difference of two accuracies, and what to make of it.

    Seeds are compared pair by pair; a mean difference below its own standard error is called chance.
    """
    if not accuracies:
        return "no seed is common to both, so nothing says how much is chance"
    pairs = [100 * (x - y) for x, y in accuracies]
    seeds, gain = len(pairs), statistics.mean(pairs)
    over = f"over {seeds} seeds" if seeds > 1 else "on the one seed"
    points = f"{abs(gain):.1f}"
    if points == "0.0":
        return f"no difference {over}"
    points = f"{points} points {'more' if gain > 0 else 'fewer'}"
    if seeds == 1:
        return f"{points} {over}"
    if abs(gain) <= statistics.stdev(pairs) / seeds**0.5:
        return f"{points}, which {over} may well be chance"
    return f"{points}, ahead on {sum(pair > 0 for pair in pairs)} of {seeds} seeds"


def _compared(ours: float, theirs: float) -> str:
    """How much less or more our loss is than theirs, in words; losses are not negative."""
    if f"{ours:.3f}" == f"{theirs:.3f}":
        return "as much"
    more, (small, large) = ours > theirs, sorted((ours, theirs))
    times = "" if small == 0 else f"{large / small:.1f} times "
    return "as much" if times == "1.0 times " else times + ("more" if more else "less")
