"""Sweeps as jobs of a scheduler: the same results, whatever ends the jobs on the way."""

from __future__ import annotations

import os
import signal
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
import sweep_tasks
from sweep_tasks import hurry, plan, starts, walk

from transferrisk import extras
from transferrisk.errors import InputError, TransferRiskError
from transferrisk.experiments.executors import LocalExecutor, make_executor
from transferrisk.experiments.store import Store
from transferrisk.experiments.submitit_executor import SubmititExecutor
from transferrisk.experiments.sweep import Interrupted, run_experiment
from transferrisk.experiments.tasks import PlannedRun, get_task

pytest.importorskip("submitit", reason="submitit is not installed: pip install 'transferrisk[slurm]'")
REFERENCE = LocalExecutor(0, ("cpu",), threads=1)


def here(folder, **settings):
    return SubmititExecutor(folder, **{"workers": 3, "cluster": "local", "patience": 0.0, **settings})


@pytest.fixture
def workers_find_the_tasks(monkeypatch):
    before = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([str(Path(sweep_tasks.__file__).parent), before]))


def signalled_when_started(folder, number):
    """The first process of a run that pauses is sent a signal; the next one does not pause."""
    deadline = time.monotonic() + 300
    while not starts(folder) and time.monotonic() < deadline:
        time.sleep(0.02)
    hurry(folder)
    os.kill(starts(folder)[0], number)


def test_runs_that_are_ended_go_on_and_results_are_those_of_local_to_the_bit(tmp_path, workers_find_the_tasks):
    preempted = PlannedRun("test-training", get_task("test-training").resolve({"pause": 0.2}))
    killed, wrong = walk(seed=1, steps=600, pause=0.1), walk(trouble="mistake")
    root, events = tmp_path / "jobs", []
    signals = [
        threading.Thread(target=signalled_when_started, args=(root / "runs" / run.name, number))
        for run, number in ((preempted, signal.SIGUSR2), (killed, signal.SIGKILL))
    ]
    for thread in signals:
        thread.start()
    summary = run_experiment(plan(preempted, killed, wrong), Store(root), here(root), events.append)
    for thread in signals:
        thread.join()
    assert (summary.total, summary.done, summary.ran) == (3, 2, 2)
    assert summary.failed == {wrong.name: "KeyError: 'nothing here'"}
    assert [len(starts(root / "runs" / run.name)) for run in (preempted, killed, wrong)] == [2, 2, 1]
    tried_again = [event.name for event in events if event.kind == "retried"]
    assert tried_again == [killed.name], "what has saved its work is queued again by itself"
    assert sorted(path.name for path in root.iterdir()) == ["runs", "trial"]
    for run in (preempted, killed):
        hurry(tmp_path / "local" / "runs" / run.name)
    run_experiment(plan(preempted, killed), Store(tmp_path / "local"), REFERENCE)
    for run in (preempted, killed):
        assert Store(root).records(run.name) == Store(tmp_path / "local").records(run.name)


def test_an_interrupted_sweep_saves_what_trains(tmp_path, workers_find_the_tasks):
    run = PlannedRun("test-training", get_task("test-training").resolve({"epochs": 1000}))
    folder = tmp_path / "runs" / run.name

    def interrupt():
        while not starts(folder):
            time.sleep(0.02)
        os.kill(os.getpid(), signal.SIGINT)

    thread = threading.Thread(target=interrupt)
    thread.start()
    with pytest.raises(Interrupted, match="0 of 1 runs are finished"):
        run_experiment(plan(run), Store(tmp_path), here(tmp_path))
    thread.join()
    assert (folder / "training" / "last.safetensors").exists()
    assert not Store(tmp_path).taken(run.name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["runs", "trial"]


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Commands that take jobs and end them at once, without a result; what they were given is in the folder."""
    folder = tmp_path / "commands"
    folder.mkdir()
    commands = {
        "srun": "exit 1",
        "sbatch": f'n=$(ls {folder}/*.job 2>/dev/null | wc -l); cp "$1" {folder}/$n.job; echo Submitted batch job 1$n',
        "sacct": "echo 'JobID|State|NodeList'; for n in 0 1 2 3; do for i in 0 1 2; do "
        'echo "1${n}_$i|OUT_OF_MEMORY|a"; done; echo "1$n|OUT_OF_MEMORY|a"; done',
        "scancel": f'echo "$@" >> {folder}/cancelled',
    }
    for name, command in commands.items():
        (folder / name).write_text(f"#!/bin/sh\n{command}\n")
        (folder / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def test_what_slurm_is_asked_for(tmp_path, slurm):
    executor = make_executor(
        "submitit", workers=2, gpus_per_run=1, cpus_per_run=4, retries=1, folder=str(tmp_path / "results"),
        slurm=["partition=gpu", "time=90", "mem=16G"],
    )  # fmt: skip
    runs = [walk(seed=seed) for seed in range(3)]
    summary = run_experiment(plan(*runs), Store(tmp_path / "results"), replace(executor, patience=0.0))
    why = "its worker process ended without a result, in state OUT_OF_MEMORY, at each of 2 attempts"
    assert summary.failed == {run.name: why for run in runs}
    array, *again = [
        set(path.read_text().splitlines()) for path in sorted(slurm.glob("*.job"), key=lambda path: int(path.stem))
    ]
    assert len(again) == 3
    asked = {
        "--array=0-2%2", "--partition=gpu", "--time=90", "--mem=16G", "--gpus-per-node=1", "--cpus-per-task=4",
        "--requeue", "--signal=USR2@120", "--job-name=trm", "--open-mode=append",
    }  # fmt: skip
    assert {f"#SBATCH {option}" for option in asked} <= array
    assert {f"#SBATCH {option}" for option in asked - {"--array=0-2%2"}} <= again[0]


def test_jobs_that_slurm_refuses(tmp_path, slurm):
    (slurm / "sbatch").write_text("#!/bin/sh\necho 'sbatch: error: invalid partition specified: gpus' >&2\nexit 1\n")
    executor = make_executor("submitit", folder=str(tmp_path), slurm=["partition=gpus"])
    with pytest.raises(TransferRiskError, match=r"SLURM did not take the jobs \(.*invalid partition specified: gpus\)"):
        run_experiment(plan(walk()), Store(tmp_path), executor)


@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"gpus_per_run": 0.25}, r"gpus_per_run must be a whole number .* got 0\.25"),
        ({"slurm": ["time=4:00:00"]}, "time must be a whole number of minutes, got '4:00:00'"),
        ({"slurm": ["array=0-9"]}, "array.* use --workers"),
        ({"slurm": ["-p=gpu"]}, "an option of sbatch must be its long name, such as partition, got '-p'"),
        ({"slurm": ["partition"]}, "--slurm must be NAME=VALUE, such as partition=gpu, got 'partition'"),
        ({"slurm": ["cluster=moon"]}, "cluster must be .*'moon'"),
        ({"folder": "s3://bucket/results"}, "--output must be a folder that all machines share, got s3://"),
        ({"address": "auto"}, "--address must be left out with --executor submitit"),
    ],
)
def test_options_that_make_no_sense(options, told):
    with pytest.raises(InputError, match=told):
        make_executor("submitit", **options)


def test_a_machine_without_slurm(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(InputError, match=r"SLURM is missing .* --slurm cluster=local"):
        run_experiment(plan(walk()), Store(tmp_path), make_executor("submitit", folder=str(tmp_path)))


def test_submitit_that_is_not_installed(monkeypatch):
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"^submitit is not installed: pip install 'transferrisk\[slurm\]'$"):
        make_executor("submitit")
