"""Pictures of environments: a grid of images by class, like the paper's figure 3, or a scatter of vectors."""

from __future__ import annotations

import io
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    from matplotlib.figure import Figure

MOST_CLASSES = 10
GAP = 0.06  # between pictures, of a picture's height
CELL = 0.8  # inches
PALETTE = ("#1f4fd8", "#d1662b", "#2f8f5b", "#8e5ea2", "#b0952c", "#2f7ea8", "#a23b52", "#5b6770", "#7d9bf0", "#3c3c3c")


def picture_grid(pictures: Mapping[str, NDArray[np.uint8]], class_names: Sequence[str]) -> bytes:
    """name -> (C, k, h, w, 3) as a PNG: a block for each environment, a column for each of the first ten classes."""
    from matplotlib.figure import Figure

    columns = min(len(class_names), MOST_CLASSES)
    rows = next(iter(pictures.values())).shape[1]
    figure = Figure(
        figsize=(CELL * columns + 0.3, len(pictures) * (CELL * rows + 0.42) + 0.45), dpi=160, layout="constrained"
    )
    axes = figure.subplots(len(pictures), 1, squeeze=False)[:, 0]
    for axis, (name, images) in zip(axes, pictures.items(), strict=True):
        canvas = _mosaic(images[:columns])
        axis.imshow(canvas, interpolation="nearest")
        axis.set_title(name, loc="left", fontsize=10, fontweight="bold")
        axis.set_yticks([])
        axis.tick_params(length=0, labelsize=8)
        step = canvas.shape[1] / columns
        axis.set_xticks([step * (c + 0.5) for c in range(columns)], [_short(n) for n in class_names[:columns]])
        axis.spines[:].set_visible(False)
    if len(class_names) > columns:
        figure.supxlabel(f"the first {columns} of {len(class_names)} classes", fontsize=8)
    return _png(figure)


def scatter_grid(points: Mapping[str, NDArray[np.float32]], class_names: Sequence[str]) -> bytes:
    """name -> (m, 3) of two coordinates and a label, as a PNG: a panel for each environment, axes shared."""
    from matplotlib.figure import Figure

    columns = min(len(points), 4)
    rows = math.ceil(len(points) / columns)
    figure = Figure(figsize=(2.6 * columns + 1.4, 2.5 * rows + 0.4), dpi=160, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False, sharex=True, sharey=True).flatten()
    for axis in axes[len(points) :]:
        axis.set_visible(False)
    shown = class_names[:MOST_CLASSES]
    for axis, (name, values) in zip(axes, points.items(), strict=False):
        for c, label in enumerate(shown):
            members = values[values[:, 2] == c]
            axis.scatter(
                *members[:, :2].T, s=5, alpha=0.6, linewidths=0, color=PALETTE[c], marker="o^sDvP*X<>"[c], label=label
            )
        axis.set_title(name, loc="left", fontsize=9)
        axis.tick_params(labelsize=7)
    figure.supxlabel("first principal component", fontsize=8)
    figure.supylabel("second", fontsize=8)
    handles, labels = axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right upper", fontsize=8, markerscale=2, frameon=False)
    return _png(figure)


def _mosaic(images: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """(C, k, h, w, 3) to one picture with k rows and C columns."""
    C, k, h, w, _ = images.shape
    gap = max(1, round(GAP * h))
    canvas = np.full((k * (h + gap), C * (w + gap), 3), 255, np.uint8)
    for c in range(C):
        for i in range(k):
            canvas[i * (h + gap) : i * (h + gap) + h, c * (w + gap) : c * (w + gap) + w] = images[c, i]
    return canvas


def _short(name: str, most: int = 11) -> str:
    name = name.replace("_", " ").replace("$", r"\$")
    return name if len(name) <= most else name[: most - 1] + "…"


def _png(figure: Figure) -> bytes:
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", facecolor="white")
    return buffer.getvalue()
