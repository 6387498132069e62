"""Suite-wide settings: reproducible property tests, no threads fighting over two cores. And the command line."""

from __future__ import annotations

import html
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from hypothesis import HealthCheck, settings

settings.register_profile(
    "suite", deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")
torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what it runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # processes that are interrupted here inherit it


@pytest.fixture
def trm(monkeypatch, capsys, tmp_path):
    """trm(*arguments) -> exit code, stdout, stderr; in this process, in an empty folder, with a cache of its own."""
    from transferrisk.cli import main

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


@pytest.fixture
def text_of():
    """A page -> what it says: entities as characters, and commands without the elements around their words."""

    def read(page: Path) -> str:
        return html.unescape(page.read_text(encoding="utf-8").replace("<span>", "").replace("</span>", ""))

    return read


@pytest.fixture
def without_waiting():
    """A context in which it is an error to wait for the GPU."""

    @contextmanager
    def strict() -> Iterator[None]:
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", message="Synchronization debug mode is a prototype")
                torch.cuda.set_sync_debug_mode("error")
            yield
        finally:
            torch.cuda.set_sync_debug_mode("default")

    return strict
