"""Each task once, in small."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

from transferrisk.algorithms import ALGORITHMS, Algorithm, Config
from transferrisk.errors import InputError
from transferrisk.experiments.tasks import Place, get_task, plan_run, worth_compiling
from transferrisk.training import TrainSpec, run_spec

GAUSSIAN = {
    "data": "gaussian",
    "algorithm": "trm",
    "backbone": "mlp:4",
    "training": {"epochs": 1, "evaluations": 2, "record": ["irm", "transfer"]},
}


def carried_out(run, place):
    task = get_task(run.task)
    settings = task.read(run.settings)
    rows = task.run(settings, place)
    task.tidy(place)
    return rows


def test_a_training_gives_a_row_for_each_evaluation_and_environment(tmp_path):
    run = plan_run("train", GAUSSIAN)
    rows = carried_out(run, Place(tmp_path, device="cpu"))
    history = run_spec(get_task("train").read(run.settings), device="cpu").history
    wanted = [record for record in history if record["part"] != "batch"]
    columns = ("step", "part", "environment", "samples", "accuracy", "loss", "worst_group")
    assert [[row[name] for name in columns] for row in rows] == [[r[name] for name in columns] for r in wanted]
    for row in (row for row in rows if row["part"] == "training_domain"):
        assert row["irm_loss"] == row["loss"] + row["irm"]
        assert row["transfer_risk"] == max(v for name, v in row["transfer"].items() if name != row["environment"])
    assert not list(tmp_path.rglob("*.safetensors"))


def test_settings_of_a_packages_algorithm_reach_it_as_values(tmp_path):
    """A list stays a list, and "none" stays text where the setting is text."""

    @dataclass(frozen=True)
    class Listed(Config):
        rates: tuple[float, ...] = ()
        mode: str = "mean"
        cap: float | None = 1.0

    seen = []

    class Noting(Algorithm[Listed]):
        config_type = Listed

        def objective(self, out, penalised):
            seen.append(self.config)
            return {"loss": out.empirical_risk}

    with ALGORITHMS.temporary():
        ALGORITHMS.add("noting", Noting)
        run = plan_run("train", {**GAUSSIAN, "algorithm": "noting", "settings": {"rates": [1, 2.5], "mode": "none"}})
        assert run.settings["settings"] == {"rates": [1.0, 2.5], "mode": "none", "cap": 1.0}
        carried_out(run, Place(tmp_path, device="cpu"))
        with pytest.raises(InputError, match=r"rates\[0\] must be a finite number, got 'x'"):
            plan_run("train", {**GAUSSIAN, "algorithm": "noting", "settings": {"rates": ["x"]}})
    assert set(seen) == {Listed((1.0, 2.5), "none", 1.0)}


def test_a_run_of_a_training_is_named_by_its_spec():
    run = plan_run("train", GAUSSIAN)
    assert run.name == TrainSpec(**run.settings).digest


def test_a_training_that_was_cut_off_after_its_last_step_gives_its_rows_again(tmp_path):
    run, place = plan_run("train", GAUSSIAN), Place(tmp_path, device="cpu")
    task = get_task("train")
    settings = task.read(run.settings)
    assert task.run(settings, place) == task.run(settings, place)


def test_a_training_that_began_with_other_data_begins_again(tmp_path):
    run, place = plan_run("train", GAUSSIAN), Place(tmp_path, device="cpu")
    other = plan_run("train", {**GAUSSIAN, "seed": 1})
    task = get_task("train")
    task.run(task.read(other.settings), place)
    rows = task.run(task.read(run.settings), place)
    fresh = carried_out(run, Place(tmp_path / "fresh", device="cpu"))
    assert [row | {"seconds": 0} for row in rows] == [row | {"seconds": 0} for row in fresh]


@pytest.mark.parametrize("name", ["last.safetensors", "records.jsonl"])
def test_a_training_whose_checkpoint_is_damaged_begins_again(tmp_path, name):
    run, place = plan_run("train", GAUSSIAN), Place(tmp_path, device="cpu")
    task = get_task("train")
    settings = task.read(run.settings)
    rows = task.run(settings, place)
    path = tmp_path / "training" / name
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    again = task.run(settings, place)
    assert [row | {"seconds": 0} for row in again] == [row | {"seconds": 0} for row in rows]


def test_a_model_that_was_not_kept_is_trained_again(tmp_path):
    run, place = plan_run("train", GAUSSIAN), Place(tmp_path, device="cpu")
    rows = carried_out(run, place)
    again = carried_out(run, replace(place, keep=True))
    assert [row | {"seconds": 0} for row in again] == [row | {"seconds": 0} for row in rows]
    assert [path.name for path in tmp_path.rglob("*.safetensors")] == ["model.safetensors"]


def test_a_model_is_fine_tuned_from_the_run_that_trained_it(tmp_path):
    tuned = plan_run("finetune", {**GAUSSIAN, "samples": 20, "tuning": {"evaluations": 1}})
    task = get_task("finetune")
    (before,) = task.needs(task.read(tuned.settings))
    carried_out(before, Place(tmp_path / before.name, device="cpu", keep=True))
    place = Place(tmp_path / tuned.name, device="cpu", other=lambda name: tmp_path / name)
    rows = carried_out(tuned, place)
    assert {row["part"] for row in rows} == {"train", "test_domain", "test"}
    assert [path.parent.parent.name for path in tmp_path.rglob("*.safetensors")] == [before.name]


@pytest.mark.parametrize(
    ("task", "settings", "message"),
    [
        ("finetune", {**GAUSSIAN, "samples": 0}, "samples must be .* got 0"),
        ("train", {**GAUSSIAN, "seed": True}, "seed must be .* got True"),
    ],
)
def test_settings_are_checked_before_anything_runs(task, settings, message):
    with pytest.raises(InputError, match=message):
        plan_run(task, settings)


def test_networks_are_compiled_where_each_process_takes_many_steps(monkeypatch):
    settings = {"data": "10c-digits", "algorithm": "erm", "backbone": "cnn:8", "training": {"steps": 10_000}}
    runs = [plan_run("train", {**settings, "seed": seed}) for seed in range(4)]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert worth_compiling(runs, processes=1) == {run.name for run in runs}
    assert worth_compiling(runs, processes=2) == worth_compiling(runs[:2], processes=1) == frozenset()
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert worth_compiling(runs, processes=1) == frozenset()
