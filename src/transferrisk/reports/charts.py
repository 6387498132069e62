"""Curves, bars and forest plots by matplotlib: as SVG that follows the theme of a page, and as files for print."""

from __future__ import annotations

import io
import math
import re
import textwrap
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from html import escape
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from rich.cells import cell_len, chop_cells

from ..errors import one_line
from .elements import METHODS, MINUS, MOST_NAMED, Bars, Curves, Forest, in_unit, interval, number

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure, FigureBase

WIDTH = 460.0  # of one drawing, in units of its SVG, which are pixels at its natural size
FONT, LINE = 12.0, 17.0
HUGE = 1e200  # larger values are left out, since drawing would overflow
FEW = 8  # largest number of different x that become the ticks
NARROW = 5.0  # ratio of the ends of a logarithmic axis below which its ticks are round numbers at equal distances
LONG = 20  # letters from which names stand below a drawing, not beside it
INK, SOFT, GRID, PAPER = "#000000", "#55606c", "#d0d7de", "#ffffff"
EXTRA = {
    "#b0952c": "#b0952c", "#9333ea": "#ae66ef", "#5e8c00": "#6e981a", "#be185d": "#d56996", "#0f766e": "#4b9892",
    "#d1662b": "#d36e36", "#6d4c41": "#a08b84", "#1e6fb8": "#5b97cf", "#2f8f5b": "#449a6b", "#b45309": "#c3753a",
    "#7a5195": "#a283b7",
}  # fmt: skip
"""Colours of names that are not methods: on a light page -> on a dark page. The first are the least like a method's."""
DARK = (
    {INK: "#e6e9ed", SOFT: "#a3aeba", GRID: "#3d4650", PAPER: "#14171b"}
    | EXTRA
    | {light: dark for _, light, dark in METHODS.values()}
)
_MOST_LINES = 8.0  # largest height of the values of many environments in a forest plot, in lines of text
_POOLED = METHODS["trm"][1]  # colour of pooled values in a forest plot
KEYS = {name: key for key, (name, _, _) in METHODS.items()} | {key: key for key in METHODS}
ORDER = ("trm", "erm", "irm", "vrex", "groupdro", "mldg", "fish", "reweight", "trm-direct", "oracle")
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1.5, 2)), (0, (7, 2, 1.5, 2)), (0, (9, 3)))
MARKERS = "os^DvX+"
_SETTINGS: dict[Any, Any] = {
    "svg.hashsalt": "transferrisk", "svg.fonttype": "none", "text.parse_math": False, "font.family": "DejaVu Sans",
    "font.size": FONT, "axes.unicode_minus": True, "legend.frameon": False, "text.color": INK,
    "axes.facecolor": "none",
}  # fmt: skip
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Look:
    """Colour, dashes and marker of a name."""

    colour: str
    dash: Any
    marker: str


def looks(names: Iterable[str]) -> dict[str, Look]:
    """Return a look for each name: a method always has its own, other names take the next that no method has."""
    found: dict[str, Look] = {}
    others = len(ORDER)
    for name in dict.fromkeys(names):
        if name in KEYS:
            place, colour = ORDER.index(KEYS[name]), METHODS[KEYS[name]][1]
        else:
            place, colour = others, list(EXTRA)[(others - len(ORDER)) % len(EXTRA)]
            others += 1
        found[name] = Look(colour, DASHES[place % len(DASHES)], MARKERS[place % len(MARKERS)])
    return found


def page_svg(section: Curves | Bars | Forest, styles: Mapping[str, Look]) -> str:
    """Return a drawing as an <svg> element whose colours follow the theme of a page, "" if it would be empty."""
    draw: Callable[[Figure], str]
    match section:
        case Curves():
            there, height = section.has_points, _curves_height(section)
            draw = partial(_draw_curves, curves=section, styles=styles)
        case Bars():
            bars, headings = sum(map(len, section.groups.values())), len(list(filter(None, section.groups)))
            there, height = bool(section.groups), 30.0 + 34.0 * headings + 24.0 * bars
            draw = partial(_draw_bars, bars=section, styles=styles)
        case Forest():
            lines = sum(map(_forest_lines, map(attrgetter("points"), section.spreads.values())))
            there, height = bool(section.spreads), 50.0 + 20.0 * (lines + 2.4 * len(section.spreads))
            draw = partial(_draw_forest, forest=section)
    if not there:
        return ""
    with _figure(WIDTH, height) as figure:
        said = draw(figure)
        svg = _saved(figure, "svg", "none").decode()
    return _themed(svg, said)


def figure_files(
    panels: Sequence[Curves], title: str, words: Sequence[str], styles: Mapping[str, Look]
) -> dict[str, bytes]:
    """Return suffix -> file of a figure of panels, two in a row, with a title above and sentences below."""
    columns = min(2, len(panels))
    rows = math.ceil(len(panels) / columns)

    def draw(figure: Figure) -> None:
        places = np.ravel(figure.subfigures(rows, columns, squeeze=False))
        for place, curves in zip(places, panels, strict=False):
            place.suptitle(_shortened(curves.title, 52), x=0.01, ha="left", fontsize=FONT, fontweight="bold")
            _draw_curves(place, curves, styles)

    height = max(map(_curves_height, panels)) + 2 * LINE
    return sheet_files(columns * WIDTH, rows * height, title, words, draw)


def sheet_files(
    width: float, height: float, title: str, words: Sequence[str], draw: Callable[[Figure], None]
) -> dict[str, bytes]:
    """Return suffix -> file, as SVG and PNG, of a figure that `draw` fills, with a title above and sentences below."""
    above = textwrap.wrap(one_line(title), int(width / 9)) or [""]
    below: list[str] = []
    for paragraph in words:
        below += textwrap.wrap(one_line(paragraph), int(width / 6.2))
    with _figure(width, height + 20 * len(above) + 15 * len(below) + 20) as figure:
        figure.suptitle("\n".join(above), x=0.01, ha="left", fontsize=15, fontweight="bold")
        figure.supxlabel("\n".join(below), x=0.01, ha="left", fontsize=10, color=SOFT)
        draw(figure)
        return {"svg": _saved(figure, "svg"), "png": _saved(figure, "png")}


@contextmanager
def _figure(width: float, height: float) -> Iterator[Figure]:
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a letter that the font lacks is a box
        yield Figure(figsize=(width / 72, height / 72), layout="constrained")


def _saved(figure: Figure, kind: str, background: str = "white") -> bytes:
    buffer = io.BytesIO()
    metadata = dict.fromkeys(("Creator", "Date", "Format", "Type")) if kind == "svg" else None
    figure.savefig(buffer, format=kind, dpi=120, metadata=metadata, facecolor=background)
    return buffer.getvalue()


def _themed(svg: str, said: str) -> str:
    """Return the <svg> element of a file with fewer decimals and with pairs of colours for light and dark pages."""
    body = re.sub(r"<style.*?</style>|<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    pieces = re.split(r"(<[^>]*>)", re.sub(r"\n\s*", "\n", body))  # text, tag, text, tag, ..., text
    for place in range(1, len(pieces), 2):
        tag = re.sub(r"(\d\.\d\d)\d+", r"\1", pieces[place])
        tag = re.sub(r' id="[\w.]+_\d+"', "", tag)  # names of groups, which would be several times on a page
        for light, dark in DARK.items():
            tag = tag.replace(light, f"light-dark({light}, {dark})")
        pieces[place] = tag
    body = "".join(pieces)
    head, _, rest = body.partition(">")
    head = re.sub(r' (width|height)="[^"]*"', "", head)
    return f'{head} class="drawn" role="img" aria-label="{escape(said)}">{rest}'


def _shortened(text: str, most: int) -> str:
    """Return the text, cut to a width in which wide characters count twice."""
    text = one_line(text)
    return text if cell_len(text) <= most else chop_cells(text, most - 1)[0].rstrip() + "…"


def _drawable(values: Sequence[float] | NDArray[np.float64], log: bool = False) -> NDArray[np.float64]:
    """Return the values, with nan in place of those that cannot be drawn."""
    found = np.asarray(values, float)
    return np.where((np.abs(found) < HUGE) & ((found > 0) | (not log)), found, np.nan)


def _curves_height(curves: Curves) -> float:
    lines, below = len(curves.series), max(map(len, curves.series), default=0) > LONG
    return 290.0 + LINE * lines if below else max(270.0, 60.0 + LINE * lines)


def _draw_curves(figure: FigureBase, curves: Curves, styles: Mapping[str, Look]) -> str:
    """Draw the curves, and return a description in words."""
    axes = figure.subplots()
    ends, handles, said, places = {}, {}, [], []
    for name, (given_x, given_y) in curves.series.items():
        look, x, y = styles[name], _drawable(given_x, curves.x_log), _drawable(given_y, curves.y_log)
        if name in curves.bands:
            low, high = curves.bands[name]
            axes.fill_between(
                x, _drawable(low, curves.y_log), _drawable(high, curves.y_log),
                color=look.colour, alpha=0.13, linewidth=0,
            )  # fmt: skip
        (handles[name],) = axes.plot(
            x, y, color=look.colour, linestyle=look.dash if curves.joined else "none", marker=look.marker,
            markersize=6, linewidth=1.8, markevery=0.1 if curves.joined and len(x) > 12 else None,
        )  # fmt: skip
        if np.isfinite(y).any():
            ends[name] = float(y[np.isfinite(y)][-1])
            said.append(f"{name} {ends[name]:.4g}")
        places.append(x[np.isfinite(x)])
    for mark in curves.marks:
        how: Any = {"color": SOFT, "linewidth": 1, "linestyle": (0, (3, 3))}
        if mark.y is not None:
            axes.axhline(mark.y, **how)
            axes.annotate(mark.text, (0, mark.y), (4, 4), ("axes fraction", "data"), "offset points", color=SOFT)
        if mark.x is not None:
            axes.axvline(mark.x, **how)
            axes.annotate(mark.text, (mark.x, 1), (4, -FONT), ("data", "axes fraction"), "offset points", color=SOFT)
    _decorate(axes, curves, np.unique(np.concatenate(places)))
    names = sorted(ends, key=ends.__getitem__, reverse=True)
    legend = figure.legend(  # beside the drawing or, where names are long, below it
        list(map(handles.__getitem__, names)), ["x"] * len(names), fontsize=FONT, labelspacing=0.3, handlelength=2.6,
        loc="outside lower left" if max(map(len, names), default=0) > LONG else "outside right upper",
    )  # fmt: skip
    for text, name in zip(legend.get_texts(), names, strict=True):  # afterwards, since "_x" would be left out
        text.set_text(_shortened(name, 48))
    return f"{curves.y} against {curves.x}; at the end {'; '.join(said)}"


def _decorate(axes: Axes, curves: Curves, x: NDArray[np.float64]) -> None:
    """Set scales, ticks and labels of the axes; `x` are the places of all points, each once."""
    from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

    axes.set_xscale("log" if curves.x_log else "linear")
    axes.set_yscale("log" if curves.y_log else "linear")
    low, high = axes.get_ylim()
    if high - low < curves.span:
        start = (low + high - curves.span) / 2
        start = max(0.0, start) if low >= 0 else start
        axes.set_ylim(start, start + curves.span)
    ticks = curves.x_ticks or (dict(zip(x.tolist(), map(_short_number, x), strict=True)) if len(x) <= FEW else {})
    letters = len("".join(ticks.values())) + 2 * len(ticks)
    step = max(1, math.ceil(letters * 0.62 * FONT / (0.6 * WIDTH)))
    for axis, log in ((axes.xaxis, curves.x_log), (axes.yaxis, curves.y_log)):
        if ticks and axis is axes.xaxis:
            axis.set_ticks(list(ticks)[::step], list(ticks.values())[::step])
        elif log and (view := axis.get_view_interval())[1] >= NARROW * view[0]:
            subs = (1.0, 2.0, 5.0) if view[1] < 100 * view[0] else (1.0,)
            axis.set_major_locator(LogLocator(subs=subs, numticks=8))
            axis.set_major_formatter(FuncFormatter(_power))
        elif log:  # powers of ten, and their doubles and halves, would be one tick or none
            axis.set_major_locator(MaxNLocator(4, steps=[1, 2, 5, 10]))
            axis.set_major_formatter(FuncFormatter(lambda value, _: _short_number(value)))
        else:
            axis.set_major_locator(MaxNLocator(6, steps=[1, 2, 5, 10]))
        axis.set_minor_locator(NullLocator())
    axes.set_xlabel(_shortened(curves.x, 50), color=SOFT)
    axes.set_title(_shortened(curves.y, 50), loc="left", color=SOFT, fontsize=FONT)
    axes.grid(axis="y", color=GRID, linewidth=1)
    axes.set_axisbelow(True)
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.spines["bottom"].set_color(GRID)
    axes.tick_params(color=GRID, labelcolor=SOFT, length=4)


def _short_number(value: float) -> str:
    """Return the text of a tick, such as 16, 0.125, 1.517 or 3e-07."""
    is_usual = value == 0 or 1e-3 <= abs(value) < 1e6
    text = np.format_float_positional(value, 3, trim="-") if is_usual else f"{value:.3g}"
    return text.replace("-", MINUS, 1)


def _power(value: float, _: int) -> str:
    """Return the text of a tick on a logarithmic axis, such as 0.01, 20 or 10⁻⁷."""
    if 1e-4 < value < 1e5:
        return f"{value:g}"
    digits, exponent = f"{value:.0e}".split("e")
    raised = str(int(exponent)).translate(_SUPERSCRIPT)
    return f"10{raised}" if digits == "1" else f"{digits}·10{raised}"


def _draw_bars(figure: FigureBase, bars: Bars, styles: Mapping[str, Look]) -> str:
    """Draw the bars, and return a description in words."""
    from matplotlib.ticker import PercentFormatter

    axes = figure.subplots()
    place, names, said = 0.0, {}, []
    for group, own in bars.groups.items():
        if group:
            place += 0.3 if place else 0.0
            _head(axes, place, group)
            place += 1.08
        for bar in own:
            axes.barh(place, bar.value, 0.78, color=styles[bar.name].colour)
            text = bar.text or in_unit(bar.value, bars.unit)
            said.append(f"{group + ', ' if group else ''}{bar.name} {text}")
            if bar.low is not None and bar.high is not None and math.isfinite(bar.low) and math.isfinite(bar.high):
                axes.plot([bar.low, bar.high], [place, place], color=INK, linewidth=1.5, marker="|", markersize=7)
                text += "" if bar.text else f" ({interval(bar.low, bar.high, bars.unit, sign=False)})"
            axes.annotate(text, (1, place), (6, 0), axes.get_yaxis_transform(), "offset points", va="center")
            names[place] = _shortened(bar.name, 24)
            place += 1.0
    axes.set_yticks(list(names), list(names.values()))
    axes.set_ylim(place - 0.4, -0.6)
    if bars.unit == "percent":
        axes.set_xlim(min(0.0, axes.get_xlim()[0]), max(1.0, axes.get_xlim()[1]))
        axes.xaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
    axes.tick_params(length=0, labelcolor=INK)
    axes.tick_params(axis="x", labelcolor=SOFT)
    axes.grid(axis="x", color=GRID, linewidth=1)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    return "; ".join(said)


def _head(axes: Axes, place: float, text: str) -> None:
    """Draw a heading at this height, on a background that hides the lines of the grid."""
    heading = axes.text(0, place, _shortened(text, 50), transform=axes.get_yaxis_transform())
    heading.set(fontweight="bold", va="center", in_layout=False)
    heading.set_bbox({"facecolor": PAPER, "edgecolor": "none", "pad": 1.5})


def _forest_lines(points: Mapping[str, Any]) -> float:
    """Return the height of the values of environments, in lines of text."""
    return float(len(points)) if len(points) <= MOST_NAMED else min(max(2.0, 0.2 * len(points)), _MOST_LINES)


def _draw_forest(figure: FigureBase, forest: Forest) -> str:
    """Draw the forest plot, and return a description in words. Intervals far beyond all values end at the edge."""
    axes = figure.subplots()
    place, said = 0.0, []
    names: dict[float, str] = {}
    low = high = 0.0
    for name, spread in forest.spreads.items():
        _head(axes, place, name)
        named = len(spread.points) <= MOST_NAMED
        points = dict(spread.points if named else sorted(spread.points.items(), key=lambda item: item[1][0]))
        step = _forest_lines(spread.points) / len(points) if points else 1.0
        heights = place + 1.0 + step * np.arange(len(points))
        ends = np.reshape(list(points.values()), (-1, 3))
        known = _drawable(ends)[np.isfinite(_drawable(ends))]
        low, high = min([low, *known]), max([high, *known])
        values, least, most = ends.T
        axes.hlines(heights, least, most, color=SOFT, linewidth=1.5 if named else 1, alpha=None if named else 0.4)
        axes.plot(values, heights, color=SOFT, linestyle="none", marker="s", markersize=5 if named else 2.5)
        for height, environment in zip(heights.tolist(), points if named else (), strict=named):
            names[height] = _shortened(environment, 24)
        here = place + 1.0 + _forest_lines(spread.points)
        if not named:
            names[place + 0.5 + _forest_lines(spread.points) / 2] = f"{len(points)} environments"
        names[here] = "pooled"
        axes.plot(spread.predicted, [here, here], color=_POOLED, linewidth=1.5)
        across = [spread.mean - spread.half, spread.mean, spread.mean + spread.half, spread.mean]
        axes.fill(across, [here, here - 0.3, here, here + 0.3], color=_POOLED, linewidth=0)
        said.append(f"{name} {number(spread.mean, 2)}")
        place = here + 1.4
    axes.axvline(0, color=SOFT, linewidth=1, linestyle=(0, (3, 3)), zorder=0.5)
    axes.set_yticks(list(names), list(names.values()))
    axes.set_ylim(place - 0.6, -0.8)
    margin = 0.15 * (high - low) or 1.0
    axes.set_xlim(low - margin, high + margin)
    axes.set_xlabel(_shortened(forest.x, 50), color=SOFT)
    axes.tick_params(length=0, labelcolor=INK)
    axes.tick_params(axis="x", labelcolor=SOFT)
    axes.grid(axis="x", color=GRID, linewidth=1)
    axes.set_axisbelow(True)
    axes.spines[:].set_visible(False)
    return f"{forest.x}, pooled: {'; '.join(said)}"
