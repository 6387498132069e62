"""Files in folders, tar and zip archives, read the same way and never unpacked.

If an archive has several members of one name the last counts, as when it is unpacked. A tar archive is read to its end,
which has to be there (tarfile alone takes a damaged header for the end); its members are then read by where their bytes
lie, in the archive itself or in what a compressed one unpacks to.
"""

from __future__ import annotations

import bz2
import errno
import gzip
import lzma
import os
import posixpath
import stat
import struct
import tarfile
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import IO, Any, cast

from ..errors import DataWarning, InputError, cause_of, warn

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz", ".zip")
CHUNK = 1 << 20
LARGEST = 1 << 29  # bytes of a file that is read whole, as an image or a list is; one of more is an attack or a mistake
PIECE = 1 << 13  # bytes that a zip archive unpacks at once: of some kinds, so many packed ones
MOST_PACKED = 200  # times that an honest file becomes smaller
OPENERS = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open, b"]\0\0": lzma.open}  # by first bytes

DAMAGED = (
    tarfile.TarError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    OSError,
    EOFError,
    ValueError,
    LookupError,
    OverflowError,
    MemoryError,
    RuntimeError,  # a password
    NotImplementedError,  # a kind of compression
    SyntaxError,  # of NumPy's headers, as the next two
    tokenize.TokenError,
    TypeError,
)
"""Errors of the standard library on archives that it cannot read, over all formats. `InputError` is among them."""


@dataclass(frozen=True, order=True)
class Entry:
    """One file. `offset` is where its bytes begin in a tar archive, after unpacking if the archive is `packed`."""

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
        """Return its content; single files are not read from an archive that is compressed as a whole."""
        if self.packed:
            raise compressed_as_a_whole(self.container)
        ((_, content),) = contents([self])
        if isinstance(content, InputError):
            raise InputError(f"{self}: {content}")
        return content


def is_archive(path: Path) -> bool:
    """Return whether the file's name is that of an archive."""
    return path.name.lower().endswith(ARCHIVES)


def entries(path: Path) -> list[Entry]:
    """Return all files in a folder or archive, sorted by name; hidden ones and those of file managers are left out."""
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
    return sorted(entry for entry in found if not is_hidden(entry.name))


def contents(wanted: Sequence[Entry]) -> Iterator[tuple[int, bytes | InputError]]:
    """Yield the place in `wanted` of each file, and its content or the error, archive by archive in the cheapest order.

    Each position comes once. An archive that cannot be opened is an error.
    """
    positions = sorted(range(len(wanted)), key=lambda i: wanted[i].container)
    for i in positions:
        if wanted[i].size > LARGEST:
            yield i, _too_large(wanted[i].size)
    positions = [i for i in positions if wanted[i].size <= LARGEST]
    for container, group in groupby(positions, key=lambda i: wanted[i].container):
        members = list(group)
        if _is_zip(container):
            with _opened_zip(container) as archive:
                files = _zip_members(container, archive)
                yield from ((i, _read_zipped(archive, files.get(wanted[i].name))) for i in members)
        elif container.is_file():
            yield from _tar_contents(container, wanted, members)
        else:
            yield from ((i, _read_loose(container / wanted[i].name)) for i in members)


def folders(path: Path, left_out: list[Path] | None = None) -> Iterator[tuple[Path, list[str]]]:
    """Yield each folder from `path` on and the names of its files; hidden folders are left out.

    Links are followed after all else, unless they lead to a folder above or to one that came already: those are added
    to `left_out`.
    """

    def refuse(error: OSError) -> None:
        raise InputError(f"{error.filename} cannot be read ({cause_of(error)}): fix that, or move it elsewhere")

    came: set[tuple[int, int]] = set()
    above = {_identity(folder) for folder in path.resolve().parents}
    begins = [path]
    while begins:
        begin, *begins = begins
        for parent, below, names in os.walk(begin, onerror=refuse):
            here = Path(parent)
            identity = _identity(here)
            if identity in came or identity in above:
                below.clear()
                if left_out is not None:
                    left_out.append(here)
                continue
            came.add(identity)
            below[:] = sorted(name for name in below if not is_hidden(name))
            begins += [here / name for name in below if (here / name).is_symlink()]
            yield here, names


def is_hidden(name: str) -> bool:
    """Return whether a path below a container belongs to a system or a file manager."""
    names = name.split("/")
    return names[-1] in ("Thumbs.db", "desktop.ini") or any(part[:1] == "." or part == "__MACOSX" for part in names)


def unreadable(path: Path, error: BaseException, kind: str) -> InputError:
    """Return the error of an archive that cannot be opened; it is damaged unless the system refuses to read it."""
    if isinstance(error, InputError):
        return error
    if isinstance(error, OSError) and error.errno is not None:
        return InputError(f"{path} cannot be read ({cause_of(error)}): fix that, or name another file")
    return InputError(
        f"{path} cannot be read ({cause_of(error)}): it is damaged or not a {kind} archive; fetch it again"
    )


def compressed_as_a_whole(path: Path) -> InputError:
    return InputError(
        f"{path} is compressed as a whole, so single files cannot be read from it: unpack it, or use it without --lazy "
        "(lazy in Python)"
    )


def _identity(folder: Path) -> tuple[int, int]:
    status = folder.stat()
    return status.st_dev, status.st_ino


def _too_large(size: int) -> InputError:
    return InputError(f"it has {size} bytes, and {LARGEST} are the most that is read of one file")


def refuse_bomb(path: Path, archive: zipfile.ZipFile) -> None:
    """Refuse a zip archive with a member that unpacks to a multiple of itself that no honest one has."""
    for info in archive.infolist():
        if info.file_size > max(LARGEST, MOST_PACKED * info.compress_size):
            raise InputError(
                f"{path}: {info.filename!r} has {info.compress_size} bytes and says that it unpacks to "
                f"{info.file_size}: this is refused; if it is meant, save it without compression"
            )


def _in_folder(folder: Path) -> list[Entry]:
    found, lost, odd, again = [], [], [], list[Path]()
    for parent, names in folders(folder, again):
        for file in (parent / name for name in names if not is_hidden(name)):
            try:
                status = file.stat()
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ELOOP):
                    lost.append(file)
                    continue
                raise InputError(f"{file} cannot be read ({cause_of(error)}): fix that, or move it elsewhere") from None
            if stat.S_ISREG(status.st_mode):
                below = file.relative_to(folder).as_posix()
                found.append(Entry(folder, below, status.st_size, status.st_mtime_ns))
            else:
                odd.append(file)
    for files, what in (
        (lost, "links that lead to nothing"),
        (odd, "things that are not regular files"),
        (again, "links to folders that are read already"),
    ):
        if files:
            warn(f"{folder}: {len(files)} {what} are left out, such as {files[0]}", DataWarning)
    return found


def _read_loose(path: Path) -> bytes | InputError:
    try:
        return path.read_bytes()
    except (OSError, ValueError) as error:  # a name that no file can have is a ValueError
        return InputError(f"it cannot be read ({cause_of(error)})")


def _inside(archive: Path, name: str) -> str:
    """Return a member's name as a path below the archive, without "." and doubled slashes.

    An absolute path or one with ".." is refused, since it may have been meant to write elsewhere.
    """
    names = name.replace("\\", "/").split("/")
    if name.startswith(("/", "\\")) or names[0].endswith(":") or ".." in names:
        raise InputError(
            f"{archive} holds a file named {name!r}, which lies outside of it: this is refused; get the archive from "
            "its makers, or pack it again without such paths"
        )
    return "/".join(part for part in name.split("/") if part not in ("", "."))


# ---- zip


def _is_zip(path: Path) -> bool:
    return path.name.lower().endswith(".zip") and path.is_file()


def _opened_zip(path: Path) -> zipfile.ZipFile:
    try:
        return zipfile.ZipFile(path)
    except DAMAGED as error:
        raise unreadable(path, error, "zip") from None


def _zip_members(path: Path, archive: zipfile.ZipFile) -> dict[str, zipfile.ZipInfo]:
    """Return all files by name; a backslash in a name separates folders."""
    files = (info for info in archive.infolist() if not info.filename.endswith(("/", "\\")))
    return {_inside(path, info.filename.replace("\\", "/")): info for info in files}


def _in_zip(path: Path) -> list[Entry]:
    stamp = path.stat().st_mtime_ns
    with _opened_zip(path) as archive:
        return [Entry(path, name, info.file_size, stamp) for name, info in _zip_members(path, archive).items()]


def _read_zipped(archive: zipfile.ZipFile, member: zipfile.ZipInfo | None) -> bytes | InputError:
    if member is None:
        return InputError("it is gone from the archive, which has changed meanwhile")
    try:
        pieces, size = [], 0
        with archive.open(member) as file:
            while piece := file.read(PIECE):
                pieces.append(piece)
                size += len(piece)
                if size > LARGEST:
                    return _too_large(size)
        return b"".join(pieces)
    except DAMAGED as error:
        return InputError(f"it cannot be read ({cause_of(error)}): the archive is damaged or locked")


# ---- tar


def _in_tar(path: Path) -> list[Entry]:
    try:
        with _unpacked(path) as stream:
            found, links = _tar_headers(path, stream)
    except DAMAGED as error:
        raise unreadable(path, error, "tar") from None
    stamp, packed = path.stat().st_mtime_ns, _tar_opener(path) is not None
    members = found | _followed(path, found, links)
    return [Entry(path, name, size, stamp, start, packed) for name, (start, size) in members.items()]


def _tar_contents(path: Path, wanted: Sequence[Entry], members: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Yield the place in `wanted` and the content of these members, in the order of their bytes."""

    def place(i: int) -> tuple[int, int]:
        return wanted[i].offset or 0, wanted[i].size

    try:
        with _unpacked(path) as stream:
            for (start, size), alike in groupby(sorted(members, key=place), key=place):  # several if links lead there
                stream.seek(start)
                content = stream.read(size)
                if len(content) < size:
                    raise EOFError("it ends within a file")
                yield from ((i, content) for i in alike)
    except DAMAGED as error:
        raise unreadable(path, error, "tar") from None


def _tar_opener(path: Path) -> Any | None:
    """Return the function that unpacks a tar archive that is compressed as a whole; None if it is not compressed."""
    with path.open("rb") as file:
        begin = file.read(8)
    return next((opener for magic, opener in OPENERS.items() if begin.startswith(magic)), None)


def _unpacked(path: Path) -> IO[bytes]:
    return cast(IO[bytes], (_tar_opener(path) or open)(path, "rb"))


def _tar_headers(path: Path, stream: IO[bytes]) -> tuple[dict[str, tuple[int, int]], dict[str, str]]:
    """Return files by name, as (start of the bytes, size), and links by name, as the names that they lead to."""
    found: dict[str, tuple[int, int]] = {}
    links: dict[str, str] = {}
    with tarfile.open(fileobj=cast(IO[bytes], _Headers(stream)), mode="r:") as archive:
        while (member := archive.next()) is not None:
            name = _inside(path, member.name)
            if member.isfile():
                links.pop(name, None)
                found[name] = member.offset_data, member.size
            elif member.islnk() or member.issym():
                found.pop(name, None)
                beside = posixpath.dirname(name) if member.issym() else ""
                links[name] = posixpath.normpath(posixpath.join(beside, member.linkname))
            archive.members.clear()  # type: ignore[attr-defined]  # not typed; an archive of millions would fill the memory
        end = archive.offset  # where the next header would be
    stream.seek(end)
    _refuse_rest(stream)
    return found, links


class _Headers:
    """Stream of a tar archive in which headers are read; a long header, which would fill the memory, is refused."""

    def __init__(self, stream: IO[bytes]) -> None:
        self.tell, self.seek, self._read = stream.tell, stream.seek, stream.read

    def read(self, size: int) -> bytes:
        if size > 16 * CHUNK:
            raise tarfile.ReadError(f"a header says that it has {size} bytes")
        return self._read(size)


def _refuse_rest(stream: IO[bytes]) -> None:
    """Require the end of an archive: at least one block of zeros, and nothing else."""
    length = 0
    while chunk := stream.read(CHUNK):
        if chunk.count(0) < len(chunk):
            raise tarfile.ReadError("a header is damaged, or something follows its end")
        length += len(chunk)
    if length < tarfile.BLOCKSIZE:
        raise tarfile.ReadError("it ends too early")


def _followed(path: Path, found: Mapping[str, tuple[int, int]], links: Mapping[str, str]) -> dict[str, tuple[int, int]]:
    """Return the files that links lead to, directly or by other links, under the links' names."""
    ends: dict[str, str] = {}  # of every link that was followed; itself if it leads in a circle
    for name in links:
        chain = [name]
        ends[name] = name
        while (target := links[chain[-1]]) in links and target not in ends:
            ends[target] = target
            chain.append(target)
        ends |= dict.fromkeys(chain, ends.get(target, target))
    reached = {name: found[end] for name, end in ends.items() if end in found}
    lost = [name for name in links if name not in reached]
    if lost:
        warn(
            f"{path}: {len(lost)} links lead to no file of the archive and are left out, such as {lost[0]!r}",
            DataWarning,
        )
    return reached
