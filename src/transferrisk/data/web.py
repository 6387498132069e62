"""A file over http, with what has come already never asked for again."""

from __future__ import annotations

import http.client
import os
import re
import ssl
import time
from pathlib import Path
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

from .. import __version__
from .digests import CHUNK
from .facts import RemoteFile
from .options import Progress

AGENT = f"transferrisk/{__version__}"
TIMEOUT = 20.0  # seconds without a byte
RETRIES = 3  # in a row that bring nothing new
BACKOFF = 1.0  # seconds before the first of them; doubled each time
_BUSY = (429, 500, 502, 503, 504)


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


class Web:
    """Downloads of one call: a host that does not answer is asked once."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._silent: dict[tuple[str, ...], str] = {}  # by scheme and host: why it cannot be reached

    def pull(self, address: str, file: RemoteFile, part: Path) -> None:
        """Requests until `part` is whole: a broken one is followed by another for the rest."""
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
        """Add to `part` what it lacks; begin again where the server gives no parts, or another one than asked for."""
        have, what = size_of(part), Path(file.path).name
        known = None if file.content else file.bytes  # wrappings of one content differ in size
        if have == known:
            return
        self._progress(what, have, file.bytes)
        try:
            response, done = _opened(address, have)
        except _OtherPart as error:
            if error.size == have:
                return
            part.unlink(missing_ok=True)
            response, done = _opened(address, 0)
        with response:
            total = known if response.length is None else done + response.length
            if known is not None and total != known:
                raise SourceFailed(f"it offers {total} bytes where {known} are published")
            with part.open("ab" if done else "wb") as out:
                while chunk := _read(response, CHUNK if total is None else min(CHUNK, total - done)):
                    out.write(chunk)
                    done += len(chunk)
                    self._progress(what, done, total or file.bytes)
                out.flush()
                os.fsync(out.fileno())
        if total is not None and done < total:
            raise _Broken(f"the connection ended after {done} of {total} bytes")


def size_of(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _opened(address: str, have: int) -> tuple[http.client.HTTPResponse, int]:
    """The answer to a request for all after the first `have` bytes, and how many bytes come before it: `have` or 0."""
    headers = {"User-Agent": AGENT} | ({"Range": f"bytes={have}-"} if have else {})
    try:
        response: http.client.HTTPResponse = urlopen(Request(address, headers=headers), timeout=TIMEOUT)
    except HTTPError as error:
        error.close()
        if error.code == 416:
            size = re.fullmatch(r"bytes \*/(\d+)", error.headers["Content-Range"] or "")
            raise _OtherPart("416 at the first byte", int(size[1]) if size else None) from None
        kind = _Broken if error.code in _BUSY else SourceFailed
        raise kind(f"{error.code} {error.reason}") from None
    except URLError as error:
        if isinstance(error.reason, ssl.SSLCertVerificationError):
            text = f"its certificate is not trusted: {error.reason.verify_message}"
        else:
            text = getattr(error.reason, "strerror", None) or str(error.reason)
        raise _Unreachable(text) from None
    except TimeoutError:
        raise _Unreachable(f"no answer within {TIMEOUT:g} seconds") from None
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(_text(error)) from None
    if response.status != 206:
        return response, 0
    first = re.match(r"bytes (\d+)-", response.headers["Content-Range"] or "")
    if first is None or int(first[1]) != have:
        response.close()
        raise _OtherPart("it answers with a part that was not asked for")
    return response, have


def _read(response: http.client.HTTPResponse, most: int) -> bytes:
    """What is there of the next `most` bytes; nothing at the end."""
    try:
        return response.read1(most) if most else b""
    except (OSError, http.client.HTTPException) as error:
        raise _Broken(_text(error)) from None


def _text(error: Exception) -> str:
    return str(error) or type(error).__name__
