"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from .errors import InputError


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write beside the target under a temporary name, then rename: an interruption leaves the old file whole.

    The content is on the disk before it takes the name, so that a power failure does too.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def prepare_folder(folder: Path, *files: str) -> None:
    """Create the folder where these files will go; what stands in the way is told now, not after hours of work."""
    for part in (folder, *folder.parents):
        if part.exists() and not part.is_dir():
            raise InputError(f"{part} is a file, not a folder: choose another folder for the output")
    for name in files:
        if (folder / name).is_dir():
            raise InputError(f"{folder / name} is a folder, where a file must go: move it, or choose another output")
    folder.mkdir(parents=True, exist_ok=True)
