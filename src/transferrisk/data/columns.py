"""The kinds of column a table may have, and the features each gives.

    numeric      (x - mean) / scale                                         missing: the median
    boolean      0 or 1                                                     missing: the more frequent of the two
    categorical  one 0/1 feature for each category                          missing: a category of its own
    date         (days - mean) / scale, and sine and cosine of the day's place in the year and in the week;
                                                                            missing: the median date

Numeric, boolean and date columns that had missing values when they were looked at also give a 0/1 feature that says
where. A feature that was constant then is not given, since nothing can be learnt about it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .checks import counted, listed
from .moments import moments
from .values import KINDS, Floats, as_codes, as_days, as_numbers, as_truth, kind_of

if TYPE_CHECKING:
    import pandas as pd

Features = NDArray[np.float32]

YEAR, WEEK = 365.2425, 7
MONDAY = 4  # the first one of 1970, in days


@dataclass(frozen=True)
class Scaling:
    """What standardises a number: statistics of the column with its missing values imputed."""

    median: float
    mean: float
    scale: float  # 0: the column was constant but for missing values
    low: float | None = None  # the least of them; None: not kept
    high: float | None = None  # the largest

    @classmethod
    def of(cls, values: Floats) -> Self:
        """Of a column (n,) with NaN where values are missing. Cells are as they were written: any difference counts."""
        median = float(np.nanmedian(values / 2) * 2)  # of halves, so that it does not overflow
        filled = np.where(np.isnan(values), median, values)
        mean, scale = moments(filled[:, None], rounding=0)
        return cls(median, mean.item(), scale.item(), float(filled.min()), float(filled.max()))

    def apply(self, values: Floats, name: str) -> Features:
        """(x - mean) / scale; a quarter of each is taken, so that the difference of large numbers is finite."""
        with np.errstate(over="ignore"):
            scaled = ((values / 4 - self.mean / 4) / (self.scale / 4)).astype(np.float32)
        wrong = ~np.isfinite(scaled)
        if wrong.any():
            row = int(wrong.argmax())
            raise InputError(
                f"column {name!r} has {values[row]} in row {row + 1}, which is infinite or too large: correct the file"
            )
        return scaled


@dataclass(frozen=True)
class Numeric:
    kind: ClassVar[str] = "numeric"
    name: str
    scaling: Scaling
    missing: bool  # whether values were missing

    @property
    def features(self) -> tuple[str, ...]:
        return ((self.name,) if self.scaling.scale else ()) + _indicator(self)

    def encode(self, series: pd.Series) -> tuple[list[Features], list[str]]:
        values = as_numbers(series, self.name)
        absent = np.isnan(values)
        scaled = (
            self.scaling.apply(np.where(absent, self.scaling.median, values), self.name) if self.scaling.scale else None
        )
        return _with_indicator(self, [] if scaled is None else [scaled], absent, f"median {self.scaling.median:g}")


@dataclass(frozen=True)
class Boolean:
    kind: ClassVar[str] = "boolean"
    name: str
    usual: bool  # the more frequent value, false where both are as frequent
    constant: bool
    missing: bool

    @property
    def features(self) -> tuple[str, ...]:
        return (() if self.constant else (self.name,)) + _indicator(self)

    def encode(self, series: pd.Series) -> tuple[list[Features], list[str]]:
        values = as_truth(series, self.name)
        absent = np.isnan(values)
        filled = np.where(absent, float(self.usual), values).astype(np.float32)
        return _with_indicator(self, [] if self.constant else [filled], absent, f"more frequent value {self.usual}")


@dataclass(frozen=True)
class Categorical:
    """`categories` are in order; with `other`, values that are none of them count as one more."""

    kind: ClassVar[str] = "categorical"
    name: str
    categories: tuple[str, ...]
    other: bool
    missing: bool

    @property
    def features(self) -> tuple[str, ...]:
        named = tuple(f"{self.name}={category}" for category in self.categories)
        return named + ((f"{self.name} (other)",) if self.other else ()) + _indicator(self)

    def encode(self, series: pd.Series) -> tuple[list[Features], list[str]]:
        if kind_of(series) not in KINDS:
            raise InputError(f"column {self.name!r} holds {kind_of(series)} values, which are no categories")
        codes, texts = as_codes(series)
        unseen = [text for text in texts if text not in set(self.categories)]
        position = {category: i for i, category in enumerate(self.categories)}
        nowhere = len(self.features)
        elsewhere = len(self.categories) if self.other else nowhere
        absent = nowhere - 1 if self.missing else nowhere
        places = np.array([*(position.get(text, elsewhere) for text in texts), absent])[codes]
        hot = np.zeros((len(series), nowhere + 1), np.float32)
        hot[np.arange(len(series)), places] = 1
        notes = []
        if unseen and not self.other:
            rows = int((places[codes >= 0] == nowhere).sum())
            notes.append(
                f"column {self.name!r} has {counted(rows, 'row')} of categories not seen before "
                f"({listed(map(repr, unseen), 5)}): all its features are 0 there"
            )
        if (codes < 0).any() and not self.missing:
            notes.append(
                f"column {self.name!r} has {counted(int((codes < 0).sum()), 'missing value')}, where none was before: "
                "all its features are 0 there"
            )
        return list(hot.T[:nowhere]), notes


@dataclass(frozen=True)
class Date:
    kind: ClassVar[str] = "date"
    name: str
    scaling: Scaling
    missing: bool

    @property
    def features(self) -> tuple[str, ...]:
        parts = ("days", "sin year", "cos year", "sin week", "cos week") if self.scaling.scale else ()
        return tuple(f"{self.name} ({part})" for part in parts) + _indicator(self)

    def encode(self, series: pd.Series) -> tuple[list[Features], list[str]]:
        days = as_days(series, self.name)
        absent = np.isnan(days)
        days = np.where(absent, self.scaling.median, days)
        parts = []
        if self.scaling.scale:
            whole = np.floor(days).astype(np.int64)
            dates = whole.astype("datetime64[D]")
            in_year = whole - dates.astype("datetime64[Y]").astype("datetime64[D]").astype(np.int64)  # 0 on 1 January
            angles = (2 * np.pi * in_year / YEAR, 2 * np.pi * ((whole - MONDAY) % WEEK) / WEEK)
            waves = [wave(angle).astype(np.float32) for angle in angles for wave in (np.sin, np.cos)]
            parts = [self.scaling.apply(days, self.name), *waves]
        return _with_indicator(self, parts, absent, "median date")


Column = Numeric | Boolean | Categorical | Date


def _indicator(column: Column) -> tuple[str, ...]:
    return (f"{column.name} (missing)",) if column.missing else ()


def _with_indicator(
    column: Column, parts: list[Features], absent: NDArray[np.bool_], stand_in: str
) -> tuple[list[Features], list[str]]:
    if column.missing:
        return [*parts, absent.astype(np.float32)], []
    number = int(absent.sum())
    note = (
        f"column {column.name!r} has {counted(number, 'missing value')}, where none was before: the {stand_in} is used"
    )
    return parts, [note] if number else []
