"""Runs whose records are in published tables are not repeated."""

from __future__ import annotations

import shutil

import pytest

from transferrisk.errors import InputError
from transferrisk.experiments import LocalExecutor, Store, load_recipe, make_plan, run_experiment
from transferrisk.experiments.reuse import find_runs, reuse_runs
from transferrisk.results import read_table
from transferrisk.settings import as_json

RECIPE = """
seeds = 2
[settings]
data = "gaussian"
training = { steps = 4, evaluations = 2, record = ["transfer"] }
[methods]
ERM = { algorithm = "erm" }
TRM = { algorithm = "trm", grid = { lr = [0.1, 0.2] } }
"""
HERE = LocalExecutor(workers=0, devices=["cpu"], threads=1)


def plan_of(folder, text=RECIPE, name="mine"):
    (folder / f"{name}.toml").write_text(text)
    return make_plan(load_recipe(folder / f"{name}.toml"), given={"precision": "fp32"})


@pytest.fixture
def published(tmp_path):
    """The folder of an experiment, without the folders of its runs."""
    run_experiment(plan_of(tmp_path), Store(tmp_path / "first"), HERE)
    shutil.rmtree(tmp_path / "first" / "runs")
    return tmp_path / "first"


def test_published_runs_give_the_same_table_without_training(tmp_path, published):
    plan, store = plan_of(tmp_path), Store(tmp_path / "second")
    found = find_runs(published, plan.runs)
    assert reuse_runs(found, plan.runs, store) == len(plan.runs) == 6
    summary = run_experiment(plan, store, HERE)
    assert (summary.done, summary.ran) == (6, 0)
    assert reuse_runs(found, plan.runs, store) == 0
    before, after = (read_table(folder / "mine" / "records.parquet") for folder in (published, tmp_path / "second"))
    assert before.equals(after)
    for cell in plan.cells:
        risks = [line["transfer"] for line in store.records(cell.run.name) if "transfer" in line]
        assert risks
        assert all(isinstance(of_environment, dict) for of_environment in risks)


def test_a_method_of_ones_own_is_added_to_a_published_table(tmp_path, published):
    mine = plan_of(tmp_path, RECIPE + '"V-REx" = { algorithm = "vrex" }\n', "further")
    store = Store(tmp_path / "second")
    assert reuse_runs(find_runs(published, mine.runs), mine.runs, store) == 6
    summary = run_experiment(mine, store, HERE)
    assert (summary.done, summary.ran) == (8, 2)


def test_runs_with_other_settings_are_not_taken(tmp_path, published):
    plan = plan_of(tmp_path, RECIPE.replace("steps = 4", "steps = 5"), "longer")
    assert not find_runs(published, plan.runs)


def test_a_damaged_or_empty_folder_is_refused(tmp_path, published):
    runs = plan_of(tmp_path).runs
    (tmp_path / "nothing").mkdir()
    with pytest.raises(InputError, match="nothing"):
        find_runs(tmp_path / "nothing", runs)
    (published / "mine" / "records.parquet").write_bytes(b"PAR1 and no more")
    with pytest.raises(InputError, match=r"records\.parquet"):
        find_runs(published, runs)


def test_a_run_whose_model_is_needed_is_trained(tmp_path, published):
    plan = plan_of(
        tmp_path,
        RECIPE.replace('data = "gaussian"', 'data = "gaussian"').replace("seeds = 2", "seeds = 2\nkeep = true"),
    )
    assert all(run.keep for run in plan.runs), as_json(plan.recipe)
    assert not find_runs(published, plan.runs)
