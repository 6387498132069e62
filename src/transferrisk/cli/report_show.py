"""What `trm report` prints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table
from rich.text import Text

from ..reports.experiments import Report
from ..reports.experiments.formats import about, against_caption, caption, plain
from ..reports.experiments.grids import Entry, Grid
from .show import console


def show_report(report: Report) -> None:
    for experiment, parts in report.found:
        _say(experiment.title, "bold")
        for line in about(experiment):
            _say(line)
        for part in parts:
            console.print()
            for line in (part.title, *part.words):
                _say(line)
            for grid in part.tables:
                _show_grid(grid)
            if part.curves or part.pictures:
                _say(f"Drawn in {part.stem}.svg and {part.stem}.png.")
        console.print()
    console.print(Text.assemble("Report: ", (str(report.files[0]), "bold")), soft_wrap=True)


def _show_grid(grid: Grid) -> None:
    console.print()
    told = caption(grid) if console.is_terminal else caption(grid).replace("Bold:", "Starred:")
    _say(f"{grid.title}. {told}" if grid.title else told)
    shown = {
        name: [_cell(grid, entry, (name, column) in grid.best) for column, entry in enumerate(entries)]
        for name, entries in grid.shown.items()
    }
    console.print(_table(grid, shown))
    if grid.has_against:
        _say(against_caption(grid))
        compared = {name: entries for name, entries in grid.lines.items() if any(entry.against for entry in entries)}
        console.print(_table(grid, {name: [_difference(entry) for entry in es] for name, es in compared.items()}))
    for note in grid.notes:
        _say(note)


def _say(line: str, style: str = "dim") -> None:
    if line:
        console.print(Text(plain(line), style=style))


def _table(grid: Grid, rows: Mapping[str, Sequence[Text]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column(Text(plain(grid.corner)))
    for name in grid.columns:
        table.add_column(Text(plain(name)), justify="right")
    for name, cells in rows.items():
        table.add_row(Text(plain(name)), *cells)
    return table


def _cell(grid: Grid, entry: Entry, best: bool) -> Text:
    """Ours, and below it the paper's and the difference."""
    shown = Text(grid.ours(entry) + "*" * (best and not console.is_terminal), style="bold" if best else "")
    if entry.published:
        shown.append(f"\n{entry.paper}, {entry.difference_text}", style="not bold dim")
    return shown


def _difference(entry: Entry) -> Text:
    """To ERM, and below it the interval."""
    difference, _, interval = entry.against_text.partition(" ")
    return Text(difference).append(f"\n{interval.strip('()')}" if interval else "", style="dim")
