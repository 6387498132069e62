"""Short digests that tell one content from another: of data, and of files.

Labels, environments and names count whole. Of the inputs, as many rows as make `SAMPLED` bytes do, evenly spaced from
the first to the last, so that a large set costs no more than a small one; a change to rows between them is not seen.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from ..data import EnvironmentSet
from ..data.catalogue import DATA_SETS
from ..data.environments import Rows
from ..data.image_set import LazyImages
from ..errors import InputError
from ..files import existing_file, expand_home
from ..models.backbones import WORDS
from ..models.saved import WEIGHTS, describe_folder

SAMPLED = 2**22  # bytes of inputs of each part
FILES = 32  # and this many files, where images are not decoded yet
LENGTH = 12  # hexadecimal digits


def content_digests(data: EnvironmentSet) -> dict[str, str]:
    """Digests of the inputs, labels, environments and names of a set."""
    return {part: _digest(pieces) for part, pieces in _parts(data).items()}


def inputs_digest(data: EnvironmentSet) -> str:
    """A digest of the inputs alone, whatever the samples are called and wherever they belong."""
    return _digest(_inputs(data))


def file_digest(path: Path | str) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:LENGTH]


def files_digest(data: str) -> str | None:
    """A digest of the user's files behind a name such as table:visits.csv; None where there are none.

    A folder counts by the names and sizes of the files in it. A file that is missing is an error.
    """
    base, colon, argument = data.partition(":")
    if not colon or not argument:
        return None
    path, found = expand_home(argument), DATA_SETS.find(base)
    if found is not None and found.argument == "FILE":
        return file_digest(existing_file(path))
    if not path.exists():
        if found is not None and found.argument == "PATH":
            raise InputError(f"{path} does not exist: check the path")
        return None
    if path.is_file():
        return file_digest(path)
    listed = sorted(f"{file.relative_to(path)} {file.stat().st_size}" for file in path.rglob("*") if file.is_file())
    return hashlib.sha256("\n".join(listed).encode(errors="surrogateescape")).hexdigest()[:LENGTH]


def weights_digest(weights: str | None, init: str | None = None) -> str | None:
    """A digest of a file of weights, or of a saved model; None where the weights are a word such as "imagenet"."""
    if init is not None:
        describe_folder(init)  # which says what is wrong with it
        return file_digest(Path(init) / WEIGHTS)
    if weights is None or weights in WORDS:
        return None
    if not Path(weights).is_file():
        raise InputError(f"weights must be a file or one of {', '.join(WORDS)}, got {weights!r}")
    return file_digest(weights)


def _parts(data: EnvironmentSet) -> dict[str, Iterator[bytes]]:
    sources = [] if data.sources is None else [data.sources]
    weights = [] if data.weights is None else [data.weights]
    return {
        "inputs": _inputs(data),
        "labels": map(_bytes, [data.labels, *weights]),
        "environments": map(_bytes, [data.environments, *sources]),
        "names": iter([json.dumps([data.class_names, data.environment_names]).encode()]),
    }


def _inputs(data: EnvironmentSet) -> Iterator[bytes]:
    rows = data.inputs
    stored = rows.stored if isinstance(rows, Rows) else rows
    if isinstance(stored, LazyImages):
        where = rows.positions.tolist() if isinstance(rows, Rows) else range(len(stored))
        files = [stored.files[i] for i in where]
        yield json.dumps([stored.size, [(file.name, file.size) for file in files]]).encode()
        yield from (files[i].read() for i in _spaced(len(files), FILES).tolist())
        return
    one = rows[:1]
    yield f"{tuple(one.shape[1:])} {one.dtype}".encode()
    count = SAMPLED // max(1, math.prod(one.shape[1:]) * one.element_size())
    yield _bytes(rows[_spaced(len(rows), max(1, count)).to(data.labels.device)])


def _spaced(length: int, most: int) -> Tensor:
    """At most so many positions, the first and the last among them, (n,)."""
    if length <= most:
        return torch.arange(length)
    return torch.linspace(0, length - 1, most, dtype=torch.float64).round().long()


def _bytes(tensor: Tensor) -> bytes:
    return tensor.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()


def _digest(pieces: Iterator[bytes] | list[bytes]) -> str:
    digest = hashlib.blake2b(digest_size=LENGTH // 2)
    for piece in pieces:
        digest.update(len(piece).to_bytes(8))
        digest.update(piece)
    return digest.hexdigest()
