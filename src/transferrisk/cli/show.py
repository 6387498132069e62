"""What commands print: progress bars, tables, where a number came from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from ..experiments.demo import OnRunStep
    from ..reports import Row

console = Console()
OnProgress = Callable[[str, int, int], None]
"""(what, done, total), in bytes or in things."""


@contextmanager
def progress(runs: int) -> Iterator[OnRunStep]:
    """A bar for all runs and one for each that is training, or a line a run where stderr is no terminal.

    On stderr in any case, so that stdout can be piped.
    """
    where = Console(stderr=True)
    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=where, disable=not where.is_terminal) as bars:
        everything = bars.add_task("all runs", total=runs)
        training: dict[tuple[str, int], TaskID] = {}

        def advance(algorithm: str, seed: int, done: int, total: int) -> None:
            run = (algorithm, seed)
            if run not in training:
                training[run] = bars.add_task(f"{algorithm}, seed {seed}", total=total)
            bars.update(training[run], completed=done)
            if done == total:
                bars.remove_task(training.pop(run))
                bars.advance(everything)
                if not where.is_terminal:
                    where.print(f"{algorithm}, seed {seed}: {bars.tasks[0].completed:.0f} of {runs} runs finished")

        yield advance


def byte_progress(quiet: bool = False) -> AbstractContextManager[OnProgress]:
    """A bar for the file that is on its way."""
    return _one_bar((DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()), quiet)


def task_progress(quiet: bool = False) -> AbstractContextManager[OnProgress]:
    """A bar for what is being done."""
    return _one_bar((MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()), quiet)


@contextmanager
def _one_bar(columns: Sequence[ProgressColumn], quiet: bool) -> Iterator[OnProgress]:
    """On stderr where that is a terminal; it goes when all is done."""
    where = Console(stderr=True)
    shown = not quiet and where.is_terminal
    bars = Progress(
        TextColumn("{task.description}"), BarColumn(), *columns, console=where, transient=True, disable=not shown
    )
    with bars:
        task, current = bars.add_task("", total=None, visible=False), ""

        def advance(what: str, done: int, total: int) -> None:
            nonlocal current
            if what != current:
                bars.reset(task, description=what, completed=done, total=total or None, visible=True)
                current = what
            bars.update(task, completed=done, total=total or None)

        yield advance


def results_table(rows: Sequence[Row]) -> Table:
    from ..reports import caption

    table = Table(title=caption(rows), title_justify="left", title_style="dim")
    table.add_column("Algorithm")
    table.add_column("Test accuracy, %", justify="right")
    for name in rows[0].train:
        table.add_column(f"Train, {name}", justify="right")
    table.add_column("Transfer risk", justify="right")
    for row in rows:
        cells = [row.name, row.test.percent(), *(s.percent() for s in row.train.values()), row.transfer_risk.plain()]
        table.add_row(*cells, style="bold" if row.algorithm == "trm" else None)
    return table


def load_pictures(path: Path) -> dict[str, NDArray[np.uint8]]:
    import numpy as np

    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def provenance() -> dict[str, str]:
    """With what a result was made: version, commit, torch, hardware."""
    import torch

    from .. import __version__
    from ..experiments.execute import commit, hardware

    found = {"Version": f"transferrisk {__version__}", "PyTorch": torch.__version__}
    if revision := commit():
        found["Commit"] = revision
    found["Hardware"] = hardware()
    return found
