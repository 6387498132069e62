"""10c-digits: scikit-learn's embedded digits, coloured as in 10C-CMNIST.

1797 digits of 8 x 8, each in 8 places on a canvas of 10 x 10.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from ..catalogue import DataSet, register
from ..environments import Splits
from ..facts import Facts
from ..options import Options
from ..shifts import Shift
from .ten_colours import build

CANVAS = 10
VIEWS = 8

FACTS = Facts(
    name="10c-digits",
    title="scikit-learn's digits, coloured as in 10C-CMNIST: needs no download",
    licence="BSD-3-Clause, with scikit-learn",
    citation="Alpaydin & Kaynak (1998), Optical Recognition of Handwritten Digits, UCI Machine Learning Repository",
    homepage="https://archive.ics.uci.edu/dataset/80",
    environments={"bias 100%": 3832, "bias 90%": 3832, "unbiased": 3832},
    test="unbiased",
    validation=2880,
    classes=tuple("0123456789"),
    shape=(3, CANVAS, CANVAS),
    departures="grey levels are kept, where the paper binarises MNIST, because at 8 x 8 they carry much of the shape; "
    "and a digit is shown in several places, because 479 images an environment are learnt by heart",
)


def load(seed: int, shift: Shift | None = None, oracle: bool = False) -> Splits:
    from sklearn.datasets import load_digits  # takes a second to import, and only this needs it

    digits = load_digits()
    shapes = torch.tensor(digits.images, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)
    views = placed(shapes, VIEWS, CANVAS, Generator().manual_seed(10_000 + seed))
    return build(views, labels, FACTS.classes, shift or Shift(), seed, oracle)


def placed(shapes: Tensor, views: int, canvas: int, generator: Generator) -> Tensor:
    """Each shape (n, h, w) in `views` different places of a larger canvas, (n, views, canvas, canvas)."""
    n, h, w = shapes.shape
    rows, columns = canvas - h + 1, canvas - w + 1
    places = torch.rand(n, rows * columns, generator=generator).argsort(1)[:, :views]  # (n, views)
    every = torch.stack(
        [
            torch.nn.functional.pad(shapes, (x, canvas - w - x, y, canvas - h - y))
            for y in range(rows)
            for x in range(columns)
        ],
        1,
    )  # (n, rows columns, canvas, canvas)
    return every[torch.arange(n).unsqueeze(1), places]


def _load(_: str, asked: Options) -> Splits:
    return load(asked.seed, asked.shift, asked.oracle)


register(DataSet(FACTS, _load, takes=frozenset({"shift", "oracle"})))
