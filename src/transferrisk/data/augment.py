"""Random changes to training images: DomainBed's, on whole batches, on the device the images are on.

    crop         an area of 0.7..1 of the image, of ratio 3/4..4/3, resized to the whole; bilinear
    flip         left and right, with probability 1/2
    jitter       brightness, contrast and saturation times 0.7..1.3; hue turned by -0.3..0.3 of a circle
    greyscale    with probability 0.1

Every image has draws of its own. Images are (n, 3, h, w), floats in 0..1, before and after. Nothing waits for the
device and no shape depends on a draw, so all of it can be captured in a CUDA graph.

Differences from torchvision:
1. Boxes are not rounded to whole pixels.
2. Where none of ten boxes fits into the image, the last is cut to it.
3. The order within the jitter is fixed: brightness, contrast, saturation, hue.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import grid_sample

from ..errors import InputError

TRIES = 10


def augment(
    images: Tensor,
    generator: torch.Generator | None = None,
    *,
    scale: tuple[float, float] = (0.7, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
    flip: float = 0.5,
    jitter: float = 0.3,
    grey: float = 0.1,
) -> Tensor:
    """Return the changed images. The generator, which determines them, must be on the images' device."""
    _check(images, generator)
    n, _, h, w = images.shape

    def chosen(probability: float) -> Tensor:
        return torch.rand(n, device=images.device, generator=generator) < probability

    def uniform(low: float, high: float) -> Tensor:
        drawn = torch.rand(n, device=images.device, dtype=images.dtype, generator=generator)
        return drawn.mul_(high - low).add_(low)

    boxes = random_boxes(n, (h, w), images.device, generator, scale, ratio)
    images = flip_left_right(resized_crop(images, boxes), chosen(flip))
    images = adjust_brightness(images, uniform(1 - jitter, 1 + jitter))
    images = adjust_contrast(images, uniform(1 - jitter, 1 + jitter))
    images = adjust_saturation(images, uniform(1 - jitter, 1 + jitter))
    images = adjust_hue(images, uniform(-jitter, jitter))
    return torch.where(_each(chosen(grey)), greyscale(images), images)


def random_boxes(
    n: int,
    size: tuple[int, int],
    device: torch.device | str = "cpu",
    generator: torch.Generator | None = None,
    scale: tuple[float, float] = (0.7, 1.0),
    ratio: tuple[float, float] = (3 / 4, 4 / 3),
) -> Tensor:
    """Draw boxes in images of (height, width): top, left, height and width in pixels, (n, 4).

    Area uniform in `scale`, logarithm of width / height uniform in that of `ratio`, position uniform; of ten boxes the
    first that fits.
    """
    h, w = size
    area, shape = torch.rand(2, n, TRIES, device=device, generator=generator)  # (n, tries) each
    area = h * w * (scale[0] + (scale[1] - scale[0]) * area)
    log_ratio = math.log(ratio[0]) + math.log(ratio[1] / ratio[0]) * shape
    heights, widths = (area * torch.exp(-log_ratio)).sqrt(), (area * torch.exp(log_ratio)).sqrt()
    fits = (heights <= h) & (widths <= w)
    fits[:, -1] = True
    first = fits.byte().argmax(1, keepdim=True)  # (n, 1)
    height = heights.gather(1, first).squeeze(1).clamp(max=h)
    width = widths.gather(1, first).squeeze(1).clamp(max=w)
    down, along = torch.rand(2, n, device=device, generator=generator)
    return torch.stack([down * (h - height), along * (w - width), height, width], 1)


def resized_crop(images: Tensor, boxes: Tensor) -> Tensor:
    """Return the boxes (n, 4) of the images, each resized to the images' own size.

    Pixel i covers i..i+1. Only pixels within a box count, so a box of whole pixels gives the same as `interpolate`.
    """
    h, w = images.shape[-2:]
    top, left, height, width = boxes.to(images.dtype).unsqueeze(-1).unbind(1)  # (n, 1) each

    def positions(start: Tensor, extent: Tensor, count: int) -> Tensor:
        centres = torch.arange(count, device=images.device, dtype=images.dtype) + 0.5
        inside = torch.clamp(start + centres * extent / count, start + 0.5, start + extent - 0.5)
        return inside * (2 / count) - 1  # (n, count), -1..1 from edge to edge

    down, along = positions(top, height, h), positions(left, width, w)
    grid = torch.stack([along[:, None, :].expand(-1, h, -1), down[:, :, None].expand(-1, -1, w)], -1)
    return grid_sample(images, grid, mode="bilinear", padding_mode="border", align_corners=False)


def flip_left_right(images: Tensor, chosen: Tensor) -> Tensor:
    """Return the images, mirrored where `chosen`, (n,) bool."""
    return torch.where(_each(chosen), images.flip(-1), images)


def adjust_brightness(images: Tensor, factor: Tensor) -> Tensor:
    """Blend images with black: factor 0 gives black, 1 the image."""
    return (images * _each(factor)).clamp(0, 1)


def adjust_contrast(images: Tensor, factor: Tensor) -> Tensor:
    """Blend images with their own mean grey: factor 0 gives that grey, 1 the image."""
    return torch.lerp(luminance(images).mean((2, 3), keepdim=True), images, _each(factor)).clamp(0, 1)


def adjust_saturation(images: Tensor, factor: Tensor) -> Tensor:
    """Blend images with their greyscale version: factor 0 gives that one, 1 the image."""
    return torch.lerp(luminance(images), images, _each(factor)).clamp(0, 1)


def adjust_hue(images: Tensor, turn: Tensor) -> Tensor:
    """Turn the hue by a part of the circle, (n,) in -1..1; value and saturation stay.

    With value v, chroma c and hue u of a pixel, u in sixths of the circle, each channel is
    v - c max(0, min(k, 4 - k, 1)), k = (m + u) mod 6, where m is 5, 3, 1 for red, green, blue.
    """
    red, green, blue = images.unbind(1)
    value, chroma = images.amax(1), images.amax(1) - images.amin(1)  # (n, h, w)
    by = chroma.clamp_min(torch.finfo(images.dtype).tiny)
    sixths = torch.where(
        value == red,
        (green - blue) / by,
        torch.where(value == green, (blue - red) / by + 2, (red - green) / by + 4),
    )
    channel = torch.arange(5, 0, -2, device=images.device, dtype=images.dtype)[:, None, None]
    k = ((sixths + 6 * turn[:, None, None])[:, None] + channel) % 6  # (n, 3, h, w)
    return value[:, None] - chroma[:, None] * torch.minimum(k, 4 - k).clamp(0, 1)


def luminance(images: Tensor) -> Tensor:
    """Return the luminance by ITU-R 601-2, (n, 1, h, w)."""
    red, green, blue = images.split(1, 1)
    grey: Tensor = 0.2989 * red + 0.587 * green + 0.114 * blue
    return grey


def greyscale(images: Tensor) -> Tensor:
    """Return the luminance in all three channels."""
    return luminance(images).expand_as(images)


def _each(values: Tensor) -> Tensor:
    """Return (n,) as (n, 1, 1, 1)."""
    return values[:, None, None, None]


def _check(images: Tensor, generator: torch.Generator | None) -> None:
    if images.dim() != 4 or images.shape[1] != 3 or not images.is_floating_point():
        raise InputError(
            f"images are {images.dtype} of shape {tuple(images.shape)}: augmenting takes floats in 0..1, (n, 3, h, w)"
        )
    if generator is not None and generator.device.type != images.device.type:
        raise InputError(
            f"the generator is on {generator.device.type} and the images are on {images.device.type}: "
            f"make it with torch.Generator('{images.device.type}')"
        )
