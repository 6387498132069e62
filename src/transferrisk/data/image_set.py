"""Sets of environments made of image files, decoded once and mapped from a cache, or decoded when they are needed.

The cache has one array for each set and size:

    key     hash of the size, the decoder's version and the content of every file, in order
    stamp   hash of their names, sizes and times instead

    <key>.npy      (n, 3, size, size) uint8, zero where an image could not be read
    <key>.json     the images that could not be read, and why
    seen/<stamp>   the key that belongs to it, so that content is read only when something changed

A file appears under its name only when it is whole: two processes at once both do the work, and the second rename
replaces the array with an equal one. Arrays are written with write(2), not through a mapping, so that a full disk is an
error that can be reported.
"""

from __future__ import annotations

import hashlib
import json
import math
import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from ..errors import BadImageError, InputError, cause_of, refuse_or_skip
from ..files import NO_ROOM, remove_abandoned, whole_file, write_atomically
from .catalogue import Options, Progress
from .containers import Entry, compressed_as_a_whole, contents
from .environments import EnvironmentSet, Inputs, review
from .images import VERSION, decode_all
from .roots import CACHE_VARIABLE, cache_root

SIZE = 224  # pixels, where neither the set nor the user says otherwise
LARGEST_CACHE = 8 * 2**30  # bytes; images of larger sets are decoded when needed, unless the user says otherwise
ELSEWHERE = (
    f"keep decoded images elsewhere with ${CACHE_VARIABLE}, or do without the cache with --lazy (lazy=True in Python)"
)

Bad = dict[int, str]
"""Position of an image that cannot be read -> why."""


@dataclass(frozen=True)
class LazyImages:
    """Images that are read and decoded each time they are needed: (n, 3, size, size) uint8."""

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
    options: Options,
    where: Path | str,
) -> EnvironmentSet:
    """The set of these files. Images that cannot be read are an error that names them, or are left out with `skip_bad`.

    `size` is the set's own; `where` is what messages call the set. Images of a large set are decoded when they are
    needed, unless they lie in an archive that is compressed as a whole, from which single ones cannot be read.
    """
    files = [sample.file for sample in samples]
    size = size if options.size is None else options.size
    packed = next((file.container for file in files if file.packed), None)
    if options.lazy and packed is not None:
        raise compressed_as_a_whole(packed)
    large = 3 * size * size * len(files) > LARGEST_CACHE
    lazy = options.lazy if options.lazy is not None else large and packed is None
    inputs: Inputs
    if lazy:
        inputs = LazyImages(files, size)
        bad = find_unreadable(files, options.progress) if options.skip_bad or options.verify else {}
    else:
        inputs, bad = decode_cached(files, size, options.progress)
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
    refuse_or_skip([f"{names[i]} ({bad[i]})" for i in names], len(files), "image", where, options.skip_bad)
    if bad:
        good = torch.ones(len(files), dtype=torch.bool)
        good[list(bad)] = False
        data = data.select(good.nonzero().flatten())
    return review(data, where)


def find_unreadable(files: Sequence[Entry], progress: Progress | None = None) -> Bad:
    """Return the images that cannot be read, each with the reason."""
    bad: Bad = {}
    for done, (position, image) in enumerate(decode_all(contents(files), 8), start=1):
        if isinstance(image, BadImageError):
            bad[position] = str(image)
        if progress is not None:
            progress("checking images", done, len(files))
    return bad


def decode_cached(files: Sequence[Entry], size: int, progress: Progress | None = None) -> tuple[Tensor, Bad]:
    """Return the images as (n, 3, size, size) uint8, mapped from the cache, and those that could not be read."""
    folder = cache_root() / "decoded"
    seen = folder / "seen" / _stamp(files, size)
    shape = (len(files), 3, size, size)
    remembered = seen.read_text(errors="replace") if seen.is_file() else ""
    if re.fullmatch("[0-9a-f]{40}", remembered) and (stored := _stored(folder, remembered, shape)):
        return stored
    key, lost = _key(files, size, progress)
    stored = _stored(folder, key, shape)
    if stored is None:
        bad = _decode_into(folder / f"{key}.npy", files, size, progress)
        write_atomically(folder / f"{key}.json", json.dumps(bad))
        stored = _stored(folder, key, shape)
        assert stored is not None
    if not lost:  # a file that the system refused to read may be readable tomorrow, with the same stamp
        write_atomically(seen, key)
    return stored


def _stored(folder: Path, key: str, shape: tuple[int, ...]) -> tuple[Tensor, Bad] | None:
    """Return the array in the cache under a key; None if it is missing or damaged."""
    try:
        # Private: a write to the tensor, which nobody should do, would not reach the file.
        mapped = np.load(folder / f"{key}.npy", mmap_mode="c", allow_pickle=False)
        bad = {int(i): str(why) for i, why in json.loads((folder / f"{key}.json").read_text()).items()}
    except (OSError, ValueError, EOFError, AttributeError, RecursionError):
        return None
    whole = mapped.shape == shape and mapped.dtype == np.uint8 and all(0 <= i < shape[0] for i in bad)
    return (torch.from_numpy(mapped), bad) if whole else None


def _stamp(files: Sequence[Entry], size: int) -> str:
    digest = hashlib.sha256(f"{VERSION} {size}".encode())
    for file in files:
        line = f"\0{file.container.absolute()}\0{file.name}\0{file.size}\0{file.stamp}"
        digest.update(line.encode(errors="surrogateescape"))
    return digest.hexdigest()


def _key(files: Sequence[Entry], size: int, progress: Progress | None) -> tuple[str, bool]:
    """Hash of the content of every file; and whether some could not be read."""
    digests = [b""] * len(files)
    lost = False
    for done, (position, content) in enumerate(contents(files), start=1):
        if isinstance(content, InputError):
            lost, content = True, f"unreadable: {content}".encode(errors="surrogateescape")
        digests[position] = hashlib.sha256(content).digest()
        if progress is not None:
            progress("looking for changes", done, len(files))
    assert all(digests)  # every file came
    whole = hashlib.sha256(f"{VERSION} {size} {len(files)} ".encode() + b"".join(digests))
    return whole.hexdigest()[:40], lost


def _decode_into(target: Path, files: Sequence[Entry], size: int, progress: Progress | None) -> Bad:
    bad: Bad = {}
    came = np.zeros(len(files), bool)
    with _new_array(target, (len(files), 3, size, size)) as (file, start):
        for done, (position, image) in enumerate(decode_all(contents(files), size), start=1):
            came[position] = True
            if isinstance(image, BadImageError):
                bad[position] = str(image)
            else:
                file.seek(start + position * image.nbytes)
                file.write(image.tobytes())
            if progress is not None:
                progress("decoding images", done, len(files))
        assert came.all()
    return bad


@contextmanager
def _new_array(target: Path, shape: tuple[int, ...]) -> Iterator[tuple[BinaryIO, int]]:
    """The open file and where the array's bytes begin in it; it gets its name when all went well."""
    size = math.prod(shape)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(target.parent.glob(".*.npy.*"))
        with whole_file(target) as temporary, temporary.open("wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
            start = file.tell()
            file.flush()
            _reserve(file.fileno(), start + size)
            yield file, start
    except OSError as error:  # of the disk: a file that cannot be read is not an exception here
        if error.errno not in NO_ROOM:
            raise InputError(f"{target.parent} cannot be written to ({cause_of(error)}): {ELSEWHERE}") from None
        raise InputError(
            f"{target.parent} has no room for {math.ceil(size / 2**20)} MiB of decoded images ({cause_of(error)}): "
            f"free some, choose a smaller image size, or {ELSEWHERE}"
        ) from None


def _reserve(file: int, size: int) -> None:
    """Take the space now: better no cache at once than half of one after a minute."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.truncate(file, size)
