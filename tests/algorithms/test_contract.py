"""What every algorithm must do, run over all of them."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import itertools
import re

import pytest
import torch
from torch import nn

from transferrisk.algorithms import (
    Algorithm,
    Batch,
    Setting,
    available,
    configure,
    create,
    describe_algorithm,
    get_algorithm,
    register,
)
from transferrisk.errors import InputError
from transferrisk.models import Classifier

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)]
# Penalties from the first step on, so that the contract is about the whole algorithm and not its warm-up.
WHOLE = {name: {"start_epoch": 0.0} for name in ("irm", "vrex", "fishr", "eqrm", "trm")}
VARIANTS = [*((name, {}) for name in available()), *WHOLE.items()]
VARIANTS += [
    ("irm", {"penalty": "predictor", "start_epoch": 0.0, "penalty_weight": 0.1}),
    ("irm", {"penalty": "halves", "start_epoch": 0.0}),
    ("mldg", {"order": 2, "inner_lr": None}),
    ("mldg", {"statistics": "joint"}),
    ("fish", {"statistics": "joint"}),
    ("mixup", {"within": "any"}),
    ("trm", {"query": "random", "weights": "worst", "start_epoch": 0.0}),
    ("trm", {"solver": "sgd", "bound": 1.0, "start_epoch": 0.0}),
    ("trm", {"empirical": "mean", "start_risk": 1.0, "scale_free": True, "transfer_weight": 3.0}),
    ("trm-direct", {"start_epoch": 0.0}),
]
every = pytest.mark.parametrize(("name", "settings"), VARIANTS, ids=lambda v: v if isinstance(v, str) else ",".join(v))
devices = pytest.mark.parametrize("device", DEVICES)


def batches(E=3, sizes=None, classes=3, device="cpu", seed=0):
    """Clusters on a circle, turned a little in each environment: linear features of them separate the classes."""
    generator = torch.Generator().manual_seed(seed)
    sizes = sizes or [24] * E
    while True:
        index = torch.repeat_interleave(torch.arange(E), torch.tensor(sizes))
        index = index[torch.randperm(len(index), generator=generator)]
        labels = torch.randint(classes, index.shape, generator=generator)
        angle = 2 * torch.pi * labels / classes + 0.1 * index
        inputs = torch.stack([angle.cos(), angle.sin()], 1)
        inputs = inputs + 0.15 * torch.randn(inputs.shape, generator=generator)
        yield Batch(inputs.to(device), labels.to(device), index.to(device))


class Run:
    """A model, its optimiser and an algorithm, and all of their state."""

    def __init__(self, name, settings, E=3, device="cpu", seed=0):
        torch.manual_seed(seed)
        self.on_gpu = device == "cuda"
        featuriser = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 8))
        self.model = Classifier(featuriser, 8, 3).to(device)
        self.algorithm = create(name, Setting(E, 3), **settings).to(device)
        self.optimiser = torch.optim.SGD(self.model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)

    def train(self, source, steps, start=0):
        for i in range(start, start + steps):
            logs = self.algorithm.step(self.model, next(source), self.optimiser, epoch=i / 10)
            assert all(v.isfinite() for v in logs.values()), logs
        return logs

    def state(self):
        parts = (self.model, self.optimiser, self.algorithm)
        drawn = torch.cuda.get_rng_state() if self.on_gpu else None
        return copy.deepcopy([part.state_dict() for part in parts]), torch.get_rng_state(), drawn

    def restore(self, state):
        for part, saved in zip((self.model, self.optimiser, self.algorithm), state[0], strict=True):
            part.load_state_dict(saved)
        torch.set_rng_state(state[1])
        if state[2] is not None:
            torch.cuda.set_rng_state(state[2])

    def weights(self):
        return torch.cat([p.detach().flatten() for p in self.model.parameters()])

    def accuracy(self, batch):
        return float((self.model(batch.inputs).argmax(1) == batch.labels).float().mean())


@devices
@every
def test_learns_an_easy_problem(name, settings, device):
    run = Run(name, settings, device=device)
    source = batches(device=device)
    assert run.accuracy(next(source)) < 0.7
    run.train(source, 60)
    assert run.accuracy(next(source)) > 0.95


@devices
@every
def test_deterministic_under_a_seed(name, settings, device):
    weights = []
    for seed in (0, 0, 1):
        run = Run(name, settings, device=device, seed=seed)
        run.train(batches(device=device), 6)
        weights.append(run.weights())
    assert torch.equal(weights[0], weights[1])
    assert not torch.equal(weights[0], weights[2])


@devices
@every
def test_save_load_and_continue_is_the_same_to_the_bit(name, settings, device):
    whole = Run(name, settings, device=device)
    source = batches(device=device)
    whole.train(source, 6)
    saved = whole.state()
    rest = list(itertools.islice(source, 4))
    whole.train(iter(rest), 4, start=6)
    resumed = Run(name, settings, device=device, seed=99)
    resumed.restore(saved)
    resumed.train(iter(rest), 4, start=6)
    assert torch.equal(whole.weights(), resumed.weights())


@pytest.mark.parametrize("E", [2, 7])
@every
def test_two_to_seven_environments_of_unequal_size(name, settings, E):
    run = Run(name, settings, E=E)
    before = run.weights()
    run.train(batches(E, sizes=[5 + 3 * i for i in range(E)]), 2)
    assert not torch.equal(run.weights(), before)


@pytest.mark.parametrize("absent", [0, 1, 3])
@every
def test_an_environment_may_be_absent_from_a_batch(name, settings, absent):
    """Training without any of its samples is training where the environment does not exist."""
    run = Run(name, settings, E=4)
    logs = run.train((b._replace(environments=b.environments + (b.environments >= absent)) for b in batches(E=3)), 4)
    expected = Run(name, settings, E=3)
    logs_expected = expected.train(batches(E=3), 4)
    if settings.get("query") == "random":  # is drawn from all environments that there are
        return
    torch.testing.assert_close(run.weights(), expected.weights(), atol=2e-6, rtol=0)
    torch.testing.assert_close(logs, logs_expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["mldg", "trm"])
def test_one_environment_where_two_are_needed(name):
    run = Run(name, WHOLE.get(name, {}))
    batch = next(batches())
    alone = Batch(batch.inputs, batch.labels, torch.zeros_like(batch.environments))
    with pytest.raises(InputError, match=r"one environment only|environments must .* got id 0 alone"):
        run.algorithm.step(run.model, alone, run.optimiser, epoch=0.0)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"environments": +1}, r"environments must be 0\.\.2, .*num_environments=3, got 3"),
        ({"environments": -1}, r"environments must be 0\.\.2, .*got -1"),
        ({"labels": +1}, r"labels must be 0\.\.2, .*num_classes=3, got 3"),
        ({"labels": -1}, r"labels must be 0\.\.2, .*got -1"),
    ],
)
@pytest.mark.parametrize("name", available())
def test_labels_and_environments_outside_the_setting_are_named(name, change, message):
    run = Run(name, {})
    batch = next(batches())
    ((part, shift),) = change.items()
    before = run.weights()
    with pytest.raises(InputError, match=message):
        run.algorithm.step(run.model, batch._replace(**{part: getattr(batch, part) + shift}), run.optimiser, 0.0)
    assert torch.equal(run.weights(), before)


def test_what_is_not_a_batch_is_refused():
    run = Run("erm", {})
    batch = next(batches())
    for bad, message in [
        (tuple(batch), "batch must be .* got tuple"),
        (batch._replace(labels=batch.labels.numpy()), "labels must be a torch.Tensor, got ndarray"),
        (batch._replace(labels=batch.labels.int()), r"labels must be torch.int64, got torch.int32"),
        (batch._replace(environments=batch.environments.byte()), r"environments must be .* got torch.uint8"),
        (batch._replace(labels=batch.labels[1:]), "got 72, 71 and 72"),
        (Batch(*(part[:0] for part in batch[:3])), "got 0, 0 and 0"),
    ]:
        with pytest.raises(InputError, match=message):
            run.algorithm.step(run.model, bad, run.optimiser, 0.0)


def test_a_model_without_features():
    model = nn.Linear(2, 3)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(InputError, match=r"model must .* got Linear: .*Classifier"):
        create("irm", Setting(3, 3)).step(model, next(batches()), optimiser, 0.0)


def test_what_is_not_an_algorithm_cannot_be_registered():
    with pytest.raises(InputError, match=r"'mine'.*derived from Algorithm.*Linear"):
        register("mine")(nn.Linear)
    with pytest.raises(InputError, match=r"'mine'.*<lambda>"):
        register("mine")(lambda out: out)
    assert "mine" not in available()


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        ({"risk": torch.tensor(1.0)}, r"'loss', got the keys \['risk'\]"),
        (torch.tensor(1.0), "Mine.objective .*'loss', got Tensor"),
        (None, "'loss', got NoneType"),
        ({"loss": 1.0}, "Mine.objective .*got float under 'loss'"),
        (lambda out: {"loss": out.losses}, r"Mine.objective .*got shape \(72,\) under 'loss': .*mean"),
        (lambda out: {"loss": out.empirical_risk, "share": 0.5}, "Mine.objective .*got float under 'share'"),
        (lambda out: {"loss": out.empirical_risk, "risks": out.losses}, r"got shape \(72,\) under 'risks'"),
        (lambda out: {"loss": out.empirical_risk.detach()}, "Mine.objective .*gradient"),
    ],
)
def test_an_objective_without_a_loss_or_with_values_that_are_not_scalars(returned, message):
    class Mine(Algorithm):
        def objective(self, out, penalised):
            return returned(out) if callable(returned) else returned

    run = Run("erm", {})
    before = run.weights()
    with pytest.raises(InputError, match=message) as error:
        Mine(Setting(3, 3)).step(run.model, next(batches()), run.optimiser, 0.0)
    assert "\n" not in str(error.value)
    assert torch.equal(run.weights(), before)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("two", 3), "num_environments must .* got 'two'"),
        ((2, 0), "num_classes must .* got 0"),
        ((2, 3, torch.ones(3, 2)), r"group_priors.*\(2, 3\).*\(3, 2\)"),
    ],
)
def test_bad_settings_of_the_data(arguments, message):
    with pytest.raises(InputError, match=message):
        Setting(*arguments)


def test_registry_names():
    names = {"erm", "reweight", "irm", "vrex", "groupdro", "mldg", "fish", "trm", "trm-direct"}
    names |= {"coral", "fishr", "eqrm", "sam", "mixup", "dfr"}
    assert names <= set(available())


@pytest.mark.parametrize("name", available())
def test_grid_names_settings_and_its_values_are_accepted(name):
    algorithm = get_algorithm(name)
    fields = {field.name for field in dataclasses.fields(algorithm.config_type)}
    assert set(algorithm.grid) <= fields
    for key, values in algorithm.grid.items():
        for value in values:
            assert getattr(configure(name, **{key: value}), key) == value


def test_unknown_names_suggest_the_nearest():
    with pytest.raises(InputError, match=r"'groupdr0'.*did you mean 'groupdro'\?"):
        get_algorithm("groupdr0")
    with pytest.raises(InputError, match=r"trm: .*'rigde': did you mean 'ridge'\?"):
        configure("trm", rigde=1e-3)
    with pytest.raises(InputError, match=r"erm: .*'beta'"):
        configure("erm", beta=1)
    with pytest.raises(InputError, match=r"mldg: order must be one of 1, 2, got 3"):
        configure("mldg", order=3)
    with pytest.raises(InputError, match=r"trm-direct: .*'gradient_matching'"):
        configure("trm-direct", gradient_matching=1.0)


class Counts(Algorithm):
    """Makes its buffers in the first step, as it knows nothing of their shape before."""

    def objective(self, out, penalised):
        if "sums" not in self._buffers:
            self.register_buffer("sums", torch.zeros_like(out.features[0]))
        self.sums += out.features.detach().sum(0)
        return {"loss": out.empirical_risk + 1e-3 * (self.sums * out.features).mean()}


def test_buffers_that_the_first_step_makes_are_saved_and_loaded():
    runs = [Run("erm", {}, seed=seed) for seed in (0, 9)]
    for run in runs:
        run.algorithm = Counts(Setting(3, 3))
    source = batches()
    runs[0].train(source, 3)
    runs[1].restore(runs[0].state())
    rest = list(itertools.islice(source, 3))
    for run in runs:
        run.train(iter(rest), 3)
    assert torch.equal(runs[0].weights(), runs[1].weights())


@pytest.mark.parametrize("name", available())
def test_help_says_what_is_minimised_and_what_each_setting_means(name):
    algorithm = get_algorithm(name)
    text = inspect.getdoc(algorithm)
    assert re.search(r"(?m)^(loss|step) = ", text)
    for field in dataclasses.fields(algorithm.config_type):
        default = re.escape(repr(field.default))
        assert re.search(rf"(?m)^{field.name} : default {default}\n    \S.+", text), field.name


def test_settings_in_words():
    assert describe_algorithm("erm") == "erm: no settings"
    assert describe_algorithm("irm") == "irm: penalty_weight=1, start_epoch=1, penalty=scale"
    assert describe_algorithm("trm", ridge=0.01).startswith("trm: ridge=0.01, weights=eg, ")


def test_a_name_is_taken_once():
    with pytest.raises(InputError, match=r"'trm' is already registered, as transferrisk.algorithms.trm.TRM"):
        register("trm")(type("TRM", (Algorithm,), {}))


@pytest.mark.parametrize("name", [*WHOLE])
def test_penalty_starts_with_its_epoch(name):
    algorithm = create(name, Setting(2, 3), start_epoch=2.0)
    assert not algorithm.plan(next(batches()), 1.99)
    assert algorithm.plan(next(batches()), 2.0)
