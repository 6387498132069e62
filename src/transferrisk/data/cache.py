"""Decoded images, kept as one array a set and size that is mapped into memory, and found again by their content.

    key     hash of the size, the decoder's version and the content of every file, in order
    stamp   hash of their names, sizes and times instead

    <key>.npy      (n, 3, size, size) uint8, zero where an image could not be read
    <key>.json     which could not be read, and why
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
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..files import write_atomically
from .containers import Entry, contents
from .images import VERSION, BadImageError, decode_all
from .options import Progress
from .root import CACHE_VARIABLE, cache_root

_ELSEWHERE = f"keep decoded images elsewhere with ${CACHE_VARIABLE}, or none with lazy decoding"

Bad = dict[int, str]
"""Position of an image that cannot be read -> why."""


def decoded(files: Sequence[Entry], size: int, progress: Progress | None = None) -> tuple[Tensor, Bad]:
    """The images as (n, 3, size, size) uint8, mapped from the cache, and which of them could not be read."""
    folder = cache_root() / "decoded"
    seen = folder / "seen" / _stamp(files, size)
    key = seen.read_text() if seen.is_file() else _key(files, size)
    array, bad = folder / f"{key}.npy", folder / f"{key}.json"
    if not (array.is_file() and bad.is_file()):
        write_atomically(bad, json.dumps(_decode_into(array, files, size, progress)))
    if not seen.is_file():
        write_atomically(seen, key)
    # Private: a write to the tensor, which nobody should do, would not reach the file.
    mapped = np.load(array, mmap_mode="c", allow_pickle=False)
    return torch.from_numpy(mapped), {int(i): why for i, why in json.loads(bad.read_text()).items()}


def _stamp(files: Sequence[Entry], size: int) -> str:
    digest = hashlib.sha256(f"{VERSION} {size}".encode())
    for file in files:
        digest.update(f"\0{file.container.absolute()}\0{file.name}\0{file.size}\0{file.stamp}".encode(errors="replace"))
    return digest.hexdigest()


def _key(files: Sequence[Entry], size: int) -> str:
    digests = [b""] * len(files)
    for position, content in contents(files):
        digests[position] = hashlib.sha256(content).digest()
    return hashlib.sha256(f"{VERSION} {size} ".encode() + b"".join(digests)).hexdigest()[:40]


def _decode_into(target: Path, files: Sequence[Entry], size: int, progress: Progress | None) -> Bad:
    bad: Bad = {}
    with _new_array(target, (len(files), 3, size, size)) as (file, start):
        for done, (position, image) in enumerate(decode_all(contents(files), size), start=1):
            if isinstance(image, BadImageError):
                bad[position] = str(image)
            else:
                file.seek(start + position * image.nbytes)
                file.write(image.tobytes())
            if progress is not None:
                progress("decoding images", done, len(files))
    return bad


@contextmanager
def _new_array(target: Path, shape: tuple[int, ...]) -> Iterator[tuple[BinaryIO, int]]:
    """The open file and where the array's bytes begin in it; it gets its name when all went well."""
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise InputError(f"{target.parent} cannot be written to ({error.strerror}): {_ELSEWHERE}") from None
    try:
        with os.fdopen(handle, "wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
            start = file.tell()
            file.flush()
            _reserve(file.fileno(), start + math.prod(shape), target)
            yield file, start
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def _reserve(file: int, size: int, target: Path) -> None:
    """Take the space now: better no cache at once than half of one after a minute."""
    try:
        if hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file, 0, size)
        else:
            os.truncate(file, size)
    except OSError as error:
        raise InputError(
            f"{target.parent} has no room for {size / 2**20:.0f} MiB of decoded images ({error.strerror}): free some, "
            f"choose a smaller image size, or {_ELSEWHERE}"
        ) from None
