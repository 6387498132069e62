"""Values and progress on a terminal. Figures are left out but for heat maps, which are printed as tables.

Values go to standard output; progress bars to stderr, so that the output can be piped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from rich import box, table
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
from rich.text import Text as Words

from .values import Cell, Chapter, Entry, Group, Heatmap, Section, Table, Text, in_unit, one_line


def width() -> int:
    """Letters that fit beside each other."""
    return Console().width


def print_values(*values: Section | str, stderr: bool = False) -> None:
    """Print values one after the other; a string is a paragraph."""
    console = Console(stderr=stderr)  # made anew, since it takes the terminal's width when it is made
    for place, value in enumerate(values):
        if isinstance(value, str) and place and not isinstance(values[place - 1], str):
            console.print()
        _print(console, value)


def print_line(text: str, stderr: bool = False) -> None:
    """Print a line that is not wrapped, since it holds a path or a command to be copied."""
    Console(stderr=stderr).print(Words(one_line(text)), soft_wrap=True)


def _print(console: Console, value: Section | str) -> None:
    match value:
        case str():
            _say(console, [value], "")
        case Table():
            console.print()
            console.print(_rich_table(value, starred=not console.is_terminal))
            note = value.note if console.is_terminal else value.note.replace("Bold:", "Starred:")
            _say(console, [note], "dim")
        case Heatmap():
            rows: list[list[Entry]] = []
            for name, values in zip(value.rows, value.values.tolist(), strict=True):
                rows.append([name, *(Cell(in_unit(x, value.unit, sign=False), x) for x in values)])
            _print(console, Table(value.title, [value.corner, *value.columns], rows, note=value.note))
        case Text():
            _say(console, [value.title], "bold")
            _say(console, value.lines, "dim" if value.folded else "")
        case Chapter() | Group():
            if value.title:
                console.print()
            _say(console, [value.title], "bold")
            _say(console, value.lines if isinstance(value, Chapter) else [value.note], "dim")
            for section in value.sections:
                _print(console, section)
        case _:
            _say(console, [value.note] if hasattr(value, "note") else [], "dim")


def _say(console: Console, lines: Iterable[str], style: str) -> None:
    for line in filter(None, lines):
        console.print(Words(one_line(line), style=style))


def _rich_table(value: Table, starred: bool) -> table.Table:
    """`starred`: bold cells get a star, since bold cannot be seen in a file."""
    cells = value.cells()
    printed = table.Table(
        title=Words(one_line(value.title), style="bold") if value.title else None,
        title_justify="left",
        box=box.SIMPLE_HEAD,
        padding=(0, 1, 0, 0),
        show_edge=False,
    )
    for name, numeric in zip(value.columns, value.numeric(cells), strict=True):
        heading = Words(one_line(name), overflow="fold")
        printed.add_column(heading, justify="right" if numeric else "left", overflow="fold")
    for place, row in enumerate(cells):
        words = []
        for cell in row:
            text = Words(one_line(cell.text), style="bold" if cell.bold else "")
            text.append("*" if cell.bold and starred else "")
            for name, below in cell.below.items():
                text.append(f"\n{one_line(f'{name} {below}')}", style="not bold dim")
            words.append(text)
        printed.add_row(*words, style="bold" if place in value.emphasised else None)
    return printed


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
