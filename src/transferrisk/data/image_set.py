"""A set of environments made of image files, decoded once and mapped from the cache, or decoded when asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from ..errors import InputError
from .cache import Bad, decoded
from .checks import leave_out, review
from .containers import Entry, compressed, contents
from .environments import EnvironmentSet, Inputs
from .images import BadImageError, decode_all
from .options import Options, Progress

SIZE = 224  # pixels, where neither the set nor the user says otherwise
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
        for row, image in decode_all(contents([self.files[i] for i in positions]), self.size):
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
    where: Path | str,
) -> EnvironmentSet:
    """Images that cannot be read are an error that names them, or are left out with `skip_bad`.

    `size` is the set's own; `where` is what to call the set in messages. Images of a large set are decoded when asked
    for, unless they lie in an archive that is compressed as a whole, from which single ones cannot be read.
    """
    files = [sample.file for sample in samples]
    size = size if asked.size is None else asked.size
    packed = next((file.container for file in files if file.packed), None)
    if asked.lazy and packed is not None:
        raise InputError(compressed(packed))
    large = 3 * size * size * len(files) > LARGEST_CACHE
    lazy = asked.lazy if asked.lazy is not None else large and packed is None
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
    names = {i: files[i].name if files[i].container == where else files[i] for i in sorted(bad)}
    leave_out([f"{names[i]} ({bad[i]})" for i in names], len(files), "image", where, asked.skip_bad)
    if bad:
        good = torch.ones(len(files), dtype=torch.bool)
        good[list(bad)] = False
        data = data.select(good.nonzero().flatten())
    return review(data, where)


def unreadable(files: Sequence[Entry], progress: Progress | None = None) -> Bad:
    """All images that cannot be read, and why."""
    bad: Bad = {}
    for done, (position, image) in enumerate(decode_all(contents(files), 8), start=1):
        if isinstance(image, BadImageError):
            bad[position] = str(image)
        if progress is not None:
            progress("checking images", done, len(files))
    return bad
