"""Writing files so that a reader never sees half of one."""

from __future__ import annotations

import hashlib
import os
import platform
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from .errors import InputError

_OWNER = f"{hashlib.sha256(platform.node().encode()).hexdigest()[:8]}-"  # processes are numbered by machine


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write beside the target under a temporary name, then rename: an interruption leaves the old file whole.

    The content is on the disk before it takes the name, so that a power failure does too. A link stays, and the file it
    leads to is written. What fails leaves no folder that was not there before.
    """
    target = Path(os.path.realpath(path))
    _refuse_other_than_file(target)
    data = content.encode() if isinstance(content, str) else content
    with new_folders(target.parent):
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name[:100]}.")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except BaseException as error:
            Path(temporary).unlink(missing_ok=True)
            if isinstance(error, OSError) and error.filename in (None, temporary):
                error.filename = str(path)  # a full disk does not say what it has no room for
            raise


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A file beside the target to write to, however long it gets; it takes the target's name when all went well.

    What processes that were killed had written for the same target is removed.
    """
    target = Path(os.path.realpath(path))
    _refuse_other_than_file(target)
    with new_folders(target.parent):
        start = f".{target.name[:100]}."
        with suppress(OSError):
            remove_abandoned(other for other in target.parent.iterdir() if other.name.startswith(start))
        handle, name = tempfile.mkstemp(dir=target.parent, prefix=owned(target.name))
        os.close(handle)
        temporary = Path(name)
        try:
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, target)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise


def owned(name: str) -> str:
    """How the hidden name of a file begins that this process writes, which others can tell when it was killed."""
    return f".{name[:100]}.{_OWNER}{os.getpid()}."


def remove_abandoned(hidden: Iterable[Path]) -> None:
    """Those of the files whose names begin as `owned` says, of processes of this machine that run no more."""
    for path in hidden:
        process = path.name.rpartition(f".{_OWNER}")[2].partition(".")[0]
        if f".{_OWNER}" in path.name and process.isdigit() and not _runs(int(process)):
            path.unlink(missing_ok=True)


def _runs(process: int) -> bool:
    if os.name != "posix":  # elsewhere, asking would end it
        return True
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def check_target(path: Path) -> None:
    """Refuse a file that could not be written, before hours of work and without creating anything."""
    _check_folder(path.parent)
    if path.is_dir():
        raise InputError(f"{path} is a folder, where a file must go: move it, or choose another output")
    _refuse_other_than_file(path)
    _check_folder(Path(os.path.realpath(path)).parent)


def keep_apart(output: Path, *read: Path) -> None:
    """Refuse to write over a file that is read, by whatever name."""
    for path in read:
        if output.exists() and path.exists() and output.samefile(path):
            name = "" if output == path else f" as {path}"
            raise InputError(f"{output} is read{name}, and is not replaced: choose another output")


def prepare_folder(folder: Path, *files: str) -> None:
    """Create the folder where these files will go; what stands in the way is told now, not after hours of work."""
    _check_folder(folder)
    for name in files:
        check_target(folder / name)
    folder.mkdir(parents=True, exist_ok=True)


def readable(name: Path | str) -> str:
    """A file's name to print: bytes that are no text become \\xNN, so that different names stay different."""
    return os.fsencode(name).decode(errors="backslashreplace")


def _check_folder(folder: Path) -> None:
    """Files can be written there, or it can be made."""
    parts = (folder, *folder.parents)
    for part in parts:
        if part.exists() and not part.is_dir():
            raise InputError(f"{part} is a file, not a folder: choose another folder for the output")
    there = next((part for part in parts if part.exists()), Path())
    if not os.access(there, os.W_OK | os.X_OK):
        raise InputError(f"{there} may not be written to (no permission): choose another output")


def _refuse_other_than_file(path: Path) -> None:
    if path.exists() and not path.is_file():
        raise InputError(f"{path} is no regular file, and is not replaced: choose another output")


@contextmanager
def new_folders(folder: Path) -> Iterator[None]:
    """A folder that is there meanwhile; those it took are removed again where the work fails and they are empty."""
    made = [part for part in (folder, *folder.parents) if not part.exists()]
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for part in made:
            with suppress(OSError):
                part.rmdir()
        raise
