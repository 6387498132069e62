"""Sweeps whose points optuna finds: what it asks for, what it gives up, and that an interruption changes nothing."""

from __future__ import annotations

import json
import math
import statistics
from contextlib import closing
from dataclasses import replace

import pytest
from recipe_files import write

from transferrisk.errors import InputError
from transferrisk.experiments.execute import execute_run
from transferrisk.experiments.executors import LocalExecutor, Slot
from transferrisk.experiments.learn import LearningSweep, MedianJudge, Trial, ask_point
from transferrisk.experiments.plan import Plan, make_plan
from transferrisk.experiments.recipe import load_recipe
from transferrisk.experiments.store import Store
from transferrisk.experiments.sweep import Interrupted, run_experiment
from transferrisk.reports.comparison_views import TableView
from transferrisk.reports.experiment import load_experiment

RECIPE = """
search = { kind = "optuna", points = 7 }
seeds = [100]
[settings]
data = "gaussian"
backbone = "mlp:2"
training = { steps = 20, evaluations = 4, batch_size = 32 }
[methods.ERM]
algorithm = "erm"
grid = { lr = { log_uniform = [1e-4, 1.0] } }
"""


@pytest.fixture
def plan(tmp_path) -> Plan:
    return make_plan(load_recipe(write(tmp_path, "mine", RECIPE)))


class Breaking(LocalExecutor):
    """Runs in this process, and asks to stop, as a signal does, before the run of this number."""

    left = 5

    def map(self, jobs, on_step):
        for message in super().map(jobs, on_step):
            type(self).left -= 1
            if self.left < 0:
                raise KeyboardInterrupt
            yield message


def table(store: Store) -> tuple[object, object]:
    trials = json.loads(store.read("mine/trials.json"))
    experiment = load_experiment(store.local / "mine")
    numbers = experiment.records.drop(columns=["date", "seconds", "commit"], errors="ignore")
    return trials, numbers.sort_values(["run", "step", "part", "environment"]).to_dict("records")


def test_a_search_that_was_cut_off_goes_on_as_if_nothing_had_happened(plan, tmp_path):
    whole, parted = Store(tmp_path / "whole"), Store(tmp_path / "parted")
    assert run_experiment(plan, whole, LocalExecutor(0, ("cpu",), 1)).done == 7
    with pytest.raises(Interrupted):
        run_experiment(plan, parted, Breaking(0, ("cpu",), 1))
    before = run_experiment(plan, parted, LocalExecutor(0, ("cpu",), 1))
    assert (before.total, before.done) == (7, 7)
    assert before.ran < 7
    assert table(whole) == table(parted)
    assert run_experiment(plan, parted, LocalExecutor(0, ("cpu",), 1)).ran == 0

    trials = json.loads(whole.read("mine/trials.json"))["studies"][0]["trials"]
    given_up = [trial for trial in trials if trial["state"] == "pruned"]
    assert given_up, "most rates of this grid are far too low"
    best = max(max(trial["scores"].values()) for trial in trials)
    assert max(max(trial["scores"].values()) for trial in given_up) < best
    assert {trial["run"] for trial in trials} - whole.finished() == {trial["run"] for trial in given_up}
    (grid,) = TableView().part(load_experiment(whole.local / "mine"), "training_domain").grids
    (note,) = grid.notes
    chosen = max((t for t in trials if t["state"] == "done"), key=lambda trial: max(trial["scores"].values()))
    assert f"best of {7 - len(given_up)} points, and {len(given_up)} more whose" in note
    assert f"lr={chosen['point']['lr']:g} " in note

    # What was given up is an ordinary run, which another experiment brings to its end, as if it had never been stopped.
    study, seed = plan.studies[0]
    (cell,) = study.at(given_up[0]["point"], [seed])
    execute_run(cell.run, whole, Slot("cpu", 1))
    execute_run(cell.run, Store(tmp_path / "alone"), Slot("cpu", 1))
    one, other = (
        [{**record, "seconds": 0} for record in store.records(cell.run.name)]
        for store in (whole, Store(tmp_path / "alone"))
    )
    assert one == other


def test_points_are_sought_where_earlier_ones_did_well(plan):
    """Accuracy falls with the distance of the rate from 1e-3, in orders of magnitude."""
    study, seed = plan.studies[0]
    recipe = replace(study.recipe, search=replace(study.recipe.search, points=40))
    trials: list[Trial] = []
    for _ in range(40):
        point = ask_point(study.grid, trials, replace(study, recipe=recipe), seed, at_last=False)
        trials.append(Trial(point, "", "done", {1: 1 - abs(math.log10(point["lr"]) + 3) / 10}))
    assert len({trial.point["lr"] for trial in trials}) == 40
    distance = [abs(math.log10(trial.point["lr"]) + 3) for trial in trials]
    assert statistics.mean(distance[25:]) < 0.5 * statistics.mean(distance[:10])


def test_a_training_is_given_up_below_the_median_at_the_same_step():
    judge = MedianJudge(
        [{1: value / 10, 2: 0.5 + value / 100} for value in range(1, 8)], "training_domain"
    )  # 0.4, 0.54

    def at(*accuracies):
        return [{"part": "training_domain", "step": 1 + i, "accuracy": value} for i, value in enumerate(accuracies)]

    assert judge(at(0.39))
    assert not judge(at(0.41))
    assert judge(at(0.41, 0.45))
    assert not judge(at(0.55, 0.1)), "its best so far counts"


def test_a_failed_trial_is_no_point_that_counts_and_is_tried_again_by_the_next_sweep(tmp_path):
    plan = make_plan(load_recipe(write(tmp_path, "mine", RECIPE.replace("points = 7", "points = 2"))))
    store = Store(tmp_path / "results")
    study, seed = plan.studies[0]
    first = ask_point(study.grid, [], study, seed, at_last=False)
    (cell,) = study.at(first, [seed])
    with closing(LocalExecutor(0, ("cpu",), 1)) as executor:
        blocked = tmp_path / "results" / "runs" / cell.run.name / "training"
        blocked.parent.mkdir(parents=True)
        blocked.write_text("a file where the run's folder belongs")
        summary = run_experiment(plan, store, executor)
        assert list(summary.failed) == [cell.run.name]
        assert summary.done == 1
        blocked.unlink()
        sweep = LearningSweep(plan, store, executor)
        assert [event.name for event in sweep if event.kind == "done"] == [cell.run.name]
    assert sweep.summary.done == 2


def test_what_a_search_by_optuna_may_not_be(tmp_path):
    with pytest.raises(InputError, match="select must not be leave_one_environment_out"):
        make_plan(load_recipe(write(tmp_path, "mine", f'select = ["leave_one_environment_out"]\n{RECIPE}')))
