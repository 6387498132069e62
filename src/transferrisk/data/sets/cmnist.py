"""10c-cmnist: MNIST's 60000 training digits, binarised and coloured (section 5.1 and appendix B.1.1).

Source        <root>/MNIST/raw/train-{images-idx3,labels-idx1}-ubyte[.gz]; other sets in the same format by folder name,
              such as 10c-cmnist:FashionMNIST
Shifts        label-correlated, label-uncorrelated, combined (`shifts.Shift`)
"""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from ...errors import InputError
from ..catalogue import DataSet, register
from ..environments import Splits
from ..facts import Facts
from ..idx import read_idx
from ..options import Options
from ..root import VARIABLE, data_root
from ..shifts import Shift
from ..sources import FASHION_MNIST, MNIST
from .ten_colours import build

SOURCES = {"MNIST": MNIST, "FashionMNIST": FASHION_MNIST}  # by folder

FACTS = Facts(
    name="10c-cmnist",
    title="10C-CMNIST: MNIST's training digits, binarised and coloured",
    licence=MNIST.licence,
    citation="Xu & Jaakkola (2021), Learning Representations that Support Robust Transfer of Predictors; "
    + MNIST.citation,
    environments={"bias 100%": 16000, "bias 90%": 16000, "unbiased": 16000},
    test="unbiased",
    validation=12000,
    classes=MNIST.classes,
    shape=(3, 28, 28),
    needs=("mnist",),
    departures="none known; where the paper is silent, a background is at most 0.75 bright: digits stay visible",
)


def load(
    seed: int,
    shift: Shift | None = None,
    root: Path | str | None = None,
    source: str = "MNIST",
    oracle: bool = False,
    device: torch.device | str = "cpu",
) -> Splits:
    """One draw of the set; `source` names the folder below the data root that holds the idx files."""
    images, labels = load_idx(data_root(root), source)
    shapes = (images.to(device) > 0).to(torch.float32).unsqueeze(1)  # (n, 1, 28, 28)
    names = SOURCES.get(source, MNIST).classes
    return build(shapes, labels, names, shift or Shift(), seed, oracle)


def load_idx(root: Path, source: str) -> tuple[Tensor, Tensor]:
    """The training part of an idx set: images (n, 28, 28) and labels (n,)."""
    parts = []
    for name in ("train-images-idx3-ubyte", "train-labels-idx1-ubyte"):
        folder = root / source / "raw"
        found = [path for path in (folder / f"{name}.gz", folder / name) if path.is_file()]
        if not found:
            known = SOURCES.get(source)
            how = f"run trm data fetch {known.name}" if known else f"put {source}'s idx files there"
            raise InputError(
                f"{folder / name}.gz does not exist: {how}, or say where the data is with --data-root or ${VARIABLE}"
            )
        parts.append(read_idx(found[0]))
    images, labels = parts
    if images.dim() != 3 or labels.dim() != 1 or len(images) != len(labels):
        raise InputError(f"{root / source}: images {tuple(images.shape)} and labels {tuple(labels.shape)} do not match")
    if int(labels.max()) > 9:
        raise InputError(f"{root / source} has label {int(labels.max())}: ten colours go with ten classes, 0 to 9")
    return images, labels.long()


def _load(source: str, asked: Options) -> Splits:
    return load(asked.seed, asked.shift, asked.root, source or "MNIST", asked.oracle, asked.device)


def _needs(source: str) -> tuple[str, ...]:
    known = SOURCES.get(source or "MNIST")
    return (known.name,) if known else ()


register(DataSet(FACTS, _load, takes=frozenset({"shift", "oracle", "device"}), argument="[FOLDER]", needs=_needs))
