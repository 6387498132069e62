"""The paper's tasks: flat records, the same again, settings that pass through JSON; found by name alone."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest

from transferrisk.errors import InputError
from transferrisk.experiments import bench
from transferrisk.experiments.plan import make_plan
from transferrisk.experiments.recipe import load_recipe
from transferrisk.experiments.tasks import Place, get_task, plan_run
from transferrisk.paper.tasks import PICTURES
from transferrisk.settings import as_json, dumps

SMALL = {
    "toy-2d": {"offsets": [0.5], "spreads": [0.0], "angles": 5, "steps": 2, "node_step": 0.5},
    "theorem-1": {"dimensions": [8, 16], "samples": 200},
    "implicit-gradient": {"batch_sizes": [16], "ridges": [0.1], "batches": 3, "checked": 1, "pool": 500},
    "convergence": {"steps": [10, 20], "factors": [1.0], "repeats": 2},
}
each = pytest.mark.parametrize("name", SMALL)


def test_no_other_part_of_the_package_loads_it():
    code = (
        "import sys, transferrisk.experiments.recipe as recipe, transferrisk.experiments.sweep, transferrisk.cli.app\n"
        "from transferrisk.experiments import plan, tasks\n"
        "plan.make_plan(recipe.load_recipe('cmnist', fast=True))\n"
        "print([name for name in sys.modules if name.startswith('transferrisk.paper.')])\n"
        "print(tasks.available())"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()
    assert out[0] == "['transferrisk.paper.recipes']", "its folder of TOML files"
    assert set(json.loads(out[1].replace("'", '"'))) >= {"train", "finetune", "pictures", "time", *SMALL}


@each
def test_records_are_flat_and_the_same_again(name, tmp_path):
    task, steps = get_task(name), []
    settings = task.read(SMALL[name])
    found = task.run(settings, Place(tmp_path, on_step=lambda *step: steps.append(step)))
    assert {type(value) for record in found for value in record.values()} <= {str, int, float, bool, type(None)}
    assert all(isinstance(record["what"], str) for record in found)
    kinds = {tuple(sorted(record)) for record in found}
    assert len(kinds) == len({record["what"] for record in found}), "one kind, one set of columns"
    assert json.loads(json.dumps(found, allow_nan=False)) == found
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert steps[-1][0] == steps[-1][1]
    again = task.read(json.loads(dumps(settings)))
    assert again == settings
    assert task.run(again, Place(tmp_path)) == found


@each
def test_the_defaults_are_settings(name):
    settings = get_task(name).read({})
    assert settings.seed == 0
    assert get_task(name).read(as_json(settings)) == settings


@each
def test_a_recipe_shows_columns_that_are_there(name, tmp_path):
    recipe = load_recipe(name, fast=True)
    (run,) = make_plan(recipe).runs
    small = {
        "toy-2d": {"angles": 5, "steps": 2, "node_step": 0.5},
        "implicit-gradient": {"batches": 3, "batch_sizes": [16]},
        "convergence": {"steps": [30, 60], "repeats": 2},
        "theorem-1": {"dimensions": [4]},
    }
    task = get_task(name)
    records = task.run(task.read({**run.settings, **small[name]}), Place(tmp_path))
    for show in recipe.show.values():
        chosen = [one for one in records if all(one.get(key) == value for key, value in show["where"].items())]
        assert chosen, f"nothing to show of {show['where']}"
        columns = [show[key] for key in ("x", "y", "series", "row", "values", "panels") if key in show]
        for column in (name for names in columns for name in (names if isinstance(names, list) else [names])):
            assert column in chosen[0]


@pytest.mark.parametrize(
    ("name", "wrong", "message"),
    [
        ("toy-2d", {"seed": -1}, "seed must be .* got -1"),
        ("toy-2d", {"deviations": [1.0, 1.0]}, "deviations must sum to 0"),
        ("toy-2d", {"offsets": [float("nan")]}, r"offsets\[0\] must be a finite number, got nan"),
        ("toy-2d", {"offsets": []}, r"offsets must be a list of 1 or more values, got \[\]"),
        ("theorem-1", {"dimensions": [2]}, r"dimensions\[0\] must be an integer >= 3, got 2"),
        ("theorem-1", {"causal": 0.5}, "causal must be .* >= 1 and <= 8, got 0.5"),
        ("theorem-1", {"means": [[2.5, 0], [0, 2.5]]}, r"means must .* mu_1 . mu_2 <= "),
        ("theorem-1", {"means": [[2.4, 0], [-0.42, 0]]}, r"means must .* \|mu_1 - mu_2\| >= 2 sqrt\(2 d\)"),
        ("theorem-1", {"means": [[2.5, 0, 1], [-0.4, 2.5, 1]]}, r"means\[0\] must be a list, got \[2.5, 0, 1\]"),
        ("implicit-gradient", {"features": 15}, "features must be < 15"),
        ("implicit-gradient", {"ridges": [0]}, r"ridges\[0\] must be a finite number > 0, got 0"),
        ("implicit-gradient", {"batches": 1.5}, "batches must be an integer >= 2, got 1.5"),
        ("convergence", {"queries": ["some"]}, r"queries\[0\] must be one of 'all', 'random', got 'some'"),
        ("convergence", {"batch_size": 101}, "batch_size must be <= samples, 100, got 101"),
        ("convergence", {"environments": 2}, "environments must be an integer >= 3, got 2"),
        ("time", {"setting": "mnist", "samples": 1, "algorithms": []}, "unknown setting 'mnist'.* 'cmnist'"),
        ("time", {"setting": "cmnist", "samples": 1, "algorithms": []}, "samples must be .* >= 128.* got 1"),
        ("pictures", {"data": "10c-digits", "per_class": 0}, "per_class must be .* got 0"),
        ("pictures", {"data": "pacs", "bias": 0.9}, "bias must be left out"),
    ],
)
def test_bad_settings(name, wrong, message):
    with pytest.raises(InputError, match=message):
        plan_run(name, wrong)


def run_task(name, settings, place):
    task = get_task(name)
    return task.run(task.read(plan_run(name, settings).settings), place)


def test_pictures_are_kept_for_each_environment(tmp_path):
    records = run_task("pictures", {"data": "10c-digits", "shift": "combined"}, Place(tmp_path))
    with np.load(tmp_path / PICTURES) as pictures:
        assert [pictures[str(one["number"])].shape for one in records] == [(10, 2, 10, 10, 3)] * 3
    assert [one["environment"] for one in records] == ["train: bias 100%", "train: bias 90%", "test: unbiased"]
    with pytest.raises(InputError, match=r"data must be images.*gaussian"):
        run_task("pictures", {"data": "gaussian"}, Place(tmp_path))


def test_times_are_of_all_algorithms_in_one_run(tmp_path, monkeypatch):
    monkeypatch.setitem(bench.SETTINGS, "cmnist", replace(bench.SETTINGS["cmnist"], batch_size=4))
    steps = []
    settings = {"setting": "cmnist", "samples": 43, "algorithms": ["trm"]}
    records = run_task("time", settings, Place(tmp_path, device="cpu", on_step=lambda *now: steps.append(now)))
    assert [one["algorithm"] for one in records] == ["erm", "trm"]
    assert records[0]["seconds_per_epoch"] == pytest.approx(10 * records[0]["ms"] / 1000)
    assert steps[-1][0] == steps[-1][1]


def test_times_of_other_hardware_are_refused(tmp_path):
    settings = {"setting": "cmnist", "samples": 256, "algorithms": ["trm"], "hardware": "an abacus"}
    with pytest.raises(InputError, match=r"hardware must be .* got an abacus"):
        run_task("time", settings, Place(tmp_path, device="cpu"))
