"""The page of a comparison of algorithms, from its records."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from ..training.records import Record, Scores, mean_accuracy
from ..training.selection import Selection
from .page import Page
from .sections import Bar, Bars, Curves, Group, Heatmap, Pictures, Section, Shown, Table
from .tables import NAMES, SELECTION_NAMES, Row, caption, summarise, verdict

WORST_PAIRS = 10


def demo_page(
    title: str,
    records: Sequence[Record],
    pictures: Mapping[str, NDArray[np.uint8]],
    settings: Mapping[str, str | Sequence[str]],
    command: str,
    by: Selection = "training_domain",
) -> Page:
    """The page for these records; `pictures` are sample images by environment, as for `sections.Pictures`."""
    rows = summarise(records, by)
    sections: list[Section] = [_results(rows, by), _bars(rows), *_training_curves(records), *_matrices(rows)]
    if pictures:
        sections.append(Pictures("The environments", pictures))
    return Page(title, (verdict(rows),), tuple(sections), settings, command)


def _results(rows: Sequence[Row], by: Selection) -> Table:
    train = list(rows[0].train)
    return Table(
        "Results",
        [
            "Algorithm",
            "Test accuracy,\u00a0%",
            *(f"Train\u00a0accuracy,\u00a0%: {name}" for name in train),
            "Transfer risk",
            "Training,\u00a0s",
        ],
        [
            [
                row.name,
                Shown(row.test.mean, row.test.percent()),
                *(Shown(row.train[name].mean, row.train[name].percent()) for name in train),
                Shown(row.transfer_risk.mean, row.transfer_risk.plain()),
                row.seconds.mean,
            ]
            for row in rows
        ],
        emphasised=[i for i, row in enumerate(rows) if row.algorithm == "trm"],
        note=f"{caption(rows)}. Models selected by {SELECTION_NAMES[by]}.",
    )


def _bars(rows: Sequence[Row]) -> Bars:
    several = len(rows[0].test.values) > 1
    bars = [
        Bar(
            row.name,
            row.test.mean,
            max(0.0, row.test.mean - row.test.std) if several else None,
            min(1.0, row.test.mean + row.test.std) if several else None,
            f"{row.test.percent()} %",
        )
        for row in rows
    ]
    note = "The line is one standard deviation over seeds to either side." if several else ""
    return Bars("Accuracy in the unseen environment", {"": bars}, note=note)


def _training_curves(records: Sequence[Record]) -> Iterator[Curves]:
    """Accuracy against epoch, mean over seeds, where a run was evaluated more than once."""
    over = "Mean over seeds." if len({record.seed for record in records}) > 1 else ""
    validation = {id(record): record.training_domain for record in records}
    test = {id(record): record.test for record in records}
    for title, scores in (
        ("While training: accuracy in the unseen environment", test),
        ("While training: accuracy on held-out data of the training environments", validation),
    ):
        series = {}
        for algorithm in dict.fromkeys(record.algorithm for record in records):
            line = _by_epoch([(r.epoch, scores[id(r)]) for r in records if r.algorithm == algorithm])
            if len(line[0]) > 1:
                series[NAMES.get(algorithm, algorithm)] = line
        if series:
            yield Curves(title, series, "epoch", "accuracy, %", note=over, span=10.0)


def _by_epoch(evaluations: Sequence[tuple[float, dict[str, Scores]]]) -> tuple[list[float], list[float]]:
    """Epochs and the mean accuracy in percent at each."""
    found: dict[float, list[float]] = {}
    for epoch, scores in evaluations:
        if scores:
            found.setdefault(epoch, []).append(100 * mean_accuracy(scores))
    epochs = sorted(found)
    return epochs, [statistics.mean(found[epoch]) for epoch in epochs]


def _matrices(rows: Sequence[Row]) -> list[Section]:
    """A heat map for each algorithm, on one scale, and the pairs with the largest losses."""
    rows = [row for row in rows if row.transfer_matrix]
    if not rows:
        return []
    largest = max(loss for row in rows for losses in row.transfer_matrix for loss in losses)
    maps = [
        Heatmap(
            row.name,
            row.environments,
            row.environments,
            np.array(row.transfer_matrix),
            scale=(0.0, largest),
            corner="fitted on ↓ tested on →",
        )
        for row in rows
    ]
    explained = (
        "Cross-entropy, on held-out data of the environment in the column, of the linear predictor that is optimal in "
        "the environment in the row. The larger the numbers off the dashed diagonal, the less the features support "
        "transfer."
    )
    return [Group("Transfer matrices", maps, explained), worst_pairs(rows)]


def worst_pairs(rows: Sequence[Row], most: int = WORST_PAIRS) -> Table:
    """The largest entries off the diagonals, each beside what the environment's own predictor loses there."""
    pairs = [
        (loss, row.name, fitted, tested, row.transfer_matrix[p][p])
        for row in rows
        for fitted, losses in zip(row.environments, row.transfer_matrix, strict=True)
        for p, (tested, loss) in enumerate(zip(row.environments, losses, strict=True))
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
