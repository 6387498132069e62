"""Suite-wide settings: reproducible property tests, no threads fighting over two cores. And the command line."""

from __future__ import annotations

import html
import re
import signal
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch

try:
    from hypothesis import HealthCheck, settings
except ModuleNotFoundError:  # the tests on a GPU do without
    pass
else:
    settings.register_profile(
        "suite", deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
    )
    settings.load_profile("suite")
torch.set_num_threads(1)
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what it runs in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)  # processes that are interrupted here inherit it


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """With `-m gpu`, only files with such tests are imported: they need torch, Triton, NumPy and pytest alone."""
    if config.getoption("markexpr") != "gpu":
        return None
    if collection_path.is_dir():
        files = list(collection_path.rglob("test_*.py"))
    else:
        files = [collection_path] if collection_path.suffix == ".py" else []
    marked = [path for path in files if re.search(r"\bmark\.gpu\b", path.read_text(encoding="utf-8"))]
    return None if marked else True


@pytest.fixture
def trm(monkeypatch, capsys, tmp_path):
    """trm(*arguments) -> exit code, stdout, stderr; in this process, in an empty folder, with a cache of its own."""
    from transferrisk.cli import main

    monkeypatch.setenv("TRANSFERRISK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("COLUMNS", "120")
    monkeypatch.setattr("transferrisk.reports.terminal.SECONDS", 1e6)  # no lines of progress on a machine that is busy
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
def fabric() -> None:
    """What trains a whole model needs Lightning Fabric, which a machine that tests the kernels alone may lack."""
    if find_spec("lightning_fabric") is None and find_spec("lightning") is None:
        pytest.skip("Lightning Fabric is not installed")


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
