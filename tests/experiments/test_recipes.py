"""Recipes: inheritance, small versions, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
from recipe_files import SMALL, write

import transferrisk
from transferrisk.errors import InputError
from transferrisk.experiments import plan
from transferrisk.experiments.recipe import load, names
from transferrisk.experiments.tasks import get
from transferrisk.reports.experiments.shows import read
from transferrisk.reports.experiments.values import text as as_text
from transferrisk.training.selection import Selection

HERE = Path(transferrisk.__file__).parent / "recipes"


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


def test_a_show_of_another_kind_takes_the_place_of_what_is_inherited(tmp_path):
    recipe = load(write(tmp_path, "mine", 'extends = "cmnist"\n[show]\nkind = "table"\ncolumns = "shift"'))
    assert recipe.show == {"kind": "table", "columns": "shift"}
    recipe = load(write(tmp_path, "mine", 'extends = "cmnist"\n[show]\nscale = "log"'))
    assert (recipe.show["kind"], recipe.show["x"], recipe.show["scale"]) == ("lines", "bias", "log")


@pytest.mark.parametrize("name", names())
def test_small_versions_are_small(name):
    """Whatever a recipe changes of another's training, its small version has its own length."""
    for run in plan.make(load(name, fast=True), seeds=1).runs:
        task = get(run.task)
        cost = task.cost(task.read(run.settings))
        assert cost is None or cost.steps <= 300 or run.settings["training"]["epochs"] == 1


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
            r"unknown setting 'rigde': did you mean 'ridge'\?",
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
