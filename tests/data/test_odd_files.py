"""What lies in folders beside images: links to nothing, pipes, other formats, names that are no text."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from drawn import picture, sites, write_folder

from transferrisk.data import Options, load_data
from transferrisk.data.containers import entries
from transferrisk.errors import DataWarning, InputError

SMALL = Options(size=4)


@pytest.fixture
def folder(tmp_path):
    return write_folder(tmp_path / "own", sites())


def test_links_to_nothing_are_counted(folder):
    (folder / "site a/cat/x.png").symlink_to("nowhere.png")
    (folder / "site a/cat/y.png").symlink_to("y.png")
    with pytest.warns(DataWarning, match="2 links lead to nothing and are left out"):
        assert len(load_data(f"folder:{folder}", SMALL)) == 24


def test_links_to_folders_are_followed_but_not_in_circles(folder, tmp_path):
    other = write_folder(tmp_path / "elsewhere", {"cat/1.png": picture((1, 1, 1)), "dog/1.png": picture((2, 2, 2))})
    (folder / "site d").symlink_to(other)
    (folder / "site a/cat/up").symlink_to(folder)
    data = load_data(f"folder:{folder}", SMALL)
    assert data.environment_names == ("site a", "site b", "site c", "site d")
    assert len(data) == 26


def test_empty_classes_behind_links_are_seen(folder, tmp_path):
    (tmp_path / "elsewhere" / "zebra").mkdir(parents=True)
    (folder / "site d").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="class 'zebra' has a folder and no image"):
        load_data(f"folder:{folder}", SMALL)


def test_a_pipe_does_not_hang(folder):
    os.mkfifo(folder / "site a/cat/pipe.png")
    with pytest.warns(DataWarning, match="1 things are not regular files and are left out, such as .*pipe.png"):
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


def test_no_home_folder():
    for name in ("folder:~nosuchuser/x", "manifest:~nosuchuser/x.csv", "npz:~nosuchuser/x.npz"):
        with pytest.raises(InputError, match="there is no home folder ~nosuchuser"):
            load_data(name)
    with pytest.raises(InputError, match="there is no home folder ~nosuchuser"):
        load_data("pacs", Options(root="~nosuchuser/data"))


def test_an_empty_variable_is_none(monkeypatch, tmp_path):
    from transferrisk.data.catalogue import cache_root

    monkeypatch.delenv("TRANSFERRISK_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", "")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_root().is_absolute()
