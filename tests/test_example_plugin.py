"""The example package, installed as a user would, adds a method, a data set, a backbone and an experiment."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[1] / "examples" / "plugin"
SETTINGS = {
    "data": "rotated-moons", "test-env": 60, "algorithm": "tilted", "set": "tilt=2", "backbone": "sine:8",
    "epochs": 1, "evaluations": 1, "device": "cpu", "devices": 2,
}  # fmt: skip

EXPERIMENT = """
import json, sys
from functools import partial
from pathlib import Path
from transferrisk import algorithms, models
from transferrisk.data import available
from transferrisk.errors import InputError
from transferrisk.experiments import plan, tasks
from transferrisk.experiments.executors import run_jobs
from transferrisk.experiments.recipe import load_recipe, recipe_names


def carry_out(run, folder, slot):
    task = tasks.get_task(run.task)
    return task.run(task.read(run.settings), tasks.Place(folder, "cpu", on_step=slot.on_step))


if __name__ == "__main__":
    assert "tilted-moons" in recipe_names()
    assert (algorithms.available()[-1], models.available()[-1]) == ("tilted", "sine")
    assert "rotated-moons" in available()
    try:
        algorithms.get_algorithm("titled")
    except InputError as error:
        assert "did you mean 'tilted'?" in str(error)
    whole = plan.make_plan(load_recipe("tilted-moons"))
    made = plan.make_plan(load_recipe("tilted-moons", fast=True), only=["test_env=60"])
    jobs = [partial(carry_out, run, Path(sys.argv[1]) / run.name) for run in made.runs]
    rows = dict(run_jobs(jobs, 2, lambda position, done, total: None))
    print(json.dumps({
        "cells": len(whole.cells),
        "methods": [cell.columns["method"] for cell in made.cells],
        "settings": made.cells[-1].run.settings,
        "parts": [sorted({row["part"] for row in rows[position]}) for position in range(len(jobs))],
    }))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory):
    """python(*arguments) -> exit code, stdout, stderr, where the package is installed."""
    folder = tmp_path_factory.mktemp("example")
    source = shutil.copytree(EXAMPLE, folder / "source")  # a build leaves files beside it
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index", "--no-deps"]
    target = folder / "installed"
    done = subprocess.run(
        [*pip, "--no-build-isolation", "--target", str(target), str(source)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    path = os.pathsep.join(filter(None, (str(target), os.environ.get("PYTHONPATH"))))

    def run(*arguments):
        done = subprocess.run(
            [sys.executable, *map(str, arguments)],
            capture_output=True, text=True, check=False, cwd=folder,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", "COLUMNS": "120"},
        )  # fmt: skip
        return done.returncode, done.stdout, done.stderr

    return run


@pytest.fixture(scope="module")
def trm(python):
    return lambda *arguments: python("-m", "transferrisk.cli", *arguments)


def test_it_trains_by_name_in_every_process(trm, tmp_path):
    settings = [f"--{name}={value}" for name, value in SETTINGS.items()]
    code, out, err = trm("train", *settings, "--output", tmp_path / "run")
    assert code == 0, err
    assert all(told in err for told in ("training tilted", "tilt=2", "backbone=sine:8"))
    assert "test  " in out
    spec = json.loads((tmp_path / "run" / "run.json").read_text())["spec"]
    assert (spec["data"], spec["backbone"]) == ("rotated-moons", "sine:8")


def test_its_names_are_listed_and_its_experiment_is_carried_out(python, tmp_path):
    script = tmp_path / "experiment.py"
    script.write_text(EXPERIMENT)
    code, out, err = python(script, tmp_path)
    assert code == 0, err
    found = json.loads(out)
    assert found["cells"] == 2 * 5 * (1 + 3)
    assert found["methods"] == ["ERM", "Tilted"]
    assert {key: found["settings"][key] for key in ("data", "algorithm", "backbone", "settings")} == {
        "data": "rotated-moons", "algorithm": "tilted", "backbone": "sine", "settings": {"tilt": 1.0},
    }  # fmt: skip
    assert found["parts"] == [["test", "test_domain", "train", "training_domain"]] * 2
