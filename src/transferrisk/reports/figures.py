"""Pictures and charts for the page, as SVG markup and PNG bytes."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .tables import Row

COLOURS = {
    "erm": "#5b6770",
    "reweight": "#8c6d31",
    "irm": "#b5651d",
    "vrex": "#8e5ea2",
    "groupdro": "#3a7d6b",
    "mldg": "#a23b52",
    "fish": "#2f7ea8",
    "trm": "#1f4fd8",
    "trm-direct": "#7d9bf0",
}
"""The same colour for a method everywhere."""


@dataclass(frozen=True)
class Bar:
    """A horizontal bar with an interval, in units of the chart's width (0..100)."""

    name: str
    colour: str
    length: float
    low: float
    high: float
    text: str


def accuracy_bars(rows: Sequence[Row]) -> list[Bar]:
    return [
        Bar(
            name=row.name,
            colour=COLOURS.get(row.algorithm, "#444444"),
            length=100 * row.test.mean,
            low=max(0.0, 100 * (row.test.mean - row.test.std)),
            high=min(100.0, 100 * (row.test.mean + row.test.std)),
            text=f"{row.test.percent()} %",
        )
        for row in rows
    ]


@dataclass(frozen=True)
class Cell:
    """One entry of a transfer matrix; `strength` 0..1 says how dark it is."""

    text: str
    strength: float
    own: bool


def heat_cells(row: Row, largest: float) -> list[list[Cell]]:
    return [
        [Cell(f"{loss:.3f}", min(1.0, loss / largest), own=q == p) for p, loss in enumerate(losses)]
        for q, losses in enumerate(row.transfer_matrix)
    ]


def picture_strip(pictures: NDArray[np.uint8], scale: int = 4) -> str:
    """Images (classes, per class, h, w, 3) side by side, one class a column, as a PNG data URI."""
    from matplotlib.image import imsave  # only pages need it

    classes, per_class, h, w, _ = pictures.shape
    framed = np.zeros((classes, per_class, h + 1, w + 1, 3), np.uint8)
    framed[:, :, :h, :w] = pictures
    strip = framed.transpose(1, 2, 0, 3, 4).reshape(per_class * (h + 1), classes * (w + 1), 3)
    buffer = io.BytesIO()
    imsave(buffer, strip.repeat(scale, 0).repeat(scale, 1), format="png")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()
