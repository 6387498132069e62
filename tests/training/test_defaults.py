"""What is trained how where nothing else is asked for."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from transferrisk.data import EnvironmentSet, Splits
from transferrisk.errors import InputError
from transferrisk.fitting import Plan
from transferrisk.fitting.candidates import make_candidates
from transferrisk.fitting.plan import settle
from transferrisk.fitting.source import Source
from transferrisk.sklearn import TransferRiskClassifier
from transferrisk.training import TrainConfig, TrainSpec
from transferrisk.training.defaults import (
    FEW_ROWS,
    FEWEST_STEPS,
    FEWEST_STEPS_ON_IMAGES,
    LARGE_TABLE,
    MOST_STEPS,
    PROTOCOLS,
    STEPS_ON_FEW_ROWS,
    balanced,
    default_backbone,
    image_config,
    protocol,
    settings_for,
    vector_config,
)


def vectors(*sizes):
    environments = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    names = tuple(f"e{i}" for i in range(len(sizes)))
    return EnvironmentSet(torch.randn(sum(sizes), 3), environments % 2, environments, names, ("0", "1"))


def images(count, side):
    environments = torch.arange(3).repeat_interleave(count)
    inputs = torch.zeros(1, dtype=torch.uint8).expand(3 * count, 3, side, side)
    return EnvironmentSet(inputs, torch.arange(3 * count) % 2, environments, ("x", "y", "z"), ("a", "b"))


def test_the_papers_protocols():
    """Appendix B.3.2."""
    cmnist, coco, pacs = (PROTOCOLS[name] for name in ("10c-cmnist", "scenecoco", "pacs"))
    assert (cmnist.epochs, cmnist.batch_size, cmnist.lr) == (10, 128, 0.1)
    assert (cmnist.momentum, cmnist.weight_decay) == (0.9, 1e-4)
    assert [cmnist.rate(step, 100) for step in (39, 40)] == [pytest.approx(0.1), pytest.approx(0.01)]
    assert (coco.epochs, coco.batch_size, coco.lr) == (100, 128, 0.1)
    assert (pacs.epochs, pacs.batch_size, pacs.lr, pacs.rate(99, 100)) == (50, 32, 1e-4, 1e-4)
    assert PROTOCOLS["office-home"] == PROTOCOLS["celeba"] == pacs


def test_the_schedule_of_the_public_code():
    public = PROTOCOLS["10c-cmnist-public"]
    total = public.total(steps_per_epoch=145)
    rates = [public.rate(step, total) for step in (0, 599, 600, 1199, 1200, 1799, 1800, 1897)]
    assert total == 1898
    assert rates == pytest.approx([0.1, 0.1, 0.01, 0.01, 1e-3, 1e-3, 1e-4, 1e-4])


@pytest.mark.parametrize(
    ("shape", "rows", "backbone"),
    [
        ((7,), None, "mlp:64"),
        ((7,), FEW_ROWS, "linear:16"),
        ((7,), FEW_ROWS + 1, "mlp:64"),
        ((3, 10, 10), 9, "cnn"),
        ((3, 28, 28), None, "cnn"),
        ((3, 64, 64), None, "wrn-16-2"),
        ((3, 224, 224), None, "resnet18"),
    ],
)
def test_backbone_by_the_data(shape, rows, backbone):
    assert default_backbone(shape, rows) == backbone


def test_own_images_are_trained_on_like_the_set_they_resemble():
    for side, like in ((224, "pacs"), (28, "10c-cmnist")):
        data = images(4, side)
        own = protocol("folder:x", Splits(data, data, data, data))  # types do not matter here
        assert replace(own, batch_size=PROTOCOLS[like].batch_size) == PROTOCOLS[like]
        assert own.batch_size == 4


def test_own_vectors_are_trained_on_as_everywhere():
    small, large = vectors(100, 100), vectors(1000, 1000)
    own = protocol("npz:x", Splits(small, small, small, small))
    assert own == replace(vector_config((100, 100)), evaluations=10)
    held_out = Splits(large, large, small, small)  # what is left out to select by decides with the others
    assert protocol("npz:x", held_out, True) == replace(vector_config((1000, 1000, 100, 100)), evaluations=10)
    assert protocol("10c-digits", Splits(small, small, small, small)).batch_size == 128


def test_a_table_has_one_default_in_the_classifier_a_training_and_a_fit():
    data = vectors(100, 100, 100)
    rows, labels, sites = data.inputs[:].numpy(), data.labels.numpy(), data.environments.numpy()
    fitted = TransferRiskClassifier(random_state=0).fit(rows, labels, environments=sites)
    own = protocol("table:x", Splits(data, data, data, data))
    assert own == replace(fitted.config_, evaluations=10)
    assert settings_for("trm", {}, own, 3, vectors=True).items() <= fitted.settings_.items()
    assert fitted.representation_ == default_backbone((3,), 300)
    source = Source("table:x", "table", data, "y", "site")
    in_fit = make_candidates(source, settle(source, Plan(("trm",))), ["trm"])["trm"].get_params()
    given = {"standardise": False, "representation": fitted.representation_, "algorithm_params": {}}
    given |= {name: in_fit[name] for name in ("random_state", "device")}
    assert in_fit == TransferRiskClassifier().get_params() | given  # the encoding of a table standardises


@pytest.mark.parametrize("sizes", [(200, 200, 200), (12, 3000, 3000), (90_000, 90_000, 98_000), (20,) * 60])
def test_steps_depend_on_the_rows_not_on_the_smallest_environment(sizes):
    data = vectors(*sizes)
    config = vector_config(sizes)
    drawn = balanced(data, config.batch_size)
    per_epoch = int(drawn.environments.bincount().min()) // config.batch_size
    assert FEWEST_STEPS <= config.epochs * per_epoch < MOST_STEPS + per_epoch
    assert config.batch_size * len(sizes) <= 2048
    assert drawn.environments.bincount().min() >= config.batch_size
    assert (config.weight_decay == 1e-2) == (sum(sizes) < LARGE_TABLE)


def test_few_rows_are_seen_in_every_step():
    config = vector_config((FEW_ROWS - 10, 10))
    assert (config.batch_size, config.epochs) == (None, STEPS_ON_FEW_ROWS)
    assert vector_config((FEW_ROWS, 10)).batch_size == 128
    assert vector_config((9, 9), epochs=7).epochs == 7
    assert vector_config((9, 9), batch_size=4).batch_size == 4
    assert vector_config((9000, 9000), epochs=7, all_rows=True).batch_size is None
    assert vector_config((600,) * 50).batch_size == 40
    assert vector_config((600,) * 200).batch_size == 16


@pytest.mark.parametrize("side", [32, 96])
def test_few_images_are_trained_on_for_as_long_as_a_network_needs(side):
    def steps(count, epochs):
        config = image_config(images(count, side), epochs, False)
        return config.epochs * (max(count, config.batch_size) // config.batch_size)

    assert steps(50, None) == FEWEST_STEPS_ON_IMAGES
    assert steps(50, 10) == (10 if side == 32 else 16)  # 10 passes over 150 images, in steps of 150 or of 96
    assert steps(128 * 40, None) == (400 if side == 32 else 50 * 160)  # the paper's passes, which are enough


def test_settings_are_suggested_and_those_given_are_taken():
    config = vector_config((900, 900))
    warm_up = pytest.approx(0.6 * config.epochs)
    assert settings_for("trm", {}, config, 3, vectors=True) == {
        "start_epoch": warm_up, "weights": "worst", "ridge": 1e-2, "empirical": "mean",
    }  # fmt: skip
    assert settings_for("trm", {}, config, 3, vectors=False) == {"start_epoch": warm_up}
    given = {"start_epoch": 1.0, "ridge": 3.0, "weights": "eg"}
    assert settings_for("trm", given, config, 3, vectors=True) == given | {"empirical": "mean"}
    assert settings_for("trm", {}, config, 20, vectors=True)["query"] == "random"
    assert settings_for("trm-direct", {}, config, 3, vectors=True, head=100)["solver"] == "rough"
    assert settings_for("vrex", {}, config, 20, vectors=True, head=100) == {"start_epoch": warm_up}
    assert settings_for("erm", {}, config, 20, vectors=True, head=100) == {}


def test_each_optimiser_has_a_rate_and_a_decay_of_its_own():
    for name, lr, decay in (("sgd", 0.1, 1e-4), ("adam", 1e-3, 0.0), ("adamw", 1e-3, 1e-2)):
        config = TrainConfig(optimiser=name)
        assert (config.lr, config.weight_decay) == (lr, decay)
        assert TrainConfig(optimiser=name, lr=0.5, weight_decay=0.25).lr == 0.5
    for bad in ({"optimiser": "lion"}, {"optimiser": "adam", "momentum": 1.0}, {"lr": math.nan}, {"dropout": 1.0}):
        with pytest.raises(InputError, match=str([*bad][-1])):
            TrainConfig(**bad)


def test_another_optimiser_takes_a_rate_that_suits_the_data_unless_one_is_given():
    def lr(data, **training):
        spec = TrainSpec(data, "erm", training={"optimiser": "adam", **training}).resolve()
        return spec.training["lr"], spec.training["weight_decay"]

    assert lr("10c-digits") == (1e-3, 0.0)
    assert lr("pacs") == (5e-5, 0.0)
    assert lr("pacs", lr=0.3, weight_decay=0.2) == (0.3, 0.2)
