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

from transferrisk.data.containers import entries
from transferrisk.data.image_set import decode_cached
from transferrisk.data.images import decode
from transferrisk.errors import InputError
from transferrisk.files import owned

FILES = sites()


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "images", FILES)


def work(files, size=5):
    """What was done to get the images: nothing, looking for changes, or decoding too."""
    steps = []
    decode_cached(files, size, lambda what, done, total: steps.append(what))
    return list(dict.fromkeys(steps))


LOOKING, DECODING = ["looking for changes"], ["looking for changes", "decoding images"]


def names(cache):
    return sorted(path.relative_to(cache).as_posix() for path in cache.rglob("*") if path.is_file())


def test_images_are_those_of_the_files_in_their_order(folder):
    images, bad = decode_cached(entries(folder), 5)
    assert images.shape == (len(FILES), 3, 5, 5)
    assert bad == {}
    for image, name in zip(images, sorted(FILES), strict=True):
        assert torch.equal(image, torch.from_numpy(decode(FILES[name], 5)))


def test_a_second_call_reads_no_image(folder):
    assert work(entries(folder)) == DECODING
    first, _ = decode_cached(entries(folder), 5)
    assert work(entries(folder)) == []
    assert torch.equal(first, decode_cached(entries(folder), 5)[0])


def test_found_by_content_wherever_it_lies(folder, tmp_path):
    decode_cached(entries(folder), 5)
    moved = shutil.copytree(folder, tmp_path / "elsewhere")
    assert work(entries(moved)) == LOOKING
    assert work(entries(write_tar(tmp_path / "images.tar", dict(sorted(FILES.items()))))) == LOOKING


def test_other_content_size_or_order_is_another_array(folder, cache):
    decode_cached(entries(folder), 5)
    assert work(entries(folder), 6) == DECODING
    assert work(entries(folder)[::-1]) == DECODING
    changed = folder / sorted(FILES)[0]
    os.utime(changed, ns=(0, 0))  # a new time alone changes nothing
    assert work(entries(folder)) == LOOKING
    changed.write_bytes(picture((1, 2, 3)))
    assert work(entries(folder)) == DECODING
    images, _ = decode_cached(entries(folder), 5)
    assert images[0, :, 0, 0].tolist() == [1, 2, 3]
    assert len([name for name in names(cache) if name.endswith(".npy")]) == 4


def test_what_cannot_be_read_is_remembered(folder):
    (folder / "site a/cat/0.png").write_bytes(b"")
    _, bad = decode_cached(entries(folder), 5)
    assert work(entries(folder)) == []
    _, again = decode_cached(entries(folder), 5)
    assert bad == again == {0: "it is empty"}


def test_writing_to_the_tensor_does_not_reach_the_file(folder):
    images, _ = decode_cached(entries(folder), 5)
    before = images.clone()
    images.zero_()
    assert torch.equal(decode_cached(entries(folder), 5)[0], before)


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, MemoryError])
def test_an_interruption_leaves_nothing(folder, cache, interruption):
    def stop(what, done, total):
        if done == 7:
            raise interruption

    with pytest.raises(interruption):
        decode_cached(entries(folder), 5, stop)
    assert names(cache) == []


def test_no_space_left(folder, cache, monkeypatch):
    def full(*args):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(InputError, match=r"no room for .* MiB of decoded images \(No space left on device\)"):
        decode_cached(entries(folder), 5)
    assert names(cache) == []


def test_a_read_only_cache(folder, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(errno.EACCES, "Permission denied", "cache")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.raises(InputError, match="cannot be written to"):
        decode_cached(entries(folder), 5)


CODE = """
import sys, torch
from pathlib import Path
from transferrisk.data.image_set import decode_cached
from transferrisk.data.containers import entries
images, bad = decode_cached(entries(Path(sys.argv[1])), 16)
print(int(images.long().sum()), len(bad))
"""


def test_two_processes_at_once(folder, cache):
    command = [sys.executable, "-c", CODE, str(folder)]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(2)]
    out = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    images, _ = decode_cached(entries(folder), 16)
    assert out == [f"{int(images.long().sum())} 0\n"] * 2
    assert len([name for name in names(cache) if not name.startswith("decoded/seen/")]) == 2
    assert all(json.loads(path.read_text()) == {} for path in cache.rglob("*.json"))


def test_a_damaged_cache_heals(folder, cache):
    first, _ = decode_cached(entries(folder), 5)
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
        images, faults = decode_cached(entries(folder), 5)
        assert torch.equal(images, first)
        assert faults == {}
    assert work(entries(folder)) == []


def test_half_written_arrays_of_ended_processes_are_removed(folder, cache):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    (cache / "decoded").mkdir()
    running = cache / "decoded" / f"{owned('abc.npy')}xyz"
    abandoned = running.with_name(running.name.replace(f"-{os.getpid()}.", f"-{ended.pid}."))
    elsewhere = cache / "decoded" / f".abc.npy.00000000-{ended.pid}.xyz"
    for path in (abandoned, running, elsewhere):
        path.write_bytes(b"half")
    decode_cached(entries(folder), 5)
    assert [path.exists() for path in (abandoned, running, elsewhere)] == [False, True, True]


def test_a_disk_that_fills_up_on_the_way(folder, cache):
    def full(what, done, total):
        if what == "decoding images":
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(InputError, match=r"no room for 1 MiB of decoded images \(No space left on device\)"):
        decode_cached(entries(folder), 5, full)
    assert names(cache) == []
