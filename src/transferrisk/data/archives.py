"""What tar and zip archives have in common: the names they may hold, and what they raise when they cannot be read."""

from __future__ import annotations

import lzma
import struct
import tarfile
import zipfile
import zlib
from pathlib import Path

from ..errors import InputError

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
)
"""What the standard library raises on archives it cannot read, by format. `InputError` is among them."""


def because(error: BaseException) -> str:
    """An error's cause in one line."""
    text = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
    return " ".join(text.split()) or type(error).__name__


def unreadable(path: Path, error: BaseException, kind: str) -> InputError:
    """One line for an archive that cannot be opened, which is damaged unless the system is what refuses."""
    if isinstance(error, InputError):
        return error
    if isinstance(error, OSError) and error.errno is not None:
        return InputError(f"{path} cannot be read ({because(error)}): mend that, or name another file")
    return InputError(f"{path} cannot be read ({because(error)}): it is damaged or no {kind} archive; fetch it again")


def inside(archive: Path, name: str) -> str:
    """A member's name as a path below the archive, without "." and doubled slashes.

    An absolute path or one with ".." is refused, since whoever made it may have meant to write elsewhere.
    """
    parts = name.replace("\\", "/").split("/")
    if name.startswith(("/", "\\")) or parts[0].endswith(":") or ".." in parts:
        raise InputError(
            f"{archive} holds a file named {name!r}, which lies outside of it: this is refused; get the archive from "
            "its makers, or pack it again without such paths"
        )
    return "/".join(part for part in name.split("/") if part not in ("", "."))
