"""Drawings as SVG and PNG: what the page draws, in the same places, for print."""

from __future__ import annotations

import io
import textwrap
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..curves import Line, Plot, plot, shortened
from ..gallery import mosaic
from ..page import HALF
from ..palette import DASHES, LIGHT, MARKERS, Style, series_colours, styles
from ..sections import Curves
from .formats import plain

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

INCH = 96.0  # units of a drawing, as CSS has them
POINT = 72 / INCH
TITLE, LINE, MARGIN, GAP = 26.0, 16.0, 14.0, 24.0
FONT = 13 * POINT
_MARKS = dict(zip(MARKERS, "os^Dvx+", strict=True))
_SETTINGS: dict[Any, Any] = {"svg.hashsalt": "transferrisk", "font.family": "DejaVu Sans", "axes.unicode_minus": True}


class Looks:
    """Colour, dash and marker of every name of a report."""

    def __init__(self, names: Sequence[str]) -> None:
        self.styles: Mapping[str, Style] = styles(names)
        self._colours = dict(zip(self.styles, series_colours(names), strict=True))

    def of(self, name: str) -> dict[str, Any]:
        style = self.styles[name]
        dash: Any = "-" if style.dash == DASHES[0] else (0, [float(n) / 2 for n in style.dash.split()])
        return {"color": self._colours[name], "linestyle": dash, "marker": _MARKS[style.marker]}


def draw(panels: Sequence[Curves], title: str, words: Sequence[str], looks: Looks) -> dict[str, bytes]:
    """Panels beside each other, two in a row; suffix -> file."""
    drawn = [(curves.title, curves, plot(curves, looks.styles, HALF)) for curves in panels]
    columns = min(2, len(drawn))
    rows = [drawn[i : i + columns] for i in range(0, len(drawn), columns)]
    heights = [max((p.height if p else TITLE + LINE for _, _, p in row), default=0.0) + TITLE + GAP for row in rows]
    with _sheet(columns * HALF + (columns - 1) * GAP, sum(heights), title, words) as (axes, top, files):
        for row, height in zip(rows, heights, strict=True):
            for column, (name, curves, found) in enumerate(row):
                left = MARGIN + column * (HALF + GAP)
                _text(axes, left, top + 14, shortened(name, 52), weight="bold")
                if found is None:
                    _text(axes, left, top + TITLE + LINE, "No values to draw.", color=LIGHT["soft"])
                else:
                    _panel(axes, found, curves, looks, left, top + TITLE)
            top += height
    return files


def draw_pictures(
    pictures: Mapping[str, Mapping[str, NDArray[np.uint8]]], title: str, words: Sequence[str]
) -> dict[str, bytes]:
    """A row for each run, its environments beside each other."""
    columns = max(len(environments) for environments in pictures.values())
    width = 300.0
    shown = {name: {env: mosaic(images) for env, images in own.items()} for name, own in pictures.items()}
    heights = {
        name: max(width * image.shape[0] / image.shape[1] for image in own.values()) + TITLE + LINE + 8
        for name, own in shown.items()
    }
    with _sheet(columns * width + (columns - 1) * GAP, sum(heights.values()) + GAP, title, words) as (axes, top, files):
        for name, own in shown.items():
            _text(axes, MARGIN, top + 14, shortened(name, 90), weight="bold")
            for column, (environment, image) in enumerate(own.items()):
                left = MARGIN + column * (width + GAP)
                _text(axes, left, top + TITLE + 8, shortened(environment, 40), color=LIGHT["soft"])
                above = top + TITLE + LINE
                under = above + width * image.shape[0] / image.shape[1]
                axes.imshow(image, extent=(left, left + width, under, above), interpolation="nearest")
            top += heights[name]
    return files


@contextmanager
def _sheet(
    width: float, height: float, title: str, words: Sequence[str]
) -> Iterator[tuple[Axes, float, dict[str, bytes]]]:
    """Axes in the units of the page with the title over and the words under what is drawn, which begins at the height
    that is given; the files are filled at the end.
    """
    import matplotlib
    from matplotlib.figure import Figure

    above = _wrapped(title, int(width / 9.6)) or [""]  # bold letters are wide
    below = [line for paragraph in words for line in _wrapped(paragraph, int(width / 5.9))]
    top = MARGIN + 20 * len(above) + 8
    whole = width + 2 * MARGIN, top + height + LINE * len(below) + MARGIN
    files: dict[str, bytes] = {}
    with matplotlib.rc_context(_SETTINGS), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Glyph")  # a letter that the font lacks is a box
        figure = Figure(figsize=(whole[0] / INCH, whole[1] / INCH), facecolor="white")
        axes = figure.add_axes((0.0, 0.0, 1.0, 1.0))
        axes.set_axis_off()
        yield axes, top, files
        for number, line in enumerate(above):
            _text(axes, MARGIN, MARGIN + 14 + 20 * number, line, weight="bold", size=15 * POINT)
        for number, line in enumerate(below):
            _text(axes, MARGIN, top + height + LINE * number, line, color=LIGHT["soft"], size=11 * POINT)
        axes.set_aspect("auto")
        axes.set(xlim=(0, whole[0]), ylim=(whole[1], 0))
        files |= {"svg": _saved(figure, "svg"), "png": _saved(figure, "png")}


def _wrapped(text: str, width: int) -> list[str]:
    """Names such as sum-sup stay whole."""
    return textwrap.wrap(text, width, break_on_hyphens=False)


def _saved(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=2 * INCH, metadata={"Date": None} if kind == "svg" else None)
    return buffer.getvalue()


def _panel(axes: Axes, drawing: Plot, curves: Curves, looks: Looks, left: float, top: float) -> None:
    def line(x1: float, y1: float, x2: float, y2: float, **how: Any) -> None:
        axes.plot([left + x1, left + x2], [top + y1, top + y2], **how)

    grid = {"color": LIGHT["line"], "linewidth": POINT}
    soft = {"color": LIGHT["soft"], "size": 12 * POINT}
    for y, text in drawing.y_ticks:
        line(drawing.left, y, drawing.right, y, **grid)
        _text(axes, left + drawing.left - 6, top + y + 4, text, ha="right", **soft)
    for x, text in drawing.x_ticks:
        line(x, drawing.bottom, x, drawing.bottom + 5, **grid)
        _text(axes, left + x, top + drawing.bottom + 19, text, ha="center", **soft)
    _text(axes, left + 2, top + 13, curves.y, **soft)
    _text(axes, left + (drawing.left + drawing.right) / 2, top + drawing.height - 6, curves.x, ha="center", **soft)
    for x1, y1, x2, y2, text in drawing.marks:
        line(x1, y1, x2, y2, color=LIGHT["soft"], linewidth=POINT, linestyle=(0, (3, 3)))
        _text(axes, left + x1 + 4, top + (y1 - 4 if y1 == y2 else y1 + 10), text, **soft)
    for own in drawing.lines:
        for band in own.bands:
            points = _places(band, left, top)
            axes.fill(points[:, 0], points[:, 1], color=looks.of(own.name)["color"], alpha=0.13, linewidth=0)
    for own in drawing.lines:
        _line(axes, own, looks.of(own.name), left, top)


def _line(axes: Axes, own: Line, look: Mapping[str, Any], left: float, top: float) -> None:
    from matplotlib.patheffects import withStroke

    for path in own.paths:
        points = _places(path, left, top)
        axes.plot(points[:, 0], points[:, 1], color=look["color"], linestyle=look["linestyle"], linewidth=2 * POINT)
    marked = np.array([*own.markers, own.label.key]) + np.array([left, top])
    axes.plot(marked[:, 0], marked[:, 1], color=look["color"], linestyle="none", marker=look["marker"],
              markersize=7 * POINT, markeredgewidth=1.5 * POINT)  # fmt: skip
    (x, y), label = own.label.end, own.label
    axes.plot(
        [left + x + 6, left + label.x - 4], [top + y, top + label.y], color=look["color"], linewidth=POINT, alpha=0.6
    )
    legible = [withStroke(linewidth=3 * POINT, foreground="white")]  # over a line
    _text(axes, left + label.text_x, top + label.y + 4, label.text, size=12 * POINT, path_effects=legible, zorder=4)


def _places(path: str, left: float, top: float) -> NDArray[np.float64]:
    points = [point.split(",") for point in path.split()]
    return np.array([[left + float(x), top + float(y)] for x, y in points])


def _text(axes: Axes, x: float, y: float, text: str, **how: Any) -> None:
    """Names are text, whatever they hold."""
    how = {"color": LIGHT["ink"], "size": FONT, **how}
    axes.text(x, y, plain(text), va="baseline", parse_math=False, **how)
