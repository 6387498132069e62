"""How long runs will take: steps counted by hand, times from runs that are done."""

from __future__ import annotations

import pytest

from transferrisk.experiments import estimate as module
from transferrisk.experiments.estimate import estimate, seconds_by_kind
from transferrisk.experiments.plan import make_plan
from transferrisk.experiments.recipe import load_recipe
from transferrisk.experiments.tasks import get_task, plan_run
from transferrisk.training import run_spec


def steps_of(run):
    task = get_task(run.task)
    cost = task.cost(task.read(run.settings))
    return None if cost is None else cost.steps


SETTINGS = {"algorithm": "erm", "backbone": "cnn:4"}


@pytest.mark.parametrize(
    ("task", "settings", "steps"),
    [
        ("train", {"data": "10c-cmnist"}, 10 * (16000 // 128)),
        ("train", {"data": "scenecoco", "training": {"epochs": 3}}, 3 * (2600 // 128)),
        ("train", {"data": "pacs", "test_env": "photo"}, 50 * (int(0.8 * 2048) // 32)),
        ("train", {"data": "pacs", "test_env": "sketch"}, 50 * (int(0.8 * 1670) // 32)),
        ("finetune", {"data": "10c-cmnist", "samples": 300}, 100),
        ("finetune", {"data": "10c-cmnist", "samples": 10, "tuning": {"epochs": 7}}, 7),
        ("train", {"data": "folder:."}, None),
        ("train", {"data": "10c-cmnist", "backbone": None}, 1250),
    ],
)
def test_steps_are_those_of_the_protocol(task, settings, steps, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert steps_of(plan_run(task, SETTINGS | settings)) == steps


def test_the_steps_that_are_counted_are_taken():
    run = plan_run("train", SETTINGS | {"data": "10c-digits", "training": {"epochs": 1, "evaluations": 1}})
    assert run_spec(get_task("train").read(run.settings), device="cpu").state.step == steps_of(run)


@pytest.fixture
def measured(monkeypatch):
    """Steps that take as long as `seconds` says of samples in a batch; what was measured is noted."""

    def use(seconds, forward=0.0):
        asked = []

        def step_seconds(workload, algorithm, precision, **more):
            asked.append((algorithm, workload.batch_size))
            return seconds(workload.batch_size)

        monkeypatch.setattr(module, "step_seconds", step_seconds)
        monkeypatch.setattr(module, "forward_seconds", lambda workload, precision, **more: forward)
        return asked

    return use


def test_what_is_done_tells_how_long_the_rest_takes(measured):
    made = make_plan(load_recipe("cmnist", fast=True), only=["ERM", "TRM"])
    first, second = made.cells[0].run, made.cells[-1].run
    measured(lambda batch: 0.003 * batch)
    done = seconds_by_kind([(first, 10.0), (first, 30.0), (first, 20.0)])
    assert first.settings["algorithm"] == "erm"
    runs = [*[first] * 3, second]
    found = estimate(runs, "cpu", done)
    assert found.seconds == pytest.approx(3 * 20 + 0.003 * 128 * 10 * (3832 // 128))
    assert found.unknown == 0
    assert estimate(make_plan(load_recipe("environments", fast=True)).runs, "cpu", {}).unknown == 3


def test_a_step_is_measured_once_for_all_runs_alike(measured):
    asked = measured(lambda batch: 0.001 * batch)
    estimate(make_plan(load_recipe("pacs-resnet18")).runs, "cpu", {})
    names = ["erm", "irm", "vrex", "groupdro", "mldg", "fish", "trm", "trm-direct"]
    assert asked == [("erm", 2), *((name, 32) for name in names)]


def test_long_steps_are_judged_by_short_ones(measured):
    asked = measured(lambda batch: 0.5 * batch + 0.01 * batch**2)
    (run, *_) = make_plan(load_recipe("pacs-resnet18"), only=["TRM", "test_env=photo"], seeds=1).runs
    steps = 50 * (int(0.8 * 2048) // 32)
    assert estimate([run], "cpu", {}).seconds == pytest.approx(steps * (0.5 * 7 + 0.01 * 7**2) * 32 / 7)
    assert asked == [("erm", 2), ("erm", 7), ("trm", 2)], "7 in about the 4 seconds that such a step may take"
    asked.clear()
    estimate([run], "cuda", {})
    assert asked == [("trm", 32)]


def test_evaluations_are_counted(measured):
    run = plan_run("train", SETTINGS | {"data": "pacs", "test_env": "photo", "training": {"evaluations": 3}})
    measured(lambda batch: 0.0, forward=3 * 32.0)  # a second for each sample of the three environments
    assert estimate([run], "cpu", {}).seconds == pytest.approx(3 * 9991)
    run = plan_run("finetune", SETTINGS | {"data": "10c-cmnist", "tuning": {"evaluations": 2, "batch_size": 50}})
    measured(lambda batch: 0.0, forward=50.0)
    assert estimate([run], "cpu", {}).seconds == pytest.approx(2 * (16000 + 2 * 12000))


def test_what_is_not_measured_in_time_is_not_known(measured):
    asked = measured(lambda batch: 1.0)
    runs = make_plan(load_recipe("pacs-resnet18", defaults=True), seeds=1).runs
    found = estimate(runs, "cpu", {}, budget=0.0)
    assert (found.seconds, found.unknown, asked) == (0, len(runs), [])


@pytest.mark.parametrize("data", ["gaussian", "10c-digits"])
def test_steps_are_truly_measured(data):
    settings = {"data": data, "algorithm": "trm", "backbone": "mlp:4" if data == "gaussian" else "cnn:2"}
    training = {"batch_size": 4, "epochs": 2}
    found = estimate([plan_run("train", settings | {"training": training})], "cpu", {})
    assert found.seconds > 0
    assert found.unknown == 0
