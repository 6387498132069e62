"""An experiment's records: one file of all rows, which calls that differ leave whole."""

from __future__ import annotations

import shutil
import threading
from dataclasses import replace

import pandas as pd
import pyarrow.parquet as pq
import pytest
from sweep_tasks import plan, walk

import transferrisk
from transferrisk.experiments.executors import LocalExecutor
from transferrisk.experiments.experiment_table import ExperimentTable
from transferrisk.experiments.plan import Plan
from transferrisk.experiments.recipe import Recipe
from transferrisk.experiments.store import Store
from transferrisk.experiments.studies import Cell
from transferrisk.experiments.sweep import run_experiment

HERE = LocalExecutor(workers=0, devices=["cpu"], threads=1)


def test_records_hold_every_cell_with_its_columns_first(tmp_path):
    runs = [walk(seed=0), walk(seed=1, trouble="error"), walk(seed=0)]
    run_experiment(plan(*runs), Store(tmp_path), HERE)
    frame = pd.read_parquet(tmp_path / "trial" / "records.parquet")
    assert list(frame.columns) == [
        "method", "position", "run", "precision", "hardware", "threads", "version", "commit", "date", "step", "value",
        "result.threads",
    ]  # fmt: skip
    assert set(frame["version"]) == {transferrisk.__version__}
    assert frame[["hardware", "date"]].notna().all(axis=None)
    assert frame["position"].tolist() == [0, 0, 0, 2, 2, 2]
    assert set(frame["run"]) == {walk(seed=0).name}
    assert frame["value"].tolist()[:3] == [row["value"] for row in Store(tmp_path).records(walk(seed=0).name)]


def test_records_of_a_part_leave_the_whole_in_place(tmp_path):
    whole = plan(*(walk(seed=seed) for seed in range(3)))
    run_experiment(whole, Store(tmp_path), HERE)
    part = plan(walk(seed=1))
    assert run_experiment(replace(part, whole=whole.cells), Store(tmp_path), HERE).total == 1
    assert pq.read_table(tmp_path / "trial" / "records.parquet").num_rows == 9


def test_two_writers_of_records_leave_a_whole_file(tmp_path):
    runs = [walk(seed=seed) for seed in range(3)]
    run_experiment(plan(*runs), Store(tmp_path), HERE)
    writers = [ExperimentTable(plan(*runs), Store(tmp_path)) for _ in range(2)]
    threads = [threading.Thread(target=lambda w=w: [w.write() for _ in range(20)]) for w in writers]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        assert pq.read_table(tmp_path / "trial" / "records.parquet").num_rows == 9
    assert sorted(p.name for p in (tmp_path / "trial").iterdir()) == [".lock", "recipe.json", "records.parquet"]


def test_what_is_done_stays_until_what_comes_in_its_place_is_done(tmp_path):
    """As with another precision, or a version whose defaults are others: the same cells are of other runs."""
    before, after = ([walk(seed=seed, steps=steps) for seed in range(3)] for steps in (3, 4))
    run_experiment(plan(*before), Store(tmp_path), HERE)
    run_experiment(replace(plan(after[0]), whole=plan(*after).cells), Store(tmp_path), HERE)
    shown = pd.read_parquet(tmp_path / "trial" / "records.parquet").groupby("position")["run"].first().tolist()
    assert shown == [after[0].name, before[1].name, before[2].name]
    run_experiment(plan(*after), Store(tmp_path), HERE)
    assert set(pd.read_parquet(tmp_path / "trial" / "records.parquet")["run"]) == {run.name for run in after}


@pytest.mark.parametrize("damaged", [False, True])
def test_results_without_the_folders_of_their_runs_stay(tmp_path, damaged):
    """As those that are published: nothing of them is lost because a part is done again."""
    runs = [walk(seed=seed) for seed in range(3)]
    twice = Plan(Recipe("trial"), (*plan(*runs).cells, Cell(runs[2], {"method": "again", "position": 3})))
    run_experiment(twice, Store(tmp_path), HERE)
    path = tmp_path / "trial" / "records.parquet"
    before = pd.read_parquet(path)
    shutil.rmtree(tmp_path / "runs")
    if damaged:
        (tmp_path / "runs" / runs[1].name).mkdir(parents=True)
        (tmp_path / "runs" / runs[1].name / "records.damaged.jsonl").touch()
    run_experiment(replace(plan(runs[0]), whole=twice.cells), Store(tmp_path), HERE)
    after = pd.read_parquet(path)
    without = ["commit", "date"]
    expected = before[before["run"] != runs[1].name].reset_index(drop=True) if damaged else before
    pd.testing.assert_frame_equal(after.drop(columns=without), expected.drop(columns=without))
    assert Store(tmp_path).missing(runs) == runs[1:]


def test_a_number_that_is_written_otherwise_is_the_same_cell(tmp_path):
    for bias in (1, 1.0):
        cells = (Cell(walk(seed=0), {"bias": bias, "seed": 0}),)
        run_experiment(Plan(Recipe("trial", vary={"bias": [bias]}), cells), Store(tmp_path), HERE)
    assert pq.read_table(tmp_path / "trial" / "records.parquet").num_rows == 3
