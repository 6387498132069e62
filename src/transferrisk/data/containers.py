"""Files in folders, tar and zip archives, read the same way and never unpacked.

Names inside an archive are held to what a folder could contain: an absolute path or one with ".." is refused, since
whoever made it may have meant to write elsewhere.
"""

from __future__ import annotations

import os
import tarfile
import zipfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path, PurePosixPath

from ..errors import InputError

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")


@dataclass(frozen=True, order=True)
class Entry:
    """One file. `offset` is where its bytes begin in `container`; None: it is to be asked for by name."""

    container: Path  # the folder or archive
    name: str  # the path below it, with "/"
    size: int
    stamp: int = 0  # changes when the file does
    offset: int | None = None

    @property
    def folders(self) -> tuple[str, ...]:
        """Names of the folders it lies in, the outermost first."""
        return PurePosixPath(self.name).parts[:-1]

    def __str__(self) -> str:
        return str(self.container / self.name) if self.container.is_dir() else f"{self.container}: {self.name}"

    def read(self) -> bytes:
        """Its content; of an archive that is compressed as a whole, single files cannot be read."""
        if self.offset is not None:
            with self.container.open("rb") as file:
                file.seek(self.offset)
                return file.read(self.size)
        if self.container.suffix == ".zip":
            with _opened_zip(self.container) as archive:
                return _zip_content(archive, self)
        if not self.container.is_dir():
            raise InputError(
                f"{self.container} is compressed as a whole, so single files cannot be read from it: unpack it, or use "
                "it without lazy"
            )
        return (self.container / self.name).read_bytes()


def is_archive(path: Path) -> bool:
    return path.name.lower().endswith(ARCHIVES)


def entries(path: Path) -> list[Entry]:
    """All files in a folder or archive, sorted by name; hidden ones and those of file managers are left out."""
    if not path.exists():
        raise InputError(f"{path} does not exist")
    if path.is_dir():
        found = list(_walk(path))
    elif path.name.lower().endswith(".zip"):
        found = _list_zip(path)
    elif is_archive(path):
        found = _list_tar(path)
    else:
        raise InputError(f"{path} is neither a folder nor an archive: use one of {', '.join(ARCHIVES)}")
    return sorted(entry for entry in found if not _hidden(entry.name))


def contents(wanted: Sequence[Entry]) -> Iterator[tuple[int, bytes]]:
    """(position in `wanted`, content) of each entry, archive after archive, in the order that is cheapest to read."""
    positions = sorted(range(len(wanted)), key=lambda i: wanted[i].container)
    for container, group in groupby(positions, key=lambda i: wanted[i].container):
        members = list(group)
        if container.suffix == ".zip":
            with _opened_zip(container) as archive:
                for i in members:
                    yield i, _zip_content(archive, wanted[i])
        elif container.is_file() and wanted[members[0]].offset is None:
            yield from _stream_tar(container, {wanted[i].name: i for i in members})
        else:
            for i in members:
                yield i, wanted[i].read()


def _hidden(name: str) -> bool:
    parts = PurePosixPath(name).parts
    return any(part.startswith(".") or part == "__MACOSX" for part in parts) or parts[-1] in (
        "Thumbs.db",
        "desktop.ini",
    )


def _walk(folder: Path) -> Iterator[Entry]:
    for parent, _, names in os.walk(folder, followlinks=True):
        for name in names:
            file = Path(parent, name)
            try:
                stat = file.stat()
            except FileNotFoundError:  # a link to nothing
                continue
            yield Entry(folder, file.relative_to(folder).as_posix(), stat.st_size, stat.st_mtime_ns)


def _list_tar(path: Path) -> list[Entry]:
    stamp, size = path.stat().st_mtime_ns, path.stat().st_size
    plain = path.name.lower().endswith(".tar")
    try:
        found = []
        with tarfile.open(path, "r:" if plain else "r:*") as archive:
            while (member := archive.next()) is not None:
                if member.isfile():
                    offset = member.offset_data if plain else None
                    found.append(Entry(path, _checked(path, member.name), member.size, stamp, offset))
                archive.members.clear()  # type: ignore[attr-defined]  # not typed; an archive of millions would fill the memory
    except (tarfile.TarError, OSError, EOFError) as error:
        raise InputError(f"{path} cannot be read ({error}): it is damaged or no tar archive; fetch it again") from None
    if plain and found and max((entry.offset or 0) + entry.size for entry in found) > size:
        raise InputError(f"{path} ends within {found[-1].name}: it is damaged; fetch it again")
    return found


def _stream_tar(path: Path, positions: dict[str, int]) -> Iterator[tuple[int, bytes]]:
    with tarfile.open(path) as archive:
        for member in archive:
            position = positions.get(_checked(path, member.name))
            if member.isfile() and position is not None:
                file = archive.extractfile(member)
                assert file is not None
                yield position, file.read()


def _list_zip(path: Path) -> list[Entry]:
    stamp = path.stat().st_mtime_ns
    with _opened_zip(path) as archive:
        return [
            Entry(path, _checked(path, info.filename), info.file_size, stamp)
            for info in archive.infolist()
            if not info.is_dir()
        ]


def _opened_zip(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise InputError(f"{path} cannot be read ({error}): it is damaged or no zip archive; fetch it again") from None


def _zip_content(archive: zipfile.ZipFile, entry: Entry) -> bytes:
    try:
        return archive.read(entry.name)
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError) as error:  # wrong sum; a password; a method
        raise InputError(f"{entry} cannot be read ({error}): the archive is damaged or locked") from None


def _checked(archive: Path, name: str) -> str:
    path = PurePosixPath(name.replace("\\", "/"))
    if path.is_absolute() or ".." in path.parts or (path.parts and path.parts[0].endswith(":")):
        raise InputError(
            f"{archive} holds a file named {name!r}, which lies outside of it: this is refused; get the archive from "
            "its makers, or pack it again without such paths"
        )
    return name
