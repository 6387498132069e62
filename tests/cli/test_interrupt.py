"""Ctrl-C and SIGTERM: one line, exit code 130 or 143, nothing left running and nothing half written."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from transferrisk.fitting.model import FILES, load_model

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


KILLED = """
import numpy
plain, calls = numpy.savez, []
def stop(file, **arrays):
    calls.append(file)
    if len(calls) == {at}:
        file.write(b"half of a file")
        os.kill(os.getpid(), signal.SIGKILL)
    plain(file, **arrays)
numpy.savez = stop
"""
WHILE_SAVING = """
import transferrisk.fitting.folder
transferrisk.fitting.folder.write_page = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_killed_comparison_goes_on_where_it_stopped(trm, tmp_path):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(90, 3))
    frame = pd.DataFrame(x, columns=list("abc")).assign(site=np.arange(90) % 3, y=(x[:, 0] + x[:, 1] > 0).astype(int))
    frame.to_csv(tmp_path / "t.csv", index=False)
    command = ["fit", "t.csv", "--label", "y", "--environment", "site", "--algorithms", "linear,trm", "--epochs", "8"]
    command += ["--device", "cpu", "--workers", "1", "--seed", "4", "--force", "--output"]
    assert trm(*command, "zzone")[0] == 0
    shutil.copytree(tmp_path / "zzone", tmp_path / "zztwo")

    def killed(how):
        started = [sys.executable, "-c", START + how + MAIN, *command, "zztwo"]
        ended = subprocess.run(started, cwd=tmp_path, capture_output=True, text=True, check=False)
        assert ended.returncode == -signal.SIGKILL
        return ended.stderr

    assert killed(KILLED.format(at=5)) == ""
    first, second, third, _ = sorted((tmp_path / ".zztwo.comparison").glob("*.npz"))
    first.write_bytes(first.read_bytes()[:-50])
    second.write_bytes(third.read_bytes())  # another training's
    assert "2 of 6 trainings" in killed(WHILE_SAVING)
    assert len([path for path in tmp_path.glob(".zztwo*") if "comparison" not in path.name]) == 1
    code, _, err = trm(*command, "zztwo")  # the sixth is not needed: TRM is far behind after two environments
    assert (code, err.count("\n"), "5 of 6 trainings" in err, "killed process" in err) == (0, 2, True, True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["t.csv", "zzone", "zztwo"]
    assert sorted(path.name for path in (tmp_path / "zztwo").iterdir()) == sorted(FILES)
    for name in FILES[1:]:  # the page has the loss curves
        one, two = ((tmp_path / place / name).read_text().replace(place, "") for place in ("zzone", "zztwo"))
        assert one == two
    one, two = (load_model(tmp_path / place).predict_proba(frame) for place in ("zzone", "zztwo"))
    np.testing.assert_array_equal(one, two)


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
