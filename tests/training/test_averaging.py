"""Averages of weights against their definitions, and that they are what is evaluated and saved."""

from __future__ import annotations

import pytest
import torch
from small import at, small_run
from torch import nn

from transferrisk.errors import InputError
from transferrisk.models import Classifier, load_model_folder
from transferrisk.training import EarlyStopping, RunFolder, TrainConfig, Watch, evaluate
from transferrisk.training.averaging import EMA, SWAD, averaged_tensors


@pytest.mark.parametrize("decay", [0.5, 0.99, 1.0])
def test_the_exponential_average_is_its_sum(decay):
    weight = torch.zeros(2, dtype=torch.float64)
    ema = EMA({"w": weight}, decay)
    steps = torch.randn(30, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    for step in steps:
        weight.copy_(step)
        ema.after_step()
    factors = decay ** torch.arange(29, -1, -1, dtype=torch.float64)
    torch.testing.assert_close(ema.result()["w"], (factors[:, None] * steps).sum(0) / factors.sum())


def valley(losses, patience, tolerance, ratio):
    """The first and last segment of the mean, by algorithm 1 of the paper, as if all losses were known; or None."""
    for i in range(patience - 1, len(losses)):
        begin = i - patience + 1
        if losses[begin] == min(losses[begin : i + 1]):
            bound = ratio * sum(losses[begin : i + 1]) / patience
            break
    else:
        return None
    for j in range(i + 1, len(losses)):
        if j + 1 >= tolerance and min(losses[j - tolerance + 1 : j + 1]) > bound:
            return begin, j - tolerance
    decided = len(losses) - tolerance
    end = max(k for k in range(begin, len(losses)) if k <= max(begin, decided) or min(losses[k:]) <= bound)
    return begin, end


CURVES = [
    ((5, 4, 3, 2, 1, 0.9, 0.8), 3, 2, 1.3),  # it falls to the end
    ((5, 4, 1, 2, 3, 1.1, 1.2, 9, 9, 9, 9, 1), 3, 2, 1.3),  # a valley with a bump, and one after its end
    ((5, 4, 1, 1.1, 1.2, 9, 9, 1, 1, 9, 9, 9, 9), 2, 3, 1.3),  # high for less than the tolerance
    ((3, 1, 2, 1, 2, 9, 9, 9), 2, 6, 1.2),  # it ends with losses that are too high, and not yet so many
    ((1, 2, 3, 9, 9, 9, 9), 3, 1, 1.1),
]


@pytest.mark.parametrize(("losses", "patience", "tolerance", "ratio"), CURVES)
def test_swad_is_the_mean_over_the_valley_as_hindsight_finds_it(losses, patience, tolerance, ratio):
    """After each evaluation, with segments of unequal length; also where its state is saved and loaded in between."""
    weight, steps, swad = torch.zeros(1, dtype=torch.float64), [], None
    generator = torch.Generator().manual_seed(0)
    swad = SWAD({"w": weight}, patience, tolerance, ratio)
    for done, loss in enumerate(losses):
        segment = torch.randn(2 + done % 3, 1, dtype=torch.float64, generator=generator)
        steps.append(segment)
        for step in segment:
            weight.copy_(step)
            swad.after_step()
        swad.after_segment(loss)
        found = valley(losses[: done + 1], patience, tolerance, ratio)
        begin, end = (done, done) if found is None else found
        torch.testing.assert_close(
            swad.result()["w"], torch.cat(steps[begin : end + 1]).mean(0), msg=str((done, found))
        )


def test_weights_that_train_and_running_statistics_are_averaged():
    net = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3))
    net[0].bias.requires_grad_(False)
    names = set(averaged_tensors(Classifier(net, 3, 2)))
    assert names == {"head.weight", "head.bias"} | {
        f"featuriser.{name}" for name in ("0.weight", "1.weight", "1.bias", "1.running_mean", "1.running_var")
    }


class Weights(Watch):
    """The weights after each step."""

    def begin(self, run):
        self.run, self.steps = run, []

    def after_step(self, step, total, loss):
        self.steps.append({name: t.clone() for name, t in averaged_tensors(self.run.state.model).items()})


@pytest.mark.parametrize("name", ["erm", "fish"])
def test_the_average_is_evaluated_and_saved_and_the_training_knows_nothing_of_it(tmp_path, name):
    without, weights = Weights(), Weights()
    small_run(name).train(without)
    run = small_run(name, average="ema", ema_decay=1.0)
    trained = run.train(weights, RunFolder(tmp_path, say=None))
    for one, other in zip(without.steps, weights.steps, strict=True):
        assert all(torch.equal(one[key], other[key]) for key in one)
    for key, tensor in averaged_tensors(trained.model).items():
        torch.testing.assert_close(tensor, torch.stack([step[key] for step in weights.steps]).mean(0))
    assert at(trained.history, 9, "test") != at(small_run(name).train().history, 9, "test")
    scores = evaluate(trained.model, run.sets["test"])
    assert scores["east"]["loss"] == pytest.approx(at(trained.history, 9, "test")["east"]["loss"])
    chosen = trained.selected[0]["step"]
    saved = load_model_folder(tmp_path, run.build()).network
    expected = torch.stack([step["head.weight"] for step in weights.steps[:chosen]]).mean(0)
    torch.testing.assert_close(saved.head.weight.detach(), expected)


def test_early_stopping_keeps_the_average_of_its_best():
    trained = small_run(epochs=6, evaluations=6, average="ema", ema_decay=0.5).train(EarlyStopping("test", patience=1))
    accuracies = {record["step"]: record["loss"] for record in trained.history if record["part"] == "test"}
    loss = evaluate(trained.model, small_run().sets["test"])["east"]["loss"]
    assert any(loss == pytest.approx(value, rel=1e-5) for value in accuracies.values())


def test_swad_needs_validation_data_like_training_s():
    run = small_run(average="swad")
    del run.sets["training_domain"]
    with pytest.raises(InputError, match=r"average must .* got 'swad'"):
        run.train()
    for bad in ({"average": "mean"}, {"ema_decay": 0.0}, {"swad_patience": 0}, {"swad_ratio": -1}):
        with pytest.raises(InputError, match=next(iter(bad))):
            TrainConfig(**bad)


def test_dfr_replaces_the_head_that_is_evaluated_by_one_of_samples_that_no_step_draws():
    class Drawn(Watch):
        def begin(self, run):
            self.state = run.state

    watch = Drawn()
    trained = small_run("dfr").train(watch)
    state = watch.state
    assert sorted([*state.kept.tolist(), *state.held.tolist()]) == list(range(60))
    assert len(state.held) == 12
    assert set(state.sampler.next().tolist()) <= set(range(48))  # of those that are kept
    ours, trains = dict(trained.model.named_parameters()), dict(state.model.named_parameters())
    equal = {name for name in ours if torch.equal(ours[name], trains[name])}
    assert set(ours) - equal == {"head.weight", "head.bias"}
