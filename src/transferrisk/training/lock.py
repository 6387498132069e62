"""One process at a time in the folder of a run."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import InputError


def claim(folder: Path) -> int | None:
    """A lock on the folder, which ends with this process or when the handle is closed; an error if it is taken."""
    try:
        import fcntl
    except ImportError:  # a platform without them: two processes are then not kept apart
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise InputError(f"another process is training in {folder}: wait for it, or choose another folder") from None
    except OSError:  # a network file system may know no locks
        pass
    return handle
