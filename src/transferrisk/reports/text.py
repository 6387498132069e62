"""Values as text: Markdown, LaTeX for booktabs, and CSV.

Below a row of a table, the lines of its cells become rows of their own, such as the paper's numbers under ours; lines
without a name are put in parentheses after the cell.
"""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from .values import MINUS, NOTHING, Cell, Chapter, Group, Section, Table, Text, one_line

_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "±": r"$\pm$", MINUS: "$-$", NOTHING: "--", '"': "''", "|": r"\textbar{}",
})  # fmt: skip


SUB = "\0"  # begins a row below another


def latex_text(text: str) -> str:
    """Text in which no character means anything to LaTeX.

    Braces go before a bracket or a star, which the end of the line above would take as its argument.
    """
    escaped = one_line(text).translate(_LATEX)
    return f"{{}}{escaped}" if escaped[:1] in ("[", "*") else escaped


def markdown_text(text: str) -> str:
    """A paragraph in which no character means anything to Markdown or HTML."""
    return re.sub(r"^(\d+(?=[.)](?: |$))|(?=[-+#=]))", r"\1\\", markdown_cell(text))  # a list, a heading or a rule


def markdown_cell(text: str) -> str:
    """The same within a line."""
    text = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", text)


def csv_text(value: Any) -> Any:
    """The value, "" for nan; text that a spreadsheet would take for a formula gets an apostrophe in front."""
    if not isinstance(value, str):
        return "" if isinstance(value, float) and math.isnan(value) else value
    value = one_line(value)
    return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def markdown(value: Section, level: int = 1) -> str:
    """The section as Markdown under a heading of this level; figures are left out."""
    paragraphs: list[str] = []
    lines: Sequence[str] = ()
    match value:
        case Text() | Chapter():
            lines = value.lines
        case Table() | Group():
            lines = [value.note]
        case _:
            return ""
    if value.title:
        paragraphs.append(f"{'#' * level} {markdown_text(value.title)}")
    paragraphs += map(markdown_text, filter(None, lines))
    if isinstance(value, Table):
        rows, numeric = value.cells()
        sides = map({False: ":--", True: "--:"}.__getitem__, numeric)
        table = [map(markdown_cell, value.columns), sides, *_stacked(rows, markdown_cell, "**{}**")]
        paragraphs.append("\n".join(map("| {} |".format, map(" | ".join, table))).replace(SUB, "&emsp;"))
    if isinstance(value, Chapter | Group):
        for section in value.sections:
            paragraphs.append(markdown(section, level + 1).removesuffix("\n"))
    return "\n\n".join(filter(None, paragraphs)) + "\n"


def latex(table: Table, caption: str, label: str, notes: str = "") -> str:
    r"""A table environment, which needs \usepackage{booktabs}; `notes` are printed under it."""
    cells, numeric = table.cells()
    lines: list[str] = []
    rows = list(_stacked(cells, latex_text, r"\textbf{{{}}}"))
    for first, *row in rows:
        if len(rows) > len(cells) and lines and not first.startswith(SUB):
            lines.append(r"\addlinespace")
        lines.append(" & ".join([first.replace(SUB, r"\quad "), *row]) + r" \\")
    sides = "".join(map("lr".__getitem__, numeric))
    return "\n".join(
        [
            r"\begin{table}",
            r"\centering",
            rf"\caption{{{latex_text(caption)}}}",
            r"\vspace{4pt}",
            rf"\label{{tab:{re.sub(r'[^A-Za-z0-9:-]', '-', label)}}}",
            rf"\begin{{tabular}}{{{sides}}}",
            r"\toprule",
            " & ".join(map(latex_text, table.columns)) + r" \\",
            r"\midrule",
            *lines,
            r"\bottomrule",
            r"\end{tabular}",
            *([r"\par\smallskip\footnotesize", latex_text(notes)] if notes else []),
            r"\end{table}",
        ]
    )


def _stacked(cells: Sequence[Sequence[Cell]], text: Callable[[str], str], bold: str) -> Iterator[list[str]]:
    """Each row, then a row for each name among the lines below its cells; `text` escapes, `bold` is a format."""
    for row in cells:
        line: list[str] = []
        below: dict[str, list[str]] = {}
        for column, cell in enumerate(row):
            aside = f" ({cell.below['']})" if "" in cell.below else ""
            words = text(cell.text + aside)
            line.append(bold.format(words) if cell.bold else words)
            for name, value in cell.below.items():
                if name:
                    below.setdefault(name, [f"{SUB}{text(name)}", *[text(NOTHING)] * (len(row) - 1)])[column] = text(
                        value
                    )
        yield line
        yield from below.values()


def csv_table(columns: Sequence[str], lines: Sequence[Mapping[str, Any]]) -> str:
    sink = io.StringIO(newline="")
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(columns)
    for line in lines:
        writer.writerow(map(csv_text, map(line.__getitem__, columns)))
    return sink.getvalue()
