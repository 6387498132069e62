"""Folders, tar and zip archives read the same, and bad archives are refused."""

from __future__ import annotations

import pytest
from drawn import write_folder, write_tar, write_zip

from transferrisk.data.containers import contents, entries
from transferrisk.errors import DataWarning, InputError

FILES = {"b/2.txt": b"two", "a/1.txt": b"one", "a/deep/3.txt": b"three", "zero": b""}


def written(tmp_path, kind):
    if kind == "folder":
        return write_folder(tmp_path / "files", FILES)
    if kind == "zip":
        return write_zip(tmp_path / "files.zip", FILES)
    return write_tar(tmp_path / f"files{kind}", FILES, "w:gz" if kind == ".tar.gz" else "w")


@pytest.mark.parametrize("kind", ["folder", "zip", ".tar", ".tar.gz"])
def test_listing_and_contents(tmp_path, kind):
    found = entries(written(tmp_path, kind))
    assert [entry.name for entry in found] == sorted(FILES)
    assert [entry.size for entry in found] == [len(FILES[name]) for name in sorted(FILES)]
    wanted = [found[2], found[0], found[3]]
    assert {wanted[i].name: content for i, content in contents(wanted)} == {e.name: FILES[e.name] for e in wanted}
    assert found[0].folders == ("a",)


@pytest.mark.parametrize("kind", ["folder", "zip", ".tar"])
def test_single_files(tmp_path, kind):
    for entry in entries(written(tmp_path, kind)):
        assert entry.read() == FILES[entry.name]


def test_single_files_of_a_compressed_tar_are_refused(tmp_path):
    with pytest.raises(InputError, match="compressed as a whole"):
        entries(written(tmp_path, ".tar.gz"))[0].read()


def test_hidden_files_do_not_count(tmp_path):
    extra = {".DS_Store": b"x", "__MACOSX/a/._1.txt": b"x", "a/Thumbs.db": b"x", ".git/config": b"x"}
    assert [e.name for e in entries(write_zip(tmp_path / "x.zip", FILES | extra))] == sorted(FILES)
    assert [e.name for e in entries(write_folder(tmp_path / "x", FILES | extra))] == sorted(FILES)


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../outside.txt", "a/../../outside.txt", "C:/windows/x", "a\\..\\..\\x"]
)
@pytest.mark.parametrize("write", [write_tar, write_zip])
def test_paths_that_lead_outside_are_refused(tmp_path, write, name):
    path = write(tmp_path / ("x.tar" if write is write_tar else "x.zip"), {"a/1.txt": b"1", name: b"2"})
    with pytest.raises(InputError, match="outside of it: this is refused"):
        entries(path)


@pytest.mark.parametrize("name", ["x.zip", "x.tar", "x.tar.gz"])
def test_what_is_no_archive(tmp_path, name):
    path = tmp_path / name
    path.write_bytes(b"plainly not an archive" * 100)
    with pytest.raises(InputError, match="damaged or no"):
        entries(path)


@pytest.mark.parametrize("kind", ["zip", ".tar", ".tar.gz"])
def test_a_truncated_archive(tmp_path, kind):
    path = written(tmp_path, kind)
    whole = path.read_bytes()
    # The end of a tar is padding; what is cut must hold data.
    path.write_bytes(whole[:700] if kind == ".tar" else whole[: len(whole) // 2])
    with pytest.raises(InputError, match="damaged"):
        list(contents(entries(path)))


def test_a_tar_cut_within_a_file(tmp_path):
    path = write_tar(tmp_path / "x.tar", {"big": b"x" * 5000})
    path.write_bytes(path.read_bytes()[:3000])
    with pytest.raises(InputError, match="damaged"):
        entries(path)


def test_neither_folder_nor_archive(tmp_path):
    (tmp_path / "x.rar").write_bytes(b"Rar!")
    with pytest.raises(InputError, match="neither a folder nor an archive"):
        entries(tmp_path / "x.rar")
    with pytest.raises(InputError, match="does not exist"):
        entries(tmp_path / "nothing")


def test_links_in_a_tar_are_not_followed(tmp_path):
    import tarfile

    path = write_tar(tmp_path / "x.tar", {"a.txt": b"1"})
    with tarfile.open(path, "a") as archive:
        link = tarfile.TarInfo("b.txt")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    with pytest.warns(DataWarning, match="1 links lead to no file of the archive and are left out, such as 'b.txt'"):
        assert [entry.name for entry in entries(path)] == ["a.txt"]
