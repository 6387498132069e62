"""Elements of reports as HTML pages, Markdown, LaTeX (for booktabs) and CSV.

A page is one HTML file that loads nothing else and is complete without its script. In Markdown and LaTeX, named lines
below the cells of a row become rows, such as the paper's numbers under ours; lines without a name follow the cell in
parentheses.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
from jinja2 import DictLoader, Environment, StrictUndefined
from markupsafe import Markup

from ..errors import one_line
from ..files import write_atomically
from .charts import looks, page_svg
from .elements import (
    MINUS,
    NOTHING,
    Bars,
    Cell,
    Chapter,
    Curves,
    Group,
    Heatmap,
    Page,
    Section,
    Table,
    Text,
    in_unit,
    interval,
)
from .pictures import picture_uri

LEVELS = 13  # shades of a heat map in the style sheet; odd, so that there is a middle one
SUB = "\0"  # marks a row below another
_LATEX = str.maketrans({
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "±": r"$\pm$", MINUS: "$-$", NOTHING: "--", '"': "''", "|": r"\textbar{}",
})  # fmt: skip


def write_page(path: Path, page: Page) -> None:
    """Write the page; an existing file is replaced once the new one is complete."""
    write_atomically(path, render_page(page))


def render_page(page: Page) -> str:
    """Return the page as HTML. Bytes of names that are not text are shown as escapes, such as \\xNN or \\udcNN."""
    script = _FILES["page.js"]
    names: list[list[str]] = []
    shared: list[str] = []  # names in sections other than chapters, where a name looks the same in all sections
    for section in page.sections:
        names.append(list(_series(section)))
        shared += [] if isinstance(section, Chapter) else names[-1]
    sections = []
    for section, own in zip(page.sections, names, strict=True):
        sections.append((section, looks(own if isinstance(section, Chapter) else shared)))
    html = _TEMPLATES.get_template("page.html").render(
        page=page,
        sections=sections,
        levels=LEVELS,
        script=Markup(script),
        script_digest=base64.b64encode(hashlib.sha256(script.encode()).digest()).decode(),
        date=date.today().isoformat(),
    )
    return html.encode(errors="backslashreplace").decode()


def _series(section: Section) -> Iterator[str]:
    """Yield the names that have a colour, in order, with repetitions."""
    if isinstance(section, Group | Chapter):
        for inner in section.sections:
            yield from _series(inner)
    elif isinstance(section, Bars):
        for bars in section.groups.values():
            for bar in bars:
                yield bar.name
    elif isinstance(section, Curves):
        yield from section.series


@dataclass(frozen=True)
class HeatCell:
    """A cell of a heat map; `level` 0..LEVELS-1 is its shade, None without a value; `title` describes it in full."""

    text: str
    level: int | None
    own: bool
    interval: str
    title: str


def heat_cells(section: Heatmap) -> list[list[HeatCell]]:
    """Return the cells of a heat map, row by row."""
    low, high = _scale(section)
    rows = []
    for r, row in enumerate(section.rows):
        cells = []
        for c, column in enumerate(section.columns):
            value, around, level = float(section.values[r, c]), "", None
            if not math.isnan(value):
                strength = min(1.0, max(0.0, (value - low) / (high - low))) if high > low else float(value > low)
                level = round((strength if section.high_is_bad else 1 - strength) * (LEVELS - 1))
                if section.low is not None and section.high is not None:
                    around = interval(float(section.low[r, c]), float(section.high[r, c]), section.unit, sign=False)
            shown = "no value" if level is None else in_unit(value, section.unit)
            # Each name is isolated, so that one written from right to left does not turn the rest round.
            title = f"\u2068{row}\u2069, \u2068{column}\u2069: {shown}" + (f" ({around})" if around else "")
            text = in_unit(value, section.unit, sign=False)
            cells.append(HeatCell(text, level, section.own and row == column, around, title))
        rows.append(cells)
    return rows


def heat_key(section: Heatmap) -> tuple[str, str, str]:
    """Return the values of the weakest and the strongest shade and which is worse; empty if all shades are the same."""
    low, high = _scale(section)
    if not low < high:
        return ("", "", "")
    small, large = in_unit(low, section.unit), in_unit(high, section.unit)
    if section.high_is_bad:
        return (small, large, "the stronger the shade, the higher and the worse")
    return (large, small, "the stronger the shade, the lower and the worse")


def shared_key(group: Group) -> tuple[str, str, str]:
    """Return the key that several heat maps without intervals share, so that it is printed once, or an empty one."""
    keys = set()
    for section in group.sections:
        keys.add(heat_key(section) if isinstance(section, Heatmap) and section.low is None else None)
    key = keys.pop() if len(keys) == 1 and len(group.sections) > 1 else None
    return key or ("", "", "")


def _scale(section: Heatmap) -> tuple[float, float]:
    """Return the values of the weakest and the strongest shade."""
    if section.scale is not None:
        return section.scale
    values = np.asarray(section.values, float)
    finite = values[np.isfinite(values)]
    return (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)


_FILES = {
    file.name: file.read_text(encoding="utf-8") for file in resources.files(__package__).joinpath("templates").iterdir()
}
_TEMPLATES = Environment(
    loader=DictLoader(_FILES), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
)
_TEMPLATES.globals.update(
    page_svg=page_svg, heat_cells=heat_cells, heat_key=heat_key, shared_key=shared_key, picture_uri=picture_uri
)


def latex_text(text: str) -> str:
    """Return the text with the special characters of LaTeX escaped.

    Braces precede a bracket or a star, which the end of the line above would take as its argument.
    """
    escaped = one_line(text).translate(_LATEX)
    return f"{{}}{escaped}" if escaped[:1] in ("[", "*") else escaped


def markdown_text(text: str) -> str:
    """Return a paragraph with the special characters of Markdown and HTML escaped."""
    return re.sub(r"^(\d+(?=[.)](?: |$))|(?=[-+#=]))", r"\1\\", markdown_cell(text))  # a list, a heading or a rule


def markdown_cell(text: str) -> str:
    """Return text within a line with the special characters of Markdown and HTML escaped."""
    text = one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([\\`*_\[\]|~$])", r"\\\1", text)


def csv_text(value: Any) -> Any:
    """Return the value, "" for nan; text that a spreadsheet would take for a formula gets an apostrophe in front."""
    if not isinstance(value, str):
        return "" if isinstance(value, float) and math.isnan(value) else value
    value = one_line(value)
    return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def markdown(value: Section, level: int = 1) -> str:
    """Return the section as Markdown under a heading of this level, without figures."""
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
    r"""Return a table environment, which needs \usepackage{booktabs}, with `notes` under the table."""
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
    """Yield each row, then a row for each name among the lines below its cells; `text` escapes, `bold` is a format."""
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
    """Return the lines as CSV with these columns."""
    sink = io.StringIO(newline="")
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(columns)
    for line in lines:
        writer.writerow(map(csv_text, map(line.__getitem__, columns)))
    return sink.getvalue()
