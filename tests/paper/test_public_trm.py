"""TRM as the public code trains it: exact where nothing is left out, and what it is where something is."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from problems import random_batch
from torch import nn

from transferrisk import TransferRisk
from transferrisk.algorithms import Pass, Setting, create
from transferrisk.models import Classifier

RIDGE = 0.05
CONVERGED = {"ridge": RIDGE, "head_steps": 3000, "head_lr": 0.3}
EXACT = {**CONVERGED, "terms": 2000, "through_biases": True, "gradient_matching": 1.0}


@pytest.fixture
def out():
    """A forward pass over three environments in float64, with features small enough for the series to converge."""
    batch = random_batch(0, [12, 9, 15], classes=3, width=4)
    model = Classifier(nn.Identity(), 4, 3).double()
    features = (0.5 * batch.features).requires_grad_()
    return Pass(features, model.head(features), batch.labels, batch.index, model)


def transfer_gradient(out, **settings):
    """Of the loss less the empirical risk, by the features; and that difference."""
    logs = create("trm-public", Setting(3, 3), **settings).double().objective(out, True)
    added = logs["loss"] - out.empirical_risk
    return torch.autograd.grad(added, out.features, retain_graph=True)[0], logs


@pytest.mark.parametrize("matching", [0.0, 0.3, 1.0])
def test_with_converged_heads_and_many_terms_its_gradient_is_the_exact_one(out, matching):
    ours, logs = transfer_gradient(out, **{**EXACT, "gradient_matching": matching})
    exact = TransferRisk(RIDGE, matching, num_classes=3, environments=3).double()
    risk = exact(out.features, out.labels, out.environments).risk
    torch.testing.assert_close(logs["transfer_risk"], risk, rtol=1e-8, atol=0)
    torch.testing.assert_close(ours, torch.autograd.grad(risk, out.features)[0], rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize(
    "left_out", [{"terms": 11}, {"through_biases": False}, {"gradient_matching": 1e-4}, {"head_steps": 20}]
)
def test_each_thing_that_the_public_code_leaves_out_changes_the_gradient(out, left_out):
    exact, _ = transfer_gradient(out, **EXACT)
    found, _ = transfer_gradient(out, **{**EXACT, **left_out})
    assert float((found - exact).norm() / exact.norm()) > 0.02


def test_without_biases_it_is_exact_for_predictors_whose_biases_stand_still(out):
    """By central differences of the risk under heads whose weights alone are fitted again."""
    algorithm = create("trm-public", Setting(3, 3), **{**EXACT, "through_biases": False}).double()
    logs = algorithm.objective(out, True)
    added = logs["loss"] - out.empirical_risk
    (gradient,) = torch.autograd.grad(added, out.features, retain_graph=True)
    heads = algorithm.heads.clone()

    def fitted(features, e):
        weights, bias = heads[e, :, :-1].clone(), heads[e, :, -1]
        members = out.environments == e
        for _ in range(3000):
            probabilities = torch.softmax(features[members] @ weights.T + bias, 1)
            residual = probabilities - F.one_hot(out.labels[members], 3)
            weights = weights - 0.3 * (residual.T @ features[members] / members.sum() + RIDGE * weights)
        return weights, bias

    def risk(features):
        total = 0.0
        for q in range(3):
            weights, bias = fitted(features, q)
            for p in set(range(3)) - {q}:
                members = out.environments == p
                total += F.cross_entropy(features[members] @ weights.T + bias, out.labels[members]).item() / 6
        return total

    torch.manual_seed(0)
    direction = torch.randn_like(out.features)
    start = out.features.detach()
    numeric = (risk(start + 1e-5 * direction) - risk(start - 1e-5 * direction)) / 2e-5
    assert float((gradient * direction).sum()) == pytest.approx(numeric, rel=1e-6)


def test_heads_persist_over_batches(out):
    """Twice ten steps on one batch are twenty, and a head without samples stays."""
    settings = {"head_steps": 10, "head_lr": 0.1}
    twice = create("trm-public", Setting(3, 3), **settings).double()
    for _ in range(2):
        twice.objective(out, True)
    once = create("trm-public", Setting(3, 3), **{**settings, "head_steps": 20}).double()
    once.objective(out, True)
    torch.testing.assert_close(twice.heads, once.heads)
    before = twice.heads.clone()
    kept = out.environments != 1
    some = Pass(out.features[kept], out.logits[kept], out.labels[kept], out.environments[kept], out.model)
    twice.objective(some, True)
    assert torch.equal(twice.heads[1], before[1])
    assert not torch.equal(twice.heads[0], before[0])


def test_a_head_takes_plain_gradient_descent_on_the_mean_loss_of_its_environment(out):
    algorithm = create("trm-public", Setting(3, 3), head_steps=5, head_lr=0.2).double()
    algorithm.objective(out, True)
    head = nn.Linear(4, 3).double()
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    optimiser = torch.optim.SGD(head.parameters(), lr=0.2)
    members = out.environments == 2
    for _ in range(5):
        optimiser.zero_grad()
        F.cross_entropy(head(out.features[members].detach()), out.labels[members]).backward()
        optimiser.step()
    torch.testing.assert_close(algorithm.heads[2], torch.cat([head.weight, head.bias.unsqueeze(1)], 1).detach())


def test_the_weights_follow_their_own_share_of_the_losses(out):
    algorithm = create("trm-public", Setting(3, 3), weights_lr=0.5).double()
    algorithm.objective(out, True)
    head = algorithm.heads[0]
    losses = []
    for p in (1, 2):
        members = out.environments == p
        losses.append(F.cross_entropy(out.features[members] @ head[:, :-1].T + head[:, -1], out.labels[members]).item())
    ratio = math.exp(0.5 * (0.5 * losses[0] - 0.5 * losses[1]))
    assert float(algorithm.alpha[0, 1] / algorithm.alpha[0, 2]) == pytest.approx(ratio, rel=1e-6)
