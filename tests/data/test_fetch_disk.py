"""Fetching onto a disk that is full, read-only, interrupted or shared."""

from __future__ import annotations

import errno
import re
import shutil
import subprocess
import sys

import pytest
from fetching import CONTENT, SIZE, Answer, left, nothing_but, remote

from transferrisk.data.fetch import fetch
from transferrisk.errors import InputError


def test_no_room_is_told_before_anything_is_written(server, known, tmp_path, monkeypatch):
    (tmp_path / "things").mkdir()
    (tmp_path / "things/a.bin.part").write_bytes(CONTENT[:2000])
    free = shutil.disk_usage(tmp_path)._replace(free=SIZE - 2001)
    monkeypatch.setattr("shutil.disk_usage", lambda _: free)
    name = known(remote(server.address("/a")))
    with pytest.raises(InputError, match=f"needs {SIZE - 2000} bytes and .* has {SIZE - 2001} free"):
        fetch(name, tmp_path)
    assert server.asked == []
    monkeypatch.setattr("shutil.disk_usage", lambda _: free._replace(free=SIZE - 2000))
    fetch(name, tmp_path)
    nothing_but(tmp_path)


def test_a_disk_that_fills_up_meanwhile_is_left_empty(server, known, tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(InputError, match=r"a.bin needs 512000 bytes and .* has \d+ free"):
        fetch(known(remote(server.address("/a"))), tmp_path)
    assert left(tmp_path) == []


@pytest.mark.parametrize(
    "refusal", [PermissionError(errno.EACCES, "Permission denied"), OSError(errno.EROFS, "Read-only file system")]
)
def test_a_read_only_root_is_told_in_one_line(server, known, tmp_path, monkeypatch, refusal):
    def refuse(path, *_):
        raise type(refusal)(refusal.errno, refusal.strerror, str(path))

    monkeypatch.setattr("os.open", refuse)
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
from transferrisk.files import locked
with locked(Path(sys.argv[1]), "busy"):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_two_processes_do_not_write_one_file(server, known, tmp_path):
    target = tmp_path / "things/a.bin"
    target.parent.mkdir()
    name = known(remote(server.address("/a")))
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


def test_a_failed_download_leaves_no_folders(known, tmp_path):
    name = known(remote("http://127.0.0.1:1/a"))
    with pytest.raises(InputError, match="cannot be fetched"):
        fetch(name, tmp_path / "deep" / "root")
    assert list(tmp_path.iterdir()) == []
