"""The disk that data is written to: room, permission, one writer at a time. Its troubles are told in one line."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ..errors import InputError

try:
    import fcntl
except ImportError:  # a platform without them: two processes are then not kept apart
    fcntl = None  # type: ignore[assignment]  # a module, or none

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)


def check_room(folder: Path, needed: int, what: str) -> None:
    """Refuse what will not fit before any of it is written."""
    if free_bytes(folder) < needed:
        raise InputError(_no_room(what, folder, needed))


def free_bytes(folder: Path) -> int:
    """On the disk of a folder that may not exist yet."""
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


@contextmanager
def disk_errors(target: Path, needed: int, part: Path | None = None) -> Iterator[None]:
    """Turn what the disk refuses into an InputError; a `part` on a full disk is removed, as it would keep it full."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            if part is not None:
                part.unlink(missing_ok=True)
            raise InputError(_no_room(target.name, target.parent, needed)) from None
        raise InputError(
            f"{error.filename or target}: {error.strerror or error}: mend that, or choose another data root with "
            "--data-root"
        ) from None


@contextmanager
def locked(target: Path) -> Iterator[None]:
    """Keep other processes from fetching the same file meanwhile.

    The lock ends with the process that holds it, so a lock file left by one that was killed shuts nobody out.
    """
    if fcntl is None:
        yield
        return
    lock = target.with_name(f".{target.name}.lock")
    while True:
        handle = os.open(lock, os.O_CREAT | os.O_RDWR, 0o644)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(handle)
            raise InputError(f"another process is fetching {target}: wait until it is done, then ask again") from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.EOPNOTSUPP):  # a network file system may know no locks
                os.close(handle)
                raise
        if os.fstat(handle).st_nlink:  # else its last holder removed it between our opening and locking it
            break
        os.close(handle)
    try:
        yield
    finally:
        lock.unlink(missing_ok=True)
        os.close(handle)


def _no_room(what: str, folder: Path, needed: int) -> str:
    return (
        f"{what} needs {needed} bytes and {folder} has {free_bytes(folder)} free: make room, or choose another data "
        "root with --data-root"
    )
