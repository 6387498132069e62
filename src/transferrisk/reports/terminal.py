"""Values on a terminal. Figures are left out but for heat maps, which are printed as tables; pages draw them."""

from __future__ import annotations

from collections.abc import Iterable

from rich import box, table
from rich.console import Console
from rich.text import Text as Words

from .values import Cell, Chapter, Entry, Group, Heatmap, Section, Table, Text, in_unit, one_line

_console = Console()
_errors = Console(stderr=True)


def width() -> int:
    """Letters that fit beside each other."""
    return _console.width


def print_values(*values: Section | str, stderr: bool = False) -> None:
    """Print values one after the other; a string is a paragraph."""
    console = _errors if stderr else _console
    for place, value in enumerate(values):
        if isinstance(value, str) and place and not isinstance(values[place - 1], str):
            console.print()
        _print(console, value)


def print_line(text: str, stderr: bool = False) -> None:
    """Print a line that is not wrapped, since it holds a path or a command to be copied."""
    (_errors if stderr else _console).print(Words(one_line(text)), soft_wrap=True)


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
