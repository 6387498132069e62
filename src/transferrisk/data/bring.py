"""What a user has got by hand, brought below the data root: it appears there whole or not at all.

It is copied into a temporary folder on the same disk and then renamed. Archives stay archives: sets read them in place.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path, PurePosixPath

from ..errors import InputError
from ..files import new_folders
from .containers import Entry, contents, entries, is_archive
from .digests import CHUNK, fault
from .disk import check_room, disk_errors
from .facts import RemoteFile
from .options import Progress


def bring(given: Path, target: Path, progress: Progress, check: Callable[[Path], object]) -> Path:
    """Make `given` the folder `target`, or put it there where it is a file.

    A folder or an archive is the whole set, so nothing may be there yet, and `check` is called with a data root that
    holds the copy, before it takes its place: what it raises leaves nothing behind. Other files may come one by one.
    """
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
    needed = sum(entry.size for entry in found) if given.is_dir() else given.stat().st_size
    with disk_errors(target, needed), new_folders(target.parent):
        check_room(target.parent, needed, str(given))
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".bring-") as scratch:
            fresh = Path(scratch, target.name)
            fresh.mkdir()
            if given.is_dir():
                _copy_tree(given, found, fresh, progress)
            else:
                _copy(given, fresh / given.name, progress, given.name, 0, needed)
            if not whole:
                target.mkdir(exist_ok=True)
                os.rename(fresh / given.name, taken)
                return taken
            try:
                check(Path(scratch))
            except InputError as error:  # of the copy, which the user has not seen
                raise InputError(str(error).replace(str(fresh), str(given))) from None
            if target.exists():
                target.rmdir()
            os.rename(fresh, target)
    return target if given.is_dir() else target / given.name


def take(given: Path, files: Sequence[RemoteFile], root: Path, progress: Progress) -> list[Path]:
    """Those of the published files that `given` holds, known by their names and checked; it may be one of them."""
    wanted = {PurePosixPath(file.path).name: file for file in files}
    if given.is_file() and (given.name in wanted or not is_archive(given)):
        inside = [Entry(given.parent, given.name, given.stat().st_size)]
    else:
        inside = sorted(entries(given), key=lambda entry: len(entry.folders), reverse=True)  # the outermost wins
    named = {PurePosixPath(entry.name).name: entry for entry in inside}
    found = {name: entry for name, entry in named.items() if name in wanted}
    if not found:
        raise InputError(f"{given} holds none of the files that are needed: {', '.join(wanted)}")
    return [_take(entry, wanted[name], root, progress) for name, entry in found.items()]


def _take(entry: Entry, file: RemoteFile, root: Path, progress: Progress) -> Path:
    target = root / file.path
    with disk_errors(target, entry.size), new_folders(target.parent):
        check_room(target.parent, entry.size, str(entry))
        with tempfile.TemporaryDirectory(dir=target.parent, prefix=".bring-") as scratch:
            fresh = Path(scratch, target.name)
            if entry.container.is_dir():
                _copy(entry.container / entry.name, fresh, progress, target.name, 0, entry.size)
            else:
                ((_, content),) = contents([entry])
                if isinstance(content, InputError):
                    raise InputError(f"{entry}: {content}")
                fresh.write_bytes(content)
            wrong = fault(file, fresh, progress)
            if wrong:
                raise InputError(f"{entry} is not the file that was published ({wrong}): get it again")
            os.replace(fresh, target)
    return target


def _copy_tree(given: Path, found: Sequence[Entry], fresh: Path, progress: Progress) -> None:
    total, done = sum(entry.size for entry in found), 0
    for entry in found:
        copy = fresh / entry.name
        copy.parent.mkdir(parents=True, exist_ok=True)
        done = _copy(given / entry.name, copy, progress, given.name, done, total)


def _copy(source: Path, copy: Path, progress: Progress, what: str, done: int, total: int) -> int:
    """Copy one file; how many of the `total` bytes are done after it, where `done` were before."""
    with source.open("rb") as content, copy.open("wb") as out:
        while chunk := content.read(CHUNK):
            out.write(chunk)
            done += len(chunk)
            progress(what, done, total)
    return done
