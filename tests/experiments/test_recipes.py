"""Recipes: inheritance, what is refused, and the runs they ask for."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

import transferrisk
from transferrisk.errors import InputError
from transferrisk.experiments import plan
from transferrisk.experiments.recipe import load, names
from transferrisk.experiments.tasks import PlannedRun, get
from transferrisk.experiments.tasks.base import plan as planned
from transferrisk.reports.experiments.shows import read
from transferrisk.reports.experiments.values import text as as_text
from transferrisk.training.selection import Selection

HERE = Path(transferrisk.__file__).parent / "recipes"


def write(folder, name, text):
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path


SMALL = """
title = "small"
seeds = 2
[settings]
data = "gaussian"
training = { epochs = 1, evaluations = 1 }
[vary]
size = [8, 16]
[methods]
ERM = { algorithm = "erm" }
GroupDRO = { algorithm = "groupdro", grid = "paper" }
"""


def columns_of(recipe, made):
    """What a column of the paper's numbers may be called, in the tables that the recipe shows."""
    found = set()
    for show in read(recipe.show, recipe.name):
        found |= {*getattr(show, "value", ()), *getattr(show, "values", ())}
        found |= {"average"} if getattr(show, "average", False) else set()
        axes = {getattr(show, "columns", ""), getattr(show, "x", ""), *show.panels}
        found |= {as_text(cell.columns[axis]) for cell in made.cells for axis in axes if axis in cell.columns}
    return found


@pytest.mark.parametrize("fast", [False, True], ids=["whole", "fast"])
@pytest.mark.parametrize("name", names())
def test_every_recipe_is_a_plan(name, fast):
    recipe = load(name, fast)
    made = plan.make(recipe)
    assert recipe.title
    assert len({(tuple(cell.columns.items())) for cell in made.cells}) == len(made.cells)
    lines = recipe.methods or load(name).settings.get("algorithms", ())
    columns = columns_of(recipe, made)
    for rule, quoted in recipe.published.items():
        assert rule in get_args(Selection), f"{name} quotes numbers under {rule}, which is no rule"
        for line, numbers in quoted.items():
            assert line in lines, f"{name} quotes {line}, which it does not run"
            for column in numbers:
                assert set(column.split(", ")) <= columns, f"{name} quotes {column} of {line}, which it does not show"
    for run in made.runs[:5]:
        assert get(run.task).resolve(run.settings) == run.settings, "resolving twice is resolving once"


def test_numbers_of_another_backbone_are_not_inherited(tmp_path):
    assert load("pacs-resnet18").published
    assert load("pacs-efficientnet-lite0").published == {}
    write(tmp_path, "base", 'title = "base"\n[fast]\nseeds = 1\n[published.last]\nERM = { accuracy = [1.0] }')
    mine = load(write(tmp_path, "mine", 'extends = "base"\npublished = false\nshow = false\nfast = false'))
    assert (mine.title, mine.published, mine.show) == ("base", {}, {})
    own = 'extends = "pacs-resnet18"\n'
    for change, stays in (
        ("seeds = 1", True),
        ("[vary]\ntest_env = ['photo']", True),
        ("[settings]\nsize = 32", False),
    ):
        changed = load(write(tmp_path, "changed", own + change))
        assert (bool(changed.published), bool(changed.paper)) == (stays, stays)
    with pytest.raises(InputError, match=r"published = false is no table: write \[published\]"):
        load(write(tmp_path, "alone", "published = false"))


def test_a_file_inherits_from_a_folder_below_it(tmp_path):
    (tmp_path / "parts").mkdir()
    write(tmp_path / "parts", "base", 'extends = "first"\nseeds = 3')
    write(tmp_path / "parts", "first", 'title = "first"')
    recipe = load(write(tmp_path, "mine", 'extends = "parts/base"'))
    assert (recipe.title, recipe.seeds) == ("first", (0, 1, 2))


def test_the_papers_experiments_are_there():
    assert {
        "cmnist", "cmnist-uncorrelated", "scenecoco", "scenecoco-uncorrelated", "environments", "transferability",
        "irm-vs-trm", "pacs-resnet18", "pacs-resnet18-testval", "pacs-resnet50", "office-home", "celeba", "time",
        "pacs-efficientnet-lite0", "toy-2d", "theorem-1", "implicit-gradient", "convergence",
    } <= set(names())  # fmt: skip


def test_figure_four_has_every_bias_method_point_and_seed():
    made = plan.make(load("cmnist"))
    points = 1 + 25 + 25 + 3 + 4 + 4 + 4 + 1 + 1
    assert len(made.cells) == 2 * 5 * 10 * points
    trm = [cell for cell in made.cells if cell.columns["method"] == "TRM" and cell.columns["seed"] == 3]
    assert {cell.run.settings["settings"]["gradient_matching"] for cell in trm} == {1e-3, 1e-2, 1e-1, 1.0}
    assert {cell.run.settings["bias"] for cell in trm} == {0.85, 0.875, 0.9, 0.925, 0.95}
    (oracle,) = {cell.run.settings["oracle"] for cell in made.cells if cell.columns["method"] == "Oracle"}
    assert oracle is True


def test_an_oracle_is_trained_once_for_every_bias():
    made = plan.make(load("cmnist"), only=["Oracle"], seeds=1)
    assert len(made.cells) == 10
    assert [run.settings["shift"] for run in made.runs] == ["label-correlated", "combined"]


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("name", ["cmnist", "transferability", "time", "trm-settings"])
def test_runs_are_counted_as_they_are_planned(name, fast):
    recipe = load(name, fast)
    assert plan.count(recipe) == len(plan.make(recipe, seeds=1).runs) * len(recipe.seeds)


def test_a_show_of_another_kind_takes_the_place_of_what_is_inherited(tmp_path):
    recipe = load(write(tmp_path, "mine", 'extends = "cmnist"\n[show]\nkind = "table"\ncolumns = "shift"'))
    assert recipe.show == {"kind": "table", "columns": "shift"}
    recipe = load(write(tmp_path, "mine", 'extends = "cmnist"\n[show]\nscale = "log"'))
    assert (recipe.show["kind"], recipe.show["x"], recipe.show["scale"]) == ("lines", "bias", "log")


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("[settings]\nbias = 0.9", "settings"),
        ('[methods]\nERM = { algorithm = "erm", bias = 0.3 }', "methods.ERM"),
        ("[problems]\nmine = { bias = 0.3 }", "problems.mine"),
    ],
)
def test_what_is_varied_has_no_other_value(tmp_path, text, where):
    recipe = load(write(tmp_path, "mine", f'extends = "cmnist"\n{text}'))
    with pytest.raises(InputError, match=rf"bias is varied and set in \[{where}\] as well: list its values"):
        plan.make(recipe)


@pytest.mark.parametrize("name", names())
def test_small_versions_are_small(name):
    """Whatever a recipe changes of another's training, its small version has its own length."""
    for run in plan.make(load(name, fast=True), seeds=1).runs:
        task = get(run.task)
        cost = task.cost(task.read(run.settings))
        assert cost is None or cost.steps <= 300 or run.settings["training"]["epochs"] == 1


def test_other_selections_share_their_runs():
    one, other = (plan.make(load(name)) for name in ("pacs-resnet18", "pacs-resnet18-testval"))
    assert [run.name for run in one.runs] == [run.name for run in other.runs]


def test_a_model_that_is_fine_tuned_is_trained_before_and_kept():
    made = plan.make(load("transferability", fast=True), only=["method=TRM", "shift=combined"])
    train, *tuned = made.runs
    assert (train.task, train.keep) == ("train", True)
    assert [run.task for run in tuned] == ["finetune"] * 2
    assert [run.settings["samples"] for run in tuned] == [10, 100]
    alone = planned("train", {k: v for k, v in tuned[0].settings.items() if k not in ("samples", "tuning")})
    assert alone.name == train.name


def test_a_recipe_says_only_what_differs(tmp_path):
    write(tmp_path, "base", SMALL)
    changes = "[settings.training]\nepochs = 3\n[methods]\nERM = false\n[vary]\nsize = false\n"
    path = write(tmp_path, "mine", 'extends = "base"\ntitle = "mine"\n' + changes)
    mine = load(path)
    assert (mine.name, mine.title, mine.seeds) == ("mine", "mine", (0, 1))
    assert mine.settings["training"] == {"epochs": 3, "evaluations": 1}
    assert list(mine.methods) == ["GroupDRO"]
    assert not mine.vary


def test_the_small_version_and_that_without_grids_have_names_of_their_own():
    assert load("cmnist", fast=True).name == "cmnist-fast"
    plain = load("cmnist", defaults=True)
    assert (plain.name, len(plan.make(plain).cells)) == ("cmnist-defaults", 2 * 5 * 10 * 9)
    assert load("cmnist", fast=True, defaults=True).name == "cmnist-defaults-fast"
    with pytest.raises(InputError, match="has no grids"):
        load("irm-vs-trm", defaults=True)


def test_only_and_seeds_choose_among_the_cells(tmp_path):
    recipe = load(write(tmp_path, "small", SMALL.replace('data = "gaussian"', 'data = "pacs"\ntest_env = "photo"')))
    assert len(plan.make(recipe).cells) == 2 * 2 * (1 + 3)
    assert len(plan.make(recipe, ["ERM"]).cells) == 4
    assert len(plan.make(recipe, ["size=8", "method=ERM,GroupDRO"], seeds=1).cells) == 4
    assert {cell.columns["seed"] for cell in plan.make(recipe, seeds=4).cells} == {0, 1, 2, 3}
    point = "point=penalty_weight=0.1 start_epoch=3"
    assert {cell.columns["method"] for cell in plan.make(load("cmnist"), [point, "bias=0.9"], seeds=1).cells} == {
        "IRM",
        "V-REx",
    }


def test_a_default_and_the_same_value_written_out_are_one_run():
    base = {"data": "10c-cmnist", "algorithm": "erm", "shift": "combined"}
    name = planned("train", base).name
    for same in ({"bias": 0.9}, {"first_bias": 1}, {"backbone": "cnn"}, {"precision": "fp32"}, {"augment": False},
                 {"size": None}, {"training": {"momentum": 0.9, "batch_size": 128}}):  # fmt: skip
        assert planned("train", {**base, **same}).name == name
    tuned = [planned("finetune", {**base, "tuning": {"lr": lr}}).name for lr in (1, 1.0)]
    assert tuned[0] == tuned[1]
    assert planned("train", {**base, "bias": np.float64(0.9), "seed": np.int64(0)}).name == name
    rates = [planned("train", {**base, "training": {"lr": lr}}).name for lr in (1, 1.0, 2)]
    assert rates[0] == rates[1] != rates[2]
    bare, written = ({"data": "10c-digits", "shift": "combined", **more} for more in ({}, {"bias": 0.9}))
    assert planned("pictures", bare).name == planned("pictures", written).name
    tuned, plain = (make_plan(name) for name in ("transferability", "cmnist"))
    assert {run.name for run in tuned.runs} & {run.name for run in plain.runs}


def test_runs_without_a_grid_are_points_of_it():
    """So whoever has done the one need not do the other; TRM's default is a point of its grid, and so on."""
    for name in ("cmnist", "pacs-resnet18"):
        whole, defaults = ({run.name for run in plan.make(load(name, defaults=d), seeds=1).runs} for d in (False, True))
        assert defaults < whole


def test_a_setting_that_is_not_asked_for_is_no_part_of_the_name():
    assert PlannedRun("train", {"seed": 0, "new": None, "settings": {"new": None}}).name == (
        PlannedRun("train", {"seed": 0, "settings": {}}).name
    )
    assert PlannedRun("train", {"new": False}).name != PlannedRun("train", {}).name


def make_plan(name):
    return plan.make(load(name, defaults=name == "cmnist"), only=["method=TRM", "shift=combined"], seeds=1)


def test_other_content_of_a_users_file_is_another_run(tmp_path):
    table = tmp_path / "table.csv"
    names = []
    for text in ("y,site,x\n1,a,2\n", "y,site,x\n1,a,3\n"):
        table.write_text(text)
        names.append(planned("train", {"data": f"table:{table}", "algorithm": "erm"}).name)
    assert names[0] != names[1]


def test_a_run_is_named_by_all_that_decides_it_and_nothing_else():
    base = {"data": "10c-digits", "algorithm": "trm"}
    name = planned("train", base).name
    assert planned("train", {**base, "settings": {"ridge": 1e-3}}, keep=True).name == name
    assert planned("train", {**base, "training": {"epochs": 10}}).name == name
    for other in ({"seed": 1}, {"settings": {"ridge": 1e-2}}, {"training": {"lr": 0.2}}, {"backbone": "cnn:8"}):
        assert planned("train", {**base, **other}).name != name


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('tittle = "x"', r"unknown key 'tittle': did you mean 'title'\?"),
        ("title = ", "cannot be read as TOML"),
        ("seeds = 0", "neither how many, up to 100000, nor a list"),
        ("seeds = [1, -2]", "neither how many, up to 100000, nor a list"),
        ("seeds = 99999999999999999999", "neither how many, up to 100000, nor a list"),
        ("seeds = [3, 3]", "names a seed twice"),
        ("[settings]\nseed = 7", r"seed is no setting of one run: write seeds = \[7\], above all tables"),
        ("[vary]\nseed = [7, 8]", "seed is no setting of one run"),
        ("[published.training_domain.ERM]\naccuracy = 2020-01-01", "holds a value that is no text, number or truth"),
        ("x = " + 5000 * "[", "cannot be read as TOML"),
        ("x = " + 5000 * "9", "cannot be read as TOML"),
        ('extends = "cmnist"\n[methods]\nIMR = false', r"methods.IMR = false drops nothing.*did you mean 'IRM'\?"),
        ("[fast]\nsettings = 5", r"\[fast\]: settings = 5 is no table"),
        ("[settings]\ndata = 10\nalgorithm = 'erm'", "data = 10 is no text"),
        ('[settings]\ndata = "gaussian"\nalgorithm = "erm"\nbackbone = 8', "backbone = 8 is no text"),
        ('[settings]\ndata = "gaussian"\nalgorithm = "erm"\ntraining = 1', "training = 1 is no table"),
        ('[settings]\ndata = "gaussian"\nalgorithm = "erm"\nsize = "x"', 'size = "x" is no whole number'),
        ('[settings]\ndata = "gaussian"\nalgorithm = "erm"\noracle = 1', "oracle = 1 is no truth value"),
        (
            'task = "time"\n[settings]\nsetting = "cmnist"\nsamples = 256\nalgorithms = "erm"',
            'algorithms = "erm" is no list',
        ),
        ('select = ["best"]', "is no list of training_domain"),
        ('extends = "cmnsit"', r"mine.toml, extends: .*did you mean 'cmnist'\?"),
        ('extends = "mine"', "cannot inherit from itself"),
        ('settings = "x"', r"is no table: write \[settings\]"),
        ('[methods]\nERM = "erm"', 'methods.ERM = "erm" is no table'),
        ("[vary]\nbias = 0.9", "vary.bias = 0.9 is no list"),
        ("[vary]\ntraining = [{ epochs = 1 }]", r"vary.training = .* is no list of numbers, words or truth values"),
        ("[vary]\nbias = [0.9, 0.9]", "names a value twice"),
        ("[vary]\nbias = [1, 1.0]", "names a value twice"),
        ('extends = "transferability"\n[settings]\ntuning = { lrr = 1 }', "did you mean 'lr'"),
        ('extends = "transferability"\n[settings]\ntuning = { epochs = 0 }', "epochs=0 is no number to train with"),
        ('extends = "transferability"\nselect = ["training_domain"]', "nothing to select 'training_domain' by"),
        ('extends = "transferability"\ngrids = true', "nothing to choose a point of a grid by at the last step"),
        ("[fast]\nsedes = 1", r"\[fast\] has an unknown key 'sedes': did you mean 'seeds'\?"),
        ("keep = 1", "keep = 1 is neither true nor false"),
        ('task = "trian"\n', r"task 'trian' is not known: did you mean 'train'\?"),
        ("", r"mine.toml says nothing to run: it needs data, as data = .*, and methods, as ERM = "),
        (
            'extends = "_methods"',
            r"mine.toml, method ERM: task 'train' needs the setting 'data': add it to \[settings\]",
        ),
        (
            '[settings]\ndata = "gaussian"',
            r"mine.toml: task 'train' needs the setting 'algorithm': add it to \[settings",
        ),
        ('[settings]\ndata = "table:x.csv"\nalgorithm = "erm"', "mine.toml: x.csv does not exist: check the path"),
        ('[settings]\ndata = "folder:x"\nalgorithm = "erm"', "mine.toml: x does not exist: check the path"),
        (
            '[settings]\ndata = "gaussian"\nalgorithm = "erm"\nweights = "x.pt"',
            "weights 'x.pt' are no file and none of imagenet, pip, none",
        ),
        ('[settings]\ndata = "gaussian"\nalgoritm = "erm"', r"no setting 'algoritm': did you mean 'algorithm'\?"),
        ('[settings]\ndata = "gaussian"\nalgorithm = "emr"', r"did you mean 'erm'\?"),
        (
            '[settings]\ndata = "gaussian"\nalgorithm = "trm"\nsettings = { rigde = 1 }',
            r"no setting 'rigde': did you mean 'ridge'\?",
        ),
        (
            '[settings]\ndata = "gaussian"\nalgorithm = "trm"\ntraining = { epoch = 1 }',
            r"training takes no 'epoch': did you mean 'epochs'\?",
        ),
        ('[settings]\ndata = "gaussian"\nalgorithm = "trm"\nbias = 0.9', "belong to a shift"),
        ('[settings]\ndata = "x"\n[methods]\nA = { algorithm = "erm", grid = "papr" }', "the grid of A is 'papr'"),
    ],
)
def test_what_a_recipe_may_not_say(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        plan.make(load(write(tmp_path, "mine", text)))


@pytest.mark.parametrize(
    ("only", "message"),
    [
        (["metod=ERM"], r"no 'metod': did you mean 'method'\?"),
        (["GroupDR"], r"no method 'GroupDR': did you mean 'GroupDRO'\?"),
        (["bias=0.91"], "no bias '0.91'"),
        ([""], "--only is given nothing"),
        (["shift=combined,bias=0.85"], "no shift 'bias=0.85': give --only once for each column"),
    ],
)
def test_only_names_what_there_is(only, message):
    with pytest.raises(InputError, match=message):
        plan.make(load("cmnist"), only)


def test_only_takes_a_value_without_its_column_and_numbers_however_they_are_written():
    cells = plan.make(load("cmnist"), ["combined", "bias=0.850", "ERM,TRM"], seeds=1).cells
    assert {tuple(cell.columns[name] for name in ("shift", "bias", "method")) for cell in cells} == {
        ("combined", 0.85, "ERM"), ("combined", 0.85, "TRM")}  # fmt: skip
    assert {cell.columns["problem"] for cell in plan.make(load("environments"), ["10C-CMNIST"]).cells} == {"10C-CMNIST"}
    assert {cell.columns["bias"] for cell in plan.make(load("cmnist"), ["0.90"], seeds=1).cells} == {0.9}
    comma = replace(load("cmnist"), methods={"TRM, own": {"algorithm": "trm"}, "ERM": {"algorithm": "erm"}})
    assert {cell.columns["method"] for cell in plan.make(comma, ["TRM, own"], seeds=1).cells} == {"TRM, own"}
    with pytest.raises(InputError, match="environments has no problem '10c-cmnist': did you mean '10C-CMNIST'"):
        plan.make(load("environments"), ["10c-cmnist"])
    with pytest.raises(InputError, match="toy-2d is one run for each seed, of which nothing can be left out"):
        plan.make(load("toy-2d"), ["ERM"])


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "runs", "report.html", "a\nb", "x\udcff"])
def test_names_that_a_folder_of_results_cannot_have(tmp_path, name):
    path = tmp_path / f"{name}.toml"
    path.write_text('extends = "cmnist"')
    with pytest.raises(InputError, match="an experiment cannot be called"):
        load(path)


def test_a_recipe_is_utf_8_whatever_the_locale(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes('extends = "cmnist"\ntitle = "Größe"'.encode())
    code = f"from transferrisk.experiments.recipe import load; print(ascii(load({str(path)!r}).title))"
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=plain, check=False)
    assert done.stdout.strip() == ascii("Größe"), done.stderr


def test_what_a_recipe_says_itself_is_said_of_its_small_version_too(tmp_path):
    mine = write(tmp_path, "mine", 'extends = "cmnist"\nseeds = 1\n[vary]\nbias = [0.9]\n[fast.settings]\nsize = 8')
    small = load(mine, fast=True)
    assert (small.seeds, small.vary["bias"]) == ((0,), [0.9])
    assert small.settings == {**load("cmnist", fast=True).settings, "size": 8}
    assert load(write(tmp_path, "other", 'extends = "cmnist"\n[vary]\nshift = false'), fast=True).seeds == (0, 1)
    base = 'extends = "irm-vs-trm"\n'
    for change in ("[problems.PACS]\nbackbone = 'resnet50'", "[problems]\nPACS = false"):
        other = write(tmp_path, "partly", base + change)
        assert list(load(other, fast=True).problems) == ["10C-digits"]
        assert plan.make(load(other, fast=True)).cells
    assert load(other).problems.keys() == {"10C-CMNIST"}
    with pytest.raises(InputError, match="has no fast version"):
        load(write(tmp_path, "without", 'extends = "cmnist"\nfast = false'), fast=True)


def test_a_recipe_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"experiment 'cmnits' is not known: did you mean 'cmnist'\?"):
        load("cmnits")
    with pytest.raises(InputError, match="does not exist"):
        load(tmp_path / "no.toml")
    with pytest.raises(InputError, match="has no fast version"):
        load(write(tmp_path, "slow", SMALL), fast=True)
