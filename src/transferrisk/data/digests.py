"""Whether a file is the one that was published."""

from __future__ import annotations

import gzip
import hashlib
import zlib
from pathlib import Path

from .facts import RemoteFile
from .options import Progress

CHUNK = 1 << 20


def located(file: RemoteFile, root: Path) -> Path:
    """Where a file is below a root; what is inside of a .gz may lie there unpacked instead."""
    path = root / file.path
    plain = path.with_suffix("")
    return plain if file.content and path.suffix == ".gz" and not path.is_file() and plain.is_file() else path


def fault(file: RemoteFile, path: Path, progress: Progress | None = None) -> str | None:
    """What is wrong with the copy of a file at `path`; None: it is as published."""
    wrong = size_fault(file, path)
    if wrong:
        return wrong
    size = path.stat().st_size
    kind, _, expected = (file.content or file.digest or "").partition(":")
    name = Path(file.path).name
    packed = file.path.endswith(".gz") and path.name != Path(name).stem
    digest = hashlib.new(kind, usedforsecurity=False)
    try:
        with path.open("rb") as raw:
            content = gzip.GzipFile(fileobj=raw) if file.content and packed else raw
            while chunk := content.read(CHUNK):
                digest.update(chunk)
                if progress:
                    progress(f"checking {name}", raw.tell(), size)
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        return f"damaged: {error}"
    found = digest.hexdigest()
    inside = " inside" if file.content else ""
    return None if found == expected else f"{kind}{inside} is {found} where {expected} is published"


def size_fault(file: RemoteFile, path: Path) -> str | None:
    """The size counts where the digest is of the file itself: wrappings of one content differ in theirs."""
    size = path.stat().st_size
    if file.content or size == file.bytes:
        return None
    return f"{size} bytes where {file.bytes} are published"
