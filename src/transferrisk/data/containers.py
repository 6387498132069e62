"""Files in folders, tar and zip archives, read the same way and never unpacked."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from ..errors import DataWarning, InputError, warn
from . import tars
from .archives import because
from .zips import Zip

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".zip")


@dataclass(frozen=True, order=True)
class Entry:
    """One file. `offset` is where its bytes begin in a tar archive, unpacked where that is `packed`."""

    container: Path  # the folder or archive
    name: str  # the path below it, with "/"
    size: int
    stamp: int = 0  # changes when the file does
    offset: int | None = None
    packed: bool = False

    @property
    def folders(self) -> tuple[str, ...]:
        """Names of the folders it lies in, the outermost first."""
        return tuple(self.name.split("/")[:-1])

    def __str__(self) -> str:
        return str(self.container / self.name) if self.container.is_dir() else f"{self.container}: {self.name}"

    def read(self) -> bytes:
        """Its content; of an archive that is compressed as a whole, single files are not read."""
        if self.packed:
            raise InputError(compressed(self.container))
        ((_, content),) = contents([self])
        if isinstance(content, InputError):
            raise InputError(f"{self}: {content}")
        return content


def compressed(path: Path) -> str:
    return (
        f"{path} is compressed as a whole, so single files cannot be read from it: unpack it, or use it without lazy "
        "(--lazy)"
    )


def is_archive(path: Path) -> bool:
    """By its name."""
    return path.name.lower().endswith(ARCHIVES)


def entries(path: Path) -> list[Entry]:
    """All files in a folder or archive, sorted by name; hidden ones and those of file managers are left out."""
    if not path.exists():
        raise InputError(f"{path} does not exist: check the path")
    if path.is_dir():
        found = _in_folder(path)
    elif _is_zip(path):
        found = _in_zip(path)
    elif path.is_file() and is_archive(path):
        found = _in_tar(path)
    else:
        raise InputError(f"{path} is neither a folder nor an archive: use one of {', '.join(ARCHIVES)}")
    return sorted(entry for entry in found if not hidden(entry.name))


def contents(wanted: Sequence[Entry]) -> Iterator[tuple[int, bytes | InputError]]:
    """(position in `wanted`, content, or why it cannot be read), archive after archive, in the cheapest order.

    Each position comes once. An archive that cannot be opened is an error.
    """
    positions = sorted(range(len(wanted)), key=lambda i: wanted[i].container)
    for container, group in groupby(positions, key=lambda i: wanted[i].container):
        members = list(group)
        if _is_zip(container):
            with Zip(container) as archive:
                for i in members:
                    yield i, _read(archive, wanted[i].name)
        elif container.is_file():
            places = [tars.Member(wanted[i].offset or 0, wanted[i].size) for i in members]
            for place, content in tars.contents(container, places):
                yield members[place], content
        else:
            for i in members:
                yield i, _read(container, wanted[i].name)


def hidden(name: str) -> bool:
    """Of a system or a file manager."""
    parts = name.split("/")
    return parts[-1] in ("Thumbs.db", "desktop.ini") or any(part[:1] == "." or part == "__MACOSX" for part in parts)


def folders(path: Path) -> Iterator[tuple[Path, list[str]]]:
    """Each folder from `path` on and the names of the files in it, but for hidden ones.

    Links are followed unless they lead in a circle.
    """

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename} cannot be read ({because(error)}): mend that, or move it elsewhere")

    for parent, below, names in os.walk(path, followlinks=True, onerror=refuse):
        here = Path(parent)
        below[:] = [name for name in below if not hidden(name) and not _circular(here / name)]
        yield here, names


def _circular(folder: Path) -> bool:
    return folder.is_symlink() and folder.parent.resolve().is_relative_to(folder.resolve())


def _read(source: Zip | Path, name: str) -> bytes | InputError:
    try:
        return (source / name).read_bytes() if isinstance(source, Path) else source.read(name)
    except InputError as error:
        return error
    except (OSError, ValueError) as error:  # a name that no file can have is a ValueError
        return InputError(f"it cannot be read ({because(error)})")


def _is_zip(path: Path) -> bool:
    return path.name.lower().endswith(".zip") and path.is_file()


def _in_folder(folder: Path) -> list[Entry]:
    found, lost, odd = [], [], []
    for parent, names in folders(folder):
        for file in (parent / name for name in names if not hidden(name)):
            try:
                status = file.stat()
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ELOOP):
                    lost.append(file)
                    continue
                raise InputError(f"{file} cannot be read ({because(error)}): mend that, or move it elsewhere") from None
            if stat.S_ISREG(status.st_mode):
                below = file.relative_to(folder).as_posix()
                found.append(Entry(folder, below, status.st_size, status.st_mtime_ns))
            else:
                odd.append(file)
    for files, what in ((lost, "links lead to nothing"), (odd, "things are no regular files")):
        if files:
            warn(f"{folder}: {len(files)} {what} and are left out, such as {files[0]}", DataWarning)
    return found


def _in_tar(path: Path) -> list[Entry]:
    found = tars.members(path)
    stamp, packed = path.stat().st_mtime_ns, tars.is_packed(path)
    return [Entry(path, name, member.size, stamp, member.start, packed) for name, member in found.items()]


def _in_zip(path: Path) -> list[Entry]:
    stamp = path.stat().st_mtime_ns
    with Zip(path) as archive:
        return [Entry(path, name, info.file_size, stamp) for name, info in archive.members.items()]
