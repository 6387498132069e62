"""Reading paths that users give, and writing files so that a reader never sees half of one."""

from __future__ import annotations

import ctypes
import errno
import glob
import hashlib
import os
import platform
import secrets
import shutil
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TextIO

from .errors import InputError, LeftoverWarning, cause_of, counted, did_you_mean, warn

NO_ROOM = (errno.ENOSPC, errno.EDQUOT)
"""Numbers of the errors of a full disk."""

_OWNER = (
    f"{hashlib.sha256(platform.node().encode()).hexdigest()[:8]}-"  # process numbers are unique on one machine only
)


def expand_home(path: Path | str) -> Path:
    """Return the path with ~ replaced by the home folder."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise InputError(f"{path}: there is no home folder {Path(path).parts[0]}: write the path in full") from None


def existing_file(name: Path | str) -> Path:
    """Return the path of a regular file that exists and is not empty."""
    path = expand_home(name)
    try:
        if path.is_dir():
            raise InputError(f"{path} is a folder: name a file in it")
        if not path.exists():
            beside = [file.name for file in path.parent.iterdir()] if path.parent.is_dir() else []
            hint = did_you_mean(path.name, beside).strip() or "check the path"
            raise InputError(f"{path} does not exist: {hint}")
        if not path.is_file():
            raise InputError(f"{path} is not a regular file: write its content to one first")
        with path.open("rb") as file:
            if not file.read(1):
                raise InputError(f"{path} is empty: check how it was written")
    except OSError as error:
        raise InputError(f"{path} cannot be read ({cause_of(error)}): fix that, or name another file") from None
    return path


def readable(name: Path | str) -> str:
    """Return a file's name to print: bytes that are not text become \\xNN, so that different names stay different."""
    return os.fsencode(name).decode(errors="backslashreplace")


def write_atomically(path: Path, content: bytes | str) -> None:
    """Write the content as `whole_file` does."""
    with whole_file(path) as temporary:
        temporary.write_bytes(content.encode() if isinstance(content, str) else content)


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a temporary file beside the target, for content of any length; it takes the target's name on success.

    The content is on the disk before it takes the name, so neither an interruption nor a power failure damages the old
    file. A link is kept, and the file it leads to is written. The file has the mode of the one that it replaces, or
    that of the umask. A failure leaves no new folder behind. Temporary files that killed processes left for the same
    target are removed.
    """
    target = Path(os.path.realpath(path))
    if target.exists() and not target.is_file():
        raise InputError(f"{target} is not a regular file, and is not replaced: choose another output")
    with new_folders(target.parent):
        temporary = _hidden_name(target.parent, target.name)
        try:
            mode = target.stat().st_mode & 0o777 if target.exists() else None
            os.close(os.open(temporary, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666 if mode is None else 0o600))
            yield temporary
            with temporary.open("rb") as file:
                os.fsync(file.fileno())
            if mode is not None:
                os.chmod(temporary, mode)
            os.replace(temporary, target)
        except BaseException as error:
            with suppress(OSError):
                temporary.unlink(missing_ok=True)
            if isinstance(error, OSError) and error.filename in (None, temporary, str(temporary)):
                error.filename, error.filename2 = str(path), None  # the name that the user knows
            raise


@contextmanager
def hidden_folder(parent: Path, name: str) -> Iterator[Path]:
    """Yield a temporary folder in `parent`, for this user alone, which is removed at the end of the block.

    Folders that killed processes left under this name are removed as well.
    """
    folder = _hidden_name(parent, name)
    folder.mkdir(mode=0o700)
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def exchange(one: Path, other: Path) -> bool:
    """Swap the names of two files or folders of one disk in one step; return False where the system cannot do that."""
    if sys.platform != "linux":
        return False
    try:
        rename = ctypes.CDLL(None, use_errno=True).renameat2
    except (AttributeError, OSError):
        return False
    here, swap = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(one), here, os.fsencode(other), swap) == 0)


def _hidden_name(parent: Path, name: str) -> Path:
    """Return a new temporary name of this process, and remove the leftovers of killed processes under such names."""
    hidden = f".{os.fsencode(name)[:100].decode(errors='ignore')}.{_OWNER}"
    remove_abandoned(parent.glob(f"{glob.escape(hidden)}*"))
    process = os.getpid()
    return parent / f"{hidden}{process}-{_start_of(process)}.{secrets.token_hex(4)}"


def _start_of(process: int) -> str:
    """Return when a process began, in the system's ticks, since its number may be used again; "" if it is not known."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        return ""


def remove_abandoned(hidden: Iterable[Path]) -> None:
    """Remove the temporary files and folders whose process, on this machine, no longer runs, with a warning."""
    removed = []
    for path in hidden:
        process, _, begun = path.name.rpartition(f".{_OWNER}")[2].partition(".")[0].partition("-")
        if f".{_OWNER}" not in path.name or not process.isdecimal() or _is_running(int(process), begun):
            continue
        with suppress(OSError):  # a leftover that cannot be removed does no harm
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
            removed.append(path)
    if removed:
        what = counted(len(removed), "unfinished output")
        warn(f"removed {what} that a killed process had left, such as {removed[0]}", LeftoverWarning)


def _is_running(process: int, begun: str) -> bool:
    if os.name != "posix":
        return True  # os.kill would end it
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        pass  # it runs, and belongs to somebody else
    return _start_of(process) in ("", begun)


def check_target(path: Path, *read: Path) -> None:
    """Refuse a file that could not be written, or whose folder could not, before hours of work and creating nothing.

    A file that is `read` is refused as well, even under another name.
    """
    try:
        for one in read:
            if path.exists() and one.exists() and path.samefile(one):
                name = "" if path == one else f" as {one}"
                raise InputError(f"{path} is read{name}, and is not replaced: choose another output")
        if path.is_dir():
            raise InputError(f"{path} is a folder, where a file must go: move it, or choose another output")
        if path.exists() and not path.is_file():
            raise InputError(f"{path} is not a regular file, and is not replaced: choose another output")
        for above in dict.fromkeys((path.parent, Path(os.path.realpath(path)).parent)):
            while not above.exists() and above != above.parent:
                above = above.parent
            if not above.is_dir():
                raise InputError(f"{above} is a file, not a folder: choose another folder for the output")
            if not os.access(above, os.W_OK | os.X_OK):
                raise InputError(f"{above} may not be written to (no permission): choose another output")
    except OSError as error:  # of a name that is too long
        raise InputError(f"{path} cannot be written ({cause_of(error)}): choose another output") from None


def standard_output() -> TextIO:
    """Return the stream of standard output, which whoever started the program may have closed."""
    if sys.stdout is None:
        raise InputError("standard output is closed: leave it open, or name a file")
    return sys.stdout


def prepare_folder(folder: Path, *files: str) -> None:
    """Create the folder for these files; obstacles are reported now, not after hours of work."""
    for name in files:
        check_target(folder / name)
    folder.mkdir(parents=True, exist_ok=True)


@contextmanager
def new_folders(folder: Path) -> Iterator[None]:
    """Create a folder for the block; if the block fails, folders that were created and are empty are removed."""
    created = []
    for above in (folder, *folder.parents):
        if above.exists():
            break
        created.append(above)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        yield
    except BaseException:
        for above in created:
            with suppress(OSError):
                above.rmdir()
        raise


@contextmanager
def locked(path: Path, busy: str) -> Iterator[None]:
    """Hold the lock file at `path` for the block; if another process holds it, raise InputError with the text `busy`.

    The lock ends with the process that holds it, so the lock file of a killed process shuts nobody out.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(path, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        raise InputError(busy) from None
    try:
        yield
    finally:
        with suppress(OSError):  # while it is held: nobody can lock a file that has no name any more
            path.unlink()
        lock.release()
