"""Bringing the files of a data set below the data root, and telling which of them are there."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..errors import DataWarning, InputError
from ..files import new_folders
from . import catalogue
from .bring import bring, take
from .digests import fault, located, size_fault
from .disk import check_room, disk_errors
from .download import Downloads, part_of
from .facts import Facts, RemoteFile
from .options import Options, Progress
from .root import data_root, expanded
from .web import size_of


@dataclass(frozen=True)
class FileState:
    """One file, or the folder of what is got by hand."""

    path: Path
    state: Literal["there", "missing", "wrong"]
    fault: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.state}{f' ({self.fault})' if self.fault else ''}"


def needed(name: str) -> list[Facts]:
    """Facts of all that has to be there for a set or source, its own and of what it is built from; [] for nothing.

    What stands after the colon of a set's name may decide what it is built from.
    """
    base, _, argument = name.partition(":")
    data_set = catalogue.look_up(base)
    if data_set is None and name not in catalogue.sources():
        catalogue.available()  # a package's set may bring the source with it
    sources = catalogue.sources()
    others: tuple[str, ...]
    if name in sources:
        facts, others = sources[name], sources[name].needs
    elif data_set is not None:
        facts, of = data_set.facts, data_set.needs
        others = of(argument) if of else facts.needs
    else:
        known = catalogue.nearest(base, [*sources, *(known.usage for known in catalogue.available().values())])
        raise InputError(f"{name!r} is no name of a data set or source{known}")
    own = [facts] if facts.files or facts.by_hand else []
    return own + [part for other in others for part in needed(other)]


def fetch(
    name: str, root: Path | str | None = None, given: Path | None = None, progress: Progress | None = None
) -> list[Path]:
    """Bring in what a set or source needs; the paths of what came. What is there already and right is left alone.

    `given` is a folder, an archive or a file that was got by hand, for sets that no program may fetch and for machines
    without a network. Total 0 in `progress` means that it is not known.
    """
    place, tell = data_root(root), progress or (lambda what, done, total: None)
    parts = needed(name)
    files = [file for facts in parts for file in facts.files]
    by_hand = [facts for facts in parts if not facts.files]
    if given is not None and len(by_hand) == 1 and not files:
        return [bring(expanded(given), folder_of(by_hand[0], place), tell, _check_of(by_hand[0]))]
    missing = [file for file in files if state(file, place, tell).state != "there"]
    if given is not None:
        if not files:
            raise InputError(f"{name} has no use for {given}: {_way_out(by_hand)}")
        return take(expanded(given), missing, place, tell) if missing else []
    for facts in by_hand:
        if _located(facts, place) is None:
            raise InputError(f"{facts.name} cannot be fetched by a program: {facts.by_hand}")
    return _download(name, missing, place, tell)


def verify(
    name: str, root: Path | str | None = None, progress: Progress | None = None, digests: bool = True
) -> list[FileState]:
    """All that a set or source needs, and whether it is there; without `digests` only sizes are looked at."""
    place = data_root(root)
    found = []
    for facts in needed(name):
        if not facts.files:
            where = _located(facts, place)
            found.append(FileState(where or folder_of(facts, place), "missing" if where is None else "there"))
        found += [state(file, place, progress, digests) for file in facts.files]
    return found


def state(file: RemoteFile, root: Path, progress: Progress | None = None, digests: bool = True) -> FileState:
    """Whether a file is there and as published."""
    path = located(file, root)
    if not path.is_file():
        return FileState(path, "missing")
    wrong = fault(file, path, progress) if digests else size_fault(file, path)
    return FileState(path, "wrong", wrong) if wrong else FileState(path, "there")


def folder_of(facts: Facts, root: Path) -> Path:
    """Where what is got by hand is kept."""
    return root / (facts.folder or facts.name)


def _located(facts: Facts, root: Path) -> Path | None:
    """Where a set that is got by hand lies, in whatever form."""
    data_set = catalogue.look_up(facts.name)
    if data_set is not None and data_set.locate is not None:
        return data_set.locate(root)
    folder = folder_of(facts, root)
    return folder if folder.is_dir() and any(folder.iterdir()) else None


def _check_of(facts: Facts) -> Callable[[Path], object]:
    """A function that raises where a data root does not hold all of a set: listed and counted, not decoded."""
    data_set = catalogue.look_up(facts.name)

    def check(root: Path) -> None:
        if data_set is None or data_set.check is None:
            return
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("error", DataWarning)
                data_set.check(Options(root=root, skip_bad=True))
        except DataWarning as told:
            raise InputError(f"{told}: get it again") from None

    return check


def _way_out(by_hand: list[Facts]) -> str:
    names = " or ".join(facts.name for facts in by_hand)
    return f"it is built from several; fetch {names} by name" if names else "it needs no files"


def _download(name: str, missing: list[RemoteFile], root: Path, progress: Progress) -> list[Path]:
    rest = sum(max(0, file.bytes - size_of(part_of(root / file.path))) for file in missing)
    check_room(root, rest, name)
    if not missing:
        return []
    with disk_errors(root, rest), new_folders(root), Downloads(root, progress) as downloads:
        return [downloads.get(file) for file in missing]
