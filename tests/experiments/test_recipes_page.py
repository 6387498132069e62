"""What docs/recipes.md shows works, and it names every key there is."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from transferrisk.experiments.plan import make_plan
from transferrisk.experiments.recipe import KEYS, load_recipe
from transferrisk.reports.report import VIEWS
from transferrisk.results.selection import VALUES

PAGE = (Path(__file__).parents[2] / "docs" / "recipes.md").read_text(encoding="utf-8")


RECIPE, SEARCH = re.findall(r"```toml\n(.*?)```", PAGE, re.DOTALL)


def test_the_recipe_makes_a_plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "resnet18.safetensors").write_bytes(b"weights")
    (tmp_path / "mine.toml").write_text(RECIPE)
    plan = make_plan(load_recipe("mine.toml"))
    assert {cell.columns["seed"] for cell in plan.cells} == {0, 1, 2, 3}
    assert "TRM, ridge 1e-2" in plan.recipe.methods
    assert load_recipe("mine.toml", fast=True).settings["size"] == 32


def test_the_search_makes_a_plan(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.toml").write_text(f'extends = "cmnist"\n{SEARCH}')
    recipe = load_recipe("mine.toml", fast=True)
    assert recipe.search.kind == "optuna"
    assert make_plan(recipe).cells


def test_every_key_is_explained():
    keys = {field.name for view in VIEWS.values() for field in fields(view)}
    words = set(re.findall(r"[\w-]+", " ".join(re.findall(r"`([^`\n]+)`", PAGE))))
    assert {*KEYS, *VIEWS, *keys, *VALUES} - words == set()
