"""Each algorithm against its own truth."""

from __future__ import annotations

import copy
import itertools
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from problems import random_batch
from sklearn.linear_model import LogisticRegression
from torch import nn

from transferrisk import TransferRisk
from transferrisk.algorithms import Batch, Pass, Setting, create
from transferrisk.algorithms.base import HeldOut
from transferrisk.algorithms.mixup import partners
from transferrisk.algorithms.mldg import meta_gradient
from transferrisk.algorithms.reweight import reweighted_risk
from transferrisk.errors import InputError
from transferrisk.functional import (
    environment_means,
    irm_penalty,
    irm_predictor_penalty,
    risk_variance,
)
from transferrisk.functional.penalties import risk_quantile
from transferrisk.models import Classifier


@pytest.fixture
def out():
    """A forward pass over four environments, of which the third is absent, in float64."""
    batch = random_batch(0, [9, 4, 7], classes=3, width=5)
    index = torch.tensor([0, 1, 3])[batch.index]
    model = Classifier(nn.Identity(), 5, 3).double()
    features = batch.features.requires_grad_()
    return Pass(features, model.head(features), batch.labels, index, model)


def risks_by_loop(out):
    return {e: F.cross_entropy(out.logits[out.environments == e], out.labels[out.environments == e]) for e in (0, 1, 3)}


def test_environment_means(out):
    means, present = environment_means(out.losses, out.environments, 4)
    assert present.tolist() == [True, True, False, True]
    for e, risk in risks_by_loop(out).items():
        torch.testing.assert_close(means[e], risk)


def test_risks_are_not_rounded_by_autocast(out):
    features, logits = out.features.detach().float(), out.logits.detach().float()
    plain = environment_means(out.losses.detach().float(), out.environments, 4)[0]
    penalty = irm_predictor_penalty(features, logits, out.labels, out.environments, 4)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(environment_means(out.losses.detach().float(), out.environments, 4)[0], plain)
        assert torch.equal(irm_predictor_penalty(features, logits, out.labels, out.environments, 4), penalty)


def test_irm_penalty_is_autograds_squared_derivative_by_a_scale(out):
    penalties = irm_penalty(out.logits, out.labels, out.environments, 4)
    expected = []
    for e in (0, 1, 3):
        members = out.environments == e
        scale = torch.ones((), dtype=torch.float64, requires_grad=True)
        risk = F.cross_entropy(scale * out.logits[members], out.labels[members])
        (slope,) = torch.autograd.grad(risk, scale, create_graph=True)
        torch.testing.assert_close(penalties[e], slope.square())
        expected.append(slope.square())
    # ... and so is its gradient, which in the usual implementation takes a double backward.
    ours, theirs = (
        torch.autograd.grad(total, out.features, retain_graph=True)[0] for total in (penalties.sum(), sum(expected))
    )
    torch.testing.assert_close(ours, theirs)


def test_irm_predictor_penalty_is_autograds_squared_gradient(out):
    penalties = irm_predictor_penalty(out.features, out.logits, out.labels, out.environments, 4)
    W = out.model.predictor.clone().requires_grad_()
    for e in (0, 1, 3):
        members = out.environments == e
        risk = F.cross_entropy(out.features[members] @ W[:, :-1].T + W[:, -1], out.labels[members])
        (gradient,) = torch.autograd.grad(risk, W, retain_graph=True)
        torch.testing.assert_close(penalties[e], gradient.square().sum())


def test_irm_objective(out):
    risk = sum(risks_by_loop(out).values()) / 3
    penalty = irm_penalty(out.logits, out.labels, out.environments, 4).sum() / 3
    for weight in (0.5, 2.5):  # divided by a weight above 1, which keeps the gradient's length
        algorithm = create("irm", Setting(4, 3), penalty_weight=weight, penalty="scale")
        expected = (risk + weight * penalty) / max(1, weight)
        torch.testing.assert_close(algorithm.objective(out, True)["loss"], expected)
        torch.testing.assert_close(algorithm.objective(out, False)["loss"], risk)


def test_irm_on_halves_multiplies_the_slopes_of_every_other_sample(out):
    expected = torch.zeros(4, dtype=torch.float64)
    for e in (0, 1, 3):
        slopes = []
        for half in (0, 1):
            members = (out.environments == e).nonzero().flatten()[half::2]
            scale = torch.ones((), dtype=torch.float64, requires_grad=True)
            risk = F.cross_entropy(scale * out.logits[members], out.labels[members])
            slopes.append(torch.autograd.grad(risk, scale, retain_graph=True)[0])
        expected[e] = slopes[0] * slopes[1]
    penalty = irm_penalty(out.logits, out.labels, out.environments, 4, halves=True)
    torch.testing.assert_close(penalty, expected)
    loss = create("irm", Setting(4, 3), penalty_weight=1.0, penalty="halves").objective(out, True)["loss"]
    torch.testing.assert_close(loss, sum(risks_by_loop(out).values()) / 3 + expected.sum() / 3)


def test_trm_adds_the_weighted_transfer_risk_to_the_empirical_risk(out):
    """Of the worst mixture of environments, whose weights are GroupDRO's, or of all samples."""
    transfer = TransferRisk(1e-2, num_classes=3, environments=4).double()
    risk = transfer(out.features, out.labels, out.environments).risk
    robust = create("groupdro", Setting(4, 3), weights_lr=0.3).double().objective(out, True)["loss"]
    settings = {"ridge": 1e-2, "start_epoch": 0.0, "empirical_lr": 0.3}
    for empirical, expected in (("eg", robust), ("mean", out.empirical_risk)):
        algorithm = create("trm", Setting(4, 3), transfer_weight=3.0, empirical=empirical, **settings).double()
        loss = algorithm.objective(out, True)["loss"]
        torch.testing.assert_close(loss, expected + 3 * risk)
        (gradient,) = torch.autograd.grad(loss, out.features, retain_graph=True)
        (truth,) = torch.autograd.grad(expected + 3 * risk, out.features, retain_graph=True)
        torch.testing.assert_close(gradient, truth, rtol=1e-6, atol=1e-9)


def test_the_transfer_risk_of_every_third_step_counts_three_times(out):
    algorithm = create("trm", Setting(4, 3), every=3, start_epoch=0.0, empirical="mean").double()
    computed = []
    for _ in range(7):
        computed.append(algorithm.plan(None, 0.0))
        logs = algorithm.objective(out, computed[-1])
        added = 3 * logs["transfer_risk"] if computed[-1] else 0
        torch.testing.assert_close(logs["loss"], out.empirical_risk + added)
    assert computed == [True, False, False, True, False, False, True]
    other = create("trm", Setting(4, 3), every=3, start_epoch=0.0)
    other.load_state_dict(algorithm.state_dict())  # a training that goes on does so in the same turn
    assert not other.plan(None, 0.0)


def test_a_scale_free_ridge_takes_no_notice_of_the_scale_of_features_or_the_size_of_batches(out):
    def transfer_risk(factor, copies=1):
        settings = {"ridge": 1e-2, "start_epoch": 0.0, "scale_free": True}
        algorithm = create("trm", Setting(3, 3), **settings).double()
        features = factor * out.features.repeat(copies, 1)
        index = out.environments.clamp(max=2).repeat(copies)
        labels = out.labels.repeat(copies)
        return Pass(features, out.model.head(features), labels, index, out.model), algorithm

    one, algorithm = transfer_risk(1.0)
    first = algorithm.objective(one, True)["transfer_risk"]
    scaled, algorithm = transfer_risk(100.0)
    torch.testing.assert_close(algorithm.objective(scaled, True)["transfer_risk"], first, rtol=1e-6, atol=0)
    twice, algorithm = transfer_risk(1.0, copies=2)
    ridge = 1e-2 * float(one.features.detach().square().mean()) * 128 / (len(twice.labels) / 3)
    factor = (1e-2 / ridge) ** 0.5  # features times this with the ridge as it is: the bias's ridge is not scaled
    plain = TransferRisk(1e-2, num_classes=3, environments=3).double()
    expected = plain(factor * twice.features, twice.labels, twice.environments).risk
    torch.testing.assert_close(algorithm.objective(twice, True)["transfer_risk"], expected, rtol=1e-6, atol=0)


def test_the_transfer_risk_counts_once_the_empirical_risk_has_fallen(out):
    algorithm = create("trm", Setting(4, 3), start_risk=0.5, empirical="mean").double()
    guess = Pass(out.features, 0 * out.logits, out.labels, out.environments, out.model)
    for _ in range(50):  # the risk of a guess: log 3 in every step
        logs = algorithm.objective(guess, algorithm.plan(None, 0.0))
        torch.testing.assert_close(logs["loss"], guess.empirical_risk)
    right = 50.0 * F.one_hot(out.labels, 3)
    learnt = Pass(out.features, right, out.labels, out.environments, out.model)
    counted = []
    for _ in range(30):
        logs = algorithm.objective(learnt, algorithm.plan(None, 0.0))
        counted.append(bool(logs["loss"].detach() > learnt.empirical_risk + 0.5 * logs["transfer_risk"].detach()))
    assert counted.index(True) == 13  # the first power of 0.95 that is at most a half is the 14th
    assert all(counted[13:])
    assert bool(algorithm.objective(guess, True)["loss"].detach() > guess.empirical_risk.detach())  # and stays on
    assert "started" in algorithm.state_dict()


def test_fish_moves_running_statistics_as_far_as_weights():
    torch.manual_seed(0)
    model = Classifier(nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3)), 3, 2)
    batch = Batch(torch.randn(10, 2) + 3, torch.randint(2, (10,)), torch.arange(10) % 2)
    running = model.featuriser[1].running_mean
    ends = []
    for meta_lr in (1.0, 0.25):
        running.zero_()
        torch.manual_seed(1)
        optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
        create("fish", Setting(2, 2), meta_lr=meta_lr).step(model, batch, optimiser, epoch=0.0)
        ends.append(running.clone())
    torch.testing.assert_close(ends[1], 0.25 * ends[0])


def normalised(seed=0):
    """A model with batch norm in float64, and a batch of two environments of which one lies apart, unsorted."""
    torch.manual_seed(seed)
    model = Classifier(nn.Sequential(nn.Linear(2, 4), nn.BatchNorm1d(4), nn.Tanh(), nn.Linear(4, 3)), 3, 2).double()
    index = torch.arange(16) % 2
    inputs = torch.randn(16, 2, dtype=torch.float64) + 2.0 * index.unsqueeze(1)
    return model, Batch(inputs, torch.randint(2, (16,)), index)


def joint_gradient(model, batch, environments):
    """Gradient of the mean risk of environments, under the statistics of the whole batch, in a copy of the model."""
    twin = copy.deepcopy(model)
    losses = F.cross_entropy(twin(batch.inputs), batch.labels, reduction="none")
    risks = [losses[batch.environments == e].mean() for e in environments]
    return torch.autograd.grad(sum(risks) / len(risks), list(twin.parameters()))


def displacement(name, model, batch, rate, **settings):
    """The parameters' way in one step of plain SGD, divided by minus the rate."""
    twin = copy.deepcopy(model)
    optimiser = torch.optim.SGD(twin.parameters(), lr=rate)
    create(name, Setting(2, 2), **settings).step(twin, batch, optimiser, epoch=0.0)
    ends = zip(model.parameters(), twin.parameters(), strict=True)
    return [(before - after).detach() / rate for before, after in ends]


@pytest.mark.parametrize("name", ["mldg", "fish"])
def test_with_joint_statistics_and_no_inner_step_the_gradient_is_that_of_erm(name):
    """With an inner rate of zero MLDG is ERM; Fish takes one step an environment, whose sum is ERM's twice."""
    model, batch = normalised()
    settings = {"mldg": {"inner_lr": 0.0}, "fish": {"meta_lr": 1.0}}[name]
    expected = [{"mldg": 1, "fish": 2}[name] * g for g in joint_gradient(model, batch, (0, 1))]
    joint = displacement(name, model, batch, 1e-7, statistics="joint", **settings)
    own = displacement(name, model, batch, 1e-7, **settings)
    torch.testing.assert_close(joint, expected, rtol=1e-5, atol=1e-6)
    assert max(float((a - b).abs().max()) for a, b in zip(own, expected, strict=True)) > 1e-2


def test_mldg_with_joint_statistics_is_its_objective_under_those_statistics():
    """By central differences of (F(theta) + beta G(theta - rate dF/dtheta)) / (1 + beta)."""
    model, batch = normalised()
    torch.manual_seed(3)
    held_out = int(torch.randint(2, ()))
    torch.manual_seed(3)
    found = displacement("mldg", model, batch, 1e-6, statistics="joint", inner_lr=0.3, beta=0.5, order=2)

    def risk(parameters, members):
        logits = torch.func.functional_call(copy.deepcopy(model), parameters, (batch.inputs,))
        return F.cross_entropy(logits[members], batch.labels[members])

    def objective(moved):
        inner = risk(moved, batch.environments != held_out)
        gradients = torch.autograd.grad(inner, list(moved.values()))
        stepped = {key: p - 0.3 * g for (key, p), g in zip(moved.items(), gradients, strict=True)}
        return (inner + 0.5 * risk(stepped, batch.environments == held_out)).item() / 1.5

    parameters = dict(model.named_parameters())
    direction = {key: torch.randn_like(p) for key, p in parameters.items()}

    def along(shift):
        return objective({k: (p.detach() + shift * direction[k]).requires_grad_() for k, p in parameters.items()})

    numeric = (along(1e-5) - along(-1e-5)) / 2e-5
    analytic = sum(float((g * direction[key]).sum()) for key, g in zip(parameters, found, strict=True))
    assert analytic == pytest.approx(numeric, rel=1e-5)


@pytest.mark.parametrize(("name", "setting"), [("mldg", {"inner_lr": 0.0}), ("fish", {"meta_lr": 1.0})])
def test_running_statistics_are_joint_too(name, setting):
    model, batch = normalised()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
    create(name, Setting(2, 2), statistics="joint", **setting).step(model, batch, optimiser, epoch=0.0)
    mean = model.featuriser[0](batch.inputs).mean(0).detach()
    torch.testing.assert_close(model.featuriser[1].running_mean, (1 - 0.9**2) * mean)  # two passes, momentum 0.1


@pytest.mark.parametrize("name", ["mldg", "fish"])
def test_joint_statistics_of_a_batch_in_blocks_are_those_of_the_same_batch_unsorted(name):
    model, batch = normalised()
    order = batch.environments.argsort(stable=True)
    blocks = Batch(*(part[order] for part in batch[:3]), block=8)
    ends = []
    for form in (batch, blocks):
        torch.manual_seed(5)
        ends.append(displacement(name, model, form, 0.1, statistics="joint"))
    torch.testing.assert_close(*ends)


def test_mldg_takes_the_rate_of_the_optimiser_for_the_inner_step():
    ends = []
    for inner_lr in (None, 0.2):
        torch.manual_seed(0)
        model = Classifier(nn.Linear(2, 3), 3, 2)
        batch = Batch(torch.randn(10, 2), torch.randint(2, (10,)), torch.arange(10) % 2)
        create("mldg", Setting(2, 2), inner_lr=inner_lr, order=2).step(
            model, batch, torch.optim.SGD(model.parameters(), lr=0.2), epoch=0.0
        )
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    torch.testing.assert_close(ends[0], ends[1])


def test_vrex_is_the_variance_of_the_risks(out):
    risks = torch.stack(list(risks_by_loop(out).values()))
    algorithm = create("vrex", Setting(4, 3), penalty_weight=2.5)
    expected = risks.mean() + 2.5 * risks.var(correction=0)
    torch.testing.assert_close(algorithm.objective(out, True)["loss"], expected)
    torch.testing.assert_close(
        risk_variance(torch.tensor([1.0, 2.0, 6.0]), torch.ones(3, dtype=torch.bool)), torch.tensor(14 / 3)
    )


def test_groupdro_weights_are_the_closed_form(out):
    algorithm = create("groupdro", Setting(4, 3), weights_lr=0.7).double()
    risks = risks_by_loop(out)
    total = sum(math.exp(0.7 * float(r.detach())) for r in risks.values())
    loss = algorithm.objective(out, True)["loss"]
    for e, risk in risks.items():
        assert float(algorithm.weights[e]) == pytest.approx(
            0.75 * math.exp(0.7 * float(risk.detach())) / total, rel=1e-6
        )
    assert float(algorithm.weights[2]) == 0.25  # absent: keeps its weight
    expected = sum(algorithm.weights[e] * r for e, r in risks.items()) / 0.75
    torch.testing.assert_close(loss, expected)


def test_groupdro_may_take_classes_within_environments_as_groups(out):
    algorithm = create("groupdro", Setting(4, 3), weights_lr=0.7, groups="environments-classes").double()
    assert algorithm.weights.shape == (12,)
    losses = F.cross_entropy(out.logits, out.labels, reduction="none")
    groups = [(out.environments == e) & (out.labels == c) for e in range(4) for c in range(3)]
    there = torch.tensor([bool(group.any()) for group in groups])
    risks = torch.stack([losses[group].mean() if group.any() else losses.new_zeros(()) for group in groups])
    q = torch.where(there, (0.7 * risks).exp(), 0) / 12
    share = there.double().sum() / 12  # of the groups that are there, which they share among themselves
    expected = (q / q.sum() * risks).sum()
    logs = algorithm.objective(out, penalised=True)
    torch.testing.assert_close(logs["loss"], expected)
    torch.testing.assert_close(algorithm.weights[there].sum(), share)


def test_groupdro_after_many_steps_is_exponential_in_the_summed_risks(out):
    algorithm = create("groupdro", Setting(4, 3), weights_lr=0.1).double()
    risks = risks_by_loop(out)
    for _ in range(20):
        algorithm.objective(out, True)
    ratio = float(algorithm.weights[0] / algorithm.weights[1])
    assert ratio == pytest.approx(math.exp(20 * 0.1 * float((risks[0] - risks[1]).detach())), rel=1e-6)


def test_reweight_makes_every_group_count_the_same(out):
    algorithm = create("reweight", Setting(4, 3))
    groups = {(int(e), int(y)) for e, y in zip(out.environments, out.labels, strict=True)}
    means = [out.losses[(out.environments == e) & (out.labels == y)].mean() for e, y in groups]
    torch.testing.assert_close(algorithm.objective(out, True)["loss"], torch.stack(means).mean())


def test_reweight_takes_given_priors(out):
    priors = torch.rand(4, 3, generator=torch.Generator().manual_seed(0)) + 0.1
    algorithm = create("reweight", Setting(4, 3, group_priors=priors))
    expected = (out.losses / (12 * priors[out.environments, out.labels])).mean()
    torch.testing.assert_close(algorithm.objective(out, True)["loss"], expected)


def test_reweight_is_the_mean_of_group_risks_in_expectation():
    losses, groups = torch.tensor([1.0, 1.0, 1.0, 5.0]), torch.tensor([0, 0, 0, 1])
    risk = reweighted_risk(losses, groups, torch.tensor([0.75, 0.25]))
    torch.testing.assert_close(risk, torch.tensor(3.0))


def test_reweight_refuses_a_group_it_has_no_prior_for(out):
    priors = torch.full((4, 3), 0.1)
    priors[0, int(out.labels[out.environments == 0][0])] = 0
    with pytest.raises(InputError, match=r"group_priors must be > 0 .* got 0"):
        create("reweight", Setting(4, 3, group_priors=priors)).objective(out, True)


def test_erm_is_the_pooled_mean(out):
    torch.testing.assert_close(create("erm", Setting(4, 3)).objective(out, True)["loss"], out.losses.mean())


@pytest.mark.parametrize(("name", "matching"), [("trm", 1.0), ("trm-direct", 0.0)])
def test_trm_is_erm_plus_transfer_risk(out, name, matching):
    algorithm = create(name, Setting(4, 3), ridge=1e-2, empirical="mean", start_epoch=0.0)
    logs = algorithm.objective(out, True)
    reference = TransferRisk(1e-2, matching, num_classes=3, environments=4)
    transfer = reference(out.features, out.labels, out.environments)
    torch.testing.assert_close(logs["loss"], out.losses.mean() + transfer.risk)
    ours, theirs = (
        torch.autograd.grad(loss, out.features, retain_graph=True)[0]
        for loss in (logs["loss"], out.losses.mean() + transfer.risk)
    )
    torch.testing.assert_close(ours, theirs)


def quadratic(seed, size=4):
    """f(x) = x'Ax/2 - b'x with its gradient and Hessian."""
    generator = torch.Generator().manual_seed(seed)
    root = torch.randn(size, size, generator=generator, dtype=torch.float64)
    A, b = root @ root.T / size, torch.randn(size, generator=generator, dtype=torch.float64)
    return A, b


@pytest.mark.parametrize("order", [1, 2])
def test_mldg_gradient_of_quadratics(order):
    (A, a), (B, b) = quadratic(0), quadratic(1)
    theta = torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(2), requires_grad=True)

    def meta_train(p):
        return 0.5 * p["theta"] @ A @ p["theta"] - a @ p["theta"]

    def meta_test(p):
        return 0.5 * p["theta"] @ B @ p["theta"] - b @ p["theta"]

    gradient, _, _ = meta_gradient(meta_train, meta_test, {"theta": theta}, 0.1, 0.7, order)
    x = theta.detach()
    inner = A @ x - a
    outer = B @ (x - 0.1 * inner) - b
    through = outer - 0.1 * A @ outer if order == 2 else outer
    torch.testing.assert_close(gradient["theta"], (inner + 0.7 * through) / 1.7)


def test_mldg_without_curvature():
    """Of a linear meta-train loss c . theta the Hessian is zero, and both orders are the same."""
    c, B, theta = torch.tensor([1.0, -2.0]), torch.tensor([[2.0, 0.5], [0.5, 1.0]]), torch.tensor([0.3, 0.7])
    parameters = {"theta": theta.clone().requires_grad_()}
    for order in (1, 2):
        gradient, _, _ = meta_gradient(
            lambda p: c @ p["theta"], lambda p: p["theta"] @ B @ p["theta"] / 2, parameters, 0.1, 0.7, order
        )
        torch.testing.assert_close(gradient["theta"], (c + 0.7 * B @ (theta - 0.1 * c)) / 1.7)


def test_mldg_second_order_agrees_with_finite_differences():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).double()
    x, y = torch.randn(12, 3, dtype=torch.float64), torch.randint(2, (12,))
    parameters = dict(model.named_parameters())

    def loss(members):
        def at(p):
            return F.cross_entropy(torch.func.functional_call(model, dict(p), (x[members],)), y[members])

        return at

    train, test = loss(slice(0, 6)), loss(slice(6, 12))
    gradient, _, _ = meta_gradient(train, test, parameters, 0.3, 0.5, order=2)

    def objective(shift):
        moved = {k: (p.detach() + shift * direction[k]).requires_grad_() for k, p in parameters.items()}
        inner = torch.autograd.grad(train(moved), list(moved.values()))
        stepped = {k: p - 0.3 * g for (k, p), g in zip(moved.items(), inner, strict=True)}
        return (train(moved) + 0.5 * test(stepped)).item() / 1.5

    direction = {k: torch.randn_like(p) for k, p in parameters.items()}
    numeric = (objective(1e-5) - objective(-1e-5)) / 2e-5
    analytic = sum(float((gradient[k] * direction[k]).sum()) for k in parameters)
    assert analytic == pytest.approx(numeric, rel=1e-7)


def test_fish_displacement_is_the_gradient_inner_product(monkeypatch):
    """Averaged over both orders, the displacement on two quadratics is exactly
    -meta_lr * a * (grad(f1 + f2) - a/2 grad(grad f1 . grad f2))."""
    problems = [quadratic(3), quadratic(4)]
    theta = torch.randn(4, dtype=torch.float64, generator=torch.Generator().manual_seed(5))
    rate, meta = 0.05, 0.3

    class Theta(nn.Module):
        def __init__(self):
            super().__init__()
            self.theta = nn.Parameter(theta.clone())

        def forward(self, inputs):
            return self.theta, int(inputs[0])

    def risk(output, labels, **_):
        x, e = output
        A, b = problems[e]
        return 0.5 * x @ A @ x - b @ x

    monkeypatch.setattr("transferrisk.algorithms.fish.F.cross_entropy", risk)
    batch = Batch(torch.tensor([0, 1]), torch.tensor([0, 0]), torch.tensor([0, 1]))
    displacements = []
    for order in itertools.permutations(range(2)):
        monkeypatch.setattr(torch, "randperm", lambda n, order=order: torch.tensor(order))
        model = Theta()
        algorithm = create("fish", Setting(2, 2), meta_lr=meta)
        algorithm.step(model, batch, torch.optim.SGD(model.parameters(), lr=rate), epoch=0.0)
        displacements.append(model.theta.detach() - theta)
    g1, g2 = (A @ theta - b for A, b in problems)
    inner_product_gradient = problems[0][0] @ g2 + problems[1][0] @ g1
    expected = -meta * rate * (g1 + g2 - rate / 2 * inner_product_gradient)
    torch.testing.assert_close(sum(displacements) / 2, expected)


def test_fish_at_meta_rate_one_is_sequential_sgd():
    torch.manual_seed(0)
    model = Classifier(nn.Linear(2, 3), 3, 2)
    reference = Classifier(nn.Linear(2, 3), 3, 2)
    reference.load_state_dict(model.state_dict())
    batch = Batch(torch.randn(10, 2), torch.randint(2, (10,)), torch.arange(10) % 2)
    torch.manual_seed(1)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    create("fish", Setting(2, 2), meta_lr=1.0).step(model, batch, optimiser, epoch=0.0)
    torch.manual_seed(1)
    for e in torch.randperm(2):
        members = batch.environments == e
        reference.zero_grad()
        F.cross_entropy(reference(batch.inputs[members]), batch.labels[members]).backward()
        with torch.no_grad():
            for p in reference.parameters():
                p -= 0.1 * p.grad
    for ours, theirs in zip(model.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs)


def test_coral_is_the_mean_over_pairs_of_the_distances_of_means_and_covariances(out):
    moments = {}
    for e in (0, 1, 3):
        members = out.features[out.environments == e]
        moments[e] = members.mean(0), torch.cov(members.T, correction=0)
    pairs = [
        sum((a - b).square().mean() for a, b in zip(moments[e], moments[f], strict=True))
        for e, f in itertools.combinations(moments, 2)
    ]
    expected = sum(risks_by_loop(out).values()) / 3 + 2.5 * sum(pairs) / 3
    loss = create("coral", Setting(4, 3), penalty_weight=2.5).objective(out, True)["loss"]
    torch.testing.assert_close(loss, expected)
    ours, theirs = (torch.autograd.grad(value, out.features, retain_graph=True)[0] for value in (loss, expected))
    torch.testing.assert_close(ours, theirs)


def gradients_of_samples(out):
    """By autograd, one sample after the other, with a graph for the features behind them: (n, C, d + 1)."""
    W = out.model.predictor.clone().requires_grad_()
    gradients = []
    for z, y in zip(out.features, out.labels, strict=True):
        loss = F.cross_entropy(W[:, :-1] @ z + W[:, -1], y)
        gradients.append(torch.autograd.grad(loss, W, create_graph=True)[0])
    return torch.stack(gradients)


def test_fishr_is_the_distance_of_the_variances_of_autograds_gradients_of_samples(out):
    algorithm = create("fishr", Setting(4, 3, num_features=5), penalty_weight=7.0, decay=0.8).double()
    present, gradients = (0, 1, 3), gradients_of_samples(out)
    variances = {e: gradients[out.environments == e].var(0, correction=0) for e in present}
    averages = {e: torch.zeros(3, 6, dtype=torch.float64) for e in present}
    for step in range(3):  # the first of which does not count, and is averaged all the same
        loss = algorithm.objective(out, step > 0)["loss"]
        averages = {e: 0.8 * averages[e].detach() + 0.2 * variances[e] for e in present}
        scaled = torch.stack([averages[e] / 0.2 for e in present])
        penalty = (scaled - scaled.mean(0)).square().mean()
        expected = out.empirical_risk + (7.0 * penalty if step > 0 else 0)
        torch.testing.assert_close(loss, expected)
        ours, theirs = (torch.autograd.grad(value, out.features, retain_graph=True)[0] for value in (loss, expected))
        torch.testing.assert_close(ours, theirs)
        for e in present:
            torch.testing.assert_close(algorithm.averages[e], averages[e].detach())
    assert not algorithm.averages[2].any()  # absent: keeps its average


def test_fishr_finds_the_width_of_features_in_the_first_batch(out):
    told, finds = (create("fishr", Setting(4, 3, num_features=d), start_epoch=0.0).double() for d in (5, None))
    assert told.averages.shape == (4, 3, 6)
    assert finds.averages.shape == (0,)
    for _ in range(2):
        torch.testing.assert_close(finds.objective(out, True)["loss"], told.objective(out, True)["loss"])


@pytest.mark.parametrize("alpha", [0.02, 0.5, 0.75, 0.99, 0.9999])
def test_eqrm_is_the_quantile_of_a_density_of_normal_kernels(alpha):
    risks = torch.tensor([0.3, 9.9, 1.2, 0.7, 0.65], dtype=torch.float64, requires_grad=True)
    present = torch.tensor([True, False, True, True, True])
    quantile = risk_quantile(risks, present, alpha)
    there = risks[present].detach()
    width = 1.06 * there.std() * 4**-0.2  # with 3 in the denominator, as the authors take it
    kernels = torch.distributions.Normal(there, width)
    assert float(kernels.cdf(quantile.detach()).mean()) == pytest.approx(alpha, rel=1e-9)
    assert torch.autograd.gradcheck(lambda r: risk_quantile(r, present, alpha), risks, rtol=1e-6)
    normal = risk_quantile(risks, present, alpha, kernels=False)
    torch.testing.assert_close(
        torch.distributions.Normal(there.mean(), there.std()).cdf(normal.detach()), torch.tensor(alpha).double()
    )


def test_eqrm_of_risks_that_are_equal_or_one_is_that_risk():
    risks = torch.tensor([0.4, 0.4, 7.0], requires_grad=True)
    for present, gradient in (([True, True, False], 0.5), ([True, False, False], 1.0)):
        quantile = risk_quantile(risks, torch.tensor(present), 0.9)
        torch.testing.assert_close(quantile, torch.tensor(0.4))
        found = torch.autograd.grad(quantile, risks)[0]
        torch.testing.assert_close(found, gradient * torch.tensor(present).float())


def test_eqrm_starts_with_the_mean_of_the_risks(out):
    algorithm = create("eqrm", Setting(4, 3), alpha=0.9)
    risks = torch.stack(list(risks_by_loop(out).values()))
    torch.testing.assert_close(algorithm.objective(out, False)["loss"], risks.mean())
    everywhere = torch.ones(3, dtype=torch.bool)
    torch.testing.assert_close(algorithm.objective(out, True)["loss"], risk_quantile(risks, everywhere, 0.9))


def test_sam_steps_along_the_gradient_at_the_worst_weights_nearby():
    model, batch = normalised()
    running = model.featuriser[1].running_mean.clone()
    there = copy.deepcopy(model)
    parameters = list(there.parameters())
    gradient = torch.autograd.grad(F.cross_entropy(there(batch.inputs), batch.labels), parameters)
    length = torch.cat([g.flatten() for g in gradient]).norm()
    with torch.no_grad():
        for p, g in zip(parameters, gradient, strict=True):
            p += 0.3 * g / length
    expected = torch.autograd.grad(F.cross_entropy(there(batch.inputs), batch.labels), parameters)
    torch.testing.assert_close(displacement("sam", model, batch, 0.1, rho=0.3), list(expected))
    erm = displacement("erm", model, batch, 0.1)
    torch.testing.assert_close(displacement("sam", model, batch, 0.1, rho=0.0), erm)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    mean = model.featuriser[0](batch.inputs).mean(0).detach()
    create("sam", Setting(2, 2), rho=0.3).step(model, batch, optimiser, epoch=0.0)
    torch.testing.assert_close(model.featuriser[1].running_mean, 0.9 * running + 0.1 * mean)  # once, at theta
    assert int(model.featuriser[1].num_batches_tracked) == 1


def test_partners_are_drawn_by_weight_from_the_same_class_in_other_environments():
    labels = torch.tensor([0, 0, 0, 0, 1, 1, 1, 2, 2])
    index = torch.tensor([0, 1, 2, 1, 0, 1, 1, 0, 0])
    weights = torch.tensor([1.0, 2.0, 1.0, 0.0, 1.0, 3.0, 1.0, 1.0, 1.0])
    torch.manual_seed(0)
    counts = torch.zeros(9, 9)
    for _ in range(4000):
        counts[torch.arange(9), partners(labels, index, 3, weights)] += 1
    allowed = (labels[:, None] == labels) & (index[:, None] != index)
    expected = torch.where(allowed, weights, 0)
    expected[7, 7] = expected[8, 8] = 1.0  # of class 2 there is no other environment
    expected /= expected.sum(1, keepdim=True)
    torch.testing.assert_close(counts / 4000, expected, rtol=0, atol=0.03)  # four standard deviations


@pytest.mark.parametrize("within", ["class", "any"])
def test_mixup_is_the_loss_of_mixed_samples_under_mixed_labels(within):
    model, batch = Classifier(nn.Identity(), 5, 3).double(), random_batch(0, [9, 4, 7], classes=3, width=5)
    given = Batch(batch.features, batch.labels, batch.index)
    algorithm = create("mixup", Setting(3, 3), within=within).double()
    torch.manual_seed(1)
    out = algorithm.forward(model, given)
    torch.manual_seed(1)
    other = partners(batch.labels * (within == "class"), batch.index, 3)
    moved = other != torch.arange(20)
    shares = ((out.features - batch.features[other]) / (batch.features - batch.features[other]))[moved]
    share = shares[0, 0].detach()
    assert 0 < share < 1
    torch.testing.assert_close(shares, share.expand_as(shares))
    logits = out.model.head(share * batch.features + (1 - share) * batch.features[other])
    one, two = (F.cross_entropy(logits, y, reduction="none") for y in (batch.labels, batch.labels[other]))
    torch.testing.assert_close(algorithm.objective(out, True)["loss"], (share * one + (1 - share) * two).mean())
    assert (batch.labels[other] == batch.labels).all() == (within == "class")


def test_mixups_shares_are_beta_distributed():
    algorithm = create("mixup", Setting(2, 2), alpha=0.5)
    model = Classifier(nn.Identity(), 1, 2)
    batch = Batch(torch.tensor([[1.0], [0.0]]), torch.tensor([0, 0]), torch.tensor([0, 1]))
    torch.manual_seed(0)
    shares = torch.stack([algorithm.forward(model, batch).features[0, 0].detach() for _ in range(2000)])
    torch.testing.assert_close(shares.mean(), torch.tensor(0.5), rtol=0, atol=0.03)
    torch.testing.assert_close(shares.var(), torch.tensor(1 / 8), rtol=0, atol=0.01)  # 1 / (4 (2 alpha + 1))


def held_out(seed=0):
    """Features of two environments whose classes are unbalanced, with one column that says nothing."""
    generator = torch.Generator().manual_seed(seed)
    n = 80
    environments, labels = torch.arange(n) % 2, (torch.rand(n, generator=generator) < 0.3).long()
    features = torch.randn(n, 4, generator=generator, dtype=torch.float64) * torch.tensor([1.0, 5.0, 0.1, 0.0]) + 2
    features[:, 0] += labels * (1 + environments)
    return HeldOut(features, labels, environments, torch.arange(n) // 2 % 2)


def test_dfr_fits_the_head_to_scikit_learns_optimum_on_groups_that_count_the_same():
    held = held_out()
    model = Classifier(nn.Identity(), 4, 2).double()
    create("dfr", Setting(2, 2), ridges=(0.05,)).finish(model, held)
    groups = 2 * held.environments + held.labels
    weights = 1 / torch.bincount(groups)[groups].double() / 4
    mean = (weights[:, None] * held.features).sum(0)
    deviation = (weights[:, None] * (held.features - mean).square()).sum(0).sqrt()
    deviation[3] = 1  # the column that is constant
    rows = F.pad((held.features - mean) / deviation, (0, 1), value=1.0)
    # scikit-learn's two-class model has one row, the difference of our two: its penalty is twice as strong.
    reference = LogisticRegression(C=2 / 0.05, fit_intercept=False, tol=1e-10, max_iter=1000)
    reference.fit(rows.numpy(), held.labels.numpy(), sample_weight=weights.numpy())
    expected = reference.decision_function(rows.numpy())
    logits = model(held.features).detach()
    np.testing.assert_allclose((logits[:, 1] - logits[:, 0]).numpy(), expected, rtol=1e-4, atol=1e-5)


def test_dfr_takes_the_ridge_of_the_best_worst_group_on_the_other_half():
    held, ridges = held_out(seed=3), (1e-4, 1e-1, 10.0)

    def worst(model):
        right = (model(held.features).argmax(1) == held.labels).double()
        groups = 2 * held.environments + held.labels
        return min(float(right[(groups == g) & (held.halves == 1)].mean()) for g in range(4))

    model, scores, heads = Classifier(nn.Identity(), 4, 2).double(), [], []
    algorithm = create("dfr", Setting(2, 2), ridges=ridges)
    for ridge in ridges:
        one = create("dfr", Setting(2, 2), ridges=(ridge,))
        one.finish(model, held)
        heads.append(model.predictor)
        one.finish(model, held.only(held.halves == 0))  # standardised by itself, which changes the ridge a little
        scores.append(worst(model))
    algorithm.finish(model, held)
    chosen = [torch.equal(model.predictor, head) for head in heads]
    assert sum(chosen) == 1
    assert scores[chosen.index(True)] == pytest.approx(max(scores), abs=0.1)
    assert min(scores) < max(scores)


def test_dfr_weighs_samples():
    held = held_out()
    counts = torch.arange(80) % 3 + 1
    repeated = HeldOut(*(None if part is None else part.repeat_interleave(counts, 0) for part in held))
    ends = []
    for given in (repeated, held._replace(weights=counts.double()), held):
        model = Classifier(nn.Identity(), 4, 2).double()
        create("dfr", Setting(2, 2)).finish(model, given)
        ends.append(model.predictor)
    torch.testing.assert_close(ends[0], ends[1], rtol=1e-5, atol=1e-6)
    assert not torch.allclose(ends[0], ends[2], atol=1e-3)
