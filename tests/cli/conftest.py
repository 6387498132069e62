"""The command, run in this process."""

from __future__ import annotations

import sys

import pytest

from transferrisk.cli import main


@pytest.fixture
def run_trm(monkeypatch, capsys, tmp_path):
    """run_trm(*arguments) -> exit code, stdout, stderr; in an empty folder, with a cache of its own."""
    monkeypatch.setenv("TRANSFERRISK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        monkeypatch.setattr(sys, "argv", ["trm", *map(str, arguments)])
        with pytest.raises(SystemExit) as exit_:
            main()
        captured = capsys.readouterr()
        return exit_.value.code or 0, captured.out, captured.err

    return run
