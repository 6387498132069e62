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
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError
from ..files import owned, remove_abandoned, write_atomically
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
    shape = (len(files), 3, size, size)
    remembered = _remembered(seen)
    if remembered and (stored := _stored(folder, remembered, shape)):
        return stored
    key, lost = _key(files, size, progress)
    stored = _stored(folder, key, shape)
    if stored is None:
        bad = _decode_into(folder / f"{key}.npy", files, size, progress)
        write_atomically(folder / f"{key}.json", json.dumps(bad))
        stored = _stored(folder, key, shape)
        assert stored is not None
    if not lost:  # what the system refused to read may be readable tomorrow, with the same stamp
        write_atomically(seen, key)
    return stored


def _remembered(seen: Path) -> str | None:
    """The key that belongs to a stamp; None where there is none, or what is there is no key."""
    key = seen.read_text(errors="replace") if seen.is_file() else ""
    return key if re.fullmatch("[0-9a-f]{40}", key) else None


def _stored(folder: Path, key: str, shape: tuple[int, ...]) -> tuple[Tensor, Bad] | None:
    """What is in the cache under a key; None where that is missing or damaged."""
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
        digest.update(
            f"\0{file.container.absolute()}\0{file.name}\0{file.size}\0{file.stamp}".encode(errors="surrogateescape")
        )
    return digest.hexdigest()


def _key(files: Sequence[Entry], size: int, progress: Progress | None) -> tuple[str, bool]:
    """Of the content of every file; and whether some could not be read."""
    digests: list[bytes | None] = [None] * len(files)
    lost = False
    for done, (position, content) in enumerate(contents(files), start=1):
        if isinstance(content, InputError):
            lost, content = True, f"unreadable: {content}".encode(errors="surrogateescape")
        digests[position] = hashlib.sha256(content).digest()
        if progress is not None:
            progress("looking for changes", done, len(files))
    whole = hashlib.sha256(f"{VERSION} {size} {len(files)} ".encode())
    for digest in digests:
        assert digest is not None  # every file came
        whole.update(digest)
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
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        remove_abandoned(target.parent.glob(".*.npy.*"))
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=owned(target.name))
    except OSError as error:
        raise InputError(f"{target.parent} cannot be written to ({error.strerror}): {_ELSEWHERE}") from None
    size = math.prod(shape)
    try:
        with os.fdopen(handle, "wb") as file:
            np.lib.format.write_array_header_1_0(file, {"descr": "|u1", "fortran_order": False, "shape": shape})
            start = file.tell()
            file.flush()
            _reserve(file.fileno(), start + size)
            yield file, start
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, target)
    except BaseException as error:
        Path(temporary).unlink(missing_ok=True)
        if isinstance(error, OSError):  # of the disk: what cannot be read is no exception here
            raise InputError(
                f"{target.parent} has no room for {math.ceil(size / 2**20)} MiB of decoded images ({error.strerror}): "
                f"free some, choose a smaller image size, or {_ELSEWHERE}"
            ) from None
        raise


def _reserve(file: int, size: int) -> None:
    """Take the space now: better no cache at once than half of one after a minute."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file, 0, size)
    else:
        os.truncate(file, size)
