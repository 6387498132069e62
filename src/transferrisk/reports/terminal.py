"""Elements of reports and progress on a terminal.

Elements go to standard output: heat maps and forest plots as tables, other figures not at all. Progress goes to stderr,
so that the output can be piped: bars on a terminal, lines in a file.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from threading import Event, Thread

import numpy as np
from rich import box, table
from rich.cells import cell_len
from rich.console import Console, RenderableType
from rich.filesize import decimal
from rich.padding import Padding
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.text import Text as Words

from ..errors import one_line
from .elements import Bars, Cell, Chapter, Curves, Entry, Forest, Group, Heatmap, Section, Table, Text, in_unit

_NARROW = 16  # width in letters below which a column of text is not made narrower
_LONG = 30  # letters of a word above which it may be broken


def width() -> int:
    """Return the width of the terminal in letters."""
    return Console().width


def print_values(*values: Section | str, stderr: bool = False) -> None:
    """Print elements one after the other; a string is a paragraph."""
    console = Console(stderr=stderr)  # created here, since it reads the width of the terminal once
    for place, value in enumerate(values):
        lines: list[tuple[str, str]] = []  # and their styles
        inner: Sequence[Section] = ()
        match value:
            case str():
                lines = [(value, "")]
                if place and not isinstance(values[place - 1], str):
                    console.print()
            case Table():
                console.print()
                for part in _table_lines(value, not console.is_terminal, console.width):
                    console.print(part)
                lines = [(value.note if console.is_terminal else value.note.replace("Bold:", "Starred:"), "dim")]
            case Heatmap():
                rows: list[list[Entry]] = []
                for name, row in zip(value.rows, value.values.tolist(), strict=True):
                    rows.append([name, *(Cell(in_unit(x, value.unit, sign=False), x) for x in row)])
                inner = [Table(value.title, [value.corner, *value.columns], rows, note=value.note)]
            case Forest():
                inner = [value.as_table()]
            case Text():
                style = "dim" if value.folded else ""
                lines = [(value.title, "bold"), *zip(value.lines, itertools.repeat(style))]
            case Chapter() | Group():
                if value.title:
                    console.print()
                notes = value.lines if isinstance(value, Chapter) else [value.note]
                lines = [(value.title, "bold"), *zip(notes, itertools.repeat("dim"))]
                inner = value.sections
            case Bars() | Curves():
                lines = [(value.note, "dim")]
        for line, style in lines:
            if line:
                console.print(Words(one_line(line), style=style))
        print_values(*inner, stderr=stderr)


def print_line(text: str, stderr: bool = False) -> None:
    """Print a line without wrapping it, since it holds a path or a command to be copied."""
    Console(stderr=stderr).print(Words(one_line(text)), soft_wrap=True)


def _column_widths(
    columns: Sequence[str], rows: Sequence[Sequence[Cell]], numeric: Sequence[bool], available: int
) -> list[int] | None:
    """Return widths in which no word, unless it is very long, and no number is broken; None if there are none.

    The widest column is made narrower first.
    """
    wanted, least = np.zeros((2, len(columns)), int)
    for place, (name, is_number) in enumerate(zip(map(one_line, columns), numeric, strict=True)):
        texts = []
        for row in rows:
            cell = row[place]
            texts.append(one_line(cell.text) + "*" * cell.bold)
            for key, below in cell.below.items():
                texts.append(one_line(f"{key} {below}"))
        wanted[place] = max(map(cell_len, [name, *texts]))
        words = [*name.split(), *(texts if is_number else " ".join(texts).split())]
        longest = max(map(cell_len, words), default=0)
        least[place] = min(wanted[place], longest if is_number else max(_NARROW, min(_LONG, longest)))
    room = available - 2 * len(wanted)
    if least.sum() > room:
        return None
    while wanted.sum() > room:
        wanted[np.where(wanted > least, wanted, -1).argmax()] -= 1
    return list(map(int, wanted))


def _table_lines(value: Table, starred: bool, available: int) -> Iterator[RenderableType]:
    """Yield the table as rich prints it; if it is too wide, a line for each cell, below the first one of its row.

    With `starred`, bold cells get a star, since a file does not show bold.
    """
    rows, numeric = value.cells()
    title = Words(one_line(value.title), style="bold") if value.title else None
    more = Words(f"… {len(value.folded)} more", style="dim")
    in_place = [Cell(more.plain), *[Cell("")] * (len(numeric) - 1)]  # of rows that are folded
    widths = _column_widths(value.columns, [*rows, *[in_place] * bool(value.folded)], numeric, available)
    printed = table.Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0), show_edge=False)
    for name, is_number, wide in zip(value.columns, numeric, widths or [0] * len(numeric), strict=True):
        heading = Words(one_line(name), overflow="fold")
        printed.add_column(heading, justify="right" if is_number else "left", overflow="fold", width=wide)
    if widths is None and title is not None:
        yield title
    first = Words()
    for place, row in enumerate(rows):
        style = "bold" if place in value.emphasised else ""
        if place in value.folded:
            if place == value.folded.start and widths is None:
                yield more
            elif place == value.folded.start:
                printed.add_row(more)
        elif widths is not None:
            printed.add_row(*map(_cell_words, row, itertools.repeat(starred)), style=style)
        else:
            first = _cell_words(row[0], starred) or first  # it is empty where it is that of the row above
            yield Words.assemble(f"{one_line(value.columns[0])}: " if value.columns[0] else "", first, style=style)
            for name, cell in zip(value.columns[1:], row[1:], strict=True):
                if words := _cell_words(cell, starred, "; "):
                    yield Padding(Words.assemble(f"{one_line(name)}: ", words), (0, 0, 0, 2), expand=False)
    if widths is not None:
        yield printed


def _cell_words(cell: Cell, starred: bool, separator: str = "\n") -> Words:
    """Return the text of a cell, with the lines below it."""
    text = Words(one_line(cell.text), style="bold" if cell.bold else "")
    text.append("*" if cell.bold and starred else "")
    for name, below in cell.below.items():
        text.append(f"{separator}{one_line(f'{name} {below}')}", style="not bold dim")
    return text


OnProgress = Callable[[str, int, int], None]
"""(what, done, total), in bytes or in items."""


SECONDS = 10.0  # between two lines of progress
STILL = 60.0  # between two lines if nothing has changed


@contextmanager
def task_progress(quiet: bool = False, in_bytes: bool = False) -> Iterator[OnProgress]:
    """Show the progress of a task: a bar that disappears at its end on a terminal, else a line now and then."""
    where = Console(stderr=True)
    if not quiet and not where.is_terminal:
        with _progress_lines(in_bytes) as tell:
            yield tell
        return
    counts = (DownloadColumn(), TransferSpeedColumn()) if in_bytes else (MofNCompleteColumn(), TimeElapsedColumn())
    columns = TextColumn("{task.description}", markup=False), BarColumn(), *counts, TimeRemainingColumn()
    with Progress(*columns, console=where, transient=True, disable=quiet) as bars:
        task, current = bars.add_task("", total=None, visible=False), ""

        def advance(what: str, done: int, total: int) -> None:
            nonlocal current
            what = one_line(what)
            if what != current:
                bars.reset(task, description=what, completed=done, total=total or None, visible=True)
                current = what
            bars.update(task, completed=done, total=total or None)

        yield advance


@contextmanager
def _progress_lines(in_bytes: bool) -> Iterator[OnProgress]:
    """Print lines for a log: none in the first seconds, so that short work stays silent, and few if nothing changes.

    A thread prints them, since minutes may pass from one call to the next.
    """
    began, file, ended = time.monotonic(), sys.stderr, Event()
    current = ("", 0, 0)

    def tell(what: str, done: int, total: int) -> None:
        nonlocal current
        current = one_line(what), done, total

    def print_lines() -> None:
        told, since = current, began
        while not ended.wait(SECONDS):
            what, done, total = now = current
            waiting = what and (not total or done < total) and time.monotonic() - since >= STILL
            if now == told and not waiting:
                continue
            told, since = now, time.monotonic()
            count, end = (decimal(done), decimal(total)) if in_bytes else (str(done), str(total))
            passed = timedelta(seconds=round(since - began))
            print(f"{what}: {count}{f' of {end}' if total else ''}, {passed}", file=file, flush=True)

    thread = Thread(target=print_lines, daemon=True)
    thread.start()
    try:
        yield tell
    finally:
        ended.set()
        thread.join()


class RunBars:
    """A bar for all runs and one for each run at work; without a terminal, a line at the end of each run."""

    def __init__(self, bars: Progress, where: Console, title: str, total: int, done: int) -> None:
        self._bars, self._where, self.total, self.done = bars, where, total, done
        self._all = bars.add_task(one_line(title), completed=done, total=total)
        self._working: dict[str, TaskID] = {}

    def step(self, run: str, done: int, total: int) -> None:
        """Show how many steps of a run are done."""
        run = one_line(run)
        if run not in self._working:
            self._working[run] = self._bars.add_task(run, total=total)
        self._bars.update(self._working[run], completed=done, total=total)

    def end(self, run: str, line: str = "", finished: bool = True, said: bool = False) -> None:
        """Remove the bar of a run; without bars, or with `said`, print a line about its end."""
        run, line = one_line(run), one_line(line)
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
    """Show bars for `total` runs, `done` of which were finished before."""
    where = Console(stderr=True, quiet=quiet)
    columns = (
        TextColumn("{task.description:<18}", markup=False),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=where, disable=quiet or not where.is_terminal) as bars:
        yield RunBars(bars, where, title, total, done)
