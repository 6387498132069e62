"""Each task once, in small."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from transferrisk.errors import InputError
from transferrisk.experiments import bench
from transferrisk.experiments.plan import make
from transferrisk.experiments.recipe import load
from transferrisk.experiments.tasks import Place, get
from transferrisk.experiments.tasks.base import plan
from transferrisk.experiments.tasks.pictures import PICTURES
from transferrisk.training import Request, train
from transferrisk.training.plain import dumps

GAUSSIAN = {
    "data": "gaussian",
    "algorithm": "trm",
    "backbone": "mlp:4",
    "training": {"epochs": 1, "evaluations": 2, "record": ["irm", "transfer"]},
}


def carried_out(run, place):
    task = get(run.task)
    settings = task.read(run.settings)
    rows = task.run(settings, place)
    task.tidy(place)
    return rows


def test_a_training_gives_a_row_for_each_evaluation_and_environment(tmp_path):
    run = plan("train", GAUSSIAN)
    rows = carried_out(run, Place(tmp_path, device="cpu"))
    request = get("train").read(run.settings).request()
    records = train(replace(request, device="cpu").run())
    assert {row["step"] for row in rows} == {record.step for record in records}
    last = {(row["part"], row["environment"]): row for row in rows if row["step"] == records[-1].step}
    for part in ("train", "training_domain", "test_domain", "test"):
        for environment, scores in getattr(records[-1], part).items():
            assert last[part, environment]["accuracy"] == scores.accuracy
            assert last[part, environment]["loss"] == scores.loss
    for environment, penalty in records[-1].irm.items():
        own = last["training_domain", environment]
        assert (own["irm"], own["irm_loss"]) == (penalty, own["loss"] + penalty)
        assert last["training_domain", environment]["transfer_risk"] == records[-1].transfer_risk
    assert isinstance(request, Request)
    assert not list(tmp_path.rglob("*.safetensors"))


def test_a_training_that_was_cut_off_after_its_last_step_gives_its_rows_again(tmp_path):
    run, place = plan("train", GAUSSIAN), Place(tmp_path, device="cpu")
    task = get("train")
    settings = task.read(run.settings)
    assert task.run(settings, place) == task.run(settings, place)


def test_a_training_that_began_with_other_data_begins_again(tmp_path):
    run, place = plan("train", GAUSSIAN), Place(tmp_path, device="cpu")
    other = plan("train", {**GAUSSIAN, "seed": 1})
    task = get("train")
    task.run(task.read(other.settings), place)
    rows = task.run(task.read(run.settings), place)
    fresh = carried_out(run, Place(tmp_path / "fresh", device="cpu"))
    assert [row | {"seconds": 0} for row in rows] == [row | {"seconds": 0} for row in fresh]


@pytest.mark.parametrize("name", ["last.safetensors", "best.safetensors", "records.jsonl"])
def test_a_training_whose_checkpoint_is_damaged_begins_again(tmp_path, name):
    run, place = plan("train", GAUSSIAN), Place(tmp_path, device="cpu")
    task = get("train")
    settings = task.read(run.settings)
    rows = task.run(settings, place)
    path = tmp_path / "training" / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    again = task.run(settings, place)
    assert [row | {"seconds": 0} for row in again] == [row | {"seconds": 0} for row in rows]


def test_times_of_other_hardware_are_refused(tmp_path):
    settings = {"setting": "cmnist", "samples": 256, "algorithms": ["trm"], "hardware": "an abacus"}
    with pytest.raises(InputError, match="to be measured on an abacus, and here is"):
        carried_out(plan("time", settings), Place(tmp_path, device="cpu"))


def test_a_model_that_was_not_kept_is_trained_again(tmp_path):
    run, place = plan("train", GAUSSIAN), Place(tmp_path, device="cpu")
    rows = carried_out(run, place)
    again = carried_out(run, replace(place, keep=True))
    assert [row | {"seconds": 0} for row in again] == [row | {"seconds": 0} for row in rows]
    assert [path.name for path in tmp_path.rglob("*.safetensors")] == ["best.safetensors"]


def test_a_model_is_fine_tuned_from_the_run_that_trained_it(tmp_path):
    tuned = plan("finetune", {**GAUSSIAN, "samples": 20, "tuning": {"evaluations": 1}})
    task = get("finetune")
    (before,) = task.needs(task.read(tuned.settings))
    carried_out(before, Place(tmp_path / before.name, device="cpu", keep=True))
    place = Place(tmp_path / tuned.name, device="cpu", other=lambda name: tmp_path / name)
    rows = carried_out(tuned, place)
    assert {row["part"] for row in rows} == {"train", "test_domain", "test"}
    assert [path.parent.parent.name for path in tmp_path.rglob("*.safetensors")] == [before.name]


def test_pictures_are_kept_for_each_environment(tmp_path):
    run = plan("pictures", {"data": "10c-digits", "shift": "combined"})
    rows = carried_out(run, Place(tmp_path))
    with np.load(tmp_path / PICTURES) as pictures:
        assert [pictures[str(row["number"])].shape for row in rows] == [(10, 2, 10, 10, 3)] * 3
    assert [row["environment"] for row in rows] == ["train: bias 100%", "train: bias 90%", "test: unbiased"]
    with pytest.raises(InputError, match="has vectors"):
        carried_out(plan("pictures", {"data": "gaussian"}), Place(tmp_path))


def test_times_are_of_all_algorithms_in_one_run(tmp_path, monkeypatch):
    monkeypatch.setitem(bench.SETTINGS, "cmnist", replace(bench.SETTINGS["cmnist"], batch_size=4))
    done = []
    settings = {"setting": "cmnist", "samples": 43, "algorithms": ["trm"]}
    rows = carried_out(plan("time", settings), Place(tmp_path, device="cpu", on_step=lambda *now: done.append(now)))
    assert [row["algorithm"] for row in rows] == ["erm", "trm"]
    assert rows[0]["seconds_per_epoch"] == pytest.approx(10 * rows[0]["ms"] / 1000)
    assert done[-1][0] == done[-1][1]


@pytest.mark.parametrize("name", ["toy-2d", "theorem-1", "implicit-gradient", "convergence"])
def test_theory_gives_rows_that_json_and_a_report_can_hold(name, tmp_path):
    recipe = load(name, fast=True)
    (run,) = make(recipe).runs
    small = {"toy-2d": {"angles": 5, "steps": 3}, "implicit-gradient": {"batches": 3, "batch_sizes": [16]},
             "convergence": {"steps": [30, 60], "repeats": 2}, "theorem-1": {"dimensions": [4]}}  # fmt: skip
    rows = carried_out(plan(name, {**run.settings, **small[name]}), Place(tmp_path))
    assert json.loads(dumps(rows)) == rows
    for show in recipe.show.values():
        chosen = [row for row in rows if all(row.get(key) == value for key, value in show["where"].items())]
        assert chosen, f"nothing to show of {show['where']}"
        columns = [show[key] for key in ("x", "y", "series", "row", "values", "panels") if key in show]
        for column in (name for names in columns for name in (names if isinstance(names, list) else [names])):
            assert column in chosen[0]


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("time", {"setting": "mnist", "samples": 1, "algorithms": []}, "setting 'mnist' is not known"),
        ("time", {"setting": "cmnist", "samples": 1, "algorithms": []}, "fill no batch of 128"),
        ("finetune", {**GAUSSIAN, "samples": 0}, "samples=0 is no number"),
        ("pictures", {"data": "10c-digits", "per_class": 0}, "per_class=0"),
        ("train", {**GAUSSIAN, "seed": True}, "seed = true is no whole number"),
    ],
)
def test_settings_are_checked_before_anything_runs(task, settings, message):
    with pytest.raises(InputError, match=message):
        plan(task, settings)
