"""The demo's comparison of algorithms over seeds: in a sentence, as a table and as a page, from records alone."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..results import Record, mean_score, select
from ..results.selection import selection_words
from .elements import (
    Bar,
    Bars,
    Curves,
    Entry,
    Group,
    Heatmap,
    Page,
    Pictures,
    Section,
    Table,
    method_name,
)
from .tables import Summary

WORST_PAIRS = 10
Run = tuple[Mapping[str, Any], Sequence[Record]]
"""Description of a run with `algorithm` and `seed`, and the records of its evaluations."""


@dataclass(frozen=True)
class Row:
    """One algorithm over its seeds, at the selected evaluation of each run."""

    algorithm: str
    seeds: tuple[int, ...]  # of the runs, in the order of the summaries' values
    test: Summary  # accuracy, mean over test environments
    train: dict[str, Summary]  # accuracy by training environment
    transfer_risk: Summary
    transfer: Mapping[str, Mapping[str, float]]  # fitted on -> tested on -> loss, mean over seeds
    seconds: Summary  # of whole trainings

    @property
    def name(self) -> str:
        return method_name(self.algorithm)


def summarise(runs: Sequence[Run], rule: str = "training_domain") -> list[Row]:
    """Return a row for each algorithm, in the order of the runs."""
    if not runs:
        raise InputError("runs must hold at least one run, got none: run trm demo first")
    by_algorithm: dict[str, list[Run]] = {}
    for about, records in runs:
        by_algorithm.setdefault(about["algorithm"], []).append((about, records))
    return [_row(algorithm, own, rule) for algorithm, own in by_algorithm.items()]


def _row(algorithm: str, runs: Sequence[Run], rule: str) -> Row:
    chosen = [select(records, rule) for _, records in runs]
    train = [{r["environment"]: r["accuracy"] for r in records if r["part"] == "train"} for records in chosen]
    matrices = [
        {r["environment"]: r["transfer"] for r in records if r["part"] == "training_domain" and r.get("transfer")}
        for records in chosen
    ]
    return Row(
        algorithm=algorithm,
        seeds=tuple(about["seed"] for about, _ in runs),
        test=Summary.of([mean_score(records, "test") for records in chosen]),
        train={name: Summary.of([of_run[name] for of_run in train]) for name in train[0]},
        transfer_risk=Summary.of([mean_score(records, "training_domain", "transfer_risk") for records in chosen]),
        transfer={
            q: {p: statistics.mean(matrix[q][p] for matrix in matrices) for p in losses}
            for q, losses in matrices[0].items()
        },
        seconds=Summary.of([max(r["seconds"] for r in records) for _, records in runs]),
    )


def comparison_table(rows: Sequence[Row], rule: str = "training_domain") -> Table:
    """Return accuracies, transfer risk and seconds of each algorithm as a table."""
    columns = ["Algorithm", "Test accuracy,\u00a0%", "Transfer risk", "Seconds"]
    columns[2:2] = [f"Train,\u00a0%: {name}" for name in rows[0].train]
    lines: list[list[Entry]] = []
    for row in rows:
        train = [row.train[name].cell(100, 1) for name in rows[0].train]
        lines.append([row.name, row.test.cell(100, 1), *train, row.transfer_risk.cell(1, 3), row.seconds.mean])
    legend = "Bold: TRM. " if any(row.algorithm == "trm" for row in rows) else ""
    ours = [place for place, row in enumerate(rows) if row.algorithm == "trm"]
    return Table("Results", columns, lines, emphasised=ours, note=f"{legend}{caption(rows)}. {selection_words(rule)}")


def caption(rows: Sequence[Row]) -> str:
    """Return a description of the numbers in the table."""
    fewest, most = min(len(row.seeds) for row in rows), max(len(row.seeds) for row in rows)
    if most == 1:
        return "One seed, which does not show how much is chance"
    return f"Mean ± standard deviation over {most if fewest == most else f'{fewest} to {most}'} seeds"


def verdict(rows: Sequence[Row], ours: str = "trm", baseline: str = "erm") -> str:
    """Return one or two sentences on the result."""
    by_name = {row.algorithm: row for row in rows}
    if ours not in by_name or baseline not in by_name:
        best = max(rows, key=lambda row: row.test.mean)
        return f"{best.name} is the most accurate in the unseen environment, at {best.test.cell(100, 1).text} %."
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
    """Return the test accuracies of both algorithms on each seed that both have, averaged over runs of a seed."""

    def accuracy(row: Row, seed: int) -> float:
        return statistics.mean(value for s, value in zip(row.seeds, row.test.values, strict=True) if s == seed)

    common = sorted(set(ours.seeds) & set(theirs.seeds))
    return [(accuracy(ours, seed), accuracy(theirs, seed)) for seed in common]


def _gain(accuracies: Sequence[tuple[float, float]]) -> str:
    """Return the difference of two accuracies in words, with a remark on chance.

    Seeds are compared pair by pair; a mean difference below its own standard error is called chance.
    """
    if not accuracies:
        return "the two share no seed, which does not show how much is chance"
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
    """Return a comparison of two losses >= 0 in words, such as "2.5 times less"."""
    if f"{ours:.3f}" == f"{theirs:.3f}":
        return "as much"
    more, (small, large) = ours > theirs, sorted((ours, theirs))
    times = "" if small == 0 else f"{large / small:.1f} times "
    return "as much" if times == "1.0 times " else times + ("more" if more else "less")


def comparison_page(
    title: str,
    runs: Sequence[Run],
    pictures: Mapping[str, NDArray[np.uint8]],
    settings: Mapping[str, str | Sequence[str]],
    command: str,
    rule: str = "training_domain",
) -> Page:
    """Return the page of these runs; `pictures` are sample images by environment, as in `elements.Pictures`."""
    rows = summarise(runs, rule)
    sections: list[Section] = [comparison_table(rows, rule), _bars(rows), *_training_curves(runs), *_matrices(rows)]
    if pictures:
        sections.append(Pictures("The environments", pictures))
    return Page(title, (verdict(rows),), sections, settings, command)


def _bars(rows: Sequence[Row]) -> Bars:
    several = len(rows[0].test.values) > 1
    bars = [
        Bar(
            row.name,
            row.test.mean,
            max(0.0, row.test.mean - row.test.std) if several else None,
            min(1.0, row.test.mean + row.test.std) if several else None,
            f"{row.test.cell(100, 1).text} %",
        )
        for row in rows
    ]
    note = "The line is one standard deviation over seeds to either side." if several else ""
    return Bars("Accuracy in the unseen environment", {"": bars}, note=note)


def _training_curves(runs: Sequence[Run]) -> Iterator[Curves]:
    """Yield accuracy against epoch, mean over seeds, if runs were evaluated more than once."""
    note = "Mean over seeds." if len({about["seed"] for about, _ in runs}) > 1 else ""
    for title, part in (
        ("While training: accuracy in the unseen environment", "test"),
        ("While training: accuracy on held-out data of the training environments", "training_domain"),
    ):
        found: dict[str, dict[float, list[float]]] = {}  # name -> epoch -> accuracies
        for about, records in runs:
            for epoch in dict.fromkeys(record["epoch"] for record in records):
                score = mean_score([record for record in records if record["epoch"] == epoch], part)
                if not math.isnan(score):
                    found.setdefault(method_name(about["algorithm"]), {}).setdefault(epoch, []).append(100 * score)
        series = {
            name: (sorted(epochs), [statistics.mean(epochs[epoch]) for epoch in sorted(epochs)])
            for name, epochs in found.items()
            if len(epochs) > 1
        }
        if series:
            yield Curves(title, series, "epoch", "accuracy, %", note=note, span=10.0)


def _matrices(rows: Sequence[Row]) -> list[Section]:
    """Return a heat map for each algorithm, on one scale, and the pairs with the largest losses."""
    rows = [row for row in rows if row.transfer]
    if not rows:
        return []
    largest = max(loss for row in rows for losses in row.transfer.values() for loss in losses.values())
    maps = [
        Heatmap(
            row.name,
            list(row.transfer),
            list(row.transfer),
            np.array([[losses[p] for p in row.transfer] for losses in row.transfer.values()]),
            scale=(0.0, largest),
            corner="fitted on ↓ tested on →",
        )
        for row in rows
    ]
    explained = (
        "Log loss, on held-out data of the environment in the column, of the linear predictor that is optimal in "
        "the environment in the row. The larger the numbers off the dashed diagonal, the less the features support "
        "transfer."
    )
    return [Group("Transfer matrices", maps, explained), worst_pairs(rows)]


def worst_pairs(rows: Sequence[Row], most: int = WORST_PAIRS) -> Table:
    """Return the largest entries off the diagonals, each beside the loss of the tested environment's own predictor."""
    pairs = [
        (loss, row.name, fitted, tested, row.transfer[tested][tested])
        for row in rows
        for fitted, losses in row.transfer.items()
        for tested, loss in losses.items()
        if fitted != tested
    ]
    pairs.sort(key=lambda pair: -pair[0])
    note = f"The {most} largest of {len(pairs)} losses off the diagonals." if len(pairs) > most else ""
    return Table(
        "Worst pairs",
        ["Algorithm", "Fitted on", "Tested on", "Loss", "Loss of the predictor fitted there"],
        [[name, fitted, tested, loss, own] for loss, name, fitted, tested, own in pairs[:most]],
        digits=3,
        note=note,
    )
