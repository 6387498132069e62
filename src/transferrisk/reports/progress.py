"""Progress bars, on stderr so that stdout can be piped."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

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

OnProgress = Callable[[str, int, int], None]
"""(what, done, total), in bytes or in things."""


def byte_progress(quiet: bool = False) -> AbstractContextManager[OnProgress]:
    """A bar for the file that is on its way."""
    return _one_bar((DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn()), quiet)


def task_progress(quiet: bool = False) -> AbstractContextManager[OnProgress]:
    """A bar for what is being done."""
    return _one_bar((MofNCompleteColumn(), TimeElapsedColumn(), TimeRemainingColumn()), quiet)


@contextmanager
def _one_bar(columns: Sequence[ProgressColumn], quiet: bool) -> Iterator[OnProgress]:
    """A bar where stderr is a terminal; it goes when all is done."""
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


class RunBars:
    """A bar for all runs and one for each at work, with a clock of its own; without a terminal, a line for each end."""

    def __init__(self, bars: Progress, where: Console, title: str, total: int, done: int) -> None:
        self._bars, self._where, self.total, self.done = bars, where, total, done
        self._all = bars.add_task(title, completed=done, total=total)
        self._working: dict[str, TaskID] = {}

    def step(self, run: str, done: int, total: int) -> None:
        """So many steps of a run are done."""
        if run not in self._working:
            self._working[run] = self._bars.add_task(run, total=total)
        self._bars.update(self._working[run], completed=done, total=total)

    def end(self, run: str, line: str = "", finished: bool = True, said: bool = False) -> None:
        """A run is no longer at work; where there are no bars, or it is to be `said`, a line tells how it ended."""
        if run in self._working:
            self._bars.remove_task(self._working.pop(run))
        if finished:
            self.done += 1
            self._bars.update(self._all, completed=self.done)
        if said or not self._where.is_terminal:
            line = line or f"{run}: {self.done} of {self.total} runs finished"
            self._where.print(line, highlight=False, markup=False, soft_wrap=True)


@contextmanager
def run_progress(title: str, total: int, done: int = 0, quiet: bool = False) -> Iterator[RunBars]:
    """Bars for `total` runs, of which `done` were finished before."""
    where = Console(stderr=True, quiet=quiet)
    columns = (
        TextColumn("{task.description:<18}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=where, disable=quiet or not where.is_terminal) as bars:
        yield RunBars(bars, where, title, total, done)
