"""Elements of reports: tables, figures, texts and pages as plain values, which one renderer for each format takes.

`terminal` prints them, `render` writes HTML, Markdown, LaTeX and CSV, and `charts` draws the figures. Names of
environments, algorithms and files are shown as they are, whatever they contain. A dash is printed for nan.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from numbers import Integral
from operator import gt
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

MOST_NAMED = 8  # largest number of environments whose names a forest plot shows
NOTHING, MINUS = "\N{EN DASH}", "\N{MINUS SIGN}"

METHODS = {
    "erm": ("ERM", "#5b6770", "#848d94"),
    "reweight": ("Reweight", "#8c6d31", "#a38a5a"),
    "irm": ("IRM", "#b5651d", "#c07c3f"),
    "vrex": ("V-REx", "#8e5ea2", "#a57eb5"),
    "groupdro": ("GroupDRO", "#3a7d6b", "#619789"),
    "mldg": ("MLDG", "#a23b52", "#be7686"),
    "fish": ("Fish", "#2f7ea8", "#4e91b5"),
    "trm": ("TRM", "#1f4fd8", "#6284e4"),
    "trm-direct": ("TRM without GM", "#7d9bf0", "#7d9bf0"),
    "oracle": ("Oracle", "#3c3c3c", "#8a8a8a"),
}
"""Algorithm -> its name, and its colours on a light and on a dark page. The oracle is ERM on data without the shift."""

Unit = Literal["loss", "percent"]
"""percent: shares in [0, 1], printed in percent with one decimal. loss: numbers, printed with three decimals."""


@dataclass(frozen=True)
class Cell:
    """A cell of a table with its own text, such as "70.0 ± 1.2", which is sorted by its value.

    text   text that is printed
    value  number by which a column is sorted; None for text, nan for a number that is missing
    below  further lines, name -> text, such as {"paper": "58.0 ± 1.5"}; the name may be ""
    bold   whether the text is bold
    """

    text: str
    value: float | None = None
    _: KW_ONLY
    below: Mapping[str, str] = field(default_factory=dict)
    bold: bool = False


Entry = Cell | str | float | int | None


@dataclass(frozen=True)
class Table:
    """A table; a page can sort it by each column.

    digits      number of decimals of floats
    emphasised  rows that are bold; the note says which these are, as "Bold: ...". Where there is no bold, the first
                cell has a star, and the note says "Starred: ..."
    note        sentences below the table
    fold        number of rows shown at the top and at the bottom of a long table, on a terminal, and on a page until a
                reader asks for all. Other formats show all rows, as does None
    """

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Entry]]
    _: KW_ONLY
    digits: int = 1
    emphasised: Sequence[int] = ()
    note: str = ""
    fold: int | None = None

    @property
    def folded(self) -> range:
        """Rows that are not shown at first: none, or at least two."""
        count, shown = len(self.rows), len(self.rows) if self.fold is None else self.fold
        return range(shown, count - shown) if count > 2 * shown + 1 else range(0)

    def __post_init__(self) -> None:
        for place, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise InputError(
                    f"table {self.title!r}: row {place} must have {len(self.columns)} entries, got {len(row)}"
                )

    def cells(self) -> tuple[list[list[Cell]], list[bool]]:
        """Return the entries as cells, and for each column whether it holds only numbers, which are aligned right."""
        rows: list[list[Cell]] = []
        numbers, texts = [False] * len(self.columns), [False] * len(self.columns)
        for place, row in enumerate(self.rows):
            rows.append([])
            for column, entry in enumerate(row):
                match entry:
                    case Cell():
                        cell = entry
                    case None:
                        cell = Cell(NOTHING, math.nan)
                    case str():
                        cell = Cell(entry)
                    case Integral():
                        cell = Cell(str(int(entry)).replace("-", MINUS), float(entry))
                    case _:
                        cell = Cell(number(entry, self.digits), float(entry))
                numbers[column] |= cell.value is not None
                texts[column] |= cell.value is None and cell.text != ""
                if column == 0 and place in self.emphasised:
                    cell = replace(cell, bold=True)
                rows[-1].append(cell)
        return rows, [*map(gt, numbers, texts)]


@dataclass(frozen=True)
class Text:
    """Paragraphs; if `folded`, a page shows only the title until it is clicked."""

    title: str
    lines: Sequence[str]
    folded: bool = False


@dataclass(frozen=True, eq=False)
class Heatmap:
    """A matrix with printed values and shades, which are stronger for worse values.

    values       (r, c), nan if there is no value
    low, high    (r, c), bounds of an interval around each value, which a page shows for the cell under the pointer
    own          whether a cell whose row and column have the same name has a dashed frame
    high_is_bad  whether a higher value is worse
    scale        values of the weakest and the strongest shade, so that maps can be compared. Default: the smallest and
                 the largest value
    corner       what rows and columns are, such as "fitted on ↓ tested on →"
    """

    title: str
    rows: Sequence[str]
    columns: Sequence[str]
    values: NDArray[np.floating]
    _: KW_ONLY
    unit: Unit = "loss"
    note: str = ""
    low: NDArray[np.floating] | None = None
    high: NDArray[np.floating] | None = None
    own: bool = True
    high_is_bad: bool = True
    scale: tuple[float, float] | None = None
    corner: str = ""

    def __post_init__(self) -> None:
        expected = len(self.rows), len(self.columns)
        for name, matrix in (("values", self.values), ("low", self.low), ("high", self.high)):
            if matrix is not None and np.shape(matrix) != expected:
                raise InputError(
                    f"heat map {self.title!r}: {name} must have the shape {expected} of its names, "
                    f"got {np.shape(matrix)}"
                )
        if (self.low is None) != (self.high is None):
            raise InputError(f"heat map {self.title!r} must have both low and high, or neither, got one of them")


@dataclass(frozen=True)
class Bar:
    """A bar, with an interval if both bounds are given; `text` is printed in place of the value."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    text: str = ""


@dataclass(frozen=True)
class Bars:
    """Horizontal bars from zero. A group is an environment, its bars are algorithms; a group "" has no heading."""

    title: str
    groups: Mapping[str, Sequence[Bar]]
    _: KW_ONLY
    unit: Unit = "percent"
    note: str = ""


@dataclass(frozen=True)
class Mark:
    """A thin line through a drawing: across it at y, or down at x."""

    text: str
    y: float | None = None
    x: float | None = None


@dataclass(frozen=True)
class Curves:
    """Lines, name -> (x, y), with a gap at every value that is not finite.

    x, y          labels of the axes
    span          smallest range that the axis of y covers, so that small differences look small
    bands         name -> (low, high) at the points of that line
    marks         thin lines, such as the accuracy of chance
    x_log, y_log  whether an axis is logarithmic; values <= 0 are then left out
    x_ticks       x -> text of a tick. Default: round numbers
    joined        whether points are joined by lines
    """

    title: str
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    x: str
    y: str
    _: KW_ONLY
    note: str = ""
    span: float = 0.0
    bands: Mapping[str, tuple[Sequence[float], Sequence[float]]] = field(default_factory=dict)
    marks: Sequence[Mark] = ()
    x_log: bool = False
    y_log: bool = False
    x_ticks: Mapping[float, str] = field(default_factory=dict)
    joined: bool = True

    def __post_init__(self) -> None:
        for name, (x, y) in self.series.items():
            for values in (y, *self.bands.get(name, ())):
                if len(values) != len(x):
                    raise InputError(
                        f"curves {self.title!r}: {name!r} must have {len(x)} values, one for each x, got {len(values)}"
                    )

    @property
    def has_points(self) -> bool:
        """True if there is a point that can be drawn."""
        for _, values in self.series.values():
            y = np.asarray(values, float)
            if (np.isfinite(y) & ((y > 0) | (not self.y_log))).any():
                return True
        return False


@dataclass(frozen=True)
class Spread:
    """A number of several environments, with the pooled value.

    points     name -> (value, low, high)
    mean       pooled value
    half       half the width of its interval
    predicted  interval for the value of a new environment, nan if it is not known
    """

    points: Mapping[str, tuple[float, float, float]]
    mean: float
    half: float
    predicted: tuple[float, float]


@dataclass(frozen=True)
class Forest:
    """A forest plot: for each name the values of environments with intervals, and a diamond for the pooled value.

    The thin line through the diamond is the prediction interval. The values of more than `MOST_NAMED` environments
    stand close together, in order, without names.
    """

    title: str
    spreads: Mapping[str, Spread]
    x: str
    _: KW_ONLY
    note: str = ""

    def as_table(self) -> Table:
        """Return the values as a table; of more than six environments it has the lowest and the highest value."""
        environments = list(dict.fromkeys(name for spread in self.spreads.values() for name in spread.points))
        few = len(environments) <= 6
        rows: list[list[Entry]] = []
        for name, spread in self.spreads.items():
            values = [spread.points[one][0] if one in spread.points else math.nan for one in environments]
            known = [value for value in values if not math.isnan(value)] or [math.nan]
            low, high = (number(bound, 2) for bound in spread.predicted)
            new = None if math.isnan(spread.predicted[0]) else f"{low} to {high}"
            rows.append([name, *(values if few else [min(known), max(known)]), spread.mean, new])
        columns = environments if few else ["Lowest", "Highest"]
        return Table(self.title, ["", *columns, "Pooled", "In a new one"], rows, digits=2, note=self.note or self.x)


@dataclass(frozen=True, eq=False)
class Pictures:
    """Sample images: name of an environment -> images (classes, per class, h, w, 3)."""

    title: str
    images: Mapping[str, NDArray[np.uint8]]


Figure = Curves | Bars | Heatmap | Forest | Pictures


@dataclass(frozen=True, eq=False)
class Group:
    """Sections under one heading, side by side if they are narrow."""

    title: str
    sections: Sequence[Section]
    note: str = ""


@dataclass(frozen=True, eq=False)
class Chapter:
    """Sections under one heading, one below the other, after paragraphs."""

    title: str
    sections: Sequence[Section]
    lines: Sequence[str] = ()


Section = Table | Text | Figure | Group | Chapter


@dataclass(frozen=True, eq=False)
class Page:
    """A page.

    lead      sentences at the top
    settings  name -> text, or a list of texts, of what decides the results
    command   command that writes the page
    before    commands that come before it -> how they were run, as far as records tell
    """

    title: str
    lead: Sequence[str]
    sections: Sequence[Section]
    settings: Mapping[str, str | Sequence[str]]
    command: str
    before: Mapping[str, str] = field(default_factory=dict)


def method_name(algorithm: str) -> str:
    """Return the name of an algorithm in tables and figures."""
    return METHODS[algorithm][0] if algorithm in METHODS else algorithm


def number(value: float | None, digits: int) -> str:
    """Return a number as text: with this many decimals, as a power of ten from 1e6 on, a dash for None and nan."""
    if value is None or math.isnan(value):
        return NOTHING
    if math.isinf(value):
        return "∞" if value > 0 else f"{MINUS}∞"
    text = f"{value:.{digits}f}" if abs(value) < 1e6 else f"{value:.2e}"
    return text.replace("-", MINUS, 1) if float(text) else text.removeprefix("-")


def short_number(value: float | None) -> str:
    """Return a number as text with six digits at most, such as 12 or 0.5; a dash for None."""
    return NOTHING if value is None else f"{MINUS if value < 0 else ''}{abs(value):g}"


def in_unit(value: float | None, unit: Unit, sign: bool = True) -> str:
    """Return a share in percent (with `sign` followed by %), or a loss with three decimals, as text."""
    if unit == "loss" or value is None:
        return number(value, 3)
    text = number(100 * value, 1)
    return f"{text} %" if sign and text != NOTHING else text


def interval(low: float, high: float, unit: Unit, sign: bool = True) -> str:
    """Return an interval as text, such as "1.2 to 3.4 %"."""
    return f"{in_unit(low, unit, sign=False)} to {in_unit(high, unit, sign)}"


def percent(share: float | None) -> Cell:
    """Return a share as a cell of a column in percent; None gives an empty cell."""
    if share is None:
        return Cell("")
    return Cell(number(100 * share, 1), 100 * float(share))
