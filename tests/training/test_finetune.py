"""A few samples of the test environment: which, what they leave to test on, and what training starts from."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from small import splits

from transferrisk.data import EnvironmentSet, Options
from transferrisk.errors import InputError
from transferrisk.training import Output, TrainingConfig, load_checkpoint, train
from transferrisk.training.finetune import balanced_draw, few_samples, finetuning
from transferrisk.training.request import Request


def uneven(counts=(20, 5, 2)):
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    return EnvironmentSet(
        torch.randn(len(labels), 4), labels, torch.zeros_like(labels), ("east",), ("a", "b", "c")
    )  # fmt: skip


@pytest.mark.parametrize(("count", "expected"), [(6, [2, 2, 2]), (12, [5, 5, 2]), (25, [18, 5, 2])])
def test_classes_are_balanced_as_far_as_they_last(count, expected):
    data = uneven()
    drawn = balanced_draw(data, count, seed=0)
    assert len(drawn.unique()) == count
    assert data.labels[drawn].bincount(minlength=3).tolist() == expected
    assert torch.equal(drawn, balanced_draw(data, count, seed=0))
    assert not torch.equal(drawn, balanced_draw(data, count, seed=1))


def test_nothing_that_is_trained_on_is_tested_on():
    whole = splits()
    whole = replace(whole, test=replace(whole.test, sources=torch.arange(60) // 4))
    few = few_samples(whole, 6, seed=0)
    assert len(few.train) == 6
    seen = set(few.train.sources.tolist())
    assert not seen & set(few.test.sources.tolist())
    assert len(few.test) == 60 - 4 * len(seen)
    assert few.train.environment_names == ("east",)
    assert torch.equal(few.training_domain.inputs, whole.test_domain.inputs)


@pytest.mark.parametrize("count", [1, 27, 100])
def test_too_few_or_too_many(count):
    with pytest.raises(InputError, match=f"{count} samples to fine-tune on: use 2 to 26"):
        balanced_draw(uneven(), count, 0)


def test_all_sources_drawn():
    whole = splits()
    whole = replace(whole, test=replace(whole.test, sources=torch.zeros(60, dtype=torch.long)))
    with pytest.raises(InputError, match="leave none of 60 to test on"):
        few_samples(whole, 6, 0)


def test_the_rate_is_that_at_which_training_ended():
    config = finetuning(TrainingConfig(lr=0.1, decay_at=0.4, batch_size=128), 20)
    assert (config.lr, config.rate(99, 100), config.batch_size) == (pytest.approx(0.01), pytest.approx(0.01), 20)
    assert finetuning(TrainingConfig(lr=1e-4, decay_at=1.0), 500).lr == 1e-4


@pytest.mark.parametrize(
    ("batch_size", "count", "given", "epochs"),
    [
        (128, 10, {}, 100), (128, 500, {}, 34), (8, 500, {}, 10), (None, 20, {}, 100),
        (128, 500, {"batch_size": 500}, 100), (128, 500, {"batch_size": 10}, 10), (128, 5, {"batch_size": 10}, 100),
        (128, 10, {"epochs": 3}, 3),
    ],
)  # fmt: skip
def test_a_few_samples_are_seen_often_enough(batch_size, count, given, epochs):
    config = finetuning(TrainingConfig(epochs=10, batch_size=batch_size), count, given)
    assert config.epochs == epochs
    assert {name: getattr(config, name) for name in given} == given


@pytest.fixture
def trained(tmp_path):
    request = Request(
        "gaussian", Options(), algorithm="erm", backbone="mlp:5", training={"epochs": 1, "evaluations": 1}
    )
    train(request.run(), output=Output(tmp_path / "first", say=print))
    return tmp_path / "first" / "last.safetensors"


def test_it_begins_with_the_weights_of_the_checkpoint_and_nothing_else(trained):
    request = Request("gaussian", Options(seed=3), init=trained, finetune_samples=10)
    run = request.run()
    assert run.algorithm == "erm"
    assert run.origin["backbone"] == "mlp:5"
    assert len(run.splits.train) == 10
    assert run.splits.train.labels.bincount().tolist() == [5, 5]
    saved = load_checkpoint(trained).part("model")
    for name, value in run.build_model().state_dict().items():
        assert torch.equal(value, saved[name]), name


def test_it_learns_the_new_environment(trained, tmp_path):
    """What helped in training misleads in `far`; a few of its samples mend that."""
    before = load_checkpoint(trained)
    request = Request(
        "gaussian", Options(), init=trained, finetune_samples=60, training={"epochs": 60, "lr": 0.05, "evaluations": 2}
    )
    records = train(request.run(), output=Output(tmp_path / "second", say=print))
    fresh = Request("gaussian", Options(), finetune_samples=60, backbone="mlp:5", training={"epochs": 1, "lr": 0.0})
    assert before.values["step"] == 12
    assert records[-1].test["far"].accuracy > 0.8
    assert train(fresh.run())[-1].test["far"].accuracy < records[-1].test["far"].accuracy


def test_only_erm_can_train_on_one_environment(trained):
    with pytest.raises(InputError, match="'trm' needs several environments, and fine-tuning has one: use erm"):
        Request("gaussian", Options(), algorithm="trm", init=trained, finetune_samples=10).run()
    with pytest.raises(InputError, match="the transfer risk needs two training environments"):
        Request(
            "gaussian", Options(), init=trained, finetune_samples=10, training={"record": ("transfer",)}
        ).run()  # fmt: skip


def test_another_backbone_does_not_fit(trained):
    with pytest.raises(InputError, match=r"does not fit this model .* data gaussian, backbone mlp:5; use the same"):
        Request("gaussian", Options(), init=trained, backbone="mlp:6").run().build_model()
