"""Sweeps whose processes share one GPU."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from multiprocessing import active_children

import pytest
from sweep_tasks import plan

from transferrisk.experiments.executors import LocalExecutor
from transferrisk.experiments.store import Store
from transferrisk.experiments.sweep import run_experiment
from transferrisk.experiments.tasks import plan_run

pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fabric")]

SETTINGS = {"data": "10c-digits", "backbone": "cnn:8", "precision": "fp32"}
ALONE = LocalExecutor(workers=0, devices=["cuda:0"], threads=1)
THREE = LocalExecutor(workers=3, devices=["cuda:0"], threads=1)


def training(seed, **more):
    brief = {"epochs": 8, "batch_size": 32, "evaluations": 2}
    return plan_run("train", {**SETTINGS, "seed": seed, "training": brief, **more})


def accuracy(store, run):
    return [row["accuracy"] for row in store.records(run.name) if row["part"] == "train"]


def test_processes_that_share_a_gpu_train_what_one_alone_does(tmp_path):
    runs = [training(seed, algorithm=name) for seed in (0, 1) for name in ("erm", "trm", "mldg")]
    one, shared = Store(tmp_path / "one"), Store(tmp_path / "shared")
    for store, executor in ((one, ALONE), (shared, THREE)):
        summary = run_experiment(plan(*runs), store, executor)
        assert (summary.done, summary.failed) == (6, {})
    for run in runs:
        about = json.loads(shared.read(f"runs/{run.name}/done.json"))
        assert about["device"] == "cuda:0"
        assert about["threads"] == 1
        assert accuracy(shared, run)[-1] > 0.8
        assert accuracy(shared, run) == pytest.approx(accuracy(one, run), abs=0.05)  # a GPU's sums have no order


def test_a_process_that_dies_on_the_gpu_harms_no_other(tmp_path):
    runs = [training(seed, algorithm="erm") for seed in range(4)]
    events, killed = [], []

    def kill(event):
        events.append(event)
        if event.kind == "step" and not killed:
            killed.append(min(process.pid for process in active_children()))
            os.kill(killed[0], signal.SIGKILL)

    summary = run_experiment(plan(*runs), Store(tmp_path), replace(THREE, runs_per_gpu=1), kill)
    assert [event.kind for event in events].count("retried") == 1
    assert (summary.done, summary.failed) == (4, {})
