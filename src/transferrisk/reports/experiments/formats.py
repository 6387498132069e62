"""Tables as text: Markdown, LaTeX for booktabs, and CSV with one line a number.

In Markdown and LaTeX, the paper's numbers and the differences stand under ours, and the comparison with ERM is a table
of its own.
"""

from __future__ import annotations

import csv
import io
import math
import re
import textwrap
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..numbers import MINUS, NOTHING
from .grids import CONFIDENCE, Grid
from .load import Experiment
from .made import told
from .parts import Part

UNDER = "Under ours the paper's number, and ours less the paper's."
_LATEX = {
    "\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "%": r"\%", "#": r"\#", "_": r"\_",
    "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}", ">": r"\textgreater{}",
    "±": r"$\pm$", MINUS: "$-$", NOTHING: "--", '"': "''", "|": r"\textbar{}",
}  # fmt: skip


def plain(text: str) -> str:
    """On one line, without what steers a terminal, is not seen, or cannot be written."""
    text = " ".join(text.split())
    return "".join(letter for letter in text if unicodedata.category(letter) not in ("Cc", "Cf", "Cs"))


def caption(grid: Grid) -> str:
    """What the numbers of a table are."""
    entries = [entry for line in grid.lines.values() for entry in line]
    planned = max((entry.planned for entry in entries), default=0)
    least = min((len(entry.values) for entry in entries if entry.values), default=0)
    some = f" of {planned}" if grid.seeds < planned else ""
    if not grid.seeds:
        first = "No run is done."
    elif planned == 1:
        first = "One seed."
    elif grid.seeds == 1:
        first = f"One{some} seeds so far, so nothing says how much is chance."
    else:
        fewest = f"{least} to " if least < grid.seeds else ""
        first = f"Mean ± standard deviation over {fewest}{grid.seeds}{some} seeds."
    apart = "".join(f", {name} apart" for name in grid.lines if name in grid.apart)
    bold = f"Bold: the best mean of each column{apart}." if grid.best else ""
    missing = f"Missing: {', '.join(grid.absent)}." if grid.absent and not grid.is_empty else ""
    return " ".join(filter(None, [first, bold, UNDER if grid.has_published else "", missing]))


def against_caption(grid: Grid) -> str:
    """What the differences to ERM are."""
    seeds = {entry.against.seeds for entries in grid.lines.values() for entry in entries if entry.against}
    if seeds == {1}:
        return "Difference to ERM on the same seed. One seed: no interval."
    told = f"Difference to ERM on the same seeds, with the {100 * CONFIDENCE:g} % interval of Student's t."
    few = [
        "Where they share one seed: no interval." if 1 in seeds else "",
        "An interval of two seeds is very wide, and says little." if 2 in seeds else "",
    ]
    return " ".join([told, *filter(None, few)])


def latex_text(text: str) -> str:
    """Braces go before what the end of the line above would take for its own."""
    escaped = "".join(_LATEX.get(letter, letter) for letter in plain(text))
    return f"{{}}{escaped}" if escaped[:1] in ("[", "*") else escaped


def markdown_text(text: str) -> str:
    """Every character that means something to Markdown or HTML is one of the text."""
    text = plain(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    text = re.sub(r"([\\`*_\[\]|~$])", r"\\\1", text)
    return re.sub(r"^(\d+(?=[.)](?: |$))|(?=[-+#=]))", r"\1\\", text)  # a list, a heading or a rule


def csv_text(value: Any) -> Any:
    """Text that a spreadsheet would take for a formula begins with an apostrophe."""
    if not isinstance(value, str):
        return value
    value = plain(value)
    return f"'{value}" if value[:1] in ("=", "+", "-", "@", "\t", "\r") else value


def markdown(experiment: Experiment, part: Part) -> str:
    name = markdown_text
    out = [f"# {name(experiment.title)}", ""]
    out += [f"## {name(part.title)}", ""] if part.title else []
    out += [name(line) + "\n" for line in (*about(experiment), *part.words)]
    for grid in part.tables:
        out += [f"### {name(grid.title)}", ""] if grid.title else []
        out += [name(caption(grid)), ""]
        out += _markdown(grid, _stacked(grid))
        if grid.has_against:
            out += [name(against_caption(grid)), "", *_markdown(grid, _against(grid))]
        out += [f"- {name(note)}" for note in grid.notes] + [""] * bool(grid.notes)
    return "\n".join(out).rstrip("\n") + "\n"


def _markdown(grid: Grid, rows: Iterable[Line]) -> list[str]:
    def line(*cells: str) -> str:
        return f"| {' | '.join(cells)} |"

    return [
        line(*map(markdown_text, (grid.corner, *grid.columns))),
        line(":--", *["--:"] * len(grid.columns)),
        *(line(markdown_text(row.name) if row.first else f"&emsp;{row.name}", *row.marked("**{}**")) for row in rows),
        "",
    ]


def latex(experiment: Experiment, part: Part) -> str:
    r"""A table environment for each grid; needs \usepackage{booktabs}."""
    out = [r"% \usepackage{booktabs}"]
    out += [f"% {latex_text(line)}" for line in filter(None, [told(experiment.made)])]
    for number, grid in enumerate(part.tables):
        titles = filter(None, [experiment.title.rstrip("."), part.title, grid.title])
        title = ". ".join(one[:1].upper() + one[1:] for one in titles)
        first = [f"{title}.", data(experiment)]
        words = [*first, *part.notes, caption(grid), part.selection, part.mixed, missing(experiment)]
        label = f"{experiment.name}-{part.stem}" + (f"-{number + 1}" if len(part.tables) > 1 else "")
        out += _latex(grid, _stacked(grid), words, label, grid.notes)
        if grid.has_against:
            words = [*first, against_caption(grid), part.selection, part.mixed]
            out += _latex(grid, _against(grid), words, f"{label}-erm", ())
    return "\n".join(out) + "\n"


def _latex(grid: Grid, rows: Iterable[Line], words: Sequence[str], label: str, notes: Sequence[str]) -> list[str]:
    lines: list[str] = []
    rows = list(rows)
    apart = not all(row.first for row in rows)
    for row in rows:
        if row.first and lines and apart:
            lines.append(r"\addlinespace")
        name = latex_text(row.name) if row.first else rf"\quad {row.name}"
        lines.append(" & ".join([name, *row.marked(r"\textbf{{{}}}", latex_text)]) + r" \\")
    return [
        r"\begin{table}",
        r"\centering",
        rf"\caption{{{latex_text(' '.join(filter(None, words)))}}}",
        r"\vspace{4pt}",
        rf"\label{{tab:{re.sub(r'[^A-Za-z0-9:-]', '-', label)}}}",
        rf"\begin{{tabular}}{{l{'r' * len(grid.columns)}}}",
        r"\toprule",
        " & ".join(map(latex_text, (grid.corner, *grid.columns))) + r" \\",
        r"\midrule",
        *lines,
        r"\bottomrule",
        r"\end{tabular}",
        *([r"\par\smallskip\footnotesize", latex_text(" ".join(notes))] if notes else []),
        r"\end{table}",
    ]


@dataclass(frozen=True)
class Line:
    """Of a table in print; the first of a method has its name, those under it say what they are.

    best  numbers of the cells that are bold
    """

    name: str
    cells: Sequence[str]
    first: bool = True
    best: frozenset[int] = frozenset()

    def marked(self, bold: str, text: Callable[[str], str] = str) -> list[str]:
        """The cells as text of a format, the best of them within `bold`."""
        return [bold.format(text(cell)) if i in self.best else text(cell) for i, cell in enumerate(self.cells)]


def _stacked(grid: Grid) -> Iterator[Line]:
    """Ours, and where the paper has any number of it, the paper's and the difference."""
    for name, entries in grid.shown.items():
        best = frozenset(column for line, column in grid.best if line == name)
        yield Line(name, [grid.ours(entry) for entry in entries], best=best)
        if any(entry.published for entry in entries):
            yield Line("paper", [entry.paper for entry in entries], first=False)
            yield Line("difference", [entry.difference_text for entry in entries], first=False)


def _against(grid: Grid) -> Iterator[Line]:
    for name, entries in grid.lines.items():
        if any(entry.against for entry in entries):
            yield Line(name, [entry.against_text for entry in entries])


def about(experiment: Experiment) -> list[str]:
    """Where in the paper, on what data, on what it was made, and what is missing."""
    paper = experiment.recipe.get("paper")
    where = f"{experiment.name}." + (f" In the paper: {paper}." if paper else "")
    return [where, *filter(None, [data(experiment), told(experiment.made), missing(experiment)])]


def data(experiment: Experiment) -> str:
    """ "Data: 10c-digits, cnn:16.", of what is done, or of all where nothing is."""
    sentences = []
    cells = [cell for cell in experiment.cells if cell.run in experiment.done] or experiment.cells
    for start, names in (("Data", ("data", "backbone")), ("Setting", ("setting",))):
        told = [[experiment.setting(cell, name) for name in names] for cell in cells]
        found = dict.fromkeys(", ".join(filter(None, values)) for values in told if values[0])
        sentences += [f"{start}: {'; '.join(found)}."] if found else []
    return " ".join(sentences)


def missing(experiment: Experiment) -> str:
    """How many runs, and how many of them failed, with the first reason."""
    if not experiment.missing:
        return ""
    told = f"Missing: {experiment.missing} of {len({cell.run for cell in experiment.cells})} runs"
    if not experiment.failed:
        return f"{told}."
    why = textwrap.shorten(next(iter(experiment.failed.values())), 300, placeholder=" ...").rstrip(".")
    count = len(experiment.failed)
    return f"{told}, of which {count} failed{', the first' if count > 1 else ''}: {why}."


COLUMNS = (
    "experiment", "selection", "panel", "line", "column", "mean", "std", "seeds", "planned_seeds", "paper_mean",
    "paper_std", "difference", "against_erm", "against_erm_low", "against_erm_high", "shared_seeds", "point",
)  # fmt: skip


def numbers(experiment: Experiment, part: Part) -> list[dict[str, Any]]:
    """Every number of the tables as a line of its own; None where there is none."""
    found = []
    for grid in part.grids:
        for line, entries in grid.lines.items():
            for key, entry in zip(grid.keys, entries, strict=True):
                summary, paper, against = entry.summary, entry.published, entry.against
                several = len(entry.values) > 1
                values = (
                    experiment.name, part.rule or "none", grid.title, line, key, summary.mean,
                    summary.std if several else None, len(entry.values), entry.planned,
                    paper and paper.mean, paper and paper.deviation, entry.difference,
                    against and against.mean, against and against.low, against and against.high,
                    against.seeds if against else 0, entry.point,
                )  # fmt: skip
                found.append(dict(zip(COLUMNS, map(_there, values), strict=True)))
    return found


POINTS = ("experiment", "selection", "panel", "series", "x", "y", "low", "high")


def points(experiment: Experiment, part: Part) -> list[dict[str, Any]]:
    """Of the drawings, for those that have no table."""
    found = []
    for curves in part.curves:
        for name, (xs, ys) in curves.series.items():
            lows, highs = curves.bands.get(name, ([None] * len(xs), [None] * len(xs)))
            for x, y, low, high in zip(xs, ys, lows, highs, strict=True):
                line = (experiment.name, part.rule or "none", curves.title, name, x, y, low, high)
                found.append(dict(zip(POINTS, map(_there, line), strict=True)))
    return found


def as_csv(columns: Sequence[str], lines: Sequence[dict[str, Any]]) -> str:
    sink = io.StringIO(newline="")
    writer = csv.writer(sink, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows([csv_text(line[column]) for column in columns] for line in lines)
    return sink.getvalue()


def _there(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
