"""Members of tar archives, plain or compressed, by where their bytes lie in what the archive unpacks to.

Of members with one name the last counts, as when it is unpacked. Links count as what they lead to. An archive is read
to its end, which has to be there: tarfile alone takes a damaged header for the end.
"""

from __future__ import annotations

import bz2
import gzip
import lzma
import posixpath
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import IO, Any, NamedTuple, cast

from ..errors import DataWarning, warn
from .archives import DAMAGED, inside, unreadable

BLOCK = tarfile.BLOCKSIZE
CHUNK = 1 << 20
OPENERS = {b"\x1f\x8b": gzip.open, b"BZh": bz2.open, b"\xfd7zXZ": lzma.open, b"]\0\0": lzma.open}


class Member(NamedTuple):
    start: int  # of its bytes in the unpacked archive
    size: int


def is_packed(path: Path) -> bool:
    """Compressed as a whole, so that what comes first has to be read first."""
    with path.open("rb") as file:
        return file.read(8).startswith(tuple(OPENERS))


def members(path: Path) -> dict[str, Member]:
    """All files by name."""
    try:
        with _unpacked(path) as stream:
            found, links = _headers(path, stream)
    except DAMAGED as error:
        raise unreadable(path, error, "tar") from None
    return found | _followed(path, found, links)


def contents(path: Path, wanted: Sequence[Member]) -> Iterator[tuple[int, bytes]]:
    """(position in `wanted`, bytes) of each, in the order they lie in."""
    try:
        with _unpacked(path) as stream:
            in_order = sorted(range(len(wanted)), key=lambda i: wanted[i])
            for member, alike in groupby(in_order, key=lambda i: wanted[i]):  # several where links lead there
                stream.seek(member.start)
                content = stream.read(member.size)
                if len(content) < member.size:
                    raise EOFError("it ends within a file")
                for i in alike:
                    yield i, content
    except DAMAGED as error:
        raise unreadable(path, error, "tar") from None


def _unpacked(path: Path) -> IO[bytes]:
    with path.open("rb") as file:
        begin = file.read(8)
    opener: Any = next((opener for magic, opener in OPENERS.items() if begin.startswith(magic)), open)
    return cast(IO[bytes], opener(path, "rb"))


def _headers(path: Path, stream: IO[bytes]) -> tuple[dict[str, Member], dict[str, str]]:
    """Files by name, and links by name with the names they lead to."""
    found: dict[str, Member] = {}
    links: dict[str, str] = {}
    with tarfile.open(fileobj=stream, mode="r:") as archive:
        while (member := archive.next()) is not None:
            name = inside(path, member.name)
            if member.isfile():
                links.pop(name, None)
                found[name] = Member(member.offset_data, member.size)
            elif member.islnk() or member.issym():
                found.pop(name, None)
                beside = posixpath.dirname(name) if member.issym() else ""
                links[name] = posixpath.normpath(posixpath.join(beside, member.linkname))
            archive.members.clear()  # type: ignore[attr-defined]  # not typed; an archive of millions would fill the memory
        end = archive.offset  # where the next header would be
    stream.seek(end)
    _refuse_rest(stream)
    return found, links


def _refuse_rest(stream: IO[bytes]) -> None:
    """At least one block of zeros, and nothing else: the end of an archive."""
    length = 0
    while chunk := stream.read(CHUNK):
        if chunk.count(0) < len(chunk):
            raise tarfile.ReadError("a header is damaged, or something follows its end")
        length += len(chunk)
    if length < BLOCK:
        raise tarfile.ReadError("it ends too early")


def _followed(path: Path, found: Mapping[str, Member], links: Mapping[str, str]) -> dict[str, Member]:
    """Links to files of the archive, which a link may be reached by itself."""
    reached: dict[str, Member] = {}
    lost = []
    for name in links:
        target, steps = name, 0
        while target in links and steps <= len(links):
            target, steps = links[target], steps + 1
        if target in found:
            reached[name] = found[target]
        else:
            lost.append(name)
    if lost:
        warn(
            f"{path}: {len(lost)} links lead to no file of the archive and are left out, such as {lost[0]!r}",
            DataWarning,
        )
    return reached
