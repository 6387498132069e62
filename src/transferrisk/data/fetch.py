"""Getting the files of a data set below the data root, by download or from a user's copy, and checking its files.

A user's copy appears below the root whole or not at all: it is copied into a temporary folder on the same disk and then
renamed. Archives stay archives: sets read them in place.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Literal

from ..errors import DataWarning, InputError, choices
from ..files import expand_home, hidden_folder, new_folders
from .catalogue import DATA_SETS, Options, Progress, available_sources
from .containers import Entry, contents, entries, is_archive
from .download import CHUNK, Downloads, check_room, disk_errors, find_fault, locate_file, part_of, size_of
from .facts import Facts, RemoteFile
from .roots import data_root


@dataclass(frozen=True)
class FileState:
    """One file, or the folder of a set that is got by hand."""

    path: Path
    state: Literal["there", "missing", "wrong"]
    fault: str = ""

    def __str__(self) -> str:
        return f"{self.path}: {self.state}{f' ({self.fault})' if self.fault else ''}"


def needed_facts(name: str) -> list[Facts]:
    """Return the facts with the files of a set or source, its own and those of its sources; [] if it needs no files.

    The argument after the colon of a set's name may decide which sources it is built from.
    """
    base, _, argument = name.partition(":")
    data_set = DATA_SETS.find(base)
    if data_set is not None:
        every: tuple[Facts, ...] = (data_set.facts, *data_set.sources_of(argument))
    else:
        sources = available_sources()
        if name not in sources:
            raise InputError(f"unknown data set or source {name!r}{choices(base, [*DATA_SETS.names(), *sources])}")
        every = (sources[name],)
    return [facts for facts in every if facts.files or facts.by_hand]


def fetch(
    name: str, root: Path | str | None = None, given: Path | None = None, progress: Progress | None = None
) -> list[Path]:
    """Get everything that a set or source needs; returns the paths of the new files. Right ones are left alone.

    `given` is a folder, an archive or a file that was got by hand, for sets that no program may fetch and for machines
    without a network. Total 0 in `progress` means that it is not known.
    """
    place, tell = data_root(root), progress or (lambda what, done, total: None)
    facts = needed_facts(name)
    files = [file for one in facts for file in one.files]
    by_hand = [one for one in facts if not one.files]
    if given is not None and len(by_hand) == 1 and not files:
        return [_copy_set(expand_home(given), by_hand[0], place, tell)]
    missing = [file for file in files if file_state(file, place, tell).state != "there"]
    if given is not None:
        if not files:
            names = " or ".join(one.name for one in by_hand)
            way_out = f"it is built from several; fetch {names} by name" if names else "it needs no files"
            raise InputError(f"{name} has no use for {given}: {way_out}")
        return _take_published(expand_home(given), missing, place, tell) if missing else []
    for one in by_hand:
        if _locate_set(one, place) is None:
            raise InputError(f"{one.name} cannot be fetched by a program: {one.by_hand}")
    rest = sum(max(0, file.bytes - size_of(part_of(place / file.path))) for file in missing)
    check_room(place, rest, name)
    if not missing:
        return []
    with disk_errors(place, rest), new_folders(place), Downloads(place, tell) as downloads:
        return [downloads.get(file) for file in missing]


def verify(
    name: str, root: Path | str | None = None, progress: Progress | None = None, digests: bool = True
) -> list[FileState]:
    """Return the state of all files that a set or source needs; without `digests`, only sizes are compared."""
    place = data_root(root)
    found = []
    for facts in needed_facts(name):
        if not facts.files:
            where = _locate_set(facts, place)
            found.append(FileState(where or folder_of(facts, place), "missing" if where is None else "there"))
        found += [file_state(file, place, progress, digests) for file in facts.files]
    return found


def file_state(file: RemoteFile, root: Path, progress: Progress | None = None, digests: bool = True) -> FileState:
    """Return whether a file exists and is the published one."""
    path = locate_file(file, root)
    if not path.is_file():
        return FileState(path, "missing")
    fault = find_fault(file, path, progress, digests)
    return FileState(path, "wrong", fault) if fault else FileState(path, "there")


def folder_of(facts: Facts, root: Path) -> Path:
    """Return the folder of a set that the user has to fetch."""
    return root / (facts.folder or facts.name)


def _locate_set(facts: Facts, root: Path) -> Path | None:
    """Return the place of a set that the user has to fetch, in any form; None if it is missing."""
    data_set = DATA_SETS.find(facts.name)
    if data_set is not None and data_set.locate is not None:
        return data_set.locate(root)
    folder = folder_of(facts, root)
    return folder if folder.is_dir() and any(folder.iterdir()) else None


def _check_set(facts: Facts, root: Path) -> None:
    """Raise an error if a data root does not hold all of a set: samples are listed and counted, not decoded."""
    data_set = DATA_SETS.find(facts.name)
    if data_set is None or data_set.check is None:
        return
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DataWarning)
            data_set.check(Options(root=root, skip_bad=True))
    except DataWarning as warning:
        raise InputError(f"{warning}: get it again") from None


def _copy_set(given: Path, facts: Facts, root: Path, progress: Progress) -> Path:
    """Make `given` the folder of a set, or put it there if it is a file.

    A folder or an archive is the whole set, so nothing may be there yet, and the copy is checked before it takes its
    place: an error leaves nothing behind. Other files may come one by one.
    """
    target = folder_of(facts, root)
    if not given.exists():
        raise InputError(f"{given} does not exist: say where you have put it with --from")
    whole = given.is_dir() or is_archive(given)
    taken = target if whole else target / given.name
    if taken.is_file() or (taken.is_dir() and any(taken.iterdir())):
        raise InputError(f"{taken} is there already: remove it first if {given} is to take its place")
    if given.is_dir() and target.resolve().is_relative_to(given.resolve()):
        raise InputError(
            f"{target} lies inside of {given}, which would be copied into itself: give the set's own folder"
        )
    found = entries(given) if whole else []  # an archive that cannot be read is refused here
    if whole and not found:
        raise InputError(f"{given} holds no files: give the folder or archive that holds the set")
    size = sum(entry.size for entry in found) if given.is_dir() else given.stat().st_size
    with _scratch_beside(target, size, str(given)) as scratch:
        fresh = scratch / target.name
        fresh.mkdir()
        copies = {fresh / entry.name: given / entry.name for entry in found} if given.is_dir() else {}
        _copy_files(copies or {fresh / given.name: given}, progress, given.name, size)
        if not whole:
            target.mkdir(exist_ok=True)
            os.rename(fresh / given.name, taken)
            return taken
        try:
            _check_set(facts, scratch)
        except InputError as error:  # about the copy, which the user has not seen
            raise InputError(str(error).replace(str(fresh), str(given))) from None
        if target.exists():
            target.rmdir()
        os.rename(fresh, target)
    return target if given.is_dir() else target / given.name


def _take_published(given: Path, files: Sequence[RemoteFile], root: Path, progress: Progress) -> list[Path]:
    """Copy those of the published files that `given` holds, found by name and checked; it may be one of them."""
    wanted = {PurePosixPath(file.path).name: file for file in files}
    if given.is_file() and (given.name in wanted or not is_archive(given)):
        inside = [Entry(given.parent, given.name, given.stat().st_size)]
    else:
        inside = sorted(entries(given), key=lambda entry: len(entry.folders), reverse=True)  # the outermost wins
    named = {PurePosixPath(entry.name).name: entry for entry in inside}
    found = {name: entry for name, entry in named.items() if name in wanted}
    if not found:
        raise InputError(f"{given} holds none of the files that are needed: {', '.join(wanted)}")
    return [_take_file(entry, wanted[name], root, progress) for name, entry in found.items()]


def _take_file(entry: Entry, file: RemoteFile, root: Path, progress: Progress) -> Path:
    target = root / file.path
    with _scratch_beside(target, entry.size, str(entry)) as scratch:
        fresh = scratch / target.name
        if entry.container.is_dir():
            _copy_files({fresh: entry.container / entry.name}, progress, target.name, entry.size)
        else:
            ((_, content),) = contents([entry])
            if isinstance(content, InputError):
                raise InputError(f"{entry}: {content}")
            fresh.write_bytes(content)
        fault = find_fault(file, fresh, progress)
        if fault:
            raise InputError(f"{entry} is not the file that was published ({fault}): get it again")
        os.replace(fresh, target)
    return target


@contextmanager
def _scratch_beside(target: Path, size: int, what: str) -> Iterator[Path]:
    """Yield a temporary folder on the disk of the target, which has room for `size` bytes."""
    with disk_errors(target, size), new_folders(target.parent):
        check_room(target.parent, size, what)
        with hidden_folder(target.parent, target.name) as scratch:
            yield scratch


def _copy_files(copies: dict[Path, Path], progress: Progress, what: str, total: int) -> None:
    """Copy files, target -> source, of `total` bytes together."""
    done = 0
    for target, source in copies.items():
        target.parent.mkdir(parents=True, exist_ok=True)
        with source.open("rb") as content, target.open("wb") as out:
            while chunk := content.read(CHUNK):
                out.write(chunk)
                done += len(chunk)
                progress(what, done, total)
