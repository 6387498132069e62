"""A file is there whole or not at all."""

from __future__ import annotations

import os

import pytest

from transferrisk.files import write_atomically


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
