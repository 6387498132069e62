"""Ten classes in ten colours: the colouring of 10C-CMNIST, on any grey images of ten classes.

Causal         the shape
Non-causal     its colour, one of ten, tied to the label by a random bijection a run; white where it takes no part
Dummy          the colour of the background, one of five that each environment draws for itself, at most 0.75 bright;
               black where it takes no part
Splits         16000 for each of two training environments and the test, 12000 for validation, or in proportion; see
               `synthetic`
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from ..environments import Splits
from ..shifts import Shift
from . import synthetic

COLOURS = torch.tensor(
    [
        (0, 100, 0), (188, 143, 143), (255, 0, 0), (255, 215, 0), (0, 255, 0),
        (65, 105, 225), (0, 225, 225), (0, 0, 255), (255, 20, 147), (180, 180, 180),
    ],
    dtype=torch.uint8,
)  # fmt: skip
"""The ten digit colours of appendix B.1.1, RGB."""

WHITE = torch.tensor([[255, 255, 255]], dtype=torch.uint8)
BLACK = torch.zeros(1, 3, dtype=torch.uint8)
BRIGHTEST = 0.75  # of a background, as a share of white


def build(
    shapes: Tensor, labels: Tensor, class_names: tuple[str, ...], shift: Shift, seed: int, oracle: bool = False
) -> Splits:
    """shapes (n, v, h, w) in 0..1: how much of each pixel is ink, in v views of each sample; labels (n,).

    Pictures are painted where the shapes are; the rest is as in `synthetic.build`.
    """
    device = shapes.device

    def coloured(index: Tensor, values: Tensor | None, dummies: Tensor | None, _: Generator) -> Tensor:
        views = shapes[index.to(device)].flatten(0, 1)
        ink = WHITE.expand(len(views), -1) if values is None else COLOURS[values]
        paper = BLACK.expand(len(views), -1) if dummies is None else (256 * BRIGHTEST * dummies).to(torch.uint8)
        return paint(views, ink.to(device), paper.to(device))

    return synthetic.build(coloured, labels, class_names, shift, seed, oracle, views=shapes.shape[1])


def paint(shapes: Tensor, ink: Tensor, paper: Tensor) -> Tensor:
    """Shapes (n, h, w) in 0..1 in one colour each (n, 3) on a background each (n, 3): images (n, 3, h, w) uint8."""
    images = torch.empty(len(shapes), 3, *shapes.shape[1:], dtype=torch.uint8, device=shapes.device)
    for channel in range(3):  # one at a time: the largest temporary is a third of the images as floats
        low, high = (colours[:, channel, None, None].float() for colours in (paper, ink))
        images[:, channel] = torch.lerp(low, high, shapes).round_().to(torch.uint8)
    return images
