"""What is not asked for is the paper's."""

from __future__ import annotations

import math
from dataclasses import fields, replace

import numpy as np
import pytest
import torch

from transferrisk.algorithms import parse_settings
from transferrisk.data import SPLITS, EnvironmentSet, Options, Splits
from transferrisk.errors import InputError
from transferrisk.training import Output, Request, train
from transferrisk.training.config import TrainingConfig
from transferrisk.training.protocols import PROTOCOLS, default_backbone, protocol


def images(*shape):
    return EnvironmentSet(
        torch.zeros(4, *shape, dtype=torch.uint8), torch.arange(4) % 2, torch.arange(4) // 2, ("a", "b"), ("x", "y")
    )


def test_the_papers_protocols():
    """Appendix B.3.2."""
    cmnist, coco, pacs = (PROTOCOLS[name] for name in ("10c-cmnist", "scenecoco", "pacs"))
    assert (cmnist.epochs, cmnist.batch_size, cmnist.lr, cmnist.momentum, cmnist.weight_decay) == (
        10,
        128,
        0.1,
        0.9,
        1e-4,
    )
    assert [cmnist.rate(step, 100) for step in (39, 40)] == [pytest.approx(0.1), pytest.approx(0.01)]
    assert (coco.epochs, coco.batch_size, coco.lr) == (100, 128, 0.1)
    assert (pacs.epochs, pacs.batch_size, pacs.lr, pacs.rate(99, 100)) == (50, 32, 1e-4, 1e-4)
    assert PROTOCOLS["office-home"] == PROTOCOLS["celeba"] == pacs


@pytest.mark.parametrize(
    ("shape", "backbone"),
    [((7,), "mlp"), ((3, 10, 10), "cnn"), ((3, 28, 28), "cnn"), ((3, 64, 64), "wrn-16-2"), ((3, 224, 224), "resnet18")],
)
def test_backbone_by_the_data(shape, backbone):
    assert default_backbone(shape) == backbone


def test_own_files_are_trained_like_what_they_resemble():
    for shape, like in (((3, 224, 224), "pacs"), ((3, 28, 28), "10c-cmnist"), ((7,), "10c-cmnist")):
        data = images(*shape)
        own = protocol("folder:x", Splits(data, data, data, data))  # types do not matter here
        assert replace(own, batch_size=PROTOCOLS[like].batch_size) == PROTOCOLS[like]


@pytest.mark.parametrize(("smallest", "batch"), [(1, 1), (2, 2), (63, 32), (64, 64), (127, 64), (128, 128), (900, 128)])
def test_batches_of_own_files_are_what_the_smallest_environment_holds(smallest, batch):
    def vectors(n):
        where = torch.cat([torch.zeros(n), torch.ones(1000)]).long()
        return EnvironmentSet(torch.zeros(n + 1000, 2), where, where, ("a", "b"), ("x", "y"))

    small, large = vectors(smallest), vectors(1000)
    assert protocol("npz:x", Splits(small, small, small, small)).batch_size == batch
    assert protocol("10c-digits", Splits(small, small, small, small)).batch_size == 128
    held_out = Splits(large, large, small, small)  # what is left out to select by decides with the others
    assert (protocol("npz:x", held_out).batch_size, protocol("npz:x", held_out, True).batch_size) == (128, batch)


def test_evaluations_end_with_the_last_step_and_never_before_the_first():
    assert TrainingConfig(evaluations=3).evaluated(10) == {3, 7, 10}
    assert TrainingConfig(evaluations=10).evaluated(2) == {1, 2}


@pytest.mark.parametrize(
    ("name", "pairs", "expected"),
    [
        ("trm", ["ridge=1e-2", "bound=none", "query=random"], {"ridge": 0.01, "bound": None, "query": "random"}),
        ("trm", ["bound=2"], {"bound": 2.0}),
        ("mldg", ["order=2", "beta=1"], {"order": 2, "beta": 1.0}),
        ("trm", ["solver=sgd"], {"solver": "sgd"}),
    ],
)
def test_settings_have_the_types_of_the_config(name, pairs, expected):
    parsed = parse_settings(name, pairs)
    assert parsed == expected
    assert all(type(parsed[key]) is type(value) for key, value in expected.items())


@pytest.mark.parametrize(
    ("name", "pair", "message"),
    [
        ("trm", "rigde=1", "^trm: .*'rigde'.*'ridge'"),
        ("trm", "ridge=small", "^trm: ridge must be .*, got 'small'"),
        ("trm", "bound=x", "^trm: bound must be .* or None, got 'x'"),
        ("trm", "query=some", r"^trm: query must be one of 'all', 'random', got 'some'"),
        ("mldg", "order=3", r"^mldg: order must be one of 1, 2, got '3'"),
        ("trm", "ridge", "NAME=VALUE, got 'ridge'"),
        ("erm", "ridge=1", "^erm: .*'ridge'"),
    ],
)
def test_bad_settings(name, pair, message):
    with pytest.raises(InputError, match=message):
        parse_settings(name, [pair])


def test_what_is_asked_for_takes_the_place_of_the_protocol():
    options = Options(seed=2)
    run = Request("gaussian", options, algorithm="irm", training={"epochs": 3, "lr": 0.5}, backbone="linear").run()
    assert (run.config.epochs, run.config.lr, run.config.batch_size, run.seed) == (3, 0.5, 128, 2)
    described = run.describe()
    assert (described["data"], described["backbone"], described["settings.penalty_weight"]) == (
        "gaussian",
        "linear",
        1.0,
    )
    assert described["samples.train"] == 4800
    with pytest.raises(InputError, match="nothing to augment: the inputs are vectors"):
        Request("gaussian", options, augment=True).run()


@pytest.fixture
def four_sites(tmp_path):
    rng = np.random.default_rng(0)
    sites = np.repeat(["a", "b", "c", "d"], 40)
    np.savez(tmp_path / "e.npz", features=rng.normal(size=(160, 3)), labels=np.tile([0, 1], 80), environments=sites)
    return f"npz:{tmp_path / 'e.npz'}"


def test_a_held_out_environment_takes_the_place_of_the_test(four_sites):
    training = {"batch_size": 8, "epochs": 1, "evaluations": 1}
    run = Request(four_sites, Options(), "d", hold_out="b", algorithm="erm", training=training).run()
    assert run.splits.train.environment_names == ("a", "c")
    assert run.splits.test.environment_names == ("b",)
    (record,) = train(run)
    assert (record.held_out, set(record.test), set(record.train)) == ("b", {"b"}, {"a", "c"})


def test_what_cannot_be_held_out(four_sites):
    for test, held in (("d", "d"), ("d", "x"), ("x", "a")):
        with pytest.raises(InputError, match="are not two of the environments: choose from a, b, c, d"):
            Request(four_sites, Options(), test, hold_out=held).run()
    with pytest.raises(InputError, match="--hold-out a needs --test-env beside it"):
        Request(four_sites, Options(), hold_out="a").run()
    with pytest.raises(InputError, match="is for sets without a test of their own"):
        Request("gaussian", Options(), hold_out="far").run()


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"epochs": 0}, "epochs=0 is no number"),
        ({"epochs": 1.5}, "epochs=1.5 is no number to train with: use a whole one, 1 or more"),
        ({"batch_size": "8"}, "batch_size=8 is no number"),
        ({"record": ("iris",)}, "record 'iris' is not known: choose from irm"),
        ({"lr": math.inf}, "lr=inf is no number to train with: use a finite number, 0 or more"),
        ({"lr": "fast"}, "lr=fast is no number"),
        ({"weight_decay": math.nan}, "weight_decay=nan is no number"),
        ({"weight_decay": -1e-4}, "weight_decay=-0.0001 is no number"),
        ({"decay_at": 1.1}, "decay_at=1.1 is no number to train with: use 0 to 1"),
        ({"decay_at": math.nan}, "decay_at=nan is no number"),
        ({"transfer_ridge": -1.0}, "transfer_ridge=-1.0 is no number"),
    ],
)
def test_bad_config(config, message):
    with pytest.raises(InputError, match=message):
        TrainingConfig(**config)


def test_fields_of_the_training_are_checked_at_once():
    with pytest.raises(
        InputError, match=r"training takes no 'batchsize': did you mean 'batch_size'\? choose from epochs"
    ):
        Request("gaussian", Options(), training={"batchsize": 3})
    with pytest.raises(InputError, match="training takes no 'augment': give augment=True or False beside it"):
        Request("gaussian", Options(), training={"augment": True})
    with pytest.raises(InputError, match="--init a and --weights b both say what to begin with: leave one of them out"):
        Request("gaussian", Options(), init="a", weights="b")


def test_paths_may_be_texts(tmp_path):
    training = {"epochs": 1, "evaluations": 1}
    first = Request("gaussian", Options(), algorithm="erm", backbone="mlp:2", training=training, device="cpu")
    train(first.run(), output=Output(str(tmp_path / "first"), say=print))
    checkpoint = str(tmp_path / "first" / "last.safetensors")
    again = replace(first, init=checkpoint).run()
    assert again.origin["init"] == "last.safetensors"
    assert len(again.origin["digest.init"]) == 12


def test_parts_of_the_data_are_named_in_one_place():
    assert list(SPLITS) == [field.name for field in fields(Splits)]
