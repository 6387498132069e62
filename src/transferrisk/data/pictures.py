"""Photographs out of folders and archives, decoded small."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from .checks import leave_out
from .containers import Entry, contents, entries
from .options import Progress
from .root import VARIABLE


def found_in(paths: Sequence[Path], wanted: Callable[[Entry], bool], what: str, source: str) -> list[Entry]:
    """The wanted files of the first of these folders and archives that has any."""
    for path in paths:
        found = [entry for entry in entries(path) if wanted(entry)] if path.exists() else []
        if found:
            return found
    raise InputError(
        f"no {what} in {paths[0]} or {paths[1].name}: fetch {source} with `trm data fetch {source}`, or say where the "
        f"data is with --data-root or ${VARIABLE}"
    )


def shrunk_mask(mask: np.ndarray[tuple[int, int], np.dtype[np.uint8]], size: int) -> Tensor:
    """How much of each pixel a mask (h, w) of zeros and ones covers, in 0..255: (1, size, size) uint8."""
    from PIL import Image

    covered = Image.fromarray(mask * np.uint8(255)).resize((size, size), Image.Resampling.BILINEAR)
    return torch.from_numpy(np.array(covered)).unsqueeze(0)


def decoded(
    wanted: Sequence[Entry],
    decode: Callable[[int, bytes], Tensor],
    what: str,
    where: Path,
    skip_bad: bool = False,
    progress: Progress | None = None,
) -> tuple[Tensor, Tensor]:
    """decode(position, content) of each entry, stacked in the order wanted; and the positions of those, ascending.

    These are all, unless some cannot be decoded, which is an error, or a warning with `skip_bad`.
    """
    images: Tensor | None = None
    good = torch.zeros(len(wanted), dtype=torch.bool)
    bad: list[str] = []
    for done, (i, content) in enumerate(contents(wanted), start=1):
        if progress is not None and (done % 64 == 0 or done == len(wanted)):
            progress(what, done, len(wanted))
        try:
            if isinstance(content, InputError):
                raise content
            image = decode(i, content)
        except InputError as error:
            bad.append(f"{wanted[i]} ({error})")
            continue
        if images is None:
            images = torch.empty(len(wanted), *image.shape, dtype=image.dtype)
        images[i], good[i] = image, True
    leave_out(bad, len(wanted), "photograph", where, skip_bad)
    assert images is not None
    return (images[good] if bad else images), good.nonzero().flatten()
