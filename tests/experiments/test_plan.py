"""The runs that recipes ask for: which there are, what they are called, and how some are chosen."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from recipe_files import SMALL, write

from transferrisk.errors import InputError
from transferrisk.experiments import plan
from transferrisk.experiments.demo import Demo
from transferrisk.experiments.recipe import load_recipe
from transferrisk.experiments.tasks import PlannedRun, plan_run
from transferrisk.settings import as_json


def test_figure_four_has_every_bias_method_point_and_seed():
    made = plan.make_plan(load_recipe("cmnist"))
    points = 1 + 25 + 25 + 3 + 4 + 4 + 4 + 4 + 1 + 1
    assert len(made.cells) == 2 * 5 * 10 * points
    trm = [cell for cell in made.cells if cell.columns["method"] == "TRM" and cell.columns["seed"] == 3]
    assert {cell.run.settings["settings"]["gradient_matching"] for cell in trm} == {1e-3, 1e-2, 1e-1, 1.0}
    assert {cell.run.settings["bias"] for cell in trm} == {0.85, 0.875, 0.9, 0.925, 0.95}
    (oracle,) = {cell.run.settings["oracle"] for cell in made.cells if cell.columns["method"] == "Oracle"}
    assert oracle is True


def test_a_grid_may_hold_the_rate_and_has_at_most_twenty_points():
    made = plan.make_plan(load_recipe("cmnist-tuning"), seeds=1)
    robust = [cell for cell in made.cells if cell.columns["method"] == "GroupDRO"]
    assert {cell.run.settings["training"]["lr"] for cell in robust} == {0.05, 0.1, 0.2, 0.4, 0.8}
    assert {cell.run.settings["settings"]["weights_lr"] for cell in robust} == {0.01, 0.1, 1.0}
    points = {(cell.columns["method"], cell.columns["point"]) for cell in made.cells}
    for method in made.recipe.methods:
        assert 5 <= sum(name == method for name, _ in points) <= 20


def test_the_demo_runs_points_that_its_tuning_tries_on_other_seeds():
    tuning = plan.make_plan(load_recipe("demo-tuning"))
    tried = [{**cell.run.settings, "seed": None} for cell in tuning.cells]
    runs = Demo().runs
    assert {run.spec.algorithm for run in runs} == {"erm", "irm", "groupdro", "trm"}
    for run in runs:
        assert {**as_json(run.spec), "seed": None} in tried
    assert {run.spec.seed for run in runs}.isdisjoint(tuning.recipe.seeds)
    for method in tuning.recipe.methods:
        assert len({cell.columns["point"] for cell in tuning.cells if cell.columns["method"] == method}) <= 20


def test_a_method_may_have_other_settings_in_a_part_of_the_experiment(tmp_path):
    text = (
        SMALL
        + """
    TRM = { algorithm = "trm", settings = { ridge = 0.1 }, on."size=8" = { settings = { query = "random" } } }
    [methods.IRM]
    algorithm = "irm"
    grid = { penalty_weight = [1.0, 2.0] }
    on."size=16" = { training = { lr = 0.5 }, grid = { penalty_weight = [3.0] } }
    """
    )
    path = write(tmp_path, "parts", text)
    found = {}
    for cell in plan.make_plan(load_recipe(path), only=["IRM,TRM"], seeds=1).cells:
        settings = cell.run.settings
        found[cell.columns["method"], cell.columns["size"], cell.columns["point"]] = (
            settings["settings"].get("ridge"), settings["settings"].get("query"), settings["training"].get("lr"),
        )  # fmt: skip
    assert found == {
        ("TRM", 8, ""): (0.1, "random", None),
        ("TRM", 16, ""): (0.1, "all", None),
        ("IRM", 8, "penalty_weight=1"): (None, None, None),
        ("IRM", 8, "penalty_weight=2"): (None, None, None),
        ("IRM", 16, "penalty_weight=3"): (None, None, 0.5),
    }


@pytest.mark.parametrize(
    ("on", "message"),
    [
        ('{ "size=9" = {} }', r"unknown place 'size=9' of on.*size=8"),
        ('{ "colour=red" = {} }', "unknown place 'colour=red'"),
        ("3", r"\[methods\.TRM\]: on must be a table of tables"),
        ('{ "size=8" = { lr = 0.1 } }', r"lr is a setting of training: write training = \{ lr = 0.1 \}"),
        ('{ "size=8" = { seed = 1 } }', "seed must not be a setting"),
        ('{ "size=8" = { size = 4 } }', r"size must not be both in \[vary\] and in"),
    ],
)
def test_a_part_that_is_not_there_or_a_setting_that_may_not_differ_is_refused(tmp_path, on, message):
    path = write(tmp_path, "parts", SMALL + f'TRM = {{ algorithm = "trm", on = {on} }}')
    with pytest.raises(InputError, match=message):
        plan.make_plan(load_recipe(path))


def test_a_budget_may_be_varied():
    made = plan.make_plan(load_recipe("budget"), seeds=1)
    for cell in made.cells:
        assert cell.run.settings["training"]["epochs"] == cell.columns["epochs"]
    assert {cell.columns["epochs"] for cell in made.cells} == {5, 10, 20, 30, 60}
    assert {cell.columns["method"] for cell in made.cells} == {"ERM", "GroupDRO", "TRM"}
    longer = plan.make_plan(load_recipe("cmnist-30"))
    assert {cell.run.settings["training"]["epochs"] for cell in longer.cells} == {30}
    assert {cell.columns["seed"] for cell in longer.cells} == set(range(5))


def test_an_oracle_is_trained_once_for_every_bias():
    made = plan.make_plan(load_recipe("cmnist"), only=["Oracle"], seeds=1)
    assert len(made.cells) == 10
    assert [run.settings["shift"] for run in made.runs] == ["label-correlated", "combined"]


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", ["cmnist", "transferability", "time", "trm-settings"])
def test_runs_are_counted_as_they_are_planned(name, fast):
    recipe = load_recipe(name, fast)
    assert plan.count_runs(recipe) == len(plan.make_plan(recipe, seeds=1).runs) * len(recipe.seeds)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[settings]\nbias = 0.9", "settings"),
        ('[methods]\nERM = { algorithm = "erm", bias = 0.3 }', "methods.ERM"),
        ("[problems]\nmine = { bias = 0.3 }", "problems.mine"),
        ("[vary]\nepochs = [1, 2]\n[settings]\ntraining = { epochs = 3 }", "settings"),
    ],
)
def test_what_is_varied_has_no_other_value(tmp_path, text, where):
    recipe = load_recipe(write(tmp_path, "mine", f'extends = "cmnist"\n{text}'))
    with pytest.raises(InputError, match=rf"(bias|epochs) must not be .*\[{where}\]: list its values"):
        plan.make_plan(recipe)


def test_other_selections_share_their_runs():
    one, other = (plan.make_plan(load_recipe(name)) for name in ("pacs-resnet18", "pacs-resnet18-testval"))
    assert [run.name for run in one.runs] == [run.name for run in other.runs]


def test_a_model_that_is_fine_tuned_is_trained_before_and_kept():
    made = plan.make_plan(load_recipe("transferability", fast=True), only=["method=TRM", "shift=combined"])
    train, *tuned = made.runs
    assert (train.task, train.keep) == ("train", True)
    assert [run.task for run in tuned] == ["finetune"] * 2
    assert [run.settings["samples"] for run in tuned] == [10, 100]
    alone = plan_run("train", {k: v for k, v in tuned[0].settings.items() if k not in ("samples", "tuning")})
    assert alone.name == train.name


def test_only_and_seeds_choose_among_the_cells(tmp_path):
    recipe = load_recipe(
        write(tmp_path, "small", SMALL.replace('data = "gaussian"', 'data = "pacs"\ntest_env = "photo"'))
    )
    assert len(plan.make_plan(recipe).cells) == 2 * 2 * (1 + 3)
    assert len(plan.make_plan(recipe, ["ERM"]).cells) == 4
    assert len(plan.make_plan(recipe, ["size=8", "method=ERM,GroupDRO"], seeds=1).cells) == 4
    assert {cell.columns["seed"] for cell in plan.make_plan(recipe, seeds=4).cells} == {0, 1, 2, 3}
    point = "point=penalty_weight=0.1 start_epoch=3"
    assert {
        cell.columns["method"] for cell in plan.make_plan(load_recipe("cmnist"), [point, "bias=0.9"], seeds=1).cells
    } == {
        "IRM",
        "V-REx",
    }


def test_a_default_and_the_same_value_written_out_are_one_run():
    base = {"data": "10c-cmnist", "algorithm": "erm", "shift": "combined"}
    name = plan_run("train", base).name
    for same in ({"bias": 0.9}, {"first_bias": 1}, {"backbone": "cnn"}, {"precision": "fp32"}, {"augment": False},
                 {"size": None}, {"training": {"momentum": 0.9, "batch_size": 128}}):  # fmt: skip
        assert plan_run("train", {**base, **same}).name == name
    tuned = [plan_run("finetune", {**base, "tuning": {"lr": lr}}).name for lr in (1, 1.0)]
    assert tuned[0] == tuned[1]
    assert plan_run("train", {**base, "bias": np.float64(0.9), "seed": np.int64(0)}).name == name
    rates = [plan_run("train", {**base, "training": {"lr": lr}}).name for lr in (1, 1.0, 2)]
    assert rates[0] == rates[1] != rates[2]
    bare, written = ({"data": "10c-digits", "shift": "combined", **more} for more in ({}, {"bias": 0.9}))
    assert plan_run("pictures", bare).name == plan_run("pictures", written).name
    tuned, plain = (make_plan(name) for name in ("transferability", "cmnist"))
    assert {run.name for run in tuned.runs} & {run.name for run in plain.runs}


def test_runs_without_a_grid_are_points_of_it():
    """So whoever has done the one need not do the other; TRM's default is a point of its grid, and so on."""
    for name in ("cmnist", "pacs-resnet18"):
        whole, defaults = (
            {run.name for run in plan.make_plan(load_recipe(name, defaults=d), seeds=1).runs} for d in (False, True)
        )
        assert defaults < whole


def test_a_setting_that_is_not_asked_for_is_no_part_of_the_name():
    assert PlannedRun("train", {"seed": 0, "new": None, "settings": {"new": None}}).name == (
        PlannedRun("train", {"seed": 0, "settings": {}}).name
    )
    assert PlannedRun("train", {"new": False}).name != PlannedRun("train", {}).name


def make_plan(name):
    return plan.make_plan(load_recipe(name, defaults=name == "cmnist"), only=["method=TRM", "shift=combined"], seeds=1)


def test_other_content_of_a_users_file_is_another_run(tmp_path):
    table = tmp_path / "table.csv"
    names = []
    for text in ("y,site,x\n1,a,2\n", "y,site,x\n1,a,3\n"):
        table.write_text(text)
        names.append(plan_run("train", {"data": f"table:{table}", "algorithm": "erm"}).name)
    assert names[0] != names[1]


def test_a_run_is_named_by_all_that_decides_it_and_nothing_else():
    base = {"data": "10c-digits", "algorithm": "trm"}
    name = plan_run("train", base).name
    assert plan_run("train", {**base, "settings": {"ridge": 1e-3}}, keep=True).name == name
    assert plan_run("train", {**base, "training": {"epochs": 10}}).name == name
    for other in ({"seed": 1}, {"settings": {"ridge": 1e-2}}, {"training": {"lr": 0.2}}, {"backbone": "cnn:8"}):
        assert plan_run("train", {**base, **other}).name != name


@pytest.mark.parametrize(
    ("only", "message"),
    [
        (["metod=ERM"], r"unknown column 'metod'.* did you mean 'method'\?"),
        (["GroupDR"], r"unknown method 'GroupDR'.* did you mean 'GroupDRO'\?"),
        (["bias=0.91"], "unknown bias '0.91'"),
        ([""], "--only must be METHOD"),
        (["shift=combined,bias=0.85"], "unknown shift 'bias=0.85'.*give --only once for each column"),
    ],
)
def test_only_names_what_there_is(only, message):
    with pytest.raises(InputError, match=message):
        plan.make_plan(load_recipe("cmnist"), only)


def test_only_takes_a_value_without_its_column_and_numbers_however_they_are_written():
    cells = plan.make_plan(load_recipe("cmnist"), ["combined", "bias=0.850", "ERM,TRM"], seeds=1).cells
    assert {tuple(cell.columns[name] for name in ("shift", "bias", "method")) for cell in cells} == {
        ("combined", 0.85, "ERM"), ("combined", 0.85, "TRM")}  # fmt: skip
    assert {cell.columns["problem"] for cell in plan.make_plan(load_recipe("environments"), ["10C-CMNIST"]).cells} == {
        "10C-CMNIST"
    }
    assert {cell.columns["bias"] for cell in plan.make_plan(load_recipe("cmnist"), ["0.90"], seeds=1).cells} == {0.9}
    comma = replace(load_recipe("cmnist"), methods={"TRM, own": {"algorithm": "trm"}, "ERM": {"algorithm": "erm"}})
    assert {cell.columns["method"] for cell in plan.make_plan(comma, ["TRM, own"], seeds=1).cells} == {"TRM, own"}
    with pytest.raises(InputError, match=r"unknown problem '10c-cmnist'.* did you mean '10C-CMNIST'"):
        plan.make_plan(load_recipe("environments"), ["10c-cmnist"])
    with pytest.raises(InputError, match=r"--only must be left out.*toy-2d"):
        plan.make_plan(load_recipe("toy-2d"), ["ERM"])
