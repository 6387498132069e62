"""What `trm train` prints: progress, and the accuracies at the end."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from math import nan
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from ..algorithms import describe_algorithm
from ..data import SPLITS
from ..reports import Table, percent
from ..reports.values import Entry
from ..training import Record, Run, select
from ..training.output import BEST, LAST, RECORDS
from ..training.protocols import smallest_environment
from ..training.records import Scores, mean_accuracy, worst_group
from ..training.selection import Selection

BY = {
    "training_domain": "training-domain validation",
    "test_domain": "validation data of the test environment",
}


def note(message: str) -> None:
    print(f"trm: {message}", file=sys.stderr)


def settings_line(run: Run) -> str:
    """What is trained and how, in one line."""
    config = run.config
    shown = ", ".join(f"{name}={getattr(config, name):g}" for name in ("epochs", "lr", "momentum", "weight_decay"))
    smallest = smallest_environment(run.splits.train)
    return (
        f"training {describe_algorithm(run.algorithm, **run.settings)}; backbone={run.origin['backbone']}; {shown}, "
        f"decay_at={config.decay_at:g}, batch_size={config.batch_size} (the smallest environment has {smallest})"
    )


class Watch:
    """A bar where stderr is a terminal; otherwise a line an evaluation. The settings are told after the first step,
    when nothing more can be said against them."""

    def __init__(self, run: Run, bars: Progress, where: Console, quiet: bool) -> None:
        self.bars, self.where, self.algorithm, self.quiet = bars, where, run.algorithm, quiet
        self.settings = settings_line(run)
        self.task = bars.add_task(run.algorithm, total=None, start=False)
        self.total, self.seen, self.measured = 0, "", ""

    def _begin(self) -> None:
        if self.settings and not self.quiet:
            self.where.print(f"trm: {self.settings}", highlight=False, markup=False, soft_wrap=True)
        self.settings = ""

    def step(self, done: int, total: int) -> None:
        self._begin()
        if not self.total:
            self.total = total
            self.bars.reset(self.task, total=total, completed=done - 1)
        self.bars.update(self.task, completed=done)

    def loss(self, step: int, value: float) -> None:
        self._begin()
        self.seen = f"loss {value:.3f}"
        self._describe()

    def record(self, record: Record) -> None:
        self.measured = (
            f"  validation {100 * mean_accuracy(record.training_domain):.1f} %"
            f"  test {100 * mean_accuracy(record.test):.1f} %"
        )
        self._describe()
        if not self.quiet and not self.where.is_terminal:
            print(f"step {record.step}, epoch {record.epoch:.3g}: {self.seen}{self.measured}", file=sys.stderr)

    def _describe(self) -> None:
        self.bars.update(self.task, description=f"{self.algorithm}  {self.seen}{self.measured}")


@contextmanager
def training_progress(run: Run, quiet: bool) -> Iterator[Watch]:
    where = Console(stderr=True)
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=where, disable=quiet or not where.is_terminal) as bars:
        yield Watch(run, bars, where, quiet)


def accuracies(records: Sequence[Record]) -> Table:
    """One row an environment of each part, at the selected evaluation and at the last."""
    (chosen,), (last,) = select(records, "training_domain"), select(records, "last")
    rows: list[list[Entry]] = []
    for part, title in SPLITS.items():
        for place, (name, scores) in enumerate(getattr(chosen, part).items()):
            worst = "" if scores.worst_group is None else percent(scores.worst_group)
            final = getattr(last, part).get(name, Scores(nan, nan)).accuracy
            rows.append([title if place == 0 else "", name, percent(scores.accuracy), worst, percent(final)])
    return Table(
        f"Accuracy, %; selected by {BY[_rule(last)]}: step {chosen.step} of {last.step}",
        ["Part", "Environment", "Selected", "Worst class", "Last"],
        rows,
    )


def _rule(record: Record) -> Selection:
    """By which data evaluations are selected. Where a few samples are tuned on, they are of the test environment."""
    return "training_domain" if record.origin.get("finetune_samples") is None else "test_domain"


def summary(records: Sequence[Record], folder: Path) -> dict[str, Any]:
    """The same for a program, with where everything lies."""
    (chosen,), (last,) = select(records, "training_domain"), select(records, "last")
    return {
        "selection": _rule(last),
        "test_accuracy": mean_accuracy(chosen.test),
        "test_worst_group": worst_group(chosen.test),
        "selected": asdict(chosen),
        "last": asdict(last),
        "best_checkpoint": str(folder / BEST),
        "last_checkpoint": str(folder / LAST),
        "records": str(folder / RECORDS),
    }
