"""Folders, tar and zip archives read the same; those that are cut, damaged, locked or odd are refused in one line."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import time
import tracemalloc
import zipfile

import pytest
from drawn import sites, write_folder, write_tar, write_zip

from transferrisk.data import Options, containers, load_data
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


LONG = {"a/1.txt": b"one" * 400, "a/2.txt": b"two" * 400, "b/3.txt": b"three" * 400}
KINDS = {".tar": "w", ".tar.gz": "w:gz", ".tar.bz2": "w:bz2", ".tar.xz": "w:xz"}


def archive(tmp_path, kind, members):
    """A tar of (name, content) pairs, which may repeat names."""
    path = tmp_path / f"x{kind}"
    with tarfile.open(path, KINDS[kind]) as out:
        for name, content in members:
            info = tarfile.TarInfo(name)
            if isinstance(content, tuple):
                info.type, info.linkname = content
                out.addfile(info)
            else:
                info.size = len(content)
                out.addfile(info, io.BytesIO(content))
    return path


def read(path):
    found = entries(path)
    return {found[i].name: content for i, content in contents(found)}


@pytest.mark.parametrize("kind", KINDS)
def test_every_compression(tmp_path, kind):
    assert read(write_tar(tmp_path / f"x{kind}", LONG, KINDS[kind])) == LONG


@pytest.mark.parametrize("kind", KINDS)
def test_the_last_member_of_a_name_counts(tmp_path, kind):
    path = archive(tmp_path, kind, [("a", b"old"), ("b", b"other"), ("./a", b"newer")])
    assert read(path) == {"a": b"newer", "b": b"other"}


@pytest.mark.filterwarnings("ignore:Duplicate name")
def test_the_last_member_of_a_name_counts_in_a_zip(tmp_path):
    with zipfile.ZipFile(tmp_path / "x.zip", "w") as out:
        for name, content in (("a", b"old"), ("b", b"other"), ("a", b"new")):
            out.writestr(name, content)
    assert [entry.name for entry in entries(tmp_path / "x.zip")] == ["a", "b"]
    assert read(tmp_path / "x.zip") == {"a": b"new", "b": b"other"}


@pytest.mark.parametrize("kind", KINDS)
def test_cut_between_members(tmp_path, kind):
    """Without the blocks that end it, an archive may have had more members."""
    path = write_tar(tmp_path / "x.tar", LONG)
    with tarfile.open(path) as whole:
        end = whole.getmembers()[1].offset
    content = path.read_bytes()[:end]
    target = tmp_path / f"cut{kind}"
    packers = {".tar": bytes, ".tar.gz": gzip.compress, ".tar.bz2": bz2.compress, ".tar.xz": lzma.compress}
    target.write_bytes(packers[kind](content))
    with pytest.raises(InputError, match=r"it ends too early.*damaged"):
        entries(target)


def test_a_damaged_header_is_not_the_end(tmp_path):
    path = write_tar(tmp_path / "x.tar", LONG)
    with tarfile.open(path) as whole:
        at = whole.getmembers()[1].offset
    content = bytearray(path.read_bytes())
    content[at + 5 : at + 150] = b"\xaa" * 145
    path.write_bytes(content)
    with pytest.raises(InputError, match="a header is damaged"):
        entries(path)


@pytest.mark.parametrize("kind", [".tar.gz", ".tar.bz2", ".tar.xz"])
@pytest.mark.parametrize("damage", ["cut", "flip"])
def test_damaged_compression_is_one_line(tmp_path, kind, damage):
    path = write_tar(tmp_path / f"x{kind}", {name: os.urandom(3000) for name in LONG}, KINDS[kind])
    content = bytearray(path.read_bytes())
    if damage == "cut":
        content = content[:-6]
    else:
        content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(InputError, match="damaged") as error:
        read(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", KINDS)
def test_links_inside_are_followed(tmp_path, kind):
    members = [
        ("a/1.txt", b"one"),
        ("b/hard.txt", (tarfile.LNKTYPE, "a/1.txt")),
        ("b/soft.txt", (tarfile.SYMTYPE, "../a/1.txt")),
        ("c/chain.txt", (tarfile.SYMTYPE, "../b/soft.txt")),
        ("c/round.txt", (tarfile.SYMTYPE, "round.txt")),
    ]
    with pytest.warns(DataWarning, match="1 links lead to no file of the archive .* 'c/round.txt'"):
        found = read(archive(tmp_path, kind, members))
    assert found == dict.fromkeys(["a/1.txt", "b/hard.txt", "b/soft.txt", "c/chain.txt"], b"one")


def test_upper_case_and_folders_named_like_archives(tmp_path):
    assert read(write_zip(tmp_path / "X.ZIP", LONG)) == LONG
    assert entries(tmp_path / "X.ZIP")[0].read() == LONG["a/1.txt"]
    folder = write_folder(tmp_path / "dir.zip", LONG)
    assert read(folder) == LONG
    assert entries(folder)[0].read() == LONG["a/1.txt"]


def test_backslashes_separate_the_folders_of_a_zip(tmp_path):
    path = write_zip(tmp_path / "x.zip", {name.replace("/", "\\"): content for name, content in sites().items()})
    assert load_data(f"folder:{path}", Options(size=4)).class_names == ("cat", "dog")


def damage_member(path, name):
    """Overwrite a stored member's bytes, so that its sum is wrong."""
    with zipfile.ZipFile(path) as whole:
        info = whole.getinfo(name)
    content = bytearray(path.read_bytes())
    at = info.header_offset + 30 + len(name.encode())
    content[at : at + 20] = b"\0" * 20
    path.write_bytes(content)


@pytest.mark.parametrize("lazy", [False, True])
def test_a_damaged_member_of_a_zip_can_be_skipped(tmp_path, lazy):
    path = write_zip(tmp_path / "x.zip", sites())
    damage_member(path, "site a/cat/1.png")
    asked = Options(size=4, lazy=lazy, verify=True)
    with pytest.raises(
        InputError, match=r"1 of 24 images cannot be used, the first is site a/cat/1\.png .it cannot be"
    ):
        load_data(f"folder:{path}", asked)
    with pytest.warns(DataWarning, match=r"1 of 24 images left out: site a/cat/1\.png .it cannot be read"):
        assert len(load_data(f"folder:{path}", Options(size=4, lazy=lazy, skip_bad=True))) == 23


def test_locked_zips_are_one_line(tmp_path):
    path = write_zip(tmp_path / "x.zip", sites())
    content = bytearray(path.read_bytes())
    for magic, flags in ((b"PK\3\4", 6), (b"PK\1\2", 8)):
        at = content.find(magic)
        while at >= 0:
            content[at + flags] |= 1
            at = content.find(magic, at + 4)
    path.write_bytes(content)
    with pytest.raises(InputError, match=r"24 of 24 images cannot be used.*(encrypted|password)"):
        load_data(f"folder:{path}", Options(size=4))


def test_archives_in_archives(tmp_path):
    inner = write_zip(tmp_path / "inner.zip", sites())
    path = write_zip(tmp_path / "outer.zip", {"inner.zip": inner.read_bytes()})
    with pytest.raises(InputError, match=r"archives such as 'inner.zip', which have to be unpacked first"):
        load_data(f"folder:{path}")


def test_lazy_is_refused_at_once_where_it_cannot_be(tmp_path):
    path = write_tar(tmp_path / "x.tar.gz", sites(), "w:gz")
    checking = Options(size=4, lazy=True, verify=True, progress=lambda *_: pytest.fail("images were checked"))
    with pytest.raises(InputError, match="compressed as a whole"):
        load_data(f"folder:{path}", checking)


def test_a_large_set_in_a_compressed_archive_is_cached(tmp_path, monkeypatch):
    path = write_tar(tmp_path / "x.tar.gz", sites(), "w:gz")
    monkeypatch.setattr("transferrisk.data.image_set.LARGEST_CACHE", 1)
    assert load_data(f"folder:{path}", Options(size=4)).batch().shape == (24, 3, 4, 4)


def test_a_batch_opens_a_zip_once(tmp_path, monkeypatch):
    data = load_data(f"folder:{write_zip(tmp_path / 'x.zip', sites())}", Options(size=4, lazy=True))
    opened = []
    plain = zipfile.ZipFile.__init__
    monkeypatch.setattr(zipfile.ZipFile, "__init__", lambda *a, **k: (opened.append(a), plain(*a, **k))[1])
    data.batch()
    assert len(opened) == 1


def test_each_folder_is_read_once_and_links_to_it_are_told(tmp_path):
    """Two sites whose folders link to each other, to the folder above, and to one elsewhere, which links back."""
    root = write_folder(tmp_path / "own", {"a/cat/1.png": b"1", "b/dog/2.png": b"2"})
    write_folder(tmp_path / "elsewhere", {"owl/3.png": b"3"})
    for link, target in {
        "a/other": root / "b",
        "b/other": root / "a",
        "b/all": root,
        "b/above": tmp_path,
        "c": tmp_path / "elsewhere",
        "d": tmp_path / "elsewhere",
    }.items():
        (root / link).symlink_to(target)
    (tmp_path / "elsewhere" / "back").symlink_to(root)
    with pytest.warns(DataWarning, match="6 links to folders that are read already"):
        found = entries(root)
    assert [entry.name for entry in found] == ["a/cat/1.png", "b/dog/2.png", "c/owl/3.png"]


def test_a_chain_of_links_in_a_tar_archive_is_followed_at_once(tmp_path):
    """Each link to the one before it: following every one from its beginning would take 50 million steps."""
    with tarfile.open(tmp_path / "x.tar", "w") as archive:
        for i in range(10_000, -1, -1):
            info = tarfile.TarInfo(f"{i}.png")
            if i == 0:
                archive.addfile(info)
            else:
                info.type, info.linkname = tarfile.SYMTYPE, f"{i - 1}.png"
                archive.addfile(info)
    began = time.process_time()
    assert len(entries(tmp_path / "x.tar")) == 10_001
    assert time.process_time() - began < 4  # one second, and six where every link was followed by itself


def test_a_tar_header_that_claims_to_be_large_is_not_read(tmp_path):
    """A few kilobytes of gzip unpack to a name of 300 MB."""
    long = tarfile.TarInfo("././@LongLink")
    long.type, long.size = tarfile.GNUTYPE_LONGNAME, 300 << 20
    with gzip.open(tmp_path / "x.tar.gz", "wb", compresslevel=1) as file:
        file.write(long.tobuf(tarfile.GNU_FORMAT))
        for _ in range(300):
            file.write(b"x" * (1 << 20))
    with pytest.raises(InputError, match="a header says that it has 314572800 bytes"):
        entries(tmp_path / "x.tar.gz")


@pytest.mark.parametrize("lies", [False, True])
def test_a_member_that_unpacks_to_too_much_is_not_held(tmp_path, monkeypatch, lies):
    """It is refused by what it says of itself; if that is a lie, after as much as is allowed."""
    monkeypatch.setattr(containers, "LARGEST", 1 << 20)
    with zipfile.ZipFile(tmp_path / "x.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a.png", b"\0" * (30 << 20))
        if lies:
            archive.infolist()[0].file_size = 1 << 19
    tracemalloc.start()
    (_, content), *_ = contents(entries(tmp_path / "x.zip"))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert isinstance(content, InputError)
    assert peak < 8 << 20
