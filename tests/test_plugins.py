"""What installed packages add: found by name, without harm where they are broken or their names are taken."""

from __future__ import annotations

import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from transferrisk import algorithms, models, registry
from transferrisk.data import available, load_data
from transferrisk.data.catalogue import DATA_SETS, find_set
from transferrisk.data.fetch import needed_facts
from transferrisk.errors import InputError, PluginWarning
from transferrisk.experiments import recipe, tasks
from transferrisk.models.networks import BACKBONES
from transferrisk.registry import forget_packages

ROOT = Path(__file__).parents[1]
GUIDE = ROOT / "docs" / "plugins.md"

METHOD = """
from transferrisk.algorithms import Algorithm

class Mine(Algorithm):
    def objective(self, out, penalised):
        return {"loss": out.empirical_risk}
"""
SET = """
import torch
from transferrisk.data import DataSet, EnvironmentSet, Facts

MINE = DataSet(
    Facts("my-set", "my set", "my own", ""),
    lambda argument, options: EnvironmentSet(
        torch.randn(8, 2), torch.arange(8) % 2, torch.arange(8) // 4, ("a", "b"), ("x", "y")
    ),
    sources=(Facts("my-files", "", "", "", by_hand="ask me"),),
)
"""
NETWORK = """
from torch import nn

def flat(shape, argument):
    return nn.Flatten()
"""


@pytest.fixture
def package(tmp_path, monkeypatch):
    """package(name, entry points by group, code) installs a package of one module, for one test."""
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    forget_packages()

    def install(name, entries, code):
        (tmp_path / f"{name}.py").write_text(code)
        facts = tmp_path / f"{name}-1.5.dist-info"
        facts.mkdir()
        (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.5\n")
        groups = (f"[transferrisk.{group}]\n{lines}\n" for group, lines in entries.items())
        (facts / "entry_points.txt").write_text("".join(groups))
        return tmp_path

    with (
        algorithms.ALGORITHMS.temporary(),
        tasks.TASKS.temporary(),
        BACKBONES.temporary(),
        DATA_SETS.temporary(),
    ):
        yield install
    for name in set(sys.modules) - before:
        if name.startswith("added"):
            del sys.modules[name]
    forget_packages()


def test_names_are_found_when_they_are_asked_for(package):
    package("added_method", {"algorithms": "mine = added_method:Mine"}, METHOD)
    package("added_set", {"data": "my-set = added_set:MINE"}, SET)
    package("added_network", {"backbones": "flat = added_network:flat"}, NETWORK)
    algorithms.get_algorithm("erm")
    models.build_model("cnn:4", 2, (3, 8, 8))
    load_data("gaussian")
    assert not {"added_method", "added_set", "added_network"} & set(sys.modules)
    assert algorithms.get_algorithm("mine").name == "mine"
    assert algorithms.get_algorithm("mine") is sys.modules["added_method"].Mine
    assert models.build_model("flat", 2, (3, 8, 8)).head.in_features == 3 * 8 * 8
    assert models.is_registered("flat:3")
    assert len(load_data("my-set")) == 8
    assert [facts.name for facts in needed_facts("my-set")] == ["my-files"]


def test_names_are_found_when_they_are_listed(package):
    package("added_method", {"algorithms": "mine = added_method:Mine"}, METHOD)
    package("added_set", {"data": "my-set = added_set:MINE"}, SET)
    package("added_network", {"backbones": "flat = added_network:flat"}, NETWORK)
    assert algorithms.available()[-1] == "mine"
    assert models.available()[-1] == "flat"
    assert "my-set" in available()
    with pytest.raises(InputError, match=r"did you mean 'mine'\?"):
        algorithms.get_algorithm("min")


def test_a_source_is_fetched_by_its_own_name(package):
    package("added_set", {"data": "my-set = added_set:MINE"}, SET)
    assert [facts.name for facts in needed_facts("my-files")] == ["my-files"]


def test_a_module_that_registers_by_itself(package):
    code = METHOD.replace("class", "from transferrisk.algorithms import register\n@register('mine')\nclass")
    package("added_method", {"algorithms": "mine = added_method:Mine"}, code)
    assert algorithms.get_algorithm("mine") is algorithms.get_algorithm("mine")
    assert algorithms.available().count("mine") == 1


def test_importing_the_library_imports_no_package(package):
    entries = dict.fromkeys(("algorithms", "data", "backbones", "tasks", "recipes"), "mine = added_module")
    folder = package("added_module", entries, "print('imported')")
    code = (
        f"import sys; sys.path.insert(0, {str(folder)!r})\n"
        "import transferrisk, transferrisk.algorithms, transferrisk.models, transferrisk.data.sets\n"
        "import transferrisk.experiments.recipe, transferrisk.experiments.tasks, transferrisk.cli.app\n"
        "transferrisk.algorithms.get_algorithm('trm')"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (out.stdout, out.stderr) == ("", "")


GROUPS = {
    "algorithms": ("algorithm", algorithms.get_algorithm, algorithms.available, "erm"),
    "data": ("data set", find_set, available, "gaussian"),
    "backbones": ("backbone", lambda name: models.build_model(name, 2, (2,)), models.available, "linear"),
    "tasks": ("task", tasks.get_task, tasks.available, "train"),
}
each_group = pytest.mark.parametrize("group", GROUPS)


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        ("import no_such_thing", "ModuleNotFoundError: No module named 'no_such_thing'"),
        ("x = (", "SyntaxError: '(' was never closed"),
        ("raise SystemExit(3)", "SystemExit: 3"),
        ("", "AttributeError: module 'added_broken' has no attribute 'Mine'"),
        ("Mine = 3", ""),
    ],
)
@each_group
def test_a_broken_package_is_told_and_left_out(package, group, code, cause):
    noun, get, available, known = GROUPS[group]
    package("added_broken", {group: "mine = added_broken:Mine"}, code)
    get(known)
    told = (
        rf"^{noun} 'mine' of the package added_broken 1\.5 cannot be used \({re.escape(cause)}.*\): fix, update or "
        r"uninstall it; python -c 'import added_broken' may show more"
    )
    with pytest.raises(InputError, match=told + "$") as error:
        get("mine")
    assert "\n" not in str(error.value)
    with pytest.warns(PluginWarning, match=told + "; it is left out until then$"):
        names = available()
    assert "mine" not in names
    assert known in names
    get(known)


@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("MINE = {}", "a data set must be a DataSet, got a dict"),
        (SET, "its facts call it 'my-set': give the entry point that name"),
    ],
)
def test_what_is_no_set_of_that_name(package, code, message):
    package("added_set", {"data": "mine = added_set:MINE"}, code)
    with pytest.raises(InputError, match=message):
        find_set("mine")


def test_a_number_is_no_task_and_builds_no_network():
    with pytest.raises(InputError, match="task 'mine' must be a class derived from Task, got 3"):
        tasks.register("mine")(3)
    with pytest.raises(InputError, match=r"backbone 'mine' must be a function .*, got 3"):
        models.register("mine")(3)


@pytest.mark.parametrize("imported", [False, True])
@each_group
def test_what_is_built_in_keeps_its_name(package, group, imported):
    noun, get, available, known = GROUPS[group]
    before = type(get(known)), available()
    code = METHOD + SET.replace("my-set", "gaussian") + NETWORK
    value = {"algorithms": "Mine", "data": "MINE", "backbones": "flat", "tasks": "Mine"}[group]
    package("added_taken", {group: f"{known} = added_taken:{value}"}, code)
    forget_packages()
    if imported:
        __import__("added_taken")
    told = (
        rf"^{noun} '{known}' of the package added_taken 1\.5 is not used, since the name was taken before: give it an"
    )
    with pytest.warns(PluginWarning, match=told):
        assert type(get(known)) is before[0]
    get(known)  # it was said
    forget_packages()
    with pytest.warns(PluginWarning, match=told):
        assert list(available()) == list(before[1])
    if group == "algorithms":
        assert algorithms.get_algorithm("erm") is algorithms.ERM


@pytest.mark.skipif(find_spec("timm") is None, reason="timm is not installed")
@pytest.mark.parametrize("imported", [False, True])
def test_timm_keeps_its_names(package, imported):
    package("added_network", {"backbones": "resnet18 = added_network:flat"}, NETWORK)
    if imported:
        __import__("added_network")
    with pytest.warns(PluginWarning, match="backbone 'resnet18' of the package added_network 1.5 is not used"):
        assert models.build_model("resnet18", 2, (3, 32, 32), "none").head.in_features == 512
    forget_packages()
    with pytest.warns(PluginWarning, match="backbone 'resnet18'"):
        assert "resnet18" not in models.available()


def test_a_name_of_two_packages(package):
    for name in ("added_one", "added_two"):
        package(name, {"algorithms": f"mine = {name}:Mine"}, METHOD)
    told = "algorithm 'mine' comes with added_one 1.5 and with added_two 1.5: uninstall all of them but one"
    with pytest.raises(InputError, match=f"^{told}$"):
        algorithms.get_algorithm("mine")
    with pytest.warns(PluginWarning, match=told):
        assert "mine" not in algorithms.available()


def test_entry_points_of_this_package_work_without_installing_it_and_come_first(package):
    own = registry.entries("transferrisk.tasks")["toy-2d"][0]
    assert own.dist is None
    assert registry.package_of(own) == "transferrisk"
    before = type(tasks.get_task("toy-2d"))
    package("added_taken", {"tasks": "toy-2d = added_taken:Mine"}, "Mine = 3")
    forget_packages()
    with pytest.warns(PluginWarning, match="task 'toy-2d' of the package added_taken 1.5 is not used"):
        assert type(tasks.get_task("toy-2d")) is before


def write(folder, **recipes):
    folder.mkdir()
    for name, text in recipes.items():
        (folder / f"{name}.toml").write_text(text)


def test_recipes_of_a_folder_inherit_from_their_neighbours_and_from_ours(package):
    path = "from pathlib import Path\nRECIPES = Path(__file__).parent / 'added_recipes'"
    folder = package("added", {"recipes": "anything = added:RECIPES"}, path)
    write(
        folder / "added_recipes",
        _base='extends = "_methods"\n[settings]\ndata = "gaussian"',
        mine='extends = "_base"\ntitle = "mine"',
    )
    assert "mine" in recipe.recipe_names()
    assert "_base" not in recipe.recipe_names()
    found = recipe.load_recipe("mine")
    assert (found.name, found.settings, "TRM" in found.methods) == ("mine", {"data": "gaussian"}, True)
    with pytest.raises(InputError, match=r"unknown experiment '_base'"):
        recipe.load_recipe("_base")


def test_recipes_of_a_module_without_code(package):
    folder = package("added", {"recipes": "anything = added_recipes"}, "")
    write(folder / "added_recipes", mine='title = "mine"', other="[[")
    assert recipe.load_recipe("mine").title == "mine"
    with pytest.raises(InputError, match="recipe other cannot be read as TOML"):
        recipe.load_recipe("other")


def test_recipes_that_cannot_be_found_leave_the_others(package):
    package("added", {"recipes": "anything = added:RECIPES"}, "RECIPES = '/no/such/folder'")
    told = r"recipes 'added:RECIPES' of the package added 1.5 cannot be used \(FileNotFoundError: .*; it is left out"
    with pytest.warns(PluginWarning, match=told):
        assert "cmnist" in recipe.recipe_names()
    forget_packages()
    with pytest.warns(PluginWarning, match=told):
        recipe.load_recipe("cmnist")


def test_our_recipes_keep_their_names_and_two_of_one_name_are_refused(package):
    for name in ("added_one", "added_two"):
        folder = package(name, {"recipes": f"anything = {name}_recipes"}, "")
        write(folder / f"{name}_recipes", mine='title = "mine"')
    write(folder / "added_cmnist", cmnist='title = "mine"')
    with pytest.raises(InputError, match=r"recipe 'mine' comes with added_one 1\.5 and with added_two 1\.5: uninst"):
        recipe.load_recipe("mine")
    package("added_three", {"recipes": "anything = added_cmnist"}, "")
    forget_packages()
    with pytest.warns(PluginWarning, match="recipe 'cmnist' of the package added_three 1.5 is not used"):
        assert recipe.load_recipe("cmnist").title != "mine"


# ---- the guide


BLOCKS = re.findall(r"```(python|toml)\n(.*?)```", GUIDE.read_text(), re.DOTALL)


def test_the_guide_shows_the_example():
    """Which is run below; tests/test_docs.py runs the page."""
    files = [path.read_text() for path in (ROOT / "examples" / "plugin").rglob("*") if path.suffix in (".py", ".toml")]
    assert len(BLOCKS) == 7
    own = [code for _, code in BLOCKS if not any(code in text for text in files)]
    assert [bool(re.search(r"@register\(\"count\"\)|run_spec", code)) for code in own] == [True, True]


def test_the_guides_task_runs(package, tmp_path):
    (code,) = [code for _, code in BLOCKS if '@register("count")' in code]
    package("added_task", {"tasks": "count = added_task:Count"}, code)
    package("added_set", {"data": "my-set = added_set:MINE"}, SET)
    run = tasks.plan_run("count", {"data": "my-set"})
    task = tasks.get_task("count")
    assert task.run(task.read(run.settings), tasks.Place(tmp_path)) == [
        {"environment": "a", "samples": 4},
        {"environment": "b", "samples": 4},
    ]


RAISES = """
from torch import nn
from transferrisk.algorithms import Algorithm

class Mine(Algorithm):
    def objective(self, out, penalised):
        return {"loss": out.empirical_risk + self.missing}

class Net(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.layer = nn.Linear(width, 4)

    def forward(self, inputs):
        if len(inputs) > 1:
            raise KeyError("no such layer")
        return self.layer(inputs)

def net(shape, argument):
    return Net(shape[0])
"""


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (("--algorithm", "mine"), r"AttributeError: .*'missing'.* in objective, .*added_raises\.py:7"),
        (("--algorithm", "erm", "--backbone", "net"), r"KeyError: 'no such layer'.* in forward, .*added_raises\.py:16"),
    ],
)
def test_a_package_that_fails_while_training_is_named_in_one_line(package, trm, monkeypatch, tmp_path, arguments, told):
    entries = {"algorithms": "mine = added_raises:Mine", "backbones": "net = added_raises:net"}
    package("added_raises", entries, RAISES)
    command = ("train", "--data", "gaussian", "--device", "cpu", *arguments, "--epochs", "1", "--quiet")
    code, _, err = trm(*command, "--output", tmp_path / "one")
    assert code == 2
    assert re.fullmatch(rf"trm: the package added_raises 1\.5 failed \({told}.*\n", err), err
    monkeypatch.setenv("TRANSFERRISK_TRACEBACK", "1")
    with pytest.raises((AttributeError, KeyError)):
        trm(*command, "--output", tmp_path / "two")
