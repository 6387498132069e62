"""The kinds of column a table may have, the features that each gives, and which kind a column is of.

    numeric      (x - mean) / scale                                         missing: the median
    boolean      0 or 1                                                     missing: the more frequent of the two
    categorical  one 0/1 feature for each category                          missing: a category of its own
    date         (days - mean) / scale, and sine and cosine of the day's place in the year and in the week;
                                                                            missing: the median date

Numeric, boolean and date columns that had missing values when they were inferred also give a 0/1 feature that says
where. A feature that was constant then is not given, since nothing can be learnt about it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, counted, listed
from .standardise import moments, standardised
from .values import (
    KINDS,
    MANY,
    Codes,
    Floats,
    as_codes,
    as_days,
    as_numbers,
    as_truth,
    is_blank,
    is_number,
    kind_of,
    places_of,
)

if TYPE_CHECKING:
    import pandas as pd

Features = NDArray[np.float32]

YEAR, WEEK = 365.2425, 7
MONDAY = 4  # the first one of 1970, in days

KEPT = MANY - 1  # categories of a column with more than MANY; the rest counts as one
FEW = 20  # rows; in no more than these, whole numbers may all differ by chance
MOSTLY = 0.9  # share of numbers from which a text among them is worth a word
IDENTIFIER = re.compile(r"\s*(.*id|index|key|nr|number)\s*", re.IGNORECASE)  # names of columns that name rows
ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]|$)")


@dataclass(frozen=True)
class Note:
    """Something in a table that its schema had not seen. Notes with one key, as of parts of a file, can be added.

    count   number of rows
    values  categories not seen before, or the names of columns
    used    what stands in for a missing value; "": nothing, all features of the column are 0
    """

    kind: Literal["missing columns", "unused columns", "unseen categories", "missing values"]
    column: str = ""
    count: int = 0
    values: tuple[str, ...] = ()
    used: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.column

    def __add__(self, other: Note) -> Note:
        assert self.key == other.key
        values = tuple(dict.fromkeys((*self.values, *other.values)))
        return replace(self, count=self.count + other.count, values=values)

    def __str__(self) -> str:
        if self.kind == "missing columns":
            return f"missing columns, taken as missing values: {listed(map(repr, self.values))}"
        if self.kind == "unused columns":
            return f"columns not used: {listed(map(repr, self.values))}"
        used = f"the {self.used} is used" if self.used else "all its features are 0 there"
        if self.kind == "missing values":
            return (
                f"column {self.column!r} has {counted(self.count, 'missing value')}, where there were none before: "
                f"{used}"
            )
        return (
            f"column {self.column!r} has {counted(self.count, 'row')} with categories not seen before "
            f"({listed(map(repr, self.values), 5)}): {used}"
        )


@dataclass(frozen=True)
class Scaling:
    """Statistics of a column of numbers, with its missing values filled in."""

    median: float
    mean: float
    scale: float  # 0: the column was constant but for missing values
    low: float | None = None  # the least of them; None: not kept
    high: float | None = None  # the largest

    @classmethod
    def of(cls, values: Floats) -> Self:
        """Statistics of (n,) with NaN for missing values. Cells are as they were written: any difference counts."""
        median = float(np.nanmedian(values / 2) * 2)  # of halves, so that it does not overflow
        filled = np.where(np.isnan(values), median, values)
        mean, scale = moments(filled[:, None], rounding=0)
        return cls(median, mean.item(), scale.item(), float(filled.min()), float(filled.max()))

    def apply(self, values: Floats, name: str) -> Features:
        """(x - mean) / scale, (n,)."""
        with np.errstate(over="ignore"):
            scaled = standardised(values, self.mean, self.scale).astype(np.float32)
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

    def encode(self, series: pd.Series) -> tuple[list[Features], list[Note]]:
        values = as_numbers(series, self.name)
        absent = np.isnan(values)
        features = []
        if self.scaling.scale:
            features = [self.scaling.apply(np.where(absent, self.scaling.median, values), self.name)]
        return _with_indicator(self, features, absent, f"median {self.scaling.median:g}")


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

    def encode(self, series: pd.Series) -> tuple[list[Features], list[Note]]:
        values = as_truth(series, self.name)
        absent = np.isnan(values)
        filled = np.where(absent, float(self.usual), values).astype(np.float32)
        return _with_indicator(self, [] if self.constant else [filled], absent, f"more frequent value {self.usual}")


@dataclass(frozen=True)
class Categorical:
    """`categories` are in order; with `other`, all further values count as one more category."""

    kind: ClassVar[str] = "categorical"
    name: str
    categories: tuple[str, ...]
    other: bool
    missing: bool

    @property
    def features(self) -> tuple[str, ...]:
        named = tuple(f"{self.name}={category}" for category in self.categories)
        return named + ((f"{self.name} (other)",) if self.other else ()) + _indicator(self)

    def encode(self, series: pd.Series) -> tuple[list[Features], list[Note]]:
        if kind_of(series) not in KINDS:
            raise InputError(f"column {self.name!r} must hold categories, got {kind_of(series)} values")
        codes, texts = as_codes(series)
        places = places_of(texts, self.categories)[codes]
        absent, unseen = codes < 0, (codes >= 0) & (places < 0)
        nowhere = len(self.features)
        places[unseen] = len(self.categories) if self.other else nowhere
        places[absent] = nowhere - 1 if self.missing else nowhere
        hot = np.zeros((len(series), nowhere + 1), np.float32)
        hot[np.arange(len(series)), places] = 1
        notes = []
        if unseen.any() and not self.other:
            values = tuple(texts[code] for code in np.unique(codes[unseen]))
            notes.append(Note("unseen categories", self.name, int(unseen.sum()), values))
        if absent.any() and not self.missing:
            notes.append(Note("missing values", self.name, int(absent.sum())))
        return list(hot.T[:nowhere]), notes


@dataclass(frozen=True)
class Date:
    kind: ClassVar[str] = "date"
    name: str
    scaling: Scaling
    missing: bool

    @property
    def features(self) -> tuple[str, ...]:
        names = ("days", "sin year", "cos year", "sin week", "cos week") if self.scaling.scale else ()
        return tuple(f"{self.name} ({name})" for name in names) + _indicator(self)

    def encode(self, series: pd.Series) -> tuple[list[Features], list[Note]]:
        days = as_days(series, self.name)
        absent = np.isnan(days)
        days = np.where(absent, self.scaling.median, days)
        features = []
        if self.scaling.scale:
            whole = np.floor(days).astype(np.int64)
            dates = whole.astype("datetime64[D]")
            in_year = whole - dates.astype("datetime64[Y]").astype("datetime64[D]").astype(np.int64)  # 0 on 1 January
            angles = (2 * np.pi * in_year / YEAR, 2 * np.pi * ((whole - MONDAY) % WEEK) / WEEK)
            waves = [wave(angle).astype(np.float32) for angle in angles for wave in (np.sin, np.cos)]
            features = [self.scaling.apply(days, self.name), *waves]
        return _with_indicator(self, features, absent, "median date")


Column = Numeric | Boolean | Categorical | Date


def _indicator(column: Column) -> tuple[str, ...]:
    return (f"{column.name} (missing)",) if column.missing else ()


def _with_indicator(
    column: Column, features: list[Features], absent: NDArray[np.bool_], stand_in: str
) -> tuple[list[Features], list[Note]]:
    if column.missing:
        return [*features, absent.astype(np.float32)], []
    number = int(absent.sum())
    return features, [Note("missing values", column.name, number, used=stand_in)] if number else []


# ---- inference


def infer_column(series: pd.Series, name: str) -> tuple[Column | None, str]:
    """The column and a remark for its owner, or ""; None and the reason if it cannot be a feature."""
    kind = kind_of(series)
    absent = is_blank(series)
    missing = bool(absent.any())
    if absent.all():
        return None, "every value is missing"
    if kind == "numeric":
        column, remark = _numeric(as_numbers(series, name), name, missing)
        return (column, remark) if column is None else _unless_identifier(column, series)
    if kind == "boolean":
        values = as_truth(series, name)
        true, false = int((values == 1).sum()), int((values == 0).sum())
        if not missing and not (true and false):
            return None, "constant"
        return Boolean(name, true > false, not (true and false), missing), ""
    if kind == "date":
        return _date(as_days(series, name), name, missing)
    if kind == "text":
        return _text(series, name, missing)
    return None, f"it holds {kind} values"


def is_infinite(series: pd.Series, name: str) -> NDArray[np.bool_]:
    """Mask (n,) of the infinite values of a column of numbers."""
    return np.isinf(as_numbers(series, name)) if kind_of(series) == "numeric" else np.zeros(len(series), bool)


def _numeric(values: Floats, name: str, missing: bool) -> tuple[Column | None, str]:
    if np.isinf(values).any():
        row = int(np.isinf(values).argmax())
        raise InputError(f"column {name!r} has {values[row]} in row {row + 1}, which is not a number: correct the file")
    scaling = Scaling.of(values)
    if not scaling.scale and not missing:
        return None, "constant"
    with np.errstate(over="ignore"):
        steps = np.diff(values)
    if len(values) > MANY and (steps == 1).all():
        return None, "it counts the rows"
    return Numeric(name, scaling, missing), ""


def _unless_identifier(column: Column, series: pd.Series) -> tuple[Column | None, str]:
    """Drop a column that names the rows: whole numbers that all differ, are in order, and are called so."""
    given = series[~is_blank(series)]  # as it was read: long identifiers differ in digits that a float does not hold
    if len(given) <= FEW or not given.is_unique or (as_numbers(given, column.name) % 1 != 0).any():
        return column, ""
    if IDENTIFIER.fullmatch(column.name) and (given.is_monotonic_increasing or given.is_monotonic_decreasing):
        return None, "an identifier by its name, with another number in order in every row"
    return column, "whole numbers, another one in every row: leave it out if they only name the rows"


def _date(days: Floats, name: str, missing: bool) -> tuple[Column | None, str]:
    scaling = Scaling.of(days)
    return (Date(name, scaling, missing), "") if scaling.scale or missing else (None, "constant")


def _text(series: pd.Series, name: str, missing: bool) -> tuple[Column | None, str]:
    codes, texts = as_codes(series)
    if all(map(ISO_DATE.match, texts)) and (days := _days_or_none(series, name)) is not None:
        return _date(days, name, missing)
    if len(texts) == 1 and not missing:
        return None, "constant"
    counts = np.bincount(codes[codes >= 0], minlength=len(texts))
    remark = _numbers_among(codes, texts, counts)
    if len(texts) > MANY and len(texts) > counts.sum() / 2:
        return None, f"{len(texts)} different texts in {counts.sum()} rows{remark and ', '}{remark}"
    if len(texts) <= MANY:
        return Categorical(name, texts, False, missing), remark and f"{remark}, and is taken as categories"
    most = sorted(range(len(texts)), key=lambda i: (-counts[i], texts[i]))[:KEPT]
    pooled = f"{len(texts)} categories: all but the {KEPT} most frequent count as one"
    kept = tuple(texts[i] for i in sorted(most))
    return Categorical(name, kept, True, missing), f"{remark}{remark and '; '}{pooled}"


def _days_or_none(series: pd.Series, name: str) -> Floats | None:
    try:
        return as_days(series, name)
    except InputError:
        return None


def _numbers_among(codes: Codes, texts: tuple[str, ...], counts: NDArray[Any]) -> str:
    """A remark about a column of texts if nearly all of them are numbers, else ""."""
    numeric = np.array([is_number(text) for text in texts])
    if numeric.all():
        return "numbers written as texts" if len(texts) > MANY else ""
    if counts[numeric].sum() < MOSTLY * counts.sum():
        return ""
    row = int((~np.append(numeric, True)[codes]).argmax())
    return f"numbers but for {texts[codes[row]]!r} in row {row + 1}"
