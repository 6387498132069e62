"""Ctrl-C and SIGTERM: one line, exit code 130 or 143, nothing left running and nothing half written."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from PIL import Image

START = """
import os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # whatever the one who runs the tests has set
"""
AT_IMPORT = """
class Interrupt:
    def find_spec(self, name, *_):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Interrupt())
"""
MAIN = """
from transferrisk.cli import main
main()
"""


@pytest.mark.parametrize("module", ["typer", "torch", "sklearn.datasets"])
def test_while_modules_are_read(tmp_path, module):
    command = [sys.executable, "-c", START + AT_IMPORT.format(module=module) + MAIN]
    command += ["demo", "--workers", "1", "--output", str(tmp_path / "out")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr, result.stdout) == (130, "trm: interrupted\n", "")


@pytest.mark.parametrize("module", ["transferrisk.experiments.plan", "transferrisk.experiments.estimate"])
def test_while_an_experiment_is_planned(tmp_path, module):
    command = [sys.executable, "-c", START + AT_IMPORT.format(module=module) + MAIN]
    command += ["experiment", "toy-2d", "--dry-run", "--output", str(tmp_path / "out")]
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    told = "trm: interrupted: what is done is kept, and the same command goes on\n"
    assert (result.returncode, result.stderr, result.stdout) == (130, told, "")


@pytest.mark.parametrize("workers", ["1", "2"])
def test_while_training(tmp_path, workers):
    """The way a terminal does it: the signal goes to the whole group."""
    for name in ("records.jsonl", "report.html"):
        (tmp_path / name).write_text("of an earlier demo")
    command = [sys.executable, "-c", START + MAIN, "demo", "--seeds", "99", "--epochs", "1"]
    process = subprocess.Popen(
        [*command, "--workers", workers, "--output", str(tmp_path)],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    unfinished = tmp_path / "records.unfinished.jsonl"
    try:
        wait_for(unfinished.exists, process, seconds=120)
        os.killpg(process.pid, signal.SIGINT)
        began = time.monotonic()
        out, err = process.communicate(timeout=60)
        assert time.monotonic() - began < 30
        wait_for(lambda: not alive(process.pid), seconds=30)
    finally:
        if alive(process.pid):
            os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == 130
    lines = err.splitlines()
    assert lines[-1] == "trm: interrupted"
    assert all(line.endswith("of 396 runs finished") for line in lines[:-1])
    assert out == ""
    assert (tmp_path / "records.jsonl").read_text() == (tmp_path / "report.html").read_text() == "of an earlier demo"
    assert unfinished.read_text().count('"seed": 0') >= 2


DECODE = """
import transferrisk.data.image_set as cache
plain = cache.decode_all
def stop(*arguments):
    for done, found in enumerate(plain(*arguments)):
        if done == 5:
            os.kill(os.getpid(), signal.SIGTERM)
        yield found
cache.decode_all = stop
"""


def test_termination_leaves_nothing_behind(tmp_path):
    for site in "ab":
        for kind in "cd":
            folder = tmp_path / "own" / site / kind
            folder.mkdir(parents=True)
            for i in range(4):
                Image.new("RGB", (4, 4), (i, i, i)).save(folder / f"{i}.png")
    command = [sys.executable, "-c", START + DECODE + MAIN, "data", "check", f"folder:{tmp_path / 'own'}"]
    environment = os.environ | {"TRANSFERRISK_CACHE": str(tmp_path / "cache")}
    result = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert (result.returncode, result.stderr, result.stdout) == (143, "trm: terminated\n", "")
    assert [path for path in (tmp_path / "cache").rglob("*") if path.is_file()] == []


def alive(group):
    """Whether a process of the group is running; one that has ended and waits to be reaped by init is not."""
    if not Path("/proc/self/stat").exists():
        return subprocess.run(["pgrep", "-g", str(group)], capture_output=True, check=False).returncode == 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            state, _, owner = stat.read_text().rpartition(")")[2].split()[:3]
            if int(owner) == group and state not in "ZX":
                return True
    return False


def wait_for(condition, process=None, seconds=60.0):
    end = time.monotonic() + seconds
    while not condition():
        assert process is None or process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.05)
