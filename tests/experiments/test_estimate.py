"""How long runs will take: steps counted by hand, times from runs that are done."""

from __future__ import annotations

from dataclasses import replace

import pytest

from transferrisk.experiments import estimate as module
from transferrisk.experiments.estimate import estimate, seconds_by_kind, steps_of
from transferrisk.experiments.plan import make
from transferrisk.experiments.recipe import load
from transferrisk.experiments.tasks import get
from transferrisk.experiments.tasks.base import plan
from transferrisk.training import train

SETTINGS = {"algorithm": "erm", "backbone": "cnn:4"}


@pytest.mark.parametrize(
    ("task", "settings", "steps"),
    [
        ("train", {"data": "10c-cmnist"}, 10 * (16000 // 128)),
        ("train", {"data": "scenecoco", "training": {"epochs": 3}}, 3 * (2600 // 128)),
        ("train", {"data": "pacs", "test_env": "photo"}, 50 * (int(0.8 * 2048) // 32)),
        ("train", {"data": "pacs", "test_env": "sketch"}, 50 * (int(0.8 * 1670) // 32)),
        ("finetune", {"data": "10c-cmnist", "samples": 300}, 10 * (300 // 128)),
        ("finetune", {"data": "10c-cmnist", "samples": 10, "tuning": {"epochs": 7}}, 7),
        ("train", {"data": "folder:mine"}, None),
        ("train", {"data": "10c-cmnist", "backbone": None}, 1250),
    ],
)
def test_steps_are_those_of_the_protocol(task, settings, steps):
    assert steps_of(plan(task, SETTINGS | settings)) == steps


def test_the_steps_that_are_counted_are_taken():
    run = plan("train", SETTINGS | {"data": "10c-digits", "training": {"epochs": 1, "evaluations": 1}})
    request = replace(get("train").read(run.settings).request(), device="cpu")
    assert train(request.run())[-1].step == steps_of(run)


def test_what_is_done_tells_how_long_the_rest_takes(monkeypatch):
    made = make(load("cmnist", fast=True), only=["ERM", "TRM"])
    first, second = made.cells[0].run, made.cells[-1].run
    monkeypatch.setattr(module, "step_seconds", lambda *given, **more: 0.5)
    done = seconds_by_kind([(first, 10.0), (first, 30.0), (first, 20.0)])
    assert first.settings["algorithm"] == "erm"
    runs = [*[first] * 3, second]
    found = estimate(runs, "cpu", done)
    assert found.seconds == pytest.approx(3 * 20 + 0.5 * 10 * (3832 // 128))
    assert found.unknown == 0
    assert estimate(make(load("environments", fast=True)).runs, "cpu", {}).unknown == 3


def test_a_step_is_measured_once_for_all_runs_alike(monkeypatch):
    asked = []
    monkeypatch.setattr(module, "step_seconds", lambda *given, **more: asked.append(given) or 1.0)
    estimate(make(load("pacs-resnet18")).runs, "cpu", {})
    assert [given[1] for given in asked] == ["erm", "irm", "vrex", "groupdro", "mldg", "fish", "trm", "trm-direct"]


@pytest.mark.parametrize("data", ["gaussian", "10c-digits"])
def test_steps_are_truly_measured(data):
    settings = {"data": data, "algorithm": "trm", "backbone": "mlp:4" if data == "gaussian" else "cnn:2"}
    training = {"batch_size": 4, "epochs": 2}
    found = estimate([plan("train", settings | {"training": training})], "cpu", {})
    assert found.seconds > 0
    assert found.unknown == 0
