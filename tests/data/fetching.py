"""A server on this machine that breaks off, lies and refuses on demand, and what may be fetched from it."""

from __future__ import annotations

import hashlib
import re
import time
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from transferrisk.data import RemoteFile

CONTENT = bytes(range(256)) * 2000  # 512000 bytes
SIZE = len(CONTENT)
SHA = f"sha256:{hashlib.sha256(CONTENT).hexdigest()}"


@dataclass
class Answer:
    """How one path of the server answers.

    breaks    after how many bytes each request in turn is cut off; then none is
    stall     seconds that pass before such a connection ends
    silence   seconds that pass before an answer
    offset    how far from the byte asked for a part begins
    """

    body: bytes = CONTENT
    status: int = 200
    ranges: bool = True
    breaks: list[int] = field(default_factory=list)
    length: bool = True
    stall: float = 0
    silence: float = 0
    offset: int = 0


class Server(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self):
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers: dict[str, Answer] = {}
        self.asked: list[tuple[str, str | None]] = []  # path, Range

    def address(self, path: str, answer: Answer | None = None) -> str:
        self.answers[path] = answer or Answer()
        return f"http://127.0.0.1:{self.server_port}{path}"

    def handle_error(self, request, client_address):
        """A client that goes away is part of these tests."""


class Handler(BaseHTTPRequestHandler):
    def do_GET(self):
        wanted = self.headers["Range"]
        self.server.asked.append((self.path, wanted))
        answer = self.server.answers[self.path]
        time.sleep(answer.silence)
        if answer.status >= 400:
            return self.send_error(answer.status)
        start = 0
        if wanted and answer.ranges:
            start = int(re.fullmatch(r"bytes=(\d+)-", wanted)[1]) + answer.offset
            if start >= len(answer.body):
                self.send_response(416)
                self.send_header("Content-Range", f"bytes */{len(answer.body)}")
                return self.end_headers()
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(answer.body) - 1}/{len(answer.body)}")
        else:
            self.send_response(200)
        body = answer.body[start:]
        if answer.length:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if not answer.breaks:
            return self.wfile.write(body)
        self.wfile.write(body[: answer.breaks.pop(0)])
        return time.sleep(answer.stall)

    def log_message(self, *_):
        pass


def remote(*sources: str, path: str = "things/a.bin", size: int = SIZE, digest: str = SHA) -> RemoteFile:
    return RemoteFile(path, sources, size, digest)


def left(root: Path) -> list[str]:
    """All files below a root, hidden ones too."""
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


def nothing_but(root: Path, name: str = "things/a.bin", content: bytes = CONTENT) -> None:
    assert left(root) == [name]
    assert (root / name).read_bytes() == content


BY_HAND = "ask its makers at https://example.org, then run trm data fetch things --from FOLDER"
