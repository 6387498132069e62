"""What a report page is made of: each section is a value, and `page.render` draws it.

Names of environments, algorithms and files are shown as they are, whatever they hold. A value that is nan is not there:
a dash stands in its place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
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
class Curves:
    """Lines, name -> (x, y), with their names at their ends; a line has a gap where it is not finite.

    The axis of y covers at least `span`, so that small differences look small.
    """

    title: str
    series: Mapping[str, tuple[Sequence[float], Sequence[float]]]
    x: str
    y: str
    _: KW_ONLY
    note: str = ""
    span: float = 0.0

    def __post_init__(self) -> None:
        for name, (x, y) in self.series.items():
            if len(x) != len(y):
                raise InputError(f"curves {self.title!r}: {name!r} has {len(x)} values of x and {len(y)} of y")


@dataclass(frozen=True)
class Shown:
    """A number that is printed in its own words, "70.0 ± 1.2", and sorted as the number it is."""

    value: float
    text: str


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
    """Paragraphs of text."""

    title: str
    lines: Sequence[str]


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


Section = Heatmap | Bars | Curves | Table | Sentences | Pictures | Group
