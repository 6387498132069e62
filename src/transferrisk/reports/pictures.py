"""Pictures of environments: grids of images by class, as in the paper's figure 3, and scatters of vectors."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import one_line
from .charts import LINE, sheet_files
from .elements import METHODS

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

MOST_CLASSES = 10
MOST_ENVIRONMENTS = 24
GAP = 0.06  # between pictures, as a share of a picture's height
CELL = 0.8  # inches
BLOCK = 300.0  # width of an environment's pictures on a sheet
SCATTER = (METHODS["trm"][1], "#d1662b", "#2f8f5b", "#8e5ea2", "#b0952c", "#2f7ea8", "#a23b52", "#5b6770", "#7d9bf0",
           "#3c3c3c")  # fmt: skip


def mosaic(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Return images (C, k, h, w, 3) as one picture with k rows and C columns."""
    C, k, h, w, _ = images.shape
    gap = max(1, round(GAP * h))
    canvas = np.full((C, k, h + gap, w + gap, 3), 255, np.uint8)
    canvas[:, :, :h, :w] = images
    return canvas.transpose(1, 2, 0, 3, 4).reshape(k * (h + gap), C * (w + gap), 3)


def picture_uri(images: NDArray[np.uint8]) -> str:
    """Return images (C, k, h, w, 3) as the data URI of a PNG that is not scaled; pages scale it."""
    from matplotlib.image import imsave

    buffer = io.BytesIO()
    imsave(buffer, mosaic(images), format="png")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def picture_files(
    pictures: Mapping[str, Mapping[str, NDArray[np.uint8]]], title: str, words: Sequence[str]
) -> dict[str, bytes]:
    """Return suffix -> file of a figure with a row for each run, its environments side by side."""
    columns = max(map(len, pictures.values()))
    shapes = [mosaic(images).shape for own in pictures.values() for images in own.values()]
    height = max(BLOCK * shape[0] / shape[1] for shape in shapes) + 3 * LINE

    def draw(figure: Figure) -> None:
        rows = np.ravel(figure.subfigures(len(pictures), 1, squeeze=False))
        for row, (name, own) in zip(rows, pictures.items(), strict=True):
            row.suptitle(_short(name, 90), x=0.01, ha="left", fontsize=12, fontweight="bold")
            for axes in row.subplots(1, columns, squeeze=False)[0]:
                axes.set_axis_off()
            for axes, (environment, images) in zip(row.axes, own.items(), strict=False):
                axes.imshow(mosaic(images), interpolation="nearest")
                axes.set_title(_short(environment, 40), loc="left", fontsize=11)

    return sheet_files(columns * BLOCK, len(pictures) * height, title, words, draw)


def picture_grid(
    pictures: Mapping[str, NDArray[np.uint8]], class_names: Sequence[str], environments: int | None = None
) -> bytes:
    """Return a PNG with a block for each environment and a column for each of the first ten classes.

    pictures      name of an environment -> images (C, k, h, w, 3)
    environments  number of all environments, if these are not all
    """
    from matplotlib.figure import Figure

    columns = min(len(class_names), MOST_CLASSES)
    rows = next(iter(pictures.values())).shape[1]
    figure = Figure(
        figsize=(CELL * columns + 0.3, len(pictures) * (CELL * rows + 0.42) + 0.45), dpi=160, layout="constrained"
    )
    for axes, (name, images) in zip(
        figure.subplots(len(pictures), 1, squeeze=False)[:, 0], pictures.items(), strict=True
    ):
        _draw_classes(axes, name, images[:columns], class_names[:columns])
    left_out = left_out_words(columns, len(class_names), len(pictures), environments)
    if left_out:
        figure.supxlabel(left_out, fontsize=8)
    return _png(figure)


def _draw_classes(axes: Axes, name: str, images: NDArray[np.uint8], class_names: Sequence[str]) -> None:
    canvas = mosaic(images)
    axes.imshow(canvas, interpolation="nearest")
    axes.set_title(_short(name, 60), loc="left", fontsize=10, fontweight="bold", parse_math=False)
    axes.set_yticks([])
    axes.tick_params(length=0, labelsize=8)
    step = canvas.shape[1] / len(class_names)
    places = [step * (c + 0.5) for c in range(len(class_names))]
    axes.set_xticks(places, [_short(label) for label in class_names], parse_math=False)
    axes.spines[:].set_visible(False)


def scatter_grid(
    points: Mapping[str, NDArray[np.float64]], class_names: Sequence[str], environments: int | None = None
) -> bytes:
    """Return a PNG with a panel for each environment, whose points (m, 3) are two coordinates and a label."""
    from matplotlib.figure import Figure

    columns = min(len(points), 4)
    rows = math.ceil(len(points) / columns)
    figure = Figure(figsize=(2.6 * columns + 1.4, 2.5 * rows + 0.4), dpi=160, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flatten()
    for axes in panels[len(points) :]:
        axes.set_visible(False)
    shown = class_names[:MOST_CLASSES]
    handles: list[Any] = []
    for axes, (name, values) in zip(panels, points.items(), strict=False):
        clouds = []
        for c in range(len(shown)):
            members, marker = values[values[:, 2] == c], "o^sDvP*X<>"[c]
            clouds.append(
                axes.scatter(*members[:, :2].T, s=5, alpha=0.6, linewidths=0, color=SCATTER[c], marker=marker)
            )
        handles = handles or clouds
        axes.set_title(_short(name, 30), loc="left", fontsize=9, parse_math=False)
        axes.tick_params(labelsize=7)
    left_out = left_out_words(len(shown), len(class_names), len(points), environments)
    figure.supxlabel("first principal component" + (f"; {left_out}" if left_out else ""), fontsize=8)
    figure.supylabel("second", fontsize=8)
    legend = figure.legend(
        handles, ["x"] * len(shown), loc="outside right upper", fontsize=8, markerscale=2, frameon=False
    )
    for text, label in zip(legend.get_texts(), shown, strict=True):  # afterwards, since "_x" would be left out
        text.set_parse_math(False)
        text.set_text(_short(label, 24))
    return _png(figure)


def left_out_words(classes: int, all_classes: int, environments: int, all_environments: int | None) -> str:
    """Return which classes and environments a picture leaves out, "" if it shows all."""
    counts = ((classes, all_classes, "classes"), (environments, all_environments or environments, "environments"))
    return ", ".join(f"the first {shown} of {there} {what}" for shown, there, what in counts if shown < there)


def _short(name: str, most: int = 11) -> str:
    name = one_line(name.replace("_", " "))
    return name if len(name) <= most else name[: most - 1] + "…"


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor="white")
    return buffer.getvalue()
