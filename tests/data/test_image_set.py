"""Decoded images are found again by content, and appear whole or not at all; odd files in folders of images."""

from __future__ import annotations

import errno
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from drawn import picture, sites, write_folder, write_tar

from transferrisk.data import Options, load_data
from transferrisk.data.containers import entries
from transferrisk.data.image_set import decode_cached
from transferrisk.errors import DataWarning, InputError, LeftoverWarning
from transferrisk.files import whole_file

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


@pytest.mark.parametrize(
    ("refusing", "number", "told"),
    [
        ("os.posix_fallocate", errno.ENOSPC, "no room for .* MiB"),
        ("os.open", errno.EACCES, "cannot be written"),
    ],
)
def test_a_disk_that_refuses(folder, cache, monkeypatch, refusing, number, told):
    def refuse(*args, **kwargs):
        raise OSError(number, os.strerror(number), "cache")

    monkeypatch.setattr(refusing, refuse)
    with pytest.raises(InputError, match=told):
        decode_cached(entries(folder), 5)
    assert names(cache) == []


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
    with whole_file(cache / "decoded/abc.npy") as running:
        abandoned = running.with_name(running.name.replace(f"-{os.getpid()}-", f"-{ended.pid}-"))
        elsewhere = cache / "decoded" / f".abc.npy.00000000-{ended.pid}.xyz"
        for path in (abandoned, elsewhere):
            path.write_bytes(b"half")
        with pytest.warns(LeftoverWarning, match="killed process"):
            decode_cached(entries(folder), 5)
        assert [path.exists() for path in (abandoned, running, elsewhere)] == [False, True, True]


def test_a_disk_that_fills_up_on_the_way(folder, cache):
    def full(what, done, total):
        if what == "decoding images":
            raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(InputError, match=r"no room for 1 MiB of decoded images \(No space left on device\)"):
        decode_cached(entries(folder), 5, full)
    assert names(cache) == []


SMALL = Options(size=4)


def test_links_to_nothing_are_counted(folder):
    (folder / "site a/cat/x.png").symlink_to("nowhere.png")
    (folder / "site a/cat/y.png").symlink_to("y.png")
    with pytest.warns(DataWarning, match="2 links that lead to nothing are left out"):
        assert len(load_data(f"folder:{folder}", SMALL)) == 24


def test_links_to_folders_are_followed_but_not_in_circles(folder, tmp_path):
    other = write_folder(tmp_path / "elsewhere", {"cat/1.png": picture((1, 1, 1)), "dog/1.png": picture((2, 2, 2))})
    (folder / "site d").symlink_to(other)
    (folder / "site a/cat/up").symlink_to(folder)
    with pytest.warns(DataWarning, match="1 links to folders that are read already"):
        data = load_data(f"folder:{folder}", SMALL)
    assert data.environment_names == ("site a", "site b", "site c", "site d")
    assert len(data) == 26


def test_a_pipe_does_not_hang(folder):
    os.mkfifo(folder / "site a/cat/pipe.png")
    with pytest.warns(DataWarning, match="1 things that are not regular files are left out, such as .*pipe.png"):
        assert len(load_data(f"folder:{folder}", SMALL)) == 24


def test_a_folder_that_may_not_be_read(folder, monkeypatch):
    plain = os.scandir

    def scandir(path):
        if Path(path).name == "dog":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return plain(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with pytest.raises(InputError, match=r"site ./dog cannot be read \(Permission denied\)"):
        entries(folder)


def test_a_file_that_may_not_be_read_can_be_skipped(folder, monkeypatch):
    plain = Path.read_bytes
    locked = True

    def read_bytes(path):
        if locked and path.name == "2.png" and path.parent.name == "cat":
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return plain(path)

    monkeypatch.setattr(Path, "read_bytes", read_bytes)
    with pytest.raises(InputError, match=r"3 of 24 images cannot be used.*site a/cat/2.png \(it cannot be read \(Perm"):
        load_data(f"folder:{folder}", SMALL)
    with pytest.warns(DataWarning, match="3 of 24 images left out"):
        assert len(load_data(f"folder:{folder}", Options(size=4, skip_bad=True))) == 21
    locked = False  # the files' times are as before
    assert len(load_data(f"folder:{folder}", SMALL)) == 24


def test_kinds_that_are_not_decoded_are_counted(folder):
    write_folder(folder, {f"site a/cat/{i}.heic": b"x" for i in range(3)} | {"site b/dog/scan": b"x", "README": b"x"})
    with pytest.warns(DataWarning, match=r"not decoded are left out: 3 \.heic, 1 without a suffix$"):
        assert len(load_data(f"folder:{folder}", SMALL)) == 24


def test_a_folder_of_them_alone(tmp_path):
    path = write_folder(tmp_path / "own", {f"a/b/{i}.TGA": b"x" for i in range(3)})
    with pytest.raises(InputError, match=r"holds no images of a kind that is decoded, but 3 \.tga"):
        load_data(f"folder:{path}")


@pytest.mark.parametrize("suffix", ["jfif", "jpe", "pnm"])
def test_other_names_of_known_kinds(folder, suffix):
    kind = "PPM" if suffix == "pnm" else "JPEG"
    write_folder(folder, {f"site a/cat/x.{suffix}": picture(kind=kind)})
    assert len(load_data(f"folder:{folder}", SMALL)) == 25


def test_names_that_are_no_text(folder):
    odd = os.fsencode(folder / "site a") + b"/caf\xe9"
    try:
        os.mkdir(odd)
    except OSError:
        pytest.skip("the file system takes UTF-8 names only")
    (Path(os.fsdecode(odd)) / "1.png").write_bytes(picture())
    with pytest.warns(DataWarning, match="no samples of class"):
        data = load_data(f"folder:{folder}", SMALL)
    assert data.class_names == ("caf\\xe9", "cat", "dog")


def test_an_empty_variable_is_none(monkeypatch, tmp_path):
    from transferrisk.data.roots import cache_root

    monkeypatch.delenv("TRANSFERRISK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root().is_absolute()
