"""What a report page is made of: each section is a value, and `page.render` draws it.

Names of environments, algorithms and files are shown as they are, whatever they hold. A value that is nan is not there:
a dash stands in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

Unit = Literal["loss", "percent"]
"""percent: shares 0..1, shown as percent with one decimal. loss: as they are, with three."""


@dataclass(frozen=True, eq=False)
class Heatmap:
    """A matrix with its values printed, the worse the stronger the shade.

    values     (r, c), nan: no value
    low, high  (r, c), the bounds of an interval around each value, shown when a cell is pointed at
    own        a dashed frame where row and column have the same name
    scale      the values of the weakest and the strongest shade, for maps to be compared; by default the smallest and
               the largest here
    corner     what rows and columns are, as "fitted on ↓ tested on →"
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
                    f"heat map {self.title!r}: {name} are {np.shape(matrix)}, the names ask for {expected}"
                )
        if (self.low is None) != (self.high is None):
            raise InputError(f"heat map {self.title!r} has one bound of its intervals: give low and high, or neither")


@dataclass(frozen=True)
class Bar:
    """One bar, with an interval where both bounds are given; `text` stands for the value where it is given."""

    name: str
    value: float
    low: float | None = None
    high: float | None = None
    text: str = ""


@dataclass(frozen=True)
class Bars:
    """Horizontal bars from zero. A group is an environment and its bars are algorithms; "" is one without a name."""

    title: str
    groups: Mapping[str, Sequence[Bar]]
    _: KW_ONLY
    unit: Unit = "percent"
    note: str = ""


@dataclass(frozen=True)
class Mark:
    """A thin line across a drawing at this height, or down through it at this x."""

    text: str
    y: float | None = None
    x: float | None = None


@dataclass(frozen=True)
class Curves:
    """Lines, name -> (x, y), with their names at their ends; a line has a gap where it is not finite.

    span          the axis of y covers at least so much, so that small differences look small
    bands         name -> (low, high) at the points of that line
    x_log, y_log  a logarithmic axis, on which what is not above zero is not there
    x_ticks       x -> text, in place of round numbers
    joined        whether points are joined to lines
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
            if len(x) != len(y):
                raise InputError(f"curves {self.title!r}: {name!r} has {len(x)} values of x and {len(y)} of y")
            for bound in self.bands.get(name, ()):
                if len(bound) != len(x):
                    raise InputError(f"curves {self.title!r}: {name!r} has {len(x)} points, its band {len(bound)}")


@dataclass(frozen=True)
class Shown:
    """A number that is printed in its own words, "70.0 ± 1.2", and sorted as the number it is.

    below    stands under it in small print, line by line
    instead  in place of the dash where there is none, "missing"
    bold     the text, not what is below
    """

    value: float
    text: str
    below: str = ""
    instead: str = ""
    bold: bool = False


Entry = str | float | int | Shown | None


@dataclass(frozen=True)
class Table:
    """Rows that can be sorted by each column; floats have `digits` decimals, the emphasised rows are bold."""

    title: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Entry]]
    _: KW_ONLY
    digits: int = 1
    emphasised: Sequence[int] = ()
    note: str = ""

    def __post_init__(self) -> None:
        for number, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise InputError(f"table {self.title!r}: row {number} has {len(row)} of {len(self.columns)} entries")


@dataclass(frozen=True)
class Sentences:
    """Paragraphs of text; `folded`, only the title is seen until it is asked for."""

    title: str
    lines: Sequence[str]
    folded: bool = False


@dataclass(frozen=True, eq=False)
class Pictures:
    """Sample images by name of the environment, each (classes, per class, h, w, 3)."""

    title: str
    images: Mapping[str, NDArray[np.uint8]]


@dataclass(frozen=True, eq=False)
class Group:
    """Sections under one heading, side by side where they are narrow."""

    title: str
    sections: Sequence[Section]
    note: str = ""


@dataclass(frozen=True, eq=False)
class Chapter:
    """Sections under one heading, one below the other."""

    title: str
    sections: Sequence[Section]
    lines: Sequence[str] = ()


Section = Heatmap | Bars | Curves | Table | Sentences | Pictures | Group | Chapter
