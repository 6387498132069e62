"""A set of environments made of image files, decoded once and mapped from the cache, or decoded when asked for."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..errors import DataWarning, InputError
from .cache import Bad, decoded
from .checks import review
from .containers import Entry, contents
from .environments import EnvironmentSet, Inputs
from .images import BadImageError, decode_all
from .options import Options, Progress

LARGEST_CACHE = 8 * 2**30  # bytes; larger sets are decoded when asked for, unless told otherwise


@dataclass(frozen=True)
class LazyImages:
    """Images that are read and decoded each time they are asked for: (n, 3, size, size) uint8."""

    files: Sequence[Entry]
    size: int

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, index: Tensor | slice, /) -> Tensor:
        positions = torch.arange(len(self))[index].tolist()
        images = torch.empty(len(positions), 3, self.size, self.size, dtype=torch.uint8)
        chosen = ((row, self.files[i].read()) for row, i in enumerate(positions))
        for row, image in decode_all(chosen, self.size):
            if isinstance(image, BadImageError):
                raise BadImageError(f"{self.files[positions[row]]} cannot be used: {image}")
            images[row] = torch.from_numpy(image)
        return images


@dataclass(frozen=True)
class LabelledFile:
    file: Entry
    label: str
    environment: str


def image_set(
    samples: Sequence[LabelledFile],
    environment_names: Sequence[str],
    class_names: Sequence[str],
    size: int,
    asked: Options,
) -> EnvironmentSet:
    """Images that cannot be read are an error that names them, or are left out with `skip_bad`."""
    files = [sample.file for sample in samples]
    size = size if asked.size is None else asked.size
    if size < 1:
        raise InputError(f"size {size} is not a number of pixels: give 1 or more")
    lazy = asked.lazy if asked.lazy is not None else 3 * size * size * len(files) > LARGEST_CACHE
    inputs: Inputs
    if lazy:
        inputs = LazyImages(files, size)
        bad = unreadable(files, asked.progress) if asked.skip_bad or asked.verify else {}
    else:
        inputs, bad = decoded(files, size, asked.progress)
    class_number = {name: i for i, name in enumerate(class_names)}
    environment_number = {name: i for i, name in enumerate(environment_names)}
    data = EnvironmentSet(
        inputs,
        torch.tensor([class_number[sample.label] for sample in samples]),
        torch.tensor([environment_number[sample.environment] for sample in samples]),
        tuple(environment_names),
        tuple(class_names),
    )
    return review(without(data, files, bad, asked.skip_bad))


def without(data: EnvironmentSet, files: Sequence[Entry], bad: Bad, skip_bad: bool) -> EnvironmentSet:
    """The set without images that cannot be read; an error unless they may be skipped."""
    if not bad:
        return data
    listed = "; ".join(f"{files[i]}: {why}" for i, why in list(bad.items())[: 10 if skip_bad else 1])
    more = f"; and {len(bad) - 10} more" if skip_bad and len(bad) > 10 else ""
    if not skip_bad:
        raise InputError(
            f"{len(bad)} of {len(files)} images cannot be used, first {listed}: mend or remove them, or go on without "
            "them with --skip-bad"
        )
    warnings.warn(f"{len(bad)} of {len(files)} images were skipped: {listed}{more}", DataWarning, stacklevel=2)
    good = np.ones(len(files), dtype=bool)
    good[list(bad)] = False
    return data.select(torch.from_numpy(good.nonzero()[0]))


def unreadable(files: Sequence[Entry], progress: Progress | None = None) -> Bad:
    """All images that cannot be read, and why."""
    bad: Bad = {}
    for done, (position, image) in enumerate(decode_all(contents(files), 8), start=1):
        if isinstance(image, BadImageError):
            bad[position] = str(image)
        if progress is not None:
            progress("checking images", done, len(files))
    return bad
