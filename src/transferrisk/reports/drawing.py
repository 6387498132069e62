"""From sections to what the templates print: shades, lengths, texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .numbers import MINUS, in_unit, interval, number
from .palette import LEVELS
from .sections import Bar, Bars, Entry, Group, Heatmap, Shown, Table

LONG_WORD = 13  # letters; longer ones are broken


def is_long(name: str) -> bool:
    return any(len(word) > LONG_WORD for word in name.split())


@dataclass(frozen=True)
class HeatCell:
    """`level` 0..LEVELS-1 is its shade, None where there is no value; `title` says all about it."""

    text: str
    level: int | None
    own: bool
    interval: str
    title: str


@dataclass(frozen=True)
class HeatKey:
    """What the weakest and the strongest shade stand for."""

    weak: str
    strong: str
    meaning: str


def heat_cells(section: Heatmap) -> list[list[HeatCell]]:
    values = np.asarray(section.values, float)
    levels = _levels(section, values)
    return [
        [_heat_cell(section, r, c, float(values[r, c]), int(levels[r, c])) for c in range(len(section.columns))]
        for r in range(len(section.rows))
    ]


def _heat_cell(section: Heatmap, r: int, c: int, value: float, level: int) -> HeatCell:
    row, column = section.rows[r], section.columns[c]
    text, around = in_unit(value, section.unit, sign=False), ""
    if section.low is not None and section.high is not None and not math.isnan(value):
        around = interval(float(section.low[r, c]), float(section.high[r, c]), section.unit, sign=False)
    told = "no value" if math.isnan(value) else in_unit(value, section.unit)
    # Each name is isolated, so that one written from right to left does not turn the rest round.
    title = f"\u2068{row}\u2069, \u2068{column}\u2069: {told}" + (f" ({around})" if around else "")
    return HeatCell(text, None if math.isnan(value) else level, section.own and row == column, around, title)


def heat_key(section: Heatmap) -> HeatKey | None:
    """None where all shades are the same, so that there is nothing to tell."""
    ends = _ends(section, np.asarray(section.values, float))
    if ends is None or ends[0] == ends[1]:
        return None
    small, large = (in_unit(end, section.unit) for end in ends)
    if section.high_is_bad:
        return HeatKey(small, large, "the stronger the shade, the higher and the worse")
    return HeatKey(large, small, "the stronger the shade, the lower and the worse")


def shared_key(group: Group) -> HeatKey | None:
    """The key of several heat maps that have the same one, and no intervals; it need not be printed at each."""
    maps = [section for section in group.sections if isinstance(section, Heatmap) and section.low is None]
    keys = {heat_key(section) for section in maps}
    return keys.pop() if len(maps) == len(group.sections) > 1 and len(keys) == 1 else None


def _ends(section: Heatmap, values: NDArray[np.float64]) -> tuple[float, float] | None:
    """The smallest and the largest value of the scale."""
    if section.scale is not None:
        return section.scale
    finite = values[np.isfinite(values)]
    if not finite.size:
        return None
    return float(finite.min()), float(finite.max())


def _levels(section: Heatmap, values: NDArray[np.float64]) -> NDArray[np.int64]:
    """The shade of each value, (r, c); those outside the scale, infinite ones too, have the shade of its end."""
    low, high = _ends(section, values) or (0.0, 1.0)
    width = high - low if high > low else 1.0
    strength = np.clip((np.nan_to_num(values, nan=low, posinf=high, neginf=low) - low) / width, 0, 1)
    if not section.high_is_bad:
        strength = 1 - strength
    return np.rint(strength * (LEVELS - 1)).astype(np.int64)


@dataclass(frozen=True)
class DrawnBar:
    """Places are in percent of the chart's width; `interval` is (left, width) or None."""

    name: str
    text: str
    around: str
    left: float
    width: float
    interval: tuple[float, float] | None


def bar_ends(section: Bars) -> tuple[float, float]:
    """What the chart's width stands for: zero to 100 percent, and further where a value is beyond."""
    everything = [
        end
        for bars in section.groups.values()
        for bar in bars
        for end in (bar.value, bar.low, bar.high)
        if end is not None and math.isfinite(end)
    ]
    low, high = min([0.0, *everything]), max([0.0, *everything])
    if section.unit == "percent":
        high = max(1.0, high)
    return low, high if high > low else low + 1.0


def drawn_bars(section: Bars) -> dict[str, list[DrawnBar]]:
    ends = bar_ends(section)
    return {group: [_drawn_bar(bar, section, ends) for bar in bars] for group, bars in section.groups.items()}


def _drawn_bar(bar: Bar, section: Bars, ends: tuple[float, float]) -> DrawnBar:
    def place(value: float) -> float:
        return 100 * min(1.0, max(0.0, (value - ends[0]) / (ends[1] - ends[0])))

    text = bar.text or in_unit(bar.value, section.unit)
    if math.isnan(bar.value):
        return DrawnBar(bar.name, text, "", 0.0, 0.0, None)
    left, right = sorted((place(0.0), place(bar.value)))
    if bar.low is None or bar.high is None or math.isnan(bar.low) or math.isnan(bar.high):
        return DrawnBar(bar.name, text, "", left, right - left, None)
    whiskers = place(bar.low), place(bar.high) - place(bar.low)
    around = interval(bar.low, bar.high, section.unit)
    return DrawnBar(bar.name, text, "" if bar.text else around, left, right - left, whiskers)


def bar_scale(section: Bars) -> str:
    """What the width means, in words."""
    if section.unit == "percent" and bar_ends(section) == (0.0, 1.0):
        return "The whole width is 100 %."
    low, high = (in_unit(end, section.unit) for end in bar_ends(section))
    return f"The whole width is {high}." if bar_ends(section)[0] == 0 else f"The width is from {low} to {high}."


@dataclass(frozen=True)
class DrawnEntry:
    """`value` is what a number is sorted by, "" for text; nothing is there where `missing`."""

    text: str
    value: str
    missing: bool
    below: str = ""
    bold: bool = False


def drawn_rows(section: Table) -> list[list[DrawnEntry]]:
    return [[_drawn_entry(entry, section.digits) for entry in row] for row in section.rows]


def numeric_columns(rows: Sequence[Sequence[DrawnEntry]], columns: int) -> list[bool]:
    """Which columns hold numbers alone, and are set to the right."""
    return [all(row[c].value or row[c].missing for row in rows) for c in range(columns)]


def _drawn_entry(entry: Entry, digits: int) -> DrawnEntry:
    if isinstance(entry, str):
        return DrawnEntry(entry, "", missing=not entry)
    value = entry.value if isinstance(entry, Shown) else entry
    below = entry.below if isinstance(entry, Shown) else ""
    if value is None or math.isnan(value):
        told = entry.instead if isinstance(entry, Shown) else ""
        return DrawnEntry(told or number(None, digits), "", missing=True, below=below)
    whole = isinstance(value, int | np.integer)
    printed = str(value).replace("-", MINUS) if whole else number(value, digits)
    text = entry.text if isinstance(entry, Shown) else printed
    return DrawnEntry(
        text,
        "Infinity" if value == math.inf else "-Infinity" if value == -math.inf else repr(float(value)),
        missing=False,
        below=below,
        bold=isinstance(entry, Shown) and entry.bold,
    )
