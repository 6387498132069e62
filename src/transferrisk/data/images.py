"""Decoding of image files of any kind to three channels of bytes.

    alpha, palette with transparency   over white
    CMYK, YCbCr, greyscale, 1 bit      as RGB
    16 bit, or as a TIFF states        the highest 8 bits, dark pictures stay dark
    32 bit                             the same for 16 bits where those hold all of it, else for 31
    floating point                     0..1, or 0..largest where that is more
    EXIF orientation                   applied
    animated                           the first frame

Every image is scaled to a square, without cropping, as DomainBed does, by Pillow's bilinear filter, which averages over
the area a pixel covers.
"""

from __future__ import annotations

import io
import os
import struct
import warnings
import zlib
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, nullcontext
from threading import Lock
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import BadImageError, InputError, cause_of

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".pnm", ".jp2",
            ".avif", ".jfif", ".jpe")  # fmt: skip
RELATIVES = (".heic", ".heif", ".ico", ".tga", ".svg", ".psd", ".dng", ".raw", ".jxl", ".exr", ".pcx", ".dcm")
"""Suffixes of image files that are not decoded."""
VERSION = 2  # of the decoder; part of the names in the cache
BITS_PER_SAMPLE = 258  # TIFF's tag
QUEUE = 1 << 28  # bytes of decoded images that wait, roughly
MOST_PIXELS = 100_000_000  # an image that unpacks to more is taken for an attack or a mistake
MOST_DEEP = 40_000_000  # of more than 8 bits or transparent ones, of which several copies are held
SHALLOW = ("1", "L", "P", "RGB", "YCbCr", "CMYK", "LAB", "HSV")
LARGE = 10_000_000  # pixels from which on images are decoded one at a time
_ONE_LARGE = Lock()

Pixels = NDArray[np.uint8]


def is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def decode_all(
    numbered: Iterable[tuple[int, bytes | InputError]], size: int
) -> Iterator[tuple[int, Pixels | BadImageError]]:
    """Decode images, each (position, content), to (position, image or error), in order, with a thread per processor.

    Pillow releases the interpreter while it works. The queue is bounded, so files do not pile up in memory.
    """

    def one(item: tuple[int, bytes | InputError]) -> tuple[int, Pixels | BadImageError]:
        position, content = item
        if isinstance(content, InputError):
            return position, BadImageError(str(content))
        try:
            return position, decode(content, size)
        except BadImageError as error:
            return position, error

    threads = os.cpu_count() or 1
    at_once = max(threads, min(256, QUEUE // (3 * size * size)))
    with ThreadPoolExecutor(threads) as pool:
        for batch in _batches(numbered, at_once):
            with _quietly():
                decoded = list(pool.map(one, batch))
            yield from decoded


def _batches(
    numbered: Iterable[tuple[int, bytes | InputError]], most: int
) -> Iterator[list[tuple[int, bytes | InputError]]]:
    """Yield lists of at most so many items, and of hardly more bytes than the queue may hold."""
    batch: list[tuple[int, bytes | InputError]] = []
    size = 0
    for position, content in numbered:
        batch.append((position, content))
        size += 0 if isinstance(content, InputError) else len(content)
        if len(batch) == most or size >= QUEUE:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


@contextmanager
def _quietly() -> Iterator[None]:
    """Silence Pillow's warnings about odd metadata: only the pixels count."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


def decode(content: bytes, size: int, expected: tuple[int, int] | None = None) -> Pixels:
    """Return the image in a file as (3, size, size).

    `expected` is the (width, height) its stored pixels must have; they are then left as they are stored, since
    something else, such as a mask, refers to them.
    """
    from PIL import Image, UnidentifiedImageError

    if not content:
        raise BadImageError("it is empty")
    try:
        with Image.open(io.BytesIO(content)) as image:
            if expected is not None and image.size != expected:
                raise BadImageError("it has {} x {} pixels where {} x {} are expected".format(*image.size, *expected))
            deep = image.mode not in SHALLOW or "transparency" in image.info
            pixels = image.width * image.height
            if pixels > (MOST_DEEP if deep else MOST_PIXELS):
                kind = f"{image.mode} pixels" if deep else "pixels"
                raise BadImageError(f"it unpacks to {image.width} x {image.height} {kind}, more than is safe to hold")
            image.draft("RGB", (2 * size, 2 * size))  # a JPEG can be decoded at a fraction of its size
            with _ONE_LARGE if pixels > LARGE else nullcontext():
                whole = _as_bytes(image, upright=expected is None)
                square = whole.resize((size, size), Image.Resampling.BILINEAR).convert("RGB")
    except UnidentifiedImageError:
        raise BadImageError("it is not an image of a known kind") from None
    except (BadImageError, Image.DecompressionBombError) as error:
        raise BadImageError(str(error)) from None
    except (OSError, SyntaxError, ValueError, TypeError, IndexError, EOFError, KeyError, MemoryError, RuntimeError,
            struct.error, zlib.error) as error:  # fmt: skip
        # Errors of Pillow's decoders on damaged files, over all formats.
        raise BadImageError(f"it is damaged ({cause_of(error)})") from None
    return np.ascontiguousarray(np.asarray(square).transpose(2, 0, 1))


def as_rgb(image: Image.Image) -> Image.Image:
    """Return an image of any mode in three channels of bytes, turned by its EXIF orientation."""
    return _as_bytes(image, upright=True).convert("RGB")


def _as_bytes(image: Image.Image, upright: bool) -> Image.Image:
    """Return an image of any mode in one or three channels of bytes; `upright` turns it by its EXIF orientation."""
    from PIL import Image, ImageOps

    bits = getattr(image, "tag_v2", {}).get(BITS_PER_SAMPLE, (16,))
    image.load()
    if upright:
        ImageOps.exif_transpose(image, in_place=True)
    if image.mode.startswith(("I", "F")):
        return Image.fromarray(_highest_byte(np.asarray(image), min(*bits, 16)))
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        if image.mode != "RGBA":
            image = image.convert("RGBA")
        over_white = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
        return over_white.convert("RGB")
    return image if image.mode in ("RGB", "L") else image.convert("RGB")


def _highest_byte(values: NDArray[np.generic], bits: int) -> Pixels:
    """Return (h, w) of any number type as bytes; integers have `bits` bits, or 31 where one is larger.

    Pillow's own conversion clips instead, which turns most of an image white. Rows are taken a few at a time, since
    they are held as float64.
    """
    rows = np.array_split(values, max(1, values.size >> 20))
    largest = max(float(np.nan_to_num(some.astype(np.float64)).max(initial=0)) for some in rows)
    whole = float(2**bits - 1)
    full = max(1.0, largest) if values.dtype.kind == "f" else whole if largest <= whole else float(2**31 - 1)
    found = np.empty(values.shape, np.uint8)
    for some, target in zip(rows, np.array_split(found, len(rows)), strict=True):
        target[:] = np.clip(np.nan_to_num(some.astype(np.float64)) / full * 255, 0, 255).round()
    return found
