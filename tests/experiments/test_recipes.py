"""Recipes: inheritance, small versions, and what is refused."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from recipe_files import SMALL, write

from transferrisk.errors import InputError
from transferrisk.experiments import plan
from transferrisk.experiments.recipe import load_recipe, recipe_names
from transferrisk.experiments.tasks import get_task
from transferrisk.reports.report import check_recipe, read_views
from transferrisk.reports.tables import axis_text
from transferrisk.results.selection import RULES
from transferrisk.settings import as_json


def columns_of(recipe, made):
    """What a column of the paper's numbers may be called, in the tables that the recipe shows."""
    found = set()
    for show in read_views(recipe.show, recipe.name).values():
        found |= {*getattr(show, "value", ()), *getattr(show, "values", ())}
        found |= {"average"} if getattr(show, "average", False) else set()
        axes = {getattr(show, "columns", ""), getattr(show, "x", ""), *show.panels}
        found |= {axis_text(cell.columns[axis]) for cell in made.cells for axis in axes if axis in cell.columns}
    return found


@pytest.mark.parametrize("fast", [False, True], ids=["whole", "fast"])
@pytest.mark.parametrize("name", recipe_names())
def test_every_recipe_is_a_plan(name, fast):
    recipe = load_recipe(name, fast)
    made = plan.make_plan(recipe, seeds=1)
    assert recipe.title
    assert len({(tuple(cell.columns.items())) for cell in made.cells}) == len(made.cells)
    lines = recipe.methods or load_recipe(name).settings.get("algorithms", ())
    columns = columns_of(recipe, made)
    for rule, quoted in recipe.published.items():
        assert rule in RULES, f"{name} quotes numbers under {rule}, which is no rule"
        for line, numbers in quoted.items():
            assert line in lines, f"{name} quotes {line}, which it does not run"
            for column in numbers:
                assert set(column.split(", ")) <= columns, f"{name} quotes {column} of {line}, which it does not show"
    for run in made.runs[:5]:
        assert get_task(run.task).resolve(run.settings) == run.settings, "resolving twice is resolving once"


def test_numbers_of_another_backbone_are_not_inherited(tmp_path):
    assert load_recipe("pacs-resnet18").published
    assert load_recipe("pacs-efficientnet-lite0").published == {}
    write(tmp_path, "base", 'title = "base"\n[fast]\nseeds = 1\n[published.last]\nERM = { accuracy = [1.0] }')
    mine = load_recipe(write(tmp_path, "mine", 'extends = "base"\npublished = false\nshow = false\nfast = false'))
    assert (mine.title, mine.published, mine.show) == ("base", {}, {})
    own = 'extends = "pacs-resnet18"\n'
    for change, stays in (
        ("seeds = 1", True),
        ("[vary]\ntest_env = ['photo']", True),
        ("[settings]\nsize = 32", False),
    ):
        changed = load_recipe(write(tmp_path, "changed", own + change))
        assert (bool(changed.published), bool(changed.paper)) == (stays, stays)
    with pytest.raises(InputError, match=r"published must be a table, got false"):
        load_recipe(write(tmp_path, "alone", "published = false"))


def test_a_recipe_with_a_title_of_its_own_is_not_in_the_paper(tmp_path):
    write(tmp_path, "base", 'title = "base"\npaper = "Figure 4"\n[settings]\ndata = "gaussian"')
    assert load_recipe(write(tmp_path, "longer", 'extends = "base"\nseeds = 2')).paper == "Figure 4"
    assert load_recipe(write(tmp_path, "other", 'extends = "base"\ntitle = "mine"')).paper == ""


def test_a_file_inherits_from_a_folder_below_it(tmp_path):
    (tmp_path / "parts").mkdir()
    write(tmp_path / "parts", "base", 'extends = "first"\nseeds = 3')
    write(tmp_path / "parts", "first", 'title = "first"')
    recipe = load_recipe(write(tmp_path, "mine", 'extends = "parts/base"'))
    assert (recipe.title, recipe.seeds) == ("first", (0, 1, 2))


def test_the_papers_experiments_are_there():
    assert {
        "cmnist", "cmnist-uncorrelated", "scenecoco", "scenecoco-uncorrelated", "environments", "transferability",
        "irm-vs-trm", "pacs-resnet18", "pacs-resnet18-testval", "pacs-resnet50", "office-home", "celeba", "time",
        "pacs-efficientnet-lite0", "toy-2d", "theorem-1", "implicit-gradient", "convergence",
    } <= set(recipe_names())  # fmt: skip


def test_a_show_of_another_kind_takes_the_place_of_what_is_inherited(tmp_path):
    recipe = load_recipe(write(tmp_path, "mine", 'extends = "cmnist"\n[show]\nkind = "table"\ncolumns = "shift"'))
    assert recipe.show == {"kind": "table", "columns": "shift"}
    recipe = load_recipe(write(tmp_path, "mine", 'extends = "cmnist"\n[show]\nscale = "log"'))
    assert (recipe.show["kind"], recipe.show["x"], recipe.show["scale"]) == ("lines", "bias", "log")


def report_on(recipe):
    """Check the report of a recipe as the command does before it runs anything."""
    made = plan.make_plan(recipe, seeds=1)
    cells = as_json([(cell.run.name, cell.columns) for cell in made.cells])
    check_recipe(recipe.name, recipe.where, as_json(recipe), cells)


@pytest.mark.parametrize("fast", [False, True], ids=["whole", "fast"])
def test_inherited_panels_lose_an_axis_that_is_dropped(tmp_path, fast):
    dropped = 'extends = "cmnist"\n[vary]\nshift = false\n[settings]\nshift = "label-correlated"\n'
    recipe = load_recipe(write(tmp_path, "one", dropped), fast)
    assert (recipe.show["x"], list(recipe.show["panels"])) == ("bias", [])
    report_on(recipe)
    recipe = load_recipe(write(tmp_path, "again", 'extends = "one"\nseeds = 1'), fast)
    report_on(recipe)
    own = load_recipe(write(tmp_path, "own", f'{dropped}[show]\npanels = "shift"'), fast)
    with pytest.raises(InputError, match=r"panels .*'shift'.*bias"):
        report_on(own)
    problem = load_recipe(write(tmp_path, "problem", 'extends = "budget"\nproblems = false\n'
                                '[settings]\nshift = "combined"\nbias = 0.85'), fast)  # fmt: skip
    report_on(problem)
    assert not problem.show["panels"]


def test_dropping_the_axis_of_a_chart_says_what_to_set(tmp_path):
    text = 'extends = "cmnist"\n[vary]\nbias = false\n[settings]\nbias = 0.9\n'
    with pytest.raises(InputError, match=r"\[show\] x .*'bias'.*shift.*show = false"):
        report_on(load_recipe(write(tmp_path, "one", text)))
    report_on(load_recipe(write(tmp_path, "none", f"show = false\n{text}")))


@pytest.mark.parametrize("name", recipe_names())
def test_small_versions_are_small(name):
    """Whatever a recipe changes of another's training, its small version has its own length."""
    for run in plan.make_plan(load_recipe(name, fast=True), seeds=1).runs:
        task = get_task(run.task)
        cost = task.cost(task.read(run.settings))
        assert cost is None or cost.steps <= 300 or run.settings["training"]["epochs"] == 1


def test_a_recipe_says_only_what_differs(tmp_path):
    write(tmp_path, "base", SMALL)
    changes = "[settings.training]\nepochs = 3\n[methods]\nERM = false\n[vary]\nsize = false\n"
    path = write(tmp_path, "mine", 'extends = "base"\ntitle = "mine"\n' + changes)
    mine = load_recipe(path)
    assert (mine.name, mine.title, mine.seeds) == ("mine", "mine", (0, 1))
    assert mine.settings["training"] == {"epochs": 3, "evaluations": 1}
    assert list(mine.methods) == ["GroupDRO"]
    assert not mine.vary


def test_the_small_version_and_that_without_grids_have_names_of_their_own():
    assert load_recipe("cmnist", fast=True).name == "cmnist-fast"
    plain = load_recipe("cmnist", defaults=True)
    assert (plain.name, len(plan.make_plan(plain).cells)) == ("cmnist-defaults", 2 * 5 * 10 * 10)
    assert load_recipe("cmnist", fast=True, defaults=True).name == "cmnist-defaults-fast"
    with pytest.raises(InputError, match="--defaults"):
        load_recipe("irm-vs-trm", defaults=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('tittle = "x"', r"unknown key 'tittle': did you mean 'title'\?"),
        ("title = ", "cannot be read as TOML"),
        ("seeds = 0", "seeds must be .* 10000, got 0"),
        ("seeds = [1, -2]", r"seeds\[1\] must be an integer >= 0.* got -2"),
        ("seeds = 99999999999999999999", "seeds must be .* 10000, got 99"),
        ("seeds = [3, 3]", r"seeds must differ, got \[3, 3\]"),
        ("[settings]\nseed = 7", r"seed must not be a setting.*seeds = \[7\]"),
        ("[vary]\nseed = [7, 8]", "seed must not be a setting"),
        ("[published.training_domain.ERM]\naccuracy = 2020-01-01", "must be text, numbers or truth values"),
        ("x = " + 5000 * "[", "cannot be read as TOML"),
        ("x = " + 5000 * "9", "cannot be read as TOML"),
        ('extends = "cmnist"\n[methods]\nIMR = false', r"methods.IMR = false.*did you mean 'IRM'\?"),
        ("[fast]\nsettings = 5", r"\[fast\]: settings must be a table, got 5"),
        ("[settings]\ndata = 10\nalgorithm = 'erm'", "data must be text, got 10"),
        ('[settings]\ndata = "gaussian"\nalgorithm = "erm"\nbackbone = 8', "backbone must be text .*got 8"),
        ('[settings]\ndata = "gaussian"\nalgorithm = "erm"\ntraining = 1', "training must be a table, got 1"),
        ('[settings]\ndata = "gaussian"\nalgorithm = "erm"\nsize = "x"', "size must be .* got 'x'"),
        ('[settings]\ndata = "gaussian"\nalgorithm = "erm"\noracle = 1', "oracle must be True or False, got 1"),
        (
            'task = "time"\n[settings]\nsetting = "cmnist"\nsamples = 256\nalgorithms = "erm"',
            "algorithms must be a list.* got 'erm'",
        ),
        ('select = ["best"]', r"select\[0\] must be one of 'training_domain'.* got 'best'"),
        ('extends = "cmnsit"', r"mine.toml, extends: .*did you mean 'cmnist'\?"),
        ('extends = "mine"', "extends must not"),
        ('settings = "x"', r"settings must be a table.*\[settings\]"),
        ('[methods]\nERM = "erm"', "methods.ERM must be a table, got 'erm'"),
        ("[vary]\nbias = 0.9", "vary.bias must be a list .*got 0.9"),
        ("[vary]\ntraining = [{ epochs = 1 }]", r"vary.training\[0\] must be .* got \{'epochs': 1\}"),
        ("[vary]\nbias = [0.9, 0.9]", "vary.bias must not repeat"),
        ("[vary]\nbias = [1, 1.0]", "vary.bias must not repeat"),
        ('extends = "transferability"\n[settings]\ntuning = { lrr = 1 }', "did you mean 'lr'"),
        ('extends = "transferability"\n[settings]\ntuning = { epochs = 0 }', r"epochs must be .*, got 0"),
        (
            'extends = "transferability"\nselect = ["training_domain"]',
            "select must be .* got training_domain",
        ),
        ('extends = "transferability"\ngrids = true', "select must not be last.*add grids = false"),
        ("[fast]\nsedes = 1", r"\[fast\]: unknown key 'sedes': did you mean 'seeds'\?"),
        ("keep = 1", "keep must be True or False, got 1"),
        ('task = "trian"\n', r"unknown task 'trian': did you mean 'train'\?"),
        ("", r"mine.toml has nothing to run: add data, .* methods"),
        (
            'extends = "_methods"',
            r"mine.toml, method ERM: task 'train': data is missing",
        ),
        (
            '[settings]\ndata = "gaussian"',
            r"mine.toml: task 'train': algorithm is missing",
        ),
        ('[settings]\ndata = "table:x.csv"\nalgorithm = "erm"', "mine.toml: x.csv does not exist: check the path"),
        ('[settings]\ndata = "folder:x"\nalgorithm = "erm"', "mine.toml: x does not exist: check the path"),
        (
            '[settings]\ndata = "gaussian"\nalgorithm = "erm"\nweights = "x.pt"',
            r"weights must be .*, got 'x.pt'",
        ),
        ('[settings]\ndata = "gaussian"\nepochs = 3', r"\[settings\]: epochs .* training = \{ epochs = 3 \}"),
        (
            '[settings]\ndata = "gaussian"\n[vary]\nepocs = [3]',
            r"\[vary\]: unknown setting 'epocs': did you mean 'epochs'",
        ),
        ('[settings]\ndata = "gaussian"\n[methods]\nA = { algorithm = "emr" }', "recipe .*, method A: .*'emr'.*'erm'"),
        ('task = "trian"', "recipe .*: unknown task 'trian': did you mean 'train'"),
        ('[settings]\ndata = "gaussian"\nalgoritm = "erm"', r"unknown setting 'algoritm': did you mean 'algorithm'\?"),
        ('[settings]\ndata = "gaussian"\nalgorithm = "emr"', r"did you mean 'erm'\?"),
        (
            '[settings]\ndata = "gaussian"\nalgorithm = "trm"\nsettings = { rigde = 1 }',
            r"unknown setting 'rigde': did you mean 'ridge'\?",
        ),
        (
            '[settings]\ndata = "gaussian"\nalgorithm = "trm"\ntraining = { epoch = 1 }',
            r"'epoch': did you mean 'epochs'\?",
        ),
        ('[settings]\ndata = "gaussian"\nalgorithm = "trm"\nbias = 0.9', "bias must be left out"),
        (
            '[settings]\ndata = "x"\n[methods]\nA = { algorithm = "erm", grid = "papr" }',
            "grid of A must be .* got 'papr'",
        ),
    ],
)
def test_what_a_recipe_may_not_say(tmp_path, text, message):
    with pytest.raises(InputError, match=message):
        plan.make_plan(load_recipe(write(tmp_path, "mine", text)))


@pytest.mark.parametrize("name", ["", ".", "..", ".hidden", "runs", "report.html", "a\nb", "x\udcff"])
def test_names_that_a_folder_of_results_cannot_have(tmp_path, name):
    path = tmp_path / f"{name}.toml"
    path.write_text('extends = "cmnist"')
    with pytest.raises(InputError, match="NAME must be"):
        load_recipe(path)


def test_a_recipe_is_utf_8_whatever_the_locale(tmp_path):
    path = tmp_path / "mine.toml"
    path.write_bytes('extends = "cmnist"\ntitle = "Größe"'.encode())
    code = f"from transferrisk.experiments.recipe import load_recipe; print(ascii(load_recipe({str(path)!r}).title))"
    plain = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=plain, check=False)
    assert done.stdout.strip() == ascii("Größe"), done.stderr


def test_what_a_recipe_says_itself_is_said_of_its_small_version_too(tmp_path):
    mine = write(tmp_path, "mine", 'extends = "cmnist"\nseeds = 1\n[vary]\nbias = [0.9]\n[fast.settings]\nsize = 8')
    small = load_recipe(mine, fast=True)
    assert (small.seeds, small.vary["bias"]) == ((0,), (0.9,))
    assert small.settings == {**load_recipe("cmnist", fast=True).settings, "size": 8}
    assert load_recipe(write(tmp_path, "other", 'extends = "cmnist"\n[vary]\nshift = false'), fast=True).seeds == (0, 1)
    base = 'extends = "irm-vs-trm"\n'
    for change in ("[problems.PACS]\nbackbone = 'resnet50'", "[problems]\nPACS = false"):
        other = write(tmp_path, "partly", base + change)
        assert list(load_recipe(other, fast=True).problems) == ["10C-digits"]
        assert plan.make_plan(load_recipe(other, fast=True)).cells
    assert load_recipe(other).problems.keys() == {"10C-CMNIST"}
    with pytest.raises(InputError, match="--fast must be left out"):
        load_recipe(write(tmp_path, "without", 'extends = "cmnist"\nfast = false'), fast=True)


def test_a_recipe_that_is_not_there(tmp_path):
    with pytest.raises(InputError, match=r"unknown experiment 'cmnits': did you mean 'cmnist'\?"):
        load_recipe("cmnits")
    with pytest.raises(InputError, match="does not exist"):
        load_recipe(tmp_path / "no.toml")
    with pytest.raises(InputError, match="--fast must be left out"):
        load_recipe(write(tmp_path, "slow", SMALL), fast=True)


def test_a_file_without_its_ending_is_proposed(tmp_path, monkeypatch):
    write(tmp_path, "mine", 'extends = "cmnist"')
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match=r"'mine'.*mine\.toml"):
        load_recipe("mine")
    with pytest.raises(InputError, match="'mime'"):
        load_recipe("mime")
