"""Pictures of environments: a grid of images by class, like the paper's figure 3, or a scatter of vectors."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CLASSES = 10
MOST_ENVIRONMENTS = 24
GAP = 0.06  # between pictures, of a picture's height
CELL = 0.8  # inches
PALETTE = ("#1f4fd8", "#d1662b", "#2f8f5b", "#8e5ea2", "#b0952c", "#2f7ea8", "#a23b52", "#5b6770", "#7d9bf0", "#3c3c3c")


def picture_grid(
    pictures: Mapping[str, NDArray[np.uint8]], class_names: Sequence[str], environments: int | None = None
) -> bytes:
    """name -> (C, k, h, w, 3) as a PNG: a block for each environment, a column for each of the first ten classes.

    `environments` is how many there are, where these are not all.
    """
    from matplotlib.figure import Figure

    columns = min(len(class_names), MOST_CLASSES)
    rows = next(iter(pictures.values())).shape[1]
    figure = Figure(
        figsize=(CELL * columns + 0.3, len(pictures) * (CELL * rows + 0.42) + 0.45), dpi=160, layout="constrained"
    )
    axes = figure.subplots(len(pictures), 1, squeeze=False)[:, 0]
    for axis, (name, images) in zip(axes, pictures.items(), strict=True):
        canvas = mosaic(images[:columns])
        axis.imshow(canvas, interpolation="nearest")
        axis.set_title(_short(name, 60), loc="left", fontsize=10, fontweight="bold", parse_math=False)
        axis.set_yticks([])
        axis.tick_params(length=0, labelsize=8)
        step = canvas.shape[1] / columns
        places = [step * (c + 0.5) for c in range(columns)]
        axis.set_xticks(places, [_short(n) for n in class_names[:columns]], parse_math=False)
        axis.spines[:].set_visible(False)
    left_out = _left_out(columns, len(class_names), len(pictures), environments)
    if left_out:
        figure.supxlabel(left_out, fontsize=8)
    return _png(figure)


def scatter_grid(
    points: Mapping[str, NDArray[np.float64]], class_names: Sequence[str], environments: int | None = None
) -> bytes:
    """name -> (m, 3) of two coordinates and a label, as a PNG: a panel for each environment, axes shared."""
    from matplotlib.figure import Figure

    columns = min(len(points), 4)
    rows = math.ceil(len(points) / columns)
    figure = Figure(figsize=(2.6 * columns + 1.4, 2.5 * rows + 0.4), dpi=160, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flatten()
    for axis in axes[len(points) :]:
        axis.set_visible(False)
    shown = class_names[:MOST_CLASSES]
    handles: list[Any] = []
    for axis, (name, values) in zip(axes, points.items(), strict=False):
        clouds = []
        for c in range(len(shown)):
            members = values[values[:, 2] == c]
            marker = "o^sDvP*X<>"[c]
            clouds.append(
                axis.scatter(*members[:, :2].T, s=5, alpha=0.6, linewidths=0, color=PALETTE[c], marker=marker)
            )
        handles = handles or clouds
        axis.set_title(_short(name, 30), loc="left", fontsize=9, parse_math=False)
        axis.tick_params(labelsize=7)
    left_out = _left_out(len(shown), len(class_names), len(points), environments)
    figure.supxlabel("first principal component" + (f"; {left_out}" if left_out else ""), fontsize=8)
    figure.supylabel("second", fontsize=8)
    legend = figure.legend(
        handles, ["x"] * len(shown), loc="outside right upper", fontsize=8, markerscale=2, frameon=False
    )
    # Afterwards, since labels that begin with "_" would be left out.
    for text, label in zip(legend.get_texts(), shown, strict=True):
        text.set_parse_math(False)
        text.set_text(_short(label, 24))
    return _png(figure)


def _left_out(classes: int, all_classes: int, environments: int, all_environments: int | None) -> str:
    """What a picture does not show; "" where it shows all."""
    parts = [
        f"the first {shown} of {there} {what}"
        for shown, there, what in (
            (classes, all_classes, "classes"), (environments, all_environments or environments, "environments"),
        )
        if shown < there
    ]  # fmt: skip
    return ", ".join(parts)


def mosaic(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(C, k, h, w, 3) to one picture with k rows and C columns."""
    C, k, h, w, _ = images.shape
    gap = max(1, round(GAP * h))
    canvas = np.full((k * (h + gap), C * (w + gap), 3), 255, np.uint8)
    for c in range(C):
        for i in range(k):
            canvas[i * (h + gap) : i * (h + gap) + h, c * (w + gap) : c * (w + gap) + w] = images[c, i]
    return canvas


def _short(name: str, most: int = 11) -> str:
    name = name.replace("_", " ")
    return name if len(name) <= most else name[: most - 1] + "…"


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor="white")
    return buffer.getvalue()
