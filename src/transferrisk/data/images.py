"""From the bytes of an image file to three channels of bytes, whatever kind of image it is.

    alpha, palette with transparency   over white
    CMYK, YCbCr, greyscale, 1 bit      as RGB
    16 and 32 bit                      the highest 8 bits of those in use
    floating point                     0..1, or 0..largest where that is more
    EXIF orientation                   applied
    animated                           the first frame

Every image is scaled to a square, without cropping, as DomainBed does, by Pillow's bilinear filter, which averages over
the area a pixel covers.
"""

from __future__ import annotations

import io
import os
import warnings
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError

if TYPE_CHECKING:
    from PIL import Image

SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2", ".avif")
VERSION = 1  # of the decoder: part of the name of what is cached
MOST_PIXELS = 100_000_000  # an image that unpacks to more is taken for an attack, or a mistake

Pixels = NDArray[np.uint8]


class BadImageError(InputError):
    """These bytes are no image that can be read."""


def is_image(name: str) -> bool:
    return name.lower().endswith(SUFFIXES)


def decode_all(numbered: Iterable[tuple[int, bytes]], size: int) -> Iterator[tuple[int, Pixels | BadImageError]]:
    """(position, content) to (position, image or what is wrong with it), in order, by as many threads as processors.

    Pillow lets go of the interpreter while it works. The queue is bounded, so files do not pile up in memory.
    """

    def one(item: tuple[int, bytes]) -> tuple[int, Pixels | BadImageError]:
        try:
            return item[0], decode(item[1], size)
        except BadImageError as error:
            return item[0], error

    stream = iter(numbered)
    with ThreadPoolExecutor(os.cpu_count()) as pool, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of odd metadata; the pixels are what counts
        while batch := list(islice(stream, 256)):
            yield from pool.map(one, batch)


def decode(content: bytes, size: int) -> Pixels:
    """An image file as (3, size, size)."""
    from PIL import Image, UnidentifiedImageError

    if not content:
        raise BadImageError("it is empty")
    try:
        with Image.open(io.BytesIO(content)) as image:
            if image.width * image.height > MOST_PIXELS:
                raise BadImageError(f"it unpacks to {image.width} x {image.height} pixels, more than is safe to hold")
            image.draft("RGB", (2 * size, 2 * size))  # a JPEG can be decoded at a fraction of its size
            pixels = np.asarray(as_rgb(image).resize((size, size), Image.Resampling.BILINEAR))
    except UnidentifiedImageError:
        raise BadImageError("it is no image of a known kind") from None
    except (BadImageError, Image.DecompressionBombError) as error:
        raise BadImageError(str(error)) from None
    except (OSError, SyntaxError, ValueError, TypeError, IndexError, EOFError, KeyError, MemoryError) as error:
        # What Pillow's decoders raise on damaged files, by format.
        raise BadImageError(f"it is damaged ({' '.join(str(error).split()) or type(error).__name__})") from None
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def as_rgb(image: Image.Image) -> Image.Image:
    from PIL import Image, ImageOps

    image.load()
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith(("I", "F")):
        return Image.fromarray(_highest_byte(np.asarray(image))).convert("RGB")
    if image.mode in ("RGBA", "LA", "PA", "RGBa", "La") or "transparency" in image.info:
        image = image.convert("RGBA")
        white = Image.new("RGBA", image.size, "white")
        return Image.alpha_composite(white, image).convert("RGB")
    return image.convert("RGB")


def _highest_byte(values: NDArray[np.generic]) -> Pixels:
    """(h, w) of any number type as bytes. Pillow's own conversion clips instead, which turns most of an image white."""
    numbers = np.nan_to_num(values.astype(np.float64))
    largest = float(numbers.max(initial=0))
    # What is stored as 32 bits is nearly always a 16-bit image.
    bits = 65535.0 if largest <= 65535 else float(2**31 - 1)
    full = max(1.0, largest) if values.dtype.kind == "f" else bits
    return np.clip(numbers / full * 255, 0, 255).round().astype(np.uint8)
