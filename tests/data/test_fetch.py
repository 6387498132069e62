"""Fetching against a server on this machine that breaks off, lies and refuses on demand; no network beyond it."""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import re
import shutil
import ssl
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.error import URLError

import pytest
from drawn import picture, write_folder, write_tar, write_zip

from transferrisk.cli import main
from transferrisk.data import catalogue, disk, web
from transferrisk.data.facts import Facts, RemoteFile
from transferrisk.data.fetch import fetch, needed, verify
from transferrisk.errors import InputError

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


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(web, "BACKOFF", 0.001)
    with Server() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def known(monkeypatch):
    """Registers facts for one test."""
    catalogue.sources()
    monkeypatch.setattr(catalogue, "_SOURCES", dict(catalogue._SOURCES))

    def add(*files: RemoteFile, name: str = "things", **more: str) -> str:
        catalogue.register_source(Facts(name, title="", licence="", citation="", files=files, **more))
        return name

    return add


def remote(*sources: str, path: str = "things/a.bin", size: int = SIZE, digest: str = SHA) -> RemoteFile:
    return RemoteFile(path, sources, size, digest)


def left(root: Path) -> list[str]:
    """All files below a root, hidden ones too."""
    return sorted(str(p.relative_to(root)) for p in root.rglob("*") if p.is_file())


def nothing_but(root: Path, name: str = "things/a.bin", content: bytes = CONTENT) -> None:
    assert left(root) == [name]
    assert (root / name).read_bytes() == content


def test_a_file_comes_whole_and_only_once(server, known, tmp_path):
    seen = []
    name = known(remote(server.address("/a")))
    paths = fetch(name, tmp_path, progress=lambda *told: seen.append(told))
    assert paths == [tmp_path / "things/a.bin"]
    nothing_but(tmp_path)
    assert ("a.bin", SIZE, SIZE) in seen
    assert all(done <= total == SIZE for _, done, total in seen)
    assert fetch(name, tmp_path) == []
    assert server.asked == [("/a", None)]


def test_a_wrong_file_in_its_place_is_replaced(server, known, tmp_path):
    target = tmp_path / "things/a.bin"
    target.parent.mkdir()
    target.write_bytes(CONTENT[::-1])
    name = known(remote(server.address("/a")))
    assert [s.state for s in verify(name, tmp_path)] == ["wrong"]
    assert fetch(name, tmp_path) == [target]
    nothing_but(tmp_path)


@pytest.mark.parametrize("length", [True, False], ids=["with length", "without length"])
def test_a_broken_connection_goes_on_where_it_stopped(server, known, tmp_path, length):
    name = known(remote(server.address("/a", Answer(breaks=[1000, 2000], length=length))))
    fetch(name, tmp_path)
    nothing_but(tmp_path)
    assert server.asked == [("/a", None), ("/a", "bytes=1000-"), ("/a", "bytes=3000-")]


def test_a_stalled_connection_goes_on_with_another(server, known, tmp_path, monkeypatch):
    monkeypatch.setattr(web, "TIMEOUT", 0.2)
    fetch(known(remote(server.address("/a", Answer(breaks=[1000], stall=1)))), tmp_path)
    nothing_but(tmp_path)
    assert server.asked == [("/a", None), ("/a", "bytes=1000-")]


def test_a_silent_server_is_not_waited_for_again(server, known, tmp_path, monkeypatch):
    monkeypatch.setattr(web, "TIMEOUT", 0.2)
    with pytest.raises(InputError, match=r"no answer within 0\.2 seconds"):
        fetch(known(remote(server.address("/a", Answer(silence=1)))), tmp_path)
    assert server.asked == [("/a", None)]


def test_a_certificate_that_is_not_trusted(known, tmp_path, monkeypatch):
    def refuse(request, timeout):
        error = ssl.SSLCertVerificationError(1, "certificate verify failed")
        error.verify_message = "certificate has expired"
        raise URLError(error)

    monkeypatch.setattr(web, "urlopen", refuse)
    with pytest.raises(InputError, match="its certificate is not trusted: certificate has expired"):
        fetch(known(remote("https://example.org/a")), tmp_path)


def test_what_an_earlier_call_got_is_not_asked_for_again(server, known, tmp_path):
    (tmp_path / "things").mkdir()
    (tmp_path / "things/a.bin.part").write_bytes(CONTENT[:4000])
    fetch(known(remote(server.address("/a"))), tmp_path)
    nothing_but(tmp_path)
    assert server.asked == [("/a", "bytes=4000-")]


def test_a_whole_part_is_checked_and_not_asked_for(server, known, tmp_path):
    (tmp_path / "things").mkdir()
    (tmp_path / "things/a.bin.part").write_bytes(CONTENT)
    fetch(known(remote(server.address("/a"))), tmp_path)
    nothing_but(tmp_path)
    assert server.asked == []


def test_a_server_that_ignores_ranges_begins_again(server, known, tmp_path):
    name = known(remote(server.address("/a", Answer(ranges=False, breaks=[1000]))))
    fetch(name, tmp_path)
    nothing_but(tmp_path)
    assert server.asked == [("/a", None), ("/a", "bytes=1000-")]


def test_a_server_that_ignores_ranges_and_always_breaks_is_given_up(server, known, tmp_path):
    name = known(remote(server.address("/a", Answer(ranges=False, breaks=[1000, 500] * 50))))
    with pytest.raises(InputError, match="the connection ended after 500 of 512000 bytes"):
        fetch(name, tmp_path)
    assert len(server.asked) == 1 + web.RETRIES
    assert left(tmp_path) == ["things/a.bin.part"]


@pytest.mark.parametrize("offset", [7, -7])
def test_another_part_than_asked_for_is_not_used(server, known, tmp_path, offset):
    name = known(remote(server.address("/a", Answer(offset=offset, breaks=[1000]))))
    fetch(name, tmp_path)
    nothing_but(tmp_path)
    assert server.asked == [("/a", None), ("/a", "bytes=1000-"), ("/a", None)]


def test_416_discards_a_part_that_is_too_long(server, known, tmp_path):
    (tmp_path / "things").mkdir()
    (tmp_path / "things/a.bin.part").write_bytes(CONTENT + b"more")
    fetch(known(remote(server.address("/a"))), tmp_path)
    nothing_but(tmp_path)
    assert server.asked == [("/a", f"bytes={SIZE + 4}-"), ("/a", None)]


@pytest.mark.parametrize(("status", "times"), [(404, 1), (403, 1), (500, 1 + web.RETRIES), (503, 1 + web.RETRIES)])
def test_the_next_source_is_asked(server, known, tmp_path, status, times):
    name = known(remote(server.address("/bad", Answer(status=status)), server.address("/good")))
    fetch(name, tmp_path)
    nothing_but(tmp_path)
    assert server.asked == [("/bad", None)] * times + [("/good", None)]


def test_the_next_source_goes_on_with_the_part(server, known, tmp_path):
    broken = Answer(breaks=[1000, 0, 0, 0, 0])
    name = known(remote(server.address("/bad", broken), server.address("/good")))
    fetch(name, tmp_path)
    nothing_but(tmp_path)
    assert server.asked[-1] == ("/good", "bytes=1000-")
    assert server.asked[:-1] == [("/bad", None)] + [("/bad", "bytes=1000-")] * web.RETRIES


def test_a_part_of_other_bytes_is_got_afresh_once(server, known, tmp_path):
    (tmp_path / "things").mkdir()
    (tmp_path / "things/a.bin.part").write_bytes(b"other" * 100)
    fetch(known(remote(server.address("/a"))), tmp_path)
    nothing_but(tmp_path)
    assert server.asked == [("/a", "bytes=500-"), ("/a", None)]


def test_a_wrong_digest_leaves_nothing(server, known, tmp_path):
    wrong = CONTENT[:-1] + b"!"
    address = server.address("/a", Answer(body=wrong))
    with pytest.raises(InputError) as error:
        fetch(known(remote(address)), tmp_path)
    for told in (address, SHA.partition(":")[2], hashlib.sha256(wrong).hexdigest(), str(tmp_path / "things/a.bin")):
        assert told in str(error.value)
    assert left(tmp_path) == []
    assert server.asked == [("/a", None)]


def test_a_wrong_digest_is_mended_by_the_next_source(server, known, tmp_path):
    fetch(known(remote(server.address("/bad", Answer(body=CONTENT[::-1])), server.address("/good"))), tmp_path)
    nothing_but(tmp_path)
    assert server.asked == [("/bad", None), ("/good", None)]


def test_a_page_in_place_of_the_file_is_known_by_its_size(server, known, tmp_path):
    with pytest.raises(InputError, match="offers 15 bytes where 512000 are published"):
        fetch(known(remote(server.address("/a", Answer(body=b"<html>log in...")))), tmp_path)
    assert left(tmp_path) == []


def test_all_sources_are_named_when_none_has_it(server, known, tmp_path):
    gone, closed = server.address("/gone", Answer(status=404)), "http://127.0.0.1:1/a"
    with pytest.raises(InputError) as error:
        fetch(known(remote(gone, closed)), tmp_path)
    assert f"{gone} (404 Not Found)" in str(error.value)
    assert f"{closed} (Connection refused)" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_silent_host_is_asked_once_in_a_call(server, known, tmp_path, monkeypatch):
    opened = []
    real = web.urlopen
    monkeypatch.setattr(web, "urlopen", lambda request, timeout: opened.append(request.full_url) or real(request))
    closed = "http://127.0.0.1:1"
    files = [remote(f"{closed}/{n}", server.address(f"/{n}"), path=f"things/{n}.bin") for n in "ab"]
    fetch(known(*files), tmp_path)
    assert left(tmp_path) == ["things/a.bin", "things/b.bin"]
    assert sum(url.startswith(closed) for url in opened) == 1


def test_compressed_content_counts_not_its_wrapping(server, known, tmp_path):
    packed = gzip.compress(CONTENT, 1)
    file = RemoteFile("things/a.gz", (server.address("/a", Answer(body=packed)),), 77, content=SHA)
    fetch(known(file), tmp_path)
    nothing_but(tmp_path, "things/a.gz", packed)
    assert [s.state for s in verify("things", tmp_path)] == ["there"]
    (tmp_path / "things/a.gz").write_bytes(packed[:-20])
    assert "damaged" in str(verify("things", tmp_path)[0])
    (tmp_path / "things/a.gz").unlink()
    (tmp_path / "things/a").write_bytes(CONTENT)  # unpacked, as loaders take it too
    assert fetch("things", tmp_path) == []


def test_no_room_is_told_before_anything_is_written(server, known, tmp_path, monkeypatch):
    (tmp_path / "things").mkdir()
    (tmp_path / "things/a.bin.part").write_bytes(CONTENT[:2000])
    free = shutil.disk_usage(tmp_path)._replace(free=SIZE - 2001)
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: free)
    name = known(remote(server.address("/a")))
    with pytest.raises(InputError, match=f"needs {SIZE - 2000} bytes and .* has {SIZE - 2001} free"):
        fetch(name, tmp_path)
    assert server.asked == []
    monkeypatch.setattr(disk.shutil, "disk_usage", lambda _: free._replace(free=SIZE - 2000))
    fetch(name, tmp_path)
    nothing_but(tmp_path)


def test_a_disk_that_fills_up_meanwhile_is_left_empty(server, known, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(web.os, "fsync", full)
    with pytest.raises(InputError, match=r"a.bin needs 512000 bytes and .* has \d+ free"):
        fetch(known(remote(server.address("/a"))), tmp_path)
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    "refusal", [PermissionError(errno.EACCES, "Permission denied"), OSError(errno.EROFS, "Read-only file system")]
)
def test_a_read_only_root_is_told_in_one_line(server, known, tmp_path, monkeypatch, refusal):
    def refuse(path, *_):
        raise type(refusal)(refusal.errno, refusal.strerror, str(path))

    monkeypatch.setattr(disk.os, "open", refuse)
    with pytest.raises(InputError, match=f"{re.escape(str(tmp_path))}.*: {refusal.strerror}: .*--data-root"):
        fetch(known(remote(server.address("/a"))), tmp_path)
    assert left(tmp_path) == []
    assert server.asked == []


def test_a_root_that_is_a_file(server, known, tmp_path):
    (tmp_path / "root").write_text("precious")
    with pytest.raises(InputError, match="--data-root"):
        fetch(known(remote(server.address("/a"))), tmp_path / "root")
    assert (tmp_path / "root").read_text() == "precious"


def test_an_interruption_keeps_the_part_for_the_next_call(server, known, tmp_path):
    def interrupt(what, done, total):
        if done >= 1000:
            raise KeyboardInterrupt

    name = known(remote(server.address("/a", Answer(breaks=[1000]))))
    with pytest.raises(KeyboardInterrupt):
        fetch(name, tmp_path, progress=interrupt)
    assert left(tmp_path) == ["things/a.bin.part"]
    size = (tmp_path / "things/a.bin.part").stat().st_size
    assert 1000 <= size < SIZE
    fetch(name, tmp_path)
    nothing_but(tmp_path)
    assert server.asked == [("/a", None), ("/a", f"bytes={size}-")]


LOCK = """
import sys
from pathlib import Path
from transferrisk.data.disk import locked
with locked(Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


@pytest.mark.skipif(disk.fcntl is None, reason="no locks on this platform")
def test_two_processes_do_not_write_one_file(server, known, tmp_path):
    target = tmp_path / "things/a.bin"
    target.parent.mkdir()
    name = known(remote(server.address("/a")))
    command = [sys.executable, "-c", LOCK, str(target)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=f"another process is fetching {re.escape(str(target))}"):
            fetch(name, tmp_path)
        assert server.asked == []
        other.kill()  # it leaves its lock file behind, which locks nothing any more
    assert left(tmp_path) == ["things/.a.bin.lock"]
    fetch(name, tmp_path)
    nothing_but(tmp_path)


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """A folder that pip takes wheels from, and nowhere else; it holds `parcel` 1.0."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    with zipfile.ZipFile(folder / "parcel-1.0-py3-none-any.whl", "w") as wheel:
        wheel.writestr("parcel/a.bin", CONTENT)
        wheel.writestr("parcel/b.bin", CONTENT[::-1])
        wheel.writestr("parcel/__init__.py", "raise SystemExit('imported')")
        wheel.writestr("parcel-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: parcel\nVersion: 1.0\n")
        wheel.writestr(
            "parcel-1.0.dist-info/WHEEL",
            "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        )
        wheel.writestr("parcel-1.0.dist-info/RECORD", "")
    for variable in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(variable)
    monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def test_files_of_a_wheel_with_one_download(server, known, wheels, tmp_path, monkeypatch):
    ran = []
    real = subprocess.run
    monkeypatch.setattr(subprocess, "run", lambda *a, **k: ran.append(a[0]) or real(*a, **k))
    gone = server.address("/gone", Answer(status=404))
    other = f"sha256:{hashlib.sha256(CONTENT[::-1]).hexdigest()}"
    files = (
        remote(gone, "pip:parcel==1.0!parcel/a.bin"),
        remote(gone, "pip:parcel==1.0!parcel/b.bin", path="things/b.bin", digest=other),
    )
    root = tmp_path / "root"
    fetch(known(*files), root)
    assert left(root) == ["things/a.bin", "things/b.bin"]
    assert [s.state for s in verify("things", root)] == ["there", "there"]
    assert len(ran) == 1
    assert "install" not in ran[0]


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("pip:absent==1.0!a.bin", "No matching distribution found for absent==1.0"),
        ("pip:parcel==1.0!parcel/c.bin", "There is no item named 'parcel/c.bin'"),
        ("pip:parcel==1.0!parcel/b.bin", "is published"),
    ],
)
def test_a_wheel_that_does_not_help(known, wheels, tmp_path, source, reason):
    root = tmp_path / "root"
    with pytest.raises(InputError, match=re.escape(reason)):
        fetch(known(remote(source)), root)
    assert left(root) == []


def test_sets_fetch_what_they_need_or_nothing(tmp_path):
    assert [facts.name for facts in needed("10c-cmnist")] == ["mnist"]
    for name in ("10c-digits", "gaussian"):
        assert fetch(name, tmp_path / "root") == []
    assert not (tmp_path / "root").exists()
    assert [s.state for s in verify("10c-cmnist", tmp_path)] == ["missing"] * 4
    with pytest.raises(InputError, match="did you mean 'fashion-mnist'"):
        fetch("fashon-mnist", tmp_path)


BY_HAND = "ask its makers at https://example.org, then run trm data fetch things --from FOLDER"


@pytest.fixture
def by_hand(known):
    return known(by_hand=BY_HAND, folder="Things")


@pytest.fixture
def tree(tmp_path):
    folder = tmp_path / "got" / "by hand"
    for name in ("a/1.txt", "a/2.txt", "b/3.txt"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(name)
    (folder / ".DS_Store").write_text("junk")
    return folder


def test_by_hand_says_how(by_hand, tmp_path):
    with pytest.raises(InputError, match=re.escape(BY_HAND)):
        fetch(by_hand, tmp_path)
    assert [str(s) for s in verify(by_hand, tmp_path)] == [f"{tmp_path / 'Things'}: missing"]


def test_from_a_folder(by_hand, tree, tmp_path):
    root = tmp_path / "root"
    assert fetch(by_hand, root, given=tree) == [root / "Things"]
    assert left(root) == ["Things/a/1.txt", "Things/a/2.txt", "Things/b/3.txt"]
    assert (root / "Things/b/3.txt").read_text() == "b/3.txt"
    assert fetch(by_hand, root) == []
    assert [s.state for s in verify(by_hand, root)] == ["there"]
    with pytest.raises(InputError, match="is there already"):
        fetch(by_hand, root, given=tree)
    assert len(left(root)) == 3


@pytest.mark.parametrize("ending", ["tar", "zip"])
def test_from_an_archive_which_stays_one(by_hand, tree, tmp_path, ending):
    archive = Path(shutil.make_archive(str(tmp_path / "things"), ending, tree))
    root = tmp_path / "root"
    (root / "Things").mkdir(parents=True)  # empty: nothing to lose
    assert fetch(by_hand, root, given=archive) == [root / "Things" / archive.name]
    assert left(root) == [f"Things/{archive.name}"]
    with pytest.raises(InputError, match="is there already"):
        fetch(by_hand, root, given=archive)


def test_from_single_files_one_by_one(by_hand, tree, tmp_path):
    root = tmp_path / "root"
    fetch(by_hand, root, given=tree / "a/1.txt")
    fetch(by_hand, root, given=tree / "a/2.txt")
    assert left(root) == ["Things/1.txt", "Things/2.txt"]
    with pytest.raises(InputError, match="is there already"):
        fetch(by_hand, root, given=tree / "a/2.txt")


def test_what_cannot_be_brought_in(by_hand, tree, tmp_path):
    root = tmp_path / "root"
    (tmp_path / "empty").mkdir()
    damaged = tmp_path / "damaged.zip"
    damaged.write_bytes(b"PK no")
    for given, reason in (
        (tmp_path / "absent", "does not exist"),
        (tmp_path / "empty", "holds no files"),
        (damaged, "damaged"),
        (tmp_path, "copied into itself"),
    ):
        with pytest.raises(InputError, match=reason):
            fetch(by_hand, root, given=given)
    assert not root.exists()


@pytest.mark.parametrize("trouble", [KeyboardInterrupt(), OSError(errno.ENOSPC, "No space left on device")])
def test_an_interruption_leaves_no_half_tree(by_hand, tree, tmp_path, trouble):
    root = tmp_path / "root"

    def interrupt(what, done, total):
        if done == total:
            raise trouble

    with pytest.raises((KeyboardInterrupt, InputError)):
        fetch(by_hand, root, given=tree, progress=interrupt)
    assert left(root) == []
    assert not root.exists()


@pytest.mark.parametrize("form", ["folder", "file", "tar"])
def test_published_files_from_what_was_got_by_hand(known, tmp_path, form):
    name = known(remote("http://127.0.0.1:1/a"), remote("http://127.0.0.1:1/b", path="things/b.bin"))
    source = tmp_path / "got" / "deep" / "a.bin"
    source.parent.mkdir(parents=True)
    source.write_bytes(CONTENT)
    given = {"folder": tmp_path / "got", "file": source, "tar": tmp_path / "got.tar.gz"}[form]
    with tarfile.open(tmp_path / "got.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "got", "got")
    root = tmp_path / "root"
    assert fetch(name, root, given=given) == [root / "things/a.bin"]
    nothing_but(root)
    assert [s.state for s in verify(name, root)] == ["there", "missing"]
    with pytest.raises(InputError, match=r"holds none of the files that are needed: b\.bin"):
        fetch(name, root, given=given)


def test_published_files_are_checked_wherever_they_come_from(known, tmp_path):
    source = tmp_path / "a.bin"
    source.write_bytes(CONTENT[::-1])
    with pytest.raises(InputError, match="is not the file that was published"):
        fetch(known(remote("http://127.0.0.1:1/a")), tmp_path / "root", given=source)
    assert left(tmp_path / "root") == []


def test_what_stands_after_the_colon_decides_what_is_needed():
    assert [facts.name for facts in needed("10c-cmnist")] == ["mnist"]
    assert [facts.name for facts in needed("10c-cmnist:MNIST")] == ["mnist"]
    assert [facts.name for facts in needed("10c-cmnist:FashionMNIST")] == ["fashion-mnist"]
    assert needed("10c-cmnist:Own") == needed("folder:/x") == []


@pytest.mark.parametrize("form", ["folder", "PACS.tar.gz", "PACS.zip"])
def test_a_set_that_is_not_whole_is_named_as_it_was_given(tmp_path, form):
    tree = write_folder(tmp_path / "PACS", {f"photo/dog/{i}.png": picture() for i in range(2)})
    given = tmp_path / form
    if form == "folder":
        given = tree
    elif form.endswith("zip"):
        write_zip(given, {"photo/dog/1.png": picture()})
    else:
        write_tar(given, {"photo/dog/1.png": picture()}, "w:gz")
    root = tmp_path / "deep" / "root"
    with pytest.raises(InputError) as error:
        fetch("pacs", root, given=given)
    assert str(error.value).startswith(f"{given} does not hold all of pacs")
    assert ".bring" not in str(error.value)
    assert "skip" not in str(error.value)
    assert not root.parent.exists()


def test_a_failed_download_leaves_no_folders(known, tmp_path):
    name = known(remote("http://127.0.0.1:1/a"))
    with pytest.raises(InputError, match="cannot be fetched"):
        fetch(name, tmp_path / "deep" / "root")
    assert list(tmp_path.iterdir()) == []


def trm(monkeypatch, capsys, *arguments):
    """Exit code, stdout and stderr of a command."""
    monkeypatch.setattr(sys, "argv", ["trm", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_:
        main()
    captured = capsys.readouterr()
    return exit_.value.code or 0, captured.out, captured.err


def test_the_command_fetches(server, known, tmp_path, monkeypatch, capsys):
    name = known(remote(server.address("/a")))
    target = tmp_path / "things/a.bin"
    assert trm(monkeypatch, capsys, "data", "fetch", name, "--data-root", tmp_path) == (0, f"fetched {target}\n", "")
    code, out, _ = trm(monkeypatch, capsys, "data", "fetch", name, "--data-root", tmp_path)
    assert (code, out) == (0, f"have it already: all that {name} needs is in {tmp_path}\n")
    code, out, err = trm(monkeypatch, capsys, "data", "fetch", name, "--data-root", tmp_path, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["files"] == [{"path": str(target), "state": "there"}]
    code, out, _ = trm(monkeypatch, capsys, "data", "fetch", "gaussian")
    assert (code, out) == (0, "gaussian needs no files: there is nothing to fetch\n")


def test_the_command_fails_in_one_line(server, known, by_hand, tmp_path, monkeypatch, capsys):
    gone = known(remote(server.address("/a", Answer(status=404))), name="gone")
    for arguments, told in (
        ([gone], "404 Not Found"),
        ([by_hand], BY_HAND),
        ([by_hand, "--from", tmp_path / "absent"], "does not exist"),
        (["mnst"], "did you mean 'mnist'"),
        (["gaussian", "--from", tmp_path], "it needs no files"),
    ):
        code, out, err = trm(monkeypatch, capsys, "data", "fetch", *arguments, "--data-root", tmp_path)
        assert (code, out) == (2, "")
        assert err.startswith("trm: ")
        assert told in err
        assert err.count("\n") == 1


def test_the_list_tells_what_is_there(known, tmp_path, monkeypatch, capsys):
    known(remote("http://127.0.0.1:1/a"))
    (tmp_path / "things").mkdir()
    (tmp_path / "things/a.bin").write_bytes(CONTENT)
    code, out, _ = trm(monkeypatch, capsys, "data", "list", "--json", "--data-root", tmp_path)
    listed = json.loads(out)
    assert code == 0
    sets = {entry["name"]: entry for entry in listed["sets"]}
    assert sets["10c-cmnist"]["usage"] == "10c-cmnist[:FOLDER]"
    assert sets["10c-cmnist"]["there"] == "no"
    assert sets["10c-digits"]["there"] == "yes"
    assert {"citation", "homepage", "departures", "licence"} <= set(sets["gaussian"])
    assert {entry["name"]: entry["there"] for entry in listed["sources"]}["things"] == "yes"


@pytest.mark.parametrize("width", [80, 140])
def test_the_list_fits(width, tmp_path):
    code = "from transferrisk.cli import main; main()"
    result = subprocess.run(
        [sys.executable, "-c", code, "data", "list", "--data-root", str(tmp_path)],
        capture_output=True, text=True, check=True, env=os.environ | {"COLUMNS": str(width)},
    )  # fmt: skip
    tables = result.stdout.partition("Data root:")[0]
    assert max(map(len, tables.splitlines())) <= width
    for whole in ("10c-cmnist[:FOLDER]", "fashion-mnist", "3x256x256", "19.6 GB", "To fetch"):
        assert whole in tables
