"""Curves as the geometry of an SVG: axes, ticks, lines, and names at the ends of the lines."""

from __future__ import annotations

import math
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .numbers import number
from .palette import Style
from .sections import Curves

LETTER = 8.0  # width of one, in the font of the labels
LINE = 17.0  # from one label to the next
TOP, BOTTOM = 30.0, 44.0  # room for the names of the axes
HUGE, TINY = 1e200, 1e-200  # beyond them a value is none, and nothing
MOST_POINTS = 400
MOST_MARKERS = 12


@dataclass(frozen=True)
class Label:
    """The name at the end of a line: where the line ends and where the name is, which may be higher or lower."""

    text: str
    x: float
    y: float
    end: tuple[float, float]


@dataclass(frozen=True)
class Line:
    name: str
    style: Style
    paths: list[str]  # one for each stretch without a gap
    markers: list[tuple[float, float]]
    label: Label
    last: str


@dataclass(frozen=True)
class Plot:
    """Everything is in the units of the SVG, whose width is that of the room it is made for."""

    width: float
    height: float
    left: float
    right: float
    bottom: float
    x_ticks: list[tuple[float, str]]
    y_ticks: list[tuple[float, str]]
    lines: list[Line]


@dataclass(frozen=True)
class Axis:
    """From low..high in the data to start..end in the drawing."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.start + (values - self.low) / (self.high - self.low) * (self.end - self.start)

    def marks(self, at: Sequence[float]) -> list[tuple[float, str]]:
        """Places and texts of these ticks, those outside left out."""
        slack = 1e-9 * (self.high - self.low)
        places = self(np.array(at))
        return [
            (float(place), text)
            for value, place, text in zip(at, places, tick_texts(at), strict=True)
            if self.low - slack <= value <= self.high + slack
        ]


def plot(section: Curves, styles: Mapping[str, Style], width: float) -> Plot | None:
    """The drawing for a screen with this much room; None where no series has a point."""
    series = {name: _points(*xy) for name, xy in section.series.items()}
    series = {name: points for name, points in series.items() if len(_there(points))}
    if not series:
        return None
    everything = np.concatenate([_there(points) for points in series.values()])
    x_range = _spread(float(everything[:, 0].min()), float(everything[:, 0].max()))
    y_range = _spread(float(everything[:, 1].min()), float(everything[:, 1].max()), section.span)
    x_ticks, y_ticks = ticks(*x_range, width // 90), ticks(*y_range, 6)
    left = 12 + LETTER * max(map(len, tick_texts(y_ticks)))
    room = min(0.34 * width, 24 + LETTER * max(map(_cells, series)))
    height = max(0.42 * width, 260.0, TOP + BOTTOM + LINE * len(series))
    right, bottom = width - room, height - BOTTOM
    x_axis, y_axis = Axis(*x_range, left, right), Axis(y_ticks[0], y_ticks[-1], bottom, TOP)
    placed = {name: np.stack([x_axis(xy[:, 0]), y_axis(xy[:, 1])], 1) for name, xy in series.items()}
    ends = {name: (float(x), float(y)) for name, points in placed.items() for x, y in _there(points)[-1:]}
    heights = _apart([end[1] for end in ends.values()], TOP, bottom)
    lines = [
        Line(
            name=name,
            style=styles[name],
            paths=[" ".join(f"{x:.1f},{y:.1f}" for x, y in part) for part in _stretches(points)],
            markers=_markers(points),
            label=Label(_shortened(name, int((room - 24) / LETTER)), right + 20, y, ends[name]),
            last=_last(series[name], y_ticks),
        )
        for (name, points), y in zip(placed.items(), heights, strict=True)
    ]
    return Plot(width, height, left, right, bottom, x_axis.marks(x_ticks), y_axis.marks(y_ticks), lines)


def ticks(low: float, high: float, most: float) -> list[float]:
    """Round numbers, 1, 2 or 5 times a power of ten apart, at most `most` + 1 of them, that embrace low..high."""
    rough = (high - low) / max(1.0, most - 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * (1 - 1e-9))
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [i * step for i in range(first, last + 1)]


def tick_texts(values: Sequence[float]) -> list[str]:
    """With as many digits as tell neighbours apart."""
    step, largest = values[1] - values[0], max(map(abs, values))
    if largest >= 1e6 or step < 1e-5:
        return [f"{value:.{1 + math.ceil(math.log10(largest / step))}g}" for value in values]
    return [number(value, max(0, -math.floor(math.log10(step) + 1e-9))) for value in values]


def _spread(low: float, high: float, least: float = 0.0) -> tuple[float, float]:
    """A range around low..high that is at least so wide, and has a width in any case."""
    size = max(abs(low), abs(high))
    least = max(least, 1e-9 * size)
    if high - low >= least > 0:
        return low, high
    more = (least if least > 1e-9 * size else size if size > TINY else 1.0) - (high - low)
    start = max(0.0, low - more / 2) if low >= 0 else low - more / 2
    return start, start + (high - low) + more


def _points(x: Sequence[float], y: Sequence[float]) -> NDArray[np.float64]:
    """(m, 2), thinned to the first, lowest, highest and last of each stretch where there are very many."""
    points = np.stack([np.asarray(x, float), np.asarray(y, float)], 1).reshape(-1, 2)
    points = np.where(np.abs(points) < HUGE, points, np.nan)
    if len(points) <= MOST_POINTS:
        return points
    kept: set[int] = set()
    for part in np.array_split(np.arange(len(points)), MOST_POINTS // 4):
        values = points[part, 1]
        kept |= {int(part[0]), int(part[-1])}
        if np.isfinite(values).any():
            kept |= {int(part[np.nanargmin(values)]), int(part[np.nanargmax(values)])}
    return points[sorted(kept)]


def _there(points: NDArray[np.float64]) -> NDArray[np.float64]:
    """Those of the points that are finite."""
    return points[np.isfinite(points).all(1)]


def _stretches(points: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """The parts without a gap that have at least two points."""
    there = np.isfinite(points).all(1)
    breaks = np.flatnonzero(np.diff(there.astype(int))) + 1
    parts = zip(np.split(points, breaks), np.split(there, breaks), strict=True)
    return [part for part, finite in parts if finite.all() and len(part) > 1]


def _markers(points: NDArray[np.float64]) -> list[tuple[float, float]]:
    """On every point, or on a few of many; the last always has one."""
    finite = _there(points)
    every = math.ceil(len(finite) / MOST_MARKERS)
    return [(float(x), float(y)) for x, y in finite[::-1][::every]]


def _apart(wanted: Sequence[float], top: float, bottom: float) -> list[float]:
    """Heights near those that are wanted, a line apart, all inside."""
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    heights = list(wanted)
    lowest = top - LINE
    for i in order:
        lowest = heights[i] = max(heights[i], lowest + LINE)
    limit = bottom + LINE
    for i in reversed(order):
        limit = heights[i] = min(heights[i], limit - LINE)
    return heights


def _last(points: NDArray[np.float64], y_ticks: Sequence[float]) -> str:
    """The last value, one decimal finer than the axis."""
    value = float(_there(points)[-1, 1])
    step = y_ticks[1] - y_ticks[0]
    return number(value, max(0, 1 - math.floor(math.log10(step) + 1e-9)))


def _cells(text: str) -> int:
    """Widths of a letter; wide characters take two."""
    return sum(2 if unicodedata.east_asian_width(letter) in "WF" else 1 for letter in text)


def _shortened(text: str, most: int) -> str:
    if _cells(text) <= most:
        return text
    while text and _cells(text) > most - 1:
        text = text[:-1]
    return text.rstrip() + "…"
