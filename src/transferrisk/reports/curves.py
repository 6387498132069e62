"""Curves as the geometry of an SVG: axes, ticks, lines, and names at the ends of the lines."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .numbers import number
from .palette import Style
from .sections import Curves, Mark
from .ticks import LETTER, cells, log_ticks, round_ticks, thinned, x_ticks

LINE = 17.0  # from one label to the next
BESIDE = 12.0  # from a point to its label
KEY = 14.0  # a marker before the name
TOP, BOTTOM = 30.0, 44.0  # room for the names of the axes
HUGE, TINY = 1e200, 1e-200  # beyond them a value is none, and nothing
MOST_POINTS = 400
MOST_MARKERS = 12


@dataclass(frozen=True)
class Label:
    """The name at the end of a line, after the line's marker: where the line ends, and where these begin."""

    text: str
    x: float
    y: float
    end: tuple[float, float]

    @property
    def key(self) -> tuple[float, float]:
        """Where the marker is."""
        return self.x + 4, self.y

    @property
    def text_x(self) -> float:
        return self.x + KEY


@dataclass(frozen=True)
class Line:
    name: str
    style: Style
    paths: list[str]  # one for each stretch without a gap
    bands: list[str]
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
    marks: list[tuple[float, float, float, float, str]]  # from, to, text


@dataclass(frozen=True)
class Axis:
    """From low..high in the data to start..end in the drawing."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        return self.start + (values - self.low) / (self.high - self.low) * (self.end - self.start)

    def marks(self, at: Mapping[float, str]) -> list[tuple[float, str]]:
        """Places and texts of these ticks, those outside left out."""
        slack = 1e-9 * (self.high - self.low)
        return [
            (float(self(np.array([value]))[0]), text)
            for value, text in at.items()
            if self.low - slack <= value <= self.high + slack
        ]


def plot(section: Curves, styles: Mapping[str, Style], width: float) -> Plot | None:
    """The drawing for a screen with this much room; None where no series has a point."""
    series = {name: _points(section, name) for name in section.series}
    series = {name: points for name, points in series.items() if len(_there(points))}
    if not series:
        return None
    everything = np.concatenate([_there(points) for points in series.values()])  # (m, 4)
    marked_x, marked_y = (
        [getattr(mark, axis) for mark in section.marks if getattr(mark, axis) is not None] for axis in "xy"
    )
    x_range = _range(np.r_[everything[:, 0], _scaled(marked_x, section.x_log)])
    y_range = _range(np.r_[everything[:, 1:].ravel(), _scaled(marked_y, section.y_log)], section.span)
    y_ticks = (log_ticks if section.y_log else round_ticks)(*y_range, 6)
    left = 12 + LETTER * max(map(len, y_ticks.values()))
    room = min(0.48 * width, 24 + KEY + LETTER * max(map(cells, series)))
    height = max(0.42 * width, 260.0, TOP + BOTTOM + LINE * len(series))
    right, bottom = width - room, height - BOTTOM
    x_axis, y_axis = Axis(*x_range, left, right), Axis(min(y_ticks), max(y_ticks), bottom, TOP)
    placed = {name: np.c_[x_axis(p[:, :1]), y_axis(p[:, 1:])] for name, p in series.items()}
    ends = {name: (float(x), float(y)) for name, points in placed.items() for x, y in _there(points)[-1:, :2]}
    labels = _labels(ends, right, int((room - 24 - KEY) / LETTER), bottom)
    lines = [
        Line(
            name=name,
            style=styles[name],
            paths=[_path(part) for part in _stretches(points[:, :2])] if section.joined else [],
            bands=[_path(np.r_[part[:, [0, 1]], part[::-1, [0, 2]]]) for part in _stretches(points[:, [0, 2, 3]])],
            markers=_markers(points, every=not section.joined),
            label=labels[name],
            last=_last(section, name, list(y_ticks)),
        )
        for name, points in placed.items()
    ]
    marks = [_mark(mark, section, x_axis, y_axis) for mark in section.marks]
    x_marks = thinned(x_axis.marks(_x_ticks(section, series.values(), x_range, width)))
    return Plot(width, height, left, right, bottom, x_marks, y_axis.marks(y_ticks), lines, marks)


def _x_ticks(
    section: Curves, points: Iterable[NDArray[np.float64]], x_range: tuple[float, float], width: float
) -> Mapping[float, str]:
    if section.x_ticks:
        return dict(zip(_scaled(list(section.x_ticks), section.x_log).tolist(), section.x_ticks.values(), strict=True))
    x = np.concatenate([own[:, 0] for own in points])
    return x_ticks(x[np.isfinite(x)].tolist(), *x_range, width // (35 if section.x_log else 50), section.x_log)


def _labels(ends: Mapping[str, tuple[float, float]], right: float, most: int, bottom: float) -> dict[str, Label]:
    """Beside the drawing, or at the end of a line that ends long before it."""
    columns: dict[float, list[str]] = {}
    for name, (x, _) in ends.items():
        inside = x + BESIDE + KEY + LETTER * min(cells(name), most) < right
        columns.setdefault(round(x) + BESIDE if inside else right + 20, []).append(name)
    labels: dict[str, Label] = {}
    for x, names in columns.items():
        heights = _apart([ends[name][1] for name in names], TOP, bottom)
        labels |= {n: Label(shortened(n, most), x, y, ends[n]) for n, y in zip(names, heights, strict=True)}
    return labels


def _mark(mark: Mark, section: Curves, x_axis: Axis, y_axis: Axis) -> tuple[float, float, float, float, str]:
    if mark.y is not None:
        (y,) = y_axis(_scaled([mark.y], section.y_log))
        return x_axis.start, float(y), x_axis.end, float(y), mark.text
    (x,) = x_axis(_scaled([mark.x or 0.0], section.x_log))
    return float(x), y_axis.end, float(x), y_axis.start, mark.text


def _range(values: NDArray[np.float64], least: float = 0.0) -> tuple[float, float]:
    finite = values[np.isfinite(values)]
    return _spread(float(finite.min()), float(finite.max()), least)


def _spread(low: float, high: float, least: float = 0.0) -> tuple[float, float]:
    """A range around low..high that is at least so wide, and has a width in any case."""
    size = max(abs(low), abs(high))
    least = max(least, 1e-9 * size)
    if high - low >= least > 0:
        return low, high
    more = (least if least > 1e-9 * size else size if size > TINY else 1.0) - (high - low)
    start = max(0.0, low - more / 2) if low >= 0 else low - more / 2
    return start, start + (high - low) + more


def _scaled(values: ArrayLike, log: bool) -> NDArray[np.float64]:
    """As they are placed on an axis, nan where they are not."""
    found = np.asarray(values, float)
    found = np.where(np.abs(found) < HUGE, found, np.nan)
    return np.log10(np.where(found > 0, found, np.nan)) if log else found


def _points(section: Curves, name: str) -> NDArray[np.float64]:
    """(m, 4): x, y and the bounds of its band, thinned to the first, lowest, highest and last of each stretch where
    there are very many.
    """
    x, y = section.series[name]
    nothing = np.full(len(x), np.nan)
    low, high = section.bands.get(name, (nothing, nothing))
    heights = [_scaled(values, section.y_log) for values in (y, low, high)]
    points = np.stack([_scaled(x, section.x_log), *heights], 1).reshape(-1, 4)
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
    """Those of the points that are finite, with a band or without."""
    return points[np.isfinite(points[:, :2]).all(1)]


def _stretches(points: NDArray[np.float64]) -> list[NDArray[np.float64]]:
    """The parts without a gap that have at least two points."""
    there = np.isfinite(points).all(1)
    breaks = np.flatnonzero(np.diff(there.astype(int))) + 1
    parts = zip(np.split(points, breaks), np.split(there, breaks), strict=True)
    return [part for part, finite in parts if finite.all() and len(part) > 1]


def _path(points: NDArray[np.float64]) -> str:
    return " ".join(f"{x:.1f},{y:.1f}" for x, y in points)


def _markers(points: NDArray[np.float64], every: bool) -> list[tuple[float, float]]:
    """On every point, or where they are joined on a few of many; the last always has one."""
    finite = _there(points)
    step = 1 if every else math.ceil(len(finite) / MOST_MARKERS)
    return [(float(x), float(y)) for x, y in finite[::-1][::step, :2]]


def _apart(wanted: Sequence[float], top: float, bottom: float) -> list[float]:
    """Heights as near as can be to those that are wanted, a line apart, all inside.

    Without the lines between them they must not fall, and names that stand in each other's way share their mean place.
    """
    order = sorted(range(len(wanted)), key=lambda i: wanted[i])
    clusters: list[tuple[float, int]] = []  # mean place and number of names
    for rank, i in enumerate(order):
        place, size = wanted[i] - rank * LINE, 1
        while clusters and clusters[-1][0] >= place:
            above, more = clusters.pop()
            place, size = (place * size + above * more) / (size + more), size + more
        clusters.append((place, size))
    lowest = bottom - (len(wanted) - 1) * LINE
    places = [max(top, min(lowest, place)) for place, size in clusters for _ in range(size)]
    heights = dict(zip(order, (place + rank * LINE for rank, place in enumerate(places)), strict=True))
    return [heights[i] for i in range(len(wanted))]


def _last(section: Curves, name: str, y_ticks: Sequence[float]) -> str:
    """The last value, one decimal finer than the axis."""
    value = float(_there(_points(section, name))[-1, 1])
    if section.y_log:
        return f"{10.0**value:.3g}"
    step = y_ticks[1] - y_ticks[0]
    return number(value, max(0, 1 - math.floor(math.log10(step) + 1e-9)))


def shortened(text: str, most: int) -> str:
    if cells(text) <= most:
        return text
    while text and cells(text) > most - 1:
        text = text[:-1]
    return text.rstrip() + "…"
