"""Decoded images are found again by content, appear whole or not at all, and are mapped, not loaded."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from drawn import picture, sites, write_folder, write_tar

from transferrisk import files
from transferrisk.data import cache as module
from transferrisk.data.cache import decoded
from transferrisk.data.containers import entries
from transferrisk.data.images import decode
from transferrisk.errors import InputError

FILES = sites()


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "images", FILES)


def count_decoding(monkeypatch):
    calls = []
    plain = module._decode_into
    monkeypatch.setattr(module, "_decode_into", lambda *args: (calls.append(args), plain(*args))[1])
    return calls


def names(cache):
    return sorted(path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file())


def test_images_are_those_of_the_files_in_their_order(folder):
    images, bad = decoded(entries(folder), 5)
    assert images.shape == (len(FILES), 3, 5, 5)
    assert bad == {}
    for image, name in zip(images, sorted(FILES), strict=True):
        assert torch.equal(image, torch.from_numpy(decode(FILES[name], 5)))


def test_a_second_call_reads_no_image(folder, monkeypatch):
    first, _ = decoded(entries(folder), 5)
    monkeypatch.setattr(module, "contents", lambda files: pytest.fail("content was read"))
    again, _ = decoded(entries(folder), 5)
    assert torch.equal(first, again)


def test_found_by_content_wherever_it_lies(folder, tmp_path, monkeypatch):
    decoded(entries(folder), 5)
    calls = count_decoding(monkeypatch)
    moved = shutil.copytree(folder, tmp_path / "elsewhere")
    decoded(entries(moved), 5)
    decoded(entries(write_tar(tmp_path / "images.tar", dict(sorted(FILES.items())))), 5)
    assert calls == []


def test_other_content_size_or_order_is_another_array(folder, monkeypatch, cache):
    decoded(entries(folder), 5)
    calls = count_decoding(monkeypatch)
    decoded(entries(folder), 6)
    decoded(entries(folder)[::-1], 5)
    changed = folder / sorted(FILES)[0]
    os.utime(changed, ns=(0, 0))  # a new time alone changes nothing
    decoded(entries(folder), 5)
    assert len(calls) == 2
    changed.write_bytes(picture((1, 2, 3)))
    images, _ = decoded(entries(folder), 5)
    assert len(calls) == 3
    assert images[0, :, 0, 0].tolist() == [1, 2, 3]
    assert len([name for name in names(cache) if name.endswith(".npy")]) == 4


def test_what_cannot_be_read_is_remembered(folder, monkeypatch):
    (folder / "site a/cat/0.png").write_bytes(b"")
    _, bad = decoded(entries(folder), 5)
    calls = count_decoding(monkeypatch)
    _, again = decoded(entries(folder), 5)
    assert bad == again == {0: "it is empty"}
    assert calls == []


def test_writing_to_the_tensor_does_not_reach_the_file(folder):
    images, _ = decoded(entries(folder), 5)
    before = images.clone()
    images.zero_()
    assert torch.equal(decoded(entries(folder), 5)[0], before)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, MemoryError])
def test_an_interruption_leaves_nothing(folder, cache, interruption):
    def stop(what, done, total):
        if done == 7:
            raise interruption

    with pytest.raises(interruption):
        decoded(entries(folder), 5, stop)
    assert names(cache) == []


def test_no_space_left(folder, cache, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InputError, match=r"no room for .* MiB of decoded images \(No space left on device\)"):
        decoded(entries(folder), 5)
    assert names(cache) == []


def test_a_read_only_cache(folder, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied", "cache")

    monkeypatch.setattr(module.tempfile, "mkstemp", refuse)
    with pytest.raises(InputError, match="cannot be written to"):
        decoded(entries(folder), 5)


CODE = """
import sys, torch
from pathlib import Path
from transferrisk.data.cache import decoded
from transferrisk.data.containers import entries
images, bad = decoded(entries(Path(sys.argv[1])), 16)
print(int(images.long().sum()), len(bad))
"""


def test_two_processes_at_once(folder, cache):
    command = [sys.executable, "-c", CODE, str(folder)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    out = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    images, _ = decoded(entries(folder), 16)
    assert out == [f"{int(images.long().sum())} 0\n"] * 2
    assert len([name for name in names(cache) if not name.startswith("decoded/seen/")]) == 2
    assert all(json.loads(path.read_text()) == {} for path in cache.rglob("*.json"))


def test_a_damaged_cache_heals(folder, cache, monkeypatch):
    first, _ = decoded(entries(folder), 5)
    (array,) = cache.rglob("*.npy")
    (bad,) = cache.rglob("*.json")
    (seen,) = (cache / "decoded" / "seen").iterdir()
    whole = array.read_bytes()
    other = io.BytesIO()
    np.save(other, np.zeros((2, 3, 5, 5), np.uint8))
    damages = [
        (array, b""),
        (array, whole[:-1]),
        (array, other.getvalue()),
        (array, b"junk" * 100),
        (bad, b""),
        (bad, b"[1]"),
        (bad, b'{"99": "x"}'),
        (bad, b"[" * 100_000),
        (seen, b""),
        (seen, b"../../../etc/passwd"),
        (seen, b"\xff" * 40),
        (seen, b"0" * 40),
    ]
    for path, content in damages:
        path.unlink()
        path.write_bytes(content)
        images, faults = decoded(entries(folder), 5)
        assert torch.equal(images, first)
        assert faults == {}
    monkeypatch.setattr(module, "contents", lambda files: pytest.fail("content was read"))
    decoded(entries(folder), 5)


def test_half_written_arrays_of_ended_processes_are_removed(folder, cache):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (cache / "decoded").mkdir()
    abandoned = cache / "decoded" / f".abc.npy.{files._OWNER}{ended.pid}.xyz"
    running = cache / "decoded" / f".abc.npy.{files._OWNER}{os.getpid()}.xyz"
    elsewhere = cache / "decoded" / f".abc.npy.00000000-{ended.pid}.xyz"
    for path in (abandoned, running, elsewhere):
        path.write_bytes(b"half")
    decoded(entries(folder), 5)
    assert [path.exists() for path in (abandoned, running, elsewhere)] == [False, True, True]


def test_a_disk_that_fills_up_on_the_way(folder, cache, monkeypatch):
    def full(content, size):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module, "decode_all", full)
    with pytest.raises(InputError, match=r"no room for 1 MiB of decoded images \(No space left on device\)"):
        decoded(entries(folder), 5)
    assert names(cache) == []
