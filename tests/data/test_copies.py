"""Files that a user got by hand, copied below the data root; `trm data fetch` and `trm data list`."""

from __future__ import annotations

import errno
import json
import re
import shutil
import tarfile
from pathlib import Path

import pytest
from drawn import picture, write_folder, write_tar, write_zip
from fetching import BY_HAND, CONTENT, Answer, left, nothing_but, remote

from transferrisk.data.fetch import fetch, verify
from transferrisk.errors import InputError


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
def test_published_files_from_what_was_got_by_hand(registered, tmp_path, form):
    name = registered(remote("http://127.0.0.1:1/a"), remote("http://127.0.0.1:1/b", path="things/b.bin"))
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


def test_published_files_are_checked_wherever_they_come_from(registered, tmp_path):
    source = tmp_path / "a.bin"
    source.write_bytes(CONTENT[::-1])
    with pytest.raises(InputError, match="is not the file that was published"):
        fetch(registered(remote("http://127.0.0.1:1/a")), tmp_path / "root", given=source)
    assert left(tmp_path / "root") == []


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


def test_the_command_fetches(server, registered, tmp_path, trm):
    name = registered(remote(server.address("/a")))
    target = tmp_path / "things/a.bin"
    assert trm("data", "fetch", name, "--data-root", tmp_path) == (0, f"fetched {target}\n", "")
    code, out, _ = trm("data", "fetch", name, "--data-root", tmp_path)
    assert (code, out) == (0, f"nothing to do: all that {name} needs is in {tmp_path}\n")
    code, out, err = trm("data", "fetch", name, "--data-root", tmp_path, "--json")
    assert (code, err) == (0, "")
    assert json.loads(out)["files"] == [{"path": str(target), "state": "there"}]
    code, out, _ = trm("data", "fetch", "gaussian")
    assert (code, out) == (0, "gaussian needs no files: there is nothing to fetch\n")


def test_the_command_fails_in_one_line(server, registered, by_hand, tmp_path, trm):
    gone = registered(remote(server.address("/a", Answer(status=404))), name="gone")
    for arguments, told in (
        ([gone], "404 Not Found"),
        ([by_hand], BY_HAND),
        ([by_hand, "--from", tmp_path / "absent"], "does not exist"),
        (["mnst"], "did you mean 'mnist'"),
        (["gaussian", "--from", tmp_path], "it needs no files"),
    ):
        code, out, err = trm("data", "fetch", *arguments, "--data-root", tmp_path)
        assert (code, out) == (2, "")
        assert err.startswith("trm: ")
        assert told in err
        assert err.count("\n") == 1


def test_the_list_tells_what_is_there(registered, tmp_path, trm):
    registered(remote("http://127.0.0.1:1/a"))
    (tmp_path / "things").mkdir()
    (tmp_path / "things/a.bin").write_bytes(CONTENT)
    code, out, _ = trm("data", "list", "--json", "--data-root", tmp_path)
    listed = json.loads(out)
    assert code == 0
    sets = {entry["name"]: entry for entry in listed["sets"]}
    assert sets["10c-cmnist"]["usage"] == "10c-cmnist[:FOLDER]"
    assert sets["10c-cmnist"]["there"] == "no"
    assert sets["10c-digits"]["there"] == "yes"
    assert {"citation", "homepage", "departures", "licence"} <= set(sets["gaussian"])
    assert {entry["name"]: entry["there"] for entry in listed["sources"]}["things"] == "yes"


@pytest.mark.parametrize("width", [80, 140])
def test_the_list_fits(width, tmp_path, trm, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    _, out, _ = trm("data", "list", "--data-root", tmp_path)
    tables = out.partition("Data root:")[0]
    assert max(map(len, tables.splitlines())) <= width
    for whole in ("10c-cmnist[:FOLDER]", "fashion-mnist", "3x256x256", "19.6 GB", "Download"):
        assert whole in tables
