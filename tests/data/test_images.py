"""Every kind of image file becomes the right colours, or one clear reason why not."""

from __future__ import annotations

import io
import struct
import tracemalloc
import warnings
import zlib
from contextlib import suppress

import numpy as np
import pytest
from drawn import BLUE, GREEN, RED, WHITE, picture
from PIL import Image, features

from transferrisk.data.images import decode, decode_all
from transferrisk.errors import BadImageError, InputError


def saved(image, kind="PNG", **options):
    buffer = io.BytesIO()
    image.save(buffer, kind, **options)
    return buffer.getvalue()


def flat(colour):
    return Image.new("RGB", (6, 6), colour)


def colour_of(content, size=4):
    """The one colour of a flat image."""
    image = decode(content, size)
    assert image.shape == (3, size, size)
    assert image.dtype == np.uint8
    assert (image == image[:, :1, :1]).all()
    return tuple(int(c) for c in image[:, 0, 0])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (picture(RED), RED),
        (picture(RED, kind="BMP"), RED),
        (picture(RED, kind="TIFF"), RED),
        (picture(RED, kind="WEBP", lossless=True), RED),
        (picture(77, mode="L"), (77, 77, 77)),
        (picture(1, mode="1"), WHITE),
        (picture((*BLUE, 255), mode="RGBA"), BLUE),
        (picture((*BLUE, 0), mode="RGBA"), WHITE),
        (picture((0, 0, 0, 128), mode="RGBA"), (127, 127, 127)),
        (picture((50, 255), mode="LA"), (50, 50, 50)),
        (saved(flat(GREEN).quantize(4)), GREEN),
        (saved(flat(GREEN).quantize(4), transparency=0), WHITE),
        (saved(Image.fromarray(np.full((5, 5), 0x8000, np.uint16))), (128, 128, 128)),
        (saved(Image.fromarray(np.full((5, 5), 0xFFFF, np.uint16)), "TIFF"), WHITE),
        (saved(Image.fromarray(np.full((5, 5), 30000, np.int32)), "TIFF"), (117, 117, 117)),
        (saved(Image.fromarray(np.full((5, 5), 0.5, np.float32)), "TIFF"), (128, 128, 128)),
        (saved(flat(RED), "GIF", save_all=True, append_images=[flat(BLUE)]), RED),
    ],
    ids=lambda value: "",
)  # fmt: skip
def test_kinds(content, expected):
    assert colour_of(content) == pytest.approx(expected, abs=1)


def test_cmyk_jpeg():
    # Cyan and magenta full, no black: blue.
    content = picture((255, 255, 0, 0), mode="CMYK", kind="JPEG", quality=95)
    red, green, blue = colour_of(content)
    assert red < 60
    assert green < 60
    assert blue > 180


def test_scaled_to_a_square_without_cropping():
    wide = np.zeros((10, 40, 3), np.uint8)
    wide[:, :20] = RED
    wide[:, 20:] = BLUE
    image = decode(saved(Image.fromarray(wide)), 8)
    assert tuple(image[:, 0, 0]) == RED
    assert tuple(image[:, 7, 7]) == BLUE


def test_orientation_is_applied():
    upright = np.zeros((8, 8, 3), np.uint8)
    upright[:4] = RED
    exif = Image.Exif()
    exif[0x0112] = 3  # rotated by half a turn
    image = decode(saved(Image.fromarray(upright), exif=exif), 8)
    assert tuple(image[:, 7, 0]) == RED
    assert tuple(image[:, 0, 0]) == (0, 0, 0)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (b"", "empty"),
        (b"not an image at all", "not an image"),
        (picture(size=(200, 200), kind="PNG")[:-40], "damaged"),
        (picture(size=(200, 200), kind="JPEG")[:400], "damaged|no image"),
        (picture(size=(64, 64), kind="WEBP")[:40], "damaged|no image"),
        (picture()[:8] + b"\0" * 50, "not an image|damaged"),
    ],
)
def test_bad_images(content, why):
    with pytest.raises(BadImageError, match=why) as error:
        decode(content, 8)
    assert "\n" not in str(error.value)


def test_an_image_that_unpacks_to_too_much(monkeypatch):
    monkeypatch.setattr("transferrisk.data.images.MOST_PIXELS", 100)
    with pytest.raises(BadImageError, match="12 x 9 pixels"):
        decode(picture(), 8)


def test_deep_images_are_held_once_and_refused_earlier(monkeypatch):
    """Of 16 bits: 4 million pixels are 8 MB, of which several copies were held in float64."""
    values = np.arange(4_000_000, dtype=np.uint16).reshape(2000, 2000)
    buffer = io.BytesIO()
    Image.fromarray(values).save(buffer, "PNG", compress_level=1)
    tracemalloc.start()
    found = decode(buffer.getvalue(), 8)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    whole = Image.fromarray((values / 65535 * 255).round().astype(np.uint8)).convert("RGB")
    np.testing.assert_array_equal(found[0], np.asarray(whole.resize((8, 8), Image.Resampling.BILINEAR))[..., 0])
    assert peak < 60 << 20  # NumPy's part: three copies in float64 would be 96
    monkeypatch.setattr("transferrisk.data.images.MOST_DEEP", 100)
    with pytest.raises(BadImageError, match="2000 x 2000 I;16 pixels"):
        decode(buffer.getvalue(), 8)


def test_many_keep_their_positions_and_their_faults():
    contents = [(i, picture((i % 256, i // 256, 0))) for i in range(300)]
    contents[17] = (17, b"")
    results = dict(decode_all(contents, 2))
    assert sorted(results) == list(range(300))
    assert isinstance(results.pop(17), BadImageError)
    assert all(int(image[0, 0, 0]) + 256 * int(image[1, 0, 0]) == i for i, image in results.items())


def test_twelve_bits_are_those_the_file_states():
    """A TIFF of 12 bits is as bright as it was made; Pillow cannot write one, so its bytes are put together here."""
    assert colour_of(twelve_bit_tiff(0xFFF)) == WHITE
    assert colour_of(twelve_bit_tiff(0x800)) == (128, 128, 128)
    dark = saved(Image.fromarray(np.full((5, 5), 0x0FFF, np.uint16)), "TIFF")
    assert colour_of(dark) == (16, 16, 16)


def twelve_bit_tiff(value, size=4):
    tags = [(256, size), (257, size), (258, 12), (259, 1), (262, 1), (273, 8), (277, 1), (278, size), (279, size * 6)]
    pair = (value << 12 | value).to_bytes(3, "big")
    pixels = pair * (size * size // 2)
    entries = b"".join(struct.pack("<HHII", tag, 4, 1, number) for tag, number in tags)
    head = struct.pack("<2sHI", b"II", 42, 8 + len(pixels))
    return head + pixels + struct.pack("<H", len(tags)) + entries + struct.pack("<I", 0)


@pytest.mark.parametrize("error", [RuntimeError("Failed to decode"), zlib.error("bad"), struct.error("short")])
def test_whatever_a_decoder_raises(monkeypatch, error):
    def fail(*args, **kwargs):
        raise error

    content = picture()
    monkeypatch.setattr("PIL.ImageFile.ImageFile.load", fail)
    with pytest.raises(BadImageError, match="it is damaged"):
        decode(content, 8)


@pytest.mark.skipif(not features.check("avif"), reason="this Pillow has no AVIF")
def test_a_damaged_avif():
    content = picture(size=(64, 64), kind="AVIF")
    for place in range(len(content)):  # Pillow raises one of five kinds of errors, or none
        damaged = bytearray(content)
        damaged[place] ^= 0xFF
        with suppress(BadImageError):
            decode(bytes(damaged), 8)


def test_stored_pixels_where_something_refers_to_them():
    upright = np.zeros((8, 8, 3), np.uint8)
    upright[:4] = RED
    exif = Image.Exif()
    exif[0x0112] = 3
    content = saved(Image.fromarray(upright), exif=exif)
    assert tuple(decode(content, 8, (8, 8))[:, 0, 0]) == RED
    with pytest.raises(BadImageError, match="it has 8 x 8 pixels where 9 x 8 are expected"):
        decode(content, 8, (9, 8))


def test_warnings_of_others_are_not_silenced_meanwhile():
    before = list(warnings.filters)
    stream = decode_all(((i, picture()) for i in range(3)), 2)
    next(stream)
    assert warnings.filters == before


def test_what_could_not_be_read_stays_in_its_place():
    results = dict(decode_all([(0, picture()), (1, InputError("it cannot be read (Permission denied)"))], 2))
    assert str(results[1]) == "it cannot be read (Permission denied)"
