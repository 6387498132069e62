"""Sweeps on one machine: what is missing is run, once, whatever dies on the way."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pandas as pd
import pyarrow.parquet as pq
import pytest
import sweep_tasks
from sweep_tasks import Shelf, hurry, plan, starts, walk

from transferrisk.errors import InputError, TransferRiskError
from transferrisk.experiments import sweep as sweep_module
from transferrisk.experiments.executors import LocalExecutor
from transferrisk.experiments.experiment_table import ExperimentTable
from transferrisk.experiments.store import Store
from transferrisk.experiments.sweep import Interrupted, run_experiment
from transferrisk.experiments.tasks import PlannedRun, get_task

HERE = LocalExecutor(workers=0, devices=["cpu"], threads=1)
TWO = LocalExecutor(workers=2, devices=["cpu"], threads=1)


def sweep(root, workers, *runs):
    """A sweep as a process group of its own."""
    command = [sys.executable, sweep_tasks.__file__, str(root), str(workers)]
    planned = json.dumps([[run.task, dict(run.settings)] for run in runs])
    return subprocess.Popen([*command, planned], stdout=subprocess.PIPE, text=True, start_new_session=True)


def until(condition, seconds=60):
    """What the condition gives as soon as it gives something."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        if found := condition():
            return found
        time.sleep(0.02)
    raise AssertionError("waited in vain")


def total(*seeds, **more) -> PlannedRun:
    return PlannedRun("test-sum", get_task("test-sum").resolve({"seeds": seeds, **more}))


def rows_of(root, runs):
    return {run.name: Store(root).records(run.name) for run in runs}


def test_processes_give_the_same_rows_as_this_one(tmp_path):
    runs = [walk(seed=seed) for seed in range(5)]
    events = []
    for name, executor in (("here", HERE), ("two", TWO)):
        summary = run_experiment(plan(*runs), Store(tmp_path / name), executor, events.append)
        assert (summary.total, summary.done, summary.ran, summary.failed) == (5, 5, 5, {})
    assert rows_of(tmp_path / "here", runs) == rows_of(tmp_path / "two", runs)
    assert {row["threads"] for rows in rows_of(tmp_path / "two", runs).values() for row in rows} == {1}
    workers = {pid for run in runs for pid in starts(tmp_path / "two" / "runs" / run.name)}
    assert os.getpid() not in workers
    assert len(workers) <= 2  # one may have done all before the other was there
    steps = [(event.name, event.step, event.total) for event in events if event.kind == "step"]
    assert sorted(steps) == sorted(2 * [(run.name, step, 3) for run in runs for step in (1, 2, 3)])
    assert sorted(event.name for event in events if event.kind == "done") == sorted(2 * [run.name for run in runs])
    assert json.loads((tmp_path / "two" / "trial" / "recipe.json").read_text())["recipe"]["name"] == "trial"


def test_what_is_done_is_not_repeated(tmp_path):
    store = Store(tmp_path)
    run_experiment(plan(walk(seed=0)), store, HERE)
    summary = run_experiment(plan(walk(seed=0), walk(seed=1), name="another"), store, HERE)
    assert (summary.total, summary.done, summary.ran) == (2, 2, 1)
    assert len(starts(store.folder(walk(seed=0).name))) == 1
    assert run_experiment(plan(walk(seed=0), walk(seed=1)), store, HERE).ran == 0


def test_a_failure_stops_nothing_else_and_is_tried_again_by_the_next(tmp_path):
    bad, good = walk(trouble="one error"), walk(seed=1)
    summary = run_experiment(plan(bad, good), Store(tmp_path), HERE)
    assert summary.failed == {bad.name: "only the first time"}
    assert (summary.done, summary.ran) == (1, 1)
    summary = run_experiment(plan(bad, good), Store(tmp_path), HERE)
    assert (summary.done, summary.ran, summary.failed) == (2, 1, {})


def test_needed_runs_come_first(tmp_path):
    whole = total(1, 2)
    summary = run_experiment(plan(whole, walk(seed=2)), Store(tmp_path), HERE)
    assert (summary.total, summary.done) == (3, 3)
    kept = [Store(tmp_path).records(walk(seed=seed).name)[-1]["value"] for seed in (1, 2)]
    assert Store(tmp_path).records(whole.name) == [{"sum": sum(kept)}]


def test_a_run_whose_need_fails_fails_with_it(tmp_path):
    whole, needed = total(1, trouble="error"), walk(seed=1, trouble="error")
    summary = run_experiment(plan(whole, walk()), Store(tmp_path), HERE)
    assert summary.failed == {
        needed.name: "the reason in two lines",
        whole.name: f"it needs run {needed.name}, which failed: the reason in two lines",
    }
    assert summary.done == 1


def test_a_run_that_always_kills_its_worker_fails(tmp_path):
    bad, good = walk(trouble="death"), walk(seed=1)
    executor = LocalExecutor(workers=1, devices=["cpu"], retries=1)
    summary = run_experiment(plan(bad, good), Store(tmp_path), executor)
    told = "its worker process was ended by SIGKILL, perhaps because memory ran out, at each of 2 attempts"
    assert summary.failed == {bad.name: told}
    assert json.loads(Store(tmp_path).read(f"runs/{bad.name}/failed.json"))["error"] == told
    assert len(starts(tmp_path / "runs" / bad.name)) == 2
    assert Store(tmp_path).done(good.name)


def test_a_worker_that_is_killed_is_replaced_and_its_run_tried_again(tmp_path):
    slow, quick, bad = walk(seed=1, steps=600, pause=0.1), walk(seed=2), walk(trouble="error")
    folder, died = tmp_path / "out" / "runs" / slow.name, []

    def kill(event):
        if event.kind == "step" and event.name == slow.name and len(starts(folder)) == 1 and event.step == 3:
            os.kill(starts(folder)[0], signal.SIGKILL)
            hurry(folder)
        elif event.kind == "retried":
            died.append((event.name, "SIGKILL" in event.message))

    summary = run_experiment(plan(slow, quick, bad), Store(tmp_path / "out"), TWO, kill)
    assert (summary.done, summary.failed) == (2, {bad.name: "the reason in two lines"})
    assert died == [(slow.name, True)]
    assert len(starts(folder)) == 2
    hurry(tmp_path / "reference" / "runs" / slow.name)
    run_experiment(plan(slow, quick), Store(tmp_path / "reference"), HERE)
    assert rows_of(tmp_path / "out", [slow, quick]) == rows_of(tmp_path / "reference", [slow, quick])


def test_two_at_once_share_the_work(tmp_path):
    runs = [walk(seed=seed, pause=0.1) for seed in range(12)]
    both = [sweep(tmp_path, 1, *runs) for _ in range(2)]
    summaries = []
    for one in both:
        out, _ = one.communicate(timeout=120)
        assert one.returncode == 0
        summaries.append(json.loads(out))
    assert [summary["done"] for summary in summaries] == [12, 12]
    assert sum(summary["ran"] for summary in summaries) == 12
    assert all(len(starts(tmp_path / "runs" / run.name)) == 1 for run in runs)
    assert pq.read_table(tmp_path / "trial" / "records.parquet").num_rows == 36


def test_runs_of_another_process_are_waited_for_and_taken_over_when_that_is_killed(tmp_path):
    ended, left = runs = [walk(seed=seed, steps=600, pause=0.1) for seed in range(2)]
    other, events = sweep(tmp_path, 2, *runs), []
    until(lambda: all(starts(tmp_path / "runs" / run.name) for run in runs))

    def act(event):
        if event.kind != "step":
            events.append((event.kind, event.name, event.seconds > 0))
        if events == [("busy", ended.name, False), ("busy", left.name, False)]:
            hurry(tmp_path / "runs" / ended.name)
        elif event.kind == "done" and event.name == ended.name:
            os.killpg(other.pid, signal.SIGKILL)
            other.communicate()
            hurry(tmp_path / "runs" / left.name)

    summary = run_experiment(plan(*runs), Store(tmp_path), HERE, act)
    assert (summary.done, summary.ran) == (2, 1)
    assert events[2:] == [("done", ended.name, False), ("done", left.name, True)]
    assert [len(starts(tmp_path / "runs" / run.name)) for run in runs] == [1, 2]


def test_all_is_killed_and_started_again(tmp_path):
    quick, slow = [walk(seed=seed) for seed in range(2)], [walk(seed=seed, pause=60.0) for seed in range(2, 8)]
    one = sweep(tmp_path, 2, *quick, *slow)
    until(lambda: len(Store(tmp_path).finished()) == 2 and any(starts(tmp_path / "runs" / run.name) for run in slow))
    os.killpg(one.pid, signal.SIGKILL)
    one.communicate()
    for run in slow:
        hurry(tmp_path / "runs" / run.name)
    summary = run_experiment(plan(*quick, *slow), Store(tmp_path), HERE)
    assert (summary.done, summary.ran) == (8, 6)
    assert all(len(starts(tmp_path / "runs" / run.name)) == 1 for run in quick)
    assert pq.read_table(tmp_path / "trial" / "records.parquet").num_rows == 24


def test_a_training_is_saved_when_the_process_that_started_its_worker_is_killed(tmp_path):
    run = PlannedRun("test-training", get_task("test-training").resolve({"epochs": 1000}))
    folder = tmp_path / "runs" / run.name
    one = sweep(tmp_path, 1, run)
    until(lambda: starts(folder))
    one.kill()
    one.communicate()
    until(lambda: not Store(tmp_path).taken(run.name))
    assert (folder / "training" / "last.safetensors").exists()


@pytest.mark.parametrize(("number", "workers"), [(signal.SIGINT, 0), (signal.SIGTERM, 1)])
def test_a_training_that_is_interrupted_goes_on_from_its_step(tmp_path, number, workers):
    run = PlannedRun("test-training", get_task("test-training").resolve({"pause": 0.2}))
    one = sweep(tmp_path / "cut", workers, run)
    folder = tmp_path / "cut" / "runs" / run.name
    until(lambda: starts(folder))
    os.kill(one.pid, number)
    out, _ = one.communicate(timeout=60)
    assert out.startswith("interrupted: 0 of 1 runs are finished")
    assert one.returncode == 128 + number
    assert (folder / "training" / "last.safetensors").exists()
    for root in ("cut", "whole"):
        hurry(tmp_path / root / "runs" / run.name)
        assert run_experiment(plan(run), Store(tmp_path / root), HERE).done == 1
    assert rows_of(tmp_path / "cut", [run]) == rows_of(tmp_path / "whole", [run])


@pytest.mark.parametrize("workers", [0, 1])
def test_an_interruption_in_the_last_step_of_a_training_is_heard(tmp_path, workers):
    last = {"epochs": 1, "pause": 2.0, "last": True}
    runs = [PlannedRun("test-training", get_task("test-training").resolve({"seed": seed, **last})) for seed in range(2)]
    one = sweep(tmp_path, workers, *runs)
    until(lambda: starts(tmp_path / "runs" / runs[0].name))
    os.kill(one.pid, signal.SIGTERM)
    out, _ = one.communicate(timeout=60)
    assert out.startswith("interrupted: 0 of 2 runs are finished")
    assert not starts(tmp_path / "runs" / runs[1].name)
    for run in runs:
        hurry(tmp_path / "runs" / run.name)
    assert run_experiment(plan(*runs), Store(tmp_path), HERE).done == 2


def test_handlers_of_signals_are_given_back(tmp_path):
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]

    def interrupt(event):
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.raises(Interrupted, match="0 of 1 runs are finished") as caught:
        run_experiment(plan(walk()), Store(tmp_path), HERE, interrupt)
    assert caught.value.exit_code == 143
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == before


@pytest.mark.parametrize("file", ["records.jsonl", "done.json"])
def test_a_run_whose_files_are_damaged_is_told_and_done_again_while_others_are_collected(tmp_path, file):
    runs, events = [walk(seed=seed) for seed in range(3)], []
    run_experiment(plan(*runs), Store(tmp_path), HERE)
    (tmp_path / "trial" / "records.parquet").unlink()
    (tmp_path / "runs" / runs[1].name / file).write_text('{"st')
    assert list(ExperimentTable(plan(*runs), Store(tmp_path)).write()) == [runs[1].name]
    assert set(pd.read_parquet(tmp_path / "trial" / "records.parquet")["run"]) == {runs[0].name, runs[2].name}
    (tmp_path / "runs" / runs[2].name / file).write_text('{"st')
    summary = run_experiment(plan(*runs), Store(tmp_path), HERE, events.append)
    assert (summary.done, summary.ran, summary.failed) == (3, 2, {})
    ((name, message),) = [(event.name, event.message) for event in events if event.kind == "lost"]
    assert name == runs[2].name
    assert f"{file} is damaged" in message
    assert pq.read_table(tmp_path / "trial" / "records.parquet").num_rows == 9


def test_a_run_that_is_damaged_while_others_are_done_has_failed(tmp_path):
    """Before it is in the records, where the first is at once."""
    runs = [walk(seed=seed) for seed in range(3)]

    def damage(event):
        if event.kind == "done" and event.name == runs[2].name:
            (tmp_path / "runs" / runs[1].name / "records.jsonl").write_text('{"st')

    summary = run_experiment(plan(*runs), Store(tmp_path), HERE, damage)
    assert summary.done == 2
    assert "records.jsonl is damaged" in summary.failed[runs[1].name]
    assert run_experiment(plan(*runs), Store(tmp_path), HERE).done == 3


def test_the_first_run_that_is_done_is_in_the_records_at_once(tmp_path):
    runs, seen = [walk(seed=seed) for seed in range(3)], []

    def look(event):
        if event.kind == "step" and event.name == runs[1].name and event.step == 1:
            seen.append(set(pd.read_parquet(tmp_path / "trial" / "records.parquet")["run"]))

    run_experiment(plan(*runs), Store(tmp_path), HERE, look)
    assert seen == [{runs[0].name}]


def test_results_on_storage_without_locks(tmp_path):
    import fsspec

    fsspec.register_implementation("shelf", Shelf, clobber=True)
    whole, runs = total(1, 2), [walk(seed=seed) for seed in range(3)]
    store = Store(f"shelf://{tmp_path / 'out'}", tmp_path / "scratch")
    summary = run_experiment(plan(whole, *runs), store, TWO)
    assert (summary.total, summary.done, summary.failed) == (4, 4, {})
    run_experiment(plan(whole, *runs), Store(tmp_path / "folder"), HERE)
    assert rows_of(tmp_path / "folder", [whole, *runs]) == {run.name: store.records(run.name) for run in (whole, *runs)}
    assert pq.read_table(tmp_path / "out" / "trial" / "records.parquet").num_rows == 10
    assert run_experiment(plan(whole, *runs), store, TWO).ran == 0


def test_storage_that_workers_do_not_share(tmp_path, monkeypatch):
    monkeypatch.setattr(sweep_module, "SEEN_WITHIN", 0.1)
    store = Store(f"memory://{tmp_path.name}", tmp_path / "scratch")
    summary = run_experiment(plan(walk()), store, LocalExecutor(1, ("cpu",)))
    assert summary.failed == {
        walk().name: f"a worker has done it, but memory://{tmp_path.name}/runs/{walk().name} does not show it: use a "
        "folder or an address that all workers share"
    }


def test_a_task_that_workers_cannot_import(tmp_path, monkeypatch):
    monkeypatch.setattr(type(get_task("test-walk")), "__module__", "only_here")
    with pytest.raises(InputError, match="only_here"):
        run_experiment(plan(walk()), Store(tmp_path), LocalExecutor(1, ("cpu",)))


def test_workers_that_cannot_start(tmp_path):
    script = tmp_path / "script.py"
    script.write_text(
        "from sweep_tasks import plan, walk\n"
        "from transferrisk.errors import TransferRiskError\n"
        "from transferrisk.experiments.executors import LocalExecutor\n"
        "from transferrisk.experiments.sweep import run_experiment\n"
        "from transferrisk.experiments.store import Store\n"
        f"try:\n    run_experiment(plan(walk()), Store({str(tmp_path / 'out')!r}), LocalExecutor(1))\n"
        "except TransferRiskError as error:\n    print(error)\n"
    )
    path = os.pathsep.join([str(Path(sweep_tasks.__file__).parent), *sys.path])
    command = [sys.executable, str(script)]
    out = subprocess.run(command, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=True)
    assert "a worker process ended with exit code 1 before it could work" in out.stdout
    assert 'below `if __name__ == "__main__":`' in out.stdout


def test_settings_that_make_no_sense():
    for settings in ({"workers": -1}, {"threads": 0}, {"retries": -1}):
        with pytest.raises(InputError, match=f"{next(iter(settings))} must be an integer >= [01]"):
            LocalExecutor(**settings)


def test_devices_are_shared_in_turn_and_cores_divided(monkeypatch):
    monkeypatch.setattr("os.sched_getaffinity", lambda pid: range(8), raising=False)
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    assert LocalExecutor().seats() == (("cuda:0", "cuda:1"), 4)
    assert LocalExecutor(3).seats() == (("cuda:0", "cuda:1", "cuda:0"), 2)
    assert LocalExecutor(devices=("cpu",)).seats() == (("cpu",) * 8, 1)
    assert LocalExecutor(0, ("cpu",)).seats() == (("cpu",), 8)


def test_an_unwritable_output(tmp_path):
    (tmp_path / "trial").write_text("")
    with pytest.raises(TransferRiskError, match=r"trial.* \((Not a directory|File exists)\)"):
        run_experiment(plan(walk()), Store(tmp_path), HERE)
