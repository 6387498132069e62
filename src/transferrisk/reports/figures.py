"""Colours of methods, and pictures for the page as PNG."""

from __future__ import annotations

import base64
import io

import numpy as np
from numpy.typing import NDArray

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
    "oracle": "#3c3c3c",
}
"""The same colour for a method everywhere; the oracle is ERM on data without the shift."""


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
