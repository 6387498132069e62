"""What is known of a training before its data is read: from the facts of the data set, and from files as they are."""

from __future__ import annotations

import hashlib
from pathlib import Path

from ...data.catalogue import look_up
from ...data.checks import existing_file
from ...data.facts import Facts
from ...data.fetch import verify
from ...data.root import data_root, expanded
from ...data.splits import VALIDATION
from ...errors import InputError
from ...models.backbones import WORDS
from ...training.digests import LENGTH, of_file


def facts_of(data: str) -> Facts | None:
    """None where the user's files decide."""
    found = look_up(data.partition(":")[0])
    return found.facts if found is not None and found.facts.environments else None


def shape_of(facts: Facts, size: int | None) -> tuple[int, ...]:
    return (facts.shape[0], size, size) if size and len(facts.shape) == 3 else facts.shape


def smallest_environment(facts: Facts, left_out: set[str | None]) -> tuple[int, int]:
    """How many environments are trained on, and about how many samples the smallest of them has."""
    sizes = [count for name, count in facts.environments.items() if name not in left_out | {facts.test}]
    share = 1.0 if facts.test else 1 - VALIDATION
    return len(sizes), int(share * min(sizes, default=0))


def content_of(data: str) -> str | None:
    """A digest of the user's files behind a name such as table:visits.csv; None where there are none.

    Of a folder, names and sizes of the files in it. A file that is not there is an error.
    """
    base, colon, argument = data.partition(":")
    if not colon or not argument:
        return None
    path, found = expanded(argument), look_up(base)
    if found is not None and found.argument == "FILE":
        return of_file(existing_file(path))
    if not path.exists():
        if found is not None and found.argument == "PATH":
            raise InputError(f"{path} does not exist: check the path")
        return None
    if path.is_file():
        return of_file(path)
    listed = sorted(f"{file.relative_to(path)} {file.stat().st_size}" for file in path.rglob("*") if file.is_file())
    return hashlib.sha256("\n".join(listed).encode(errors="surrogateescape")).hexdigest()[:LENGTH]


def absent(data: str, root: Path | str | None) -> Path | None:
    """A folder that a set has to have and that is not there; None where only reading can tell what is missing."""
    place = data_root(root)
    for state in verify(data, place, digests=False):
        folder = place / state.path.relative_to(place).parts[0]
        if state.state == "missing" and not folder.exists():
            return folder
    return None


def file_digest(weights: str | None) -> str | None:
    """Of a file of weights; None where the word is none of a file."""
    if weights is None or weights in WORDS:
        return None
    if not Path(weights).is_file():
        raise InputError(f"weights {weights!r} are no file and none of {', '.join(WORDS)}: name one of these")
    return of_file(weights)
