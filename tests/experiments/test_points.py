"""Points that are drawn: from what they say, without repetition, and the same every time."""

from __future__ import annotations

import math
import time

import pytest
from recipe_files import write

from transferrisk.errors import InputError
from transferrisk.experiments.plan import count_runs, make_plan
from transferrisk.experiments.points import Distribution, Search, find_points
from transferrisk.experiments.recipe import load_recipe

RANDOM = Search(kind="random", points=400)


def test_draws_are_spread_as_the_distribution_says():
    grid = {"a": Distribution(0.0, 10.0), "b": Distribution(1e-5, 1e-1, log=True), "c": ["x", "y", "z", "w"]}
    drawn = list(find_points(grid, RANDOM, 0))
    assert len(drawn) == 400
    for low, high in ((0, 2.5), (2.5, 5), (5, 7.5), (7.5, 10)):
        assert 70 < sum(low <= point["a"] < high for point in drawn) < 130
    for power in (-5, -4, -3, -2):
        assert 70 < sum(power <= math.log10(point["b"]) < power + 1 for point in drawn) < 130
    assert all(70 < sum(point["c"] == letter for point in drawn) < 130 for letter in "xyzw")
    assert drawn == list(find_points(grid, RANDOM, 1)), "every seed of a recipe has the same points"
    assert drawn != list(find_points(grid, Search(kind="random", points=400, seed=1), 0))
    own = Search(kind="random", points=5, by_seed=True)
    assert list(find_points(grid, own, 0)) != list(find_points(grid, own, 1))


def test_points_of_lists_are_drawn_without_repetition_and_all_where_they_are_few():
    grid = {"a": [1, 2, 3], "b": [1, 2, 3, 4]}
    drawn = [tuple(point.values()) for point in find_points(grid, Search(kind="random", points=11), 0)]
    assert len(drawn) == len(set(drawn)) == 11
    whole = [tuple(point.values()) for point in find_points(grid, Search(), 0)]
    assert sorted(find_points(grid, RANDOM, 0), key=str) == sorted(find_points(grid, Search(), 0), key=str)
    assert set(drawn) < set(whole)
    first, *others = find_points(grid, Search(kind="random", points=3, defaults=True), 0)
    assert (first, len(others)) == ({}, 2)


DRAWN = """
search = { kind = "random", points = 6 }
seeds = 2
[settings]
data = "gaussian"
[methods.ERM]
algorithm = "erm"
grid = { lr = { log_uniform = [1e-3, 1e-1] }, batch_size = { log_uniform = [8, 64] }, weight_decay = [0.0, 1e-4] }
[methods.IRM]
algorithm = "irm"
grid = { lr = { log_uniform = [1e-3, 1e-1] }, penalty_weight = { log_uniform = [0.1, 1e5] }, size = [8, 16] }
"""


def test_settings_of_training_of_the_run_and_of_the_algorithm_may_be_drawn(tmp_path):
    recipe = load_recipe(write(tmp_path, "drawn", DRAWN))
    cells = make_plan(recipe).cells
    assert len(cells) == count_runs(recipe) == 2 * 2 * 6
    settings = [cell.run.settings for cell in cells if cell.columns["seed"] == 1]
    erm, irm = settings[:6], settings[6:]
    assert all(
        isinstance(one["training"]["batch_size"], int) and 8 <= one["training"]["batch_size"] <= 64 for one in erm
    )
    rates = [[one["training"]["lr"] for one in of_method] for of_method in (erm, irm)]
    assert rates[0] == rates[1], "methods differ in nothing but what they have alone"
    assert len({one["settings"]["penalty_weight"] for one in irm}) == 6
    assert {one["size"] for one in irm} == {8, 16}
    for cell in cells:
        assert f"lr={cell.run.settings['training']['lr']:g}" in cell.columns["point"].split()
    alone = load_recipe(write(tmp_path, "alone", DRAWN.replace("points = 6", "points = 6, by_seed = true")))
    by_seed = {
        seed: {c.columns["point"] for c in make_plan(alone).cells if c.columns["seed"] == seed} for seed in (0, 1)
    }
    assert by_seed[0].isdisjoint(by_seed[1])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lr = { log_uniform = [0.0, 1.0] }", "grid of ERM, lr: log_uniform must be two numbers > 0.* got"),
        ("lr = { uniform = [2, 1] }", "uniform must be two numbers, the smaller one first"),
        ("lr = { unifrom = [1, 2] }", "unknown distribution 'unifrom': did you mean 'uniform'"),
        ("lr = 0.1", "lr must be a list, or a distribution"),
        ("lrr = [0.1]", "unknown setting 'lrr': did you mean 'lr'|unknown setting 'lrr'"),
    ],
)
def test_what_a_grid_may_not_say(tmp_path, text, message):
    mine = 'search = "random"\n[settings]\ndata = "gaussian"\n[methods.ERM]\nalgorithm = "erm"\n'
    mine += f"grid = {{ {text} }}"
    with pytest.raises(InputError, match=message):
        make_plan(load_recipe(write(tmp_path, "mine", mine)))
    with pytest.raises(InputError, match=message if "uniform = [1" not in text else "is a distribution"):
        make_plan(load_recipe(write(tmp_path, "mine", mine.removeprefix('search = "random"'))))


def test_a_distribution_needs_a_search_that_draws(tmp_path):
    whole = DRAWN.replace('search = { kind = "random", points = 6 }', "")
    with pytest.raises(InputError, match=r'lr must be a list.*search = "random"'):
        make_plan(load_recipe(write(tmp_path, "mine", whole)))
    with pytest.raises(InputError, match=r"search: kind must be one of .* got 'rnadom'"):
        load_recipe(write(tmp_path, "mine", DRAWN.replace('"random"', '"rnadom"')))


@pytest.mark.parametrize("where", ["grid", "vary", "seeds"])
def test_more_runs_than_anyone_waits_for_are_refused_at_once(tmp_path, where):
    values = str(list(range(1, 1001)))
    grid = f"lr = {values}, weight_decay = {values}, momentum = {values}" if where == "grid" else "lr = [0.1]"
    vary = f"size = {values}\nbias = {values}\nepochs = {values}" if where == "vary" else ""
    seeds = 9_999 if where == "seeds" else 1
    epochs = f"epochs = {list(range(1, 21))}" if where == "seeds" else ""
    mine = f"""
seeds = {seeds}
[settings]
data = "gaussian"
[vary]
{vary}
{epochs}
[methods]
ERM = {{ algorithm = "erm", grid = {{ {grid} }} }}
"""
    began = time.monotonic()
    with pytest.raises(InputError, match=r"asks for [0-9,]* runs, more than 100,000"):
        make_plan(load_recipe(write(tmp_path, "mine", mine)))
    assert time.monotonic() - began < 5


def test_all_environments_are_tested_on_one_after_the_other(tmp_path):
    base = 'extends = "pacs-resnet18"\nseeds = 1\n'
    listed = make_plan(load_recipe("pacs-resnet18"), seeds=1)
    for text in ('[vary]\ntest_env = "all"', '[vary]\ntest_env = false\n[settings]\ntest_env = "all"'):
        every = make_plan(load_recipe(write(tmp_path, "mine", base + text)), seeds=1)
        assert [cell.columns for cell in every.cells] == [cell.columns for cell in listed.cells]
    own = '[settings]\ndata = "10c-digits"\ntest_env = "all"\n[methods]\nERM = { algorithm = "erm" }'
    with pytest.raises(InputError, match=r"test_env = 'all' needs .*'10c-digits' has a test environment of its own"):
        make_plan(load_recipe(write(tmp_path, "own", own)))


def test_settings_are_chosen_by_runs_that_leave_out_a_training_environment(tmp_path):
    text = """
select = ["training_domain", "leave_one_environment_out"]
[settings]
data = "pacs"
test_env = "sketch"
[methods]
ERM = { algorithm = "erm", grid = { lr = [1e-3, 1e-4] } }
"""
    cells = make_plan(load_recipe(write(tmp_path, "mine", text))).cells
    assert [cell.columns["hold_out"] for cell in cells] == ["", "art_painting", "cartoon", "photo"] * 2
    assert [cell.run.settings["hold_out"] for cell in cells[:3]] == [None, "art_painting", "cartoon"]
    with pytest.raises(InputError, match="test_env must be one of"):
        make_plan(load_recipe(write(tmp_path, "mine", text.replace('test_env = "sketch"', ""))))
