"""A file is there whole or not at all."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from transferrisk.errors import InputError, LeftoverWarning, did_you_mean, one_line
from transferrisk.files import (
    existing_file,
    expand_home,
    locked,
    prepare_folder,
    whole_file,
    write_atomically,
)


def test_writes_and_replaces(tmp_path):
    path = tmp_path / "a" / "b.txt"
    write_atomically(path, "one")
    write_atomically(path, b"two")
    assert path.read_text() == "two"
    assert [p.name for p in path.parent.iterdir()] == ["b.txt"]


def test_a_failure_keeps_the_old_file_and_leaves_nothing(tmp_path, monkeypatch):
    path = tmp_path / "b.txt"
    write_atomically(path, "old")

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(path, "new")
    assert path.read_text() == "old"
    assert [p.name for p in tmp_path.iterdir()] == ["b.txt"]


def test_a_link_stays_and_what_it_leads_to_is_written(tmp_path):
    (tmp_path / "link").symlink_to("deep/real")
    write_atomically(tmp_path / "link", "one")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "deep/real").read_text() == "one"


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="pipe is not a regular file"):
        write_atomically(tmp_path / "pipe", "one")
    with pytest.raises(InputError, match="pipe is not a regular file"):
        prepare_folder(tmp_path, "pipe")
    assert [p.name for p in tmp_path.iterdir()] == ["pipe"]


def test_folders_that_were_not_there_are_gone_after_a_failure(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    (tmp_path / "there").mkdir()
    with pytest.raises(OSError, match="No space left"):
        write_atomically(tmp_path / "there" / "a" / "b" / "c.txt", "new")
    assert [p.name for p in tmp_path.rglob("*")] == ["there"]


def test_what_a_killed_process_left_goes_with_the_next_write(tmp_path):
    killed = """
import os, pathlib, signal, sys
from transferrisk.files import whole_file
opened = [whole_file(pathlib.Path(sys.argv[1]) / name) for name in ("a [1].csv", "b.csv")]
for whole in opened:
    whole.__enter__().write_text("half")
os.kill(os.getpid(), signal.SIGKILL)
"""
    subprocess.run([sys.executable, "-c", killed, tmp_path], check=False)
    with pytest.warns(LeftoverWarning, match="1 unfinished output that a killed process"):
        write_atomically(tmp_path / "a [1].csv", "new")
    with whole_file(tmp_path / "a [1].csv") as running:  # of a process that is not done
        running.write_text("first")
        write_atomically(tmp_path / "a [1].csv", "second")
        left = {path.name for path in tmp_path.iterdir()} - {"a [1].csv", running.name}
        assert [name[:7] for name in left] == [".b.csv."]  # of another target
        assert (tmp_path / "a [1].csv").read_text() == "second"
    assert (tmp_path / "a [1].csv").read_text() == "first"


def test_a_process_number_that_is_used_again_keeps_nothing(tmp_path):
    """What a process left goes, though another one has its number by now; what no process of ours has named stays."""
    with whole_file(tmp_path / "a.csv") as running:
        ours = running.name
    number = f"{os.getpid()}-"
    (tmp_path / ours.replace(number, f"{number}1")).write_text("half")  # of one that began before
    (tmp_path / ".a.csv.swp").write_text("an editor's")
    with pytest.warns(LeftoverWarning, match="1 unfinished output"):
        write_atomically(tmp_path / "a.csv", "new")
    assert {path.name for path in tmp_path.iterdir()} == {"a.csv", ".a.csv.swp"}


@pytest.mark.parametrize(("umask", "mode"), [(0o077, 0o600), (0o022, 0o644), (0o027, 0o640)])
def test_files_have_the_mode_of_the_umask_or_of_what_they_replace(tmp_path, umask, mode):
    before = os.umask(umask)
    try:
        write_atomically(tmp_path / "folder" / "new.txt", "new")
        (tmp_path / "old.txt").touch(0o666)
        (tmp_path / "old.txt").chmod(0o604)
        write_atomically(tmp_path / "old.txt", "new")
    finally:
        os.umask(before)
    assert (tmp_path / "folder" / "new.txt").stat().st_mode & 0o777 == mode
    assert (tmp_path / "old.txt").stat().st_mode & 0o777 == 0o604
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o777 & ~umask


def test_an_error_of_the_disk_names_the_file_of_the_user(tmp_path):
    with pytest.raises(OSError, match=r"long.*csv") as caught:
        write_atomically(tmp_path / f"long{'x' * 300}.csv", "new")
    assert caught.value.filename == str(tmp_path / f"long{'x' * 300}.csv")
    longest = "🙂" * 62 + ".csv"  # 252 bytes of the 255 that a name may have
    write_atomically(tmp_path / longest, "new")
    assert [path.name for path in tmp_path.iterdir()] == [longest]


def test_a_file_in_place_of_a_folder_is_refused(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match="file is a file, not a folder"):
        prepare_folder(tmp_path / "file", "page.html")


def test_no_word_is_proposed_for_itself(tmp_path):
    assert did_you_mean("ridge", ["ridge"]) == ""
    assert did_you_mean("Ridge", ["ridge"]) == "did you mean 'ridge'? "
    (tmp_path / "table.csv").symlink_to("nowhere")
    with pytest.raises(InputError, match="does not exist: check the path"):
        existing_file(tmp_path / "table.csv")


def test_a_message_is_one_printable_line():
    assert one_line("a\x1b[31mb\n c\u202e\ud800 🙂") == r"a\x1b[31mb c\u202e\ud800 🙂"
    long = one_line(f"name {'x' * 5000}: choose another", most=300)
    assert len(long) == 300
    assert long.startswith("name x")
    assert long.endswith("x: choose another")


def test_a_full_disk_is_told_with_the_file_it_has_no_room_for(tmp_path, monkeypatch):
    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left") as caught:
        write_atomically(tmp_path / "report.html", "new")
    assert caught.value.filename == str(tmp_path / "report.html")
    assert not list(tmp_path.iterdir())


def test_a_home_folder_that_does_not_exist():
    assert expand_home("~/x") == Path.home() / "x"
    with pytest.raises(InputError, match="no home folder ~nosuchuser"):
        expand_home("~nosuchuser/x")


def test_a_file_to_read(tmp_path):
    (tmp_path / "table.csv").write_text("x")
    (tmp_path / "empty.csv").touch()
    assert existing_file(str(tmp_path / "table.csv")) == tmp_path / "table.csv"
    for name, reason in (("tabel.csv", "did you mean 'table.csv'"), ("empty.csv", "is empty"), (".", "is a folder")):
        with pytest.raises(InputError, match=reason):
            existing_file(tmp_path / name)


def test_a_lock_is_held_once_and_leaves_nothing(tmp_path):
    with locked(tmp_path / "lock", "busy"):
        code = "import sys, pathlib, transferrisk.files as f\nwith f.locked(pathlib.Path(sys.argv[1]), 'busy'): pass"
        command = [sys.executable, "-c", code, tmp_path / "lock"]
        out = subprocess.run(command, capture_output=True, text=True, check=False)
        assert "InputError: busy" in out.stderr
    with locked(tmp_path / "lock", "busy"):
        pass
    assert not list(tmp_path.iterdir())
