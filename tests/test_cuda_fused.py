"""The fused kernels against float64, and steps as CUDA graphs against the same steps taken one by one."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from problems import random_batch, relative

from transferrisk import TransferRisk
from transferrisk.errors import InputError
from transferrisk.functional import given_weights, transfer_risk, uniform_weights, worst_weights

pytestmark = pytest.mark.gpu

SHAPES = [
    ([128, 128], 10, 128), ([32, 32, 32], 7, 512), ([32, 32, 32], 65, 512),
    ([16, 16], 2, 3), ([100, 100, 100, 100], 12, 64), ([64, 64], 5, 20),
]  # fmt: skip


def fused(classes, environments, **options):
    return TransferRisk(num_classes=classes, environments=environments, captured=True, fused=True, **options).to("cuda")


def reference(batch, ridge=1e-3, rule=None, **options):
    """The transfer risk in float64 on the CPU, to convergence, and its gradient."""
    features = batch.features.detach().cpu().double().requires_grad_()
    E = batch.num_environments
    alpha = (1 - torch.eye(E, dtype=torch.float64)) / (E - 1)
    result = transfer_risk(
        features, batch.labels.cpu(), batch.index.cpu(), E, batch.num_classes, ridge,
        weights=rule or given_weights(alpha), **options,
    )  # fmt: skip
    result.risk.backward()
    return result, features.grad


def compare(batch, criterion, expected, gradient, tolerance=1e-3):
    features = batch.features.clone().requires_grad_()
    out = criterion(features, batch.labels, batch.index)
    out.risk.backward()
    assert out.risk.item() == pytest.approx(expected.risk.item(), rel=tolerance)
    torch.testing.assert_close(out.matrix.cpu().double(), expected.matrix, rtol=tolerance, atol=1e-5)
    assert relative(features.grad.cpu().double(), gradient) < tolerance
    return out


@pytest.mark.parametrize(("sizes", "classes", "width"), SHAPES)
@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
@pytest.mark.parametrize("blocks", [False, True])
def test_close_to_float64(sizes, classes, width, scale, blocks):
    batch = random_batch(0, sizes, classes, width, torch.float32, "cuda")
    batch = replace(batch, features=scale * batch.features)
    if blocks:
        order = torch.argsort(batch.index, stable=True)
        batch = replace(batch, features=batch.features[order], labels=batch.labels[order], index=batch.index[order])
    expected, gradient = reference(batch)
    out = compare(batch, fused(classes, len(sizes), capacity=max(sizes), blocks=blocks), expected, gradient)
    assert out.solution.converged.all()
    assert out.inverse.converged.all()


def test_features_of_a_trained_network():
    """Few directions matter, and labels conflict within a cluster: products rounded to tf32 would not do."""
    batch = random_batch(4, [128, 128], 10, 128, torch.float32, "cuda")
    generator = torch.Generator(device="cuda").manual_seed(0)
    shape, colour = (torch.randn(10, 128, device="cuda", generator=generator) for _ in range(2))
    shown = torch.where(
        torch.rand(256, device="cuda", generator=generator) < 0.9,
        batch.labels,
        torch.randint(10, (256,), device="cuda", generator=generator),
    )
    noise = 0.1 * torch.randn(256, 128, device="cuda", generator=generator)
    batch = replace(batch, features=0.3 * (0.3 * shape[batch.labels] + colour[shown] + noise).relu())
    expected, gradient = reference(batch)
    compare(batch, fused(10, 2, capacity=128), expected, gradient)


@pytest.mark.parametrize("weights", ["worst", "uniform"])
def test_rules(weights):
    batch = random_batch(1, [40, 25, 33], 6, 30, torch.float32, "cuda")
    rule = worst_weights if weights == "worst" else uniform_weights
    expected, gradient = reference(batch, rule=rule)
    compare(batch, fused(6, 3, weights=weights, capacity=40), expected, gradient)


def test_direct_only_and_bounded():
    batch = random_batch(2, [32, 32], 4, 16, torch.float32, "cuda")
    expected, gradient = reference(batch, gradient_matching=0.0)
    compare(batch, fused(4, 2, capacity=32, implicit="none"), expected, gradient)
    expected, gradient = reference(batch, bound=0.5)
    compare(batch, fused(4, 2, capacity=32, bound=0.5), expected, gradient)


def test_environments_that_are_absent_and_batches_that_are_bad():
    batch = random_batch(3, [20, 30], 4, 16, torch.float32, "cuda")
    expected, gradient = reference(batch)
    criterion = fused(4, 3, capacity=32)
    features = batch.features.clone().requires_grad_()
    with torch.no_grad():
        criterion.alpha.copy_((1 - torch.eye(3)) / 2)
    out = criterion(features, batch.labels, batch.index)
    out.risk.backward()
    assert out.risk.item() == pytest.approx(expected.risk.item(), rel=1e-3)
    assert out.matrix[:, 2].isnan().all()
    assert out.matrix[2].isnan().all()
    assert relative(features.grad.cpu().double(), gradient) < 1e-3
    for labels, index in ((batch.labels + 4, batch.index), (batch.labels, batch.index + 7)):
        assert criterion(features, labels, index).risk.isnan()
    assert fused(4, 2, capacity=16)(features, batch.labels, batch.index).risk.isnan()  # does not fit
    misplaced = fused(4, 2, capacity=32, blocks=True)
    assert misplaced(features[:40], batch.labels[:40], batch.index[:40].flip(0)).risk.isnan()


def test_one_random_query():
    batch = random_batch(4, [32, 32, 32], 5, 24, torch.float32, "cuda")
    criterion = fused(5, 3, capacity=32, query="random").train()
    rows = set()
    for _ in range(12):
        out = criterion(batch.features, batch.labels, batch.index)
        rows |= {i for i in range(3) if not out.matrix[i].isnan().any()}
    assert rows == {0, 1, 2}


def test_what_does_not_fit_is_said():
    batch = random_batch(5, [300, 300], 3, 8, torch.float32, "cuda")
    with pytest.raises(InputError, match=r"fused must .* 300 samples.* got True"):
        fused(3, 2, capacity=300)(batch.features, batch.labels, batch.index)
    with pytest.raises(InputError, match="features must have 2 blocks"):
        fused(3, 2, capacity=64, blocks=True)(batch.features[:7], batch.labels[:7], batch.index[:7])


def test_nothing_waits(without_waiting):
    batch = random_batch(6, [128, 128], 10, 128, torch.float32, "cuda")
    criterion = fused(10, 2, capacity=128)
    features = batch.features.clone().requires_grad_()
    criterion(features, batch.labels, batch.index).risk.backward()
    with without_waiting():
        criterion(features, batch.labels, batch.index).risk.backward()


@pytest.mark.parametrize("ridge", [1e-3, 1e-4])
def test_a_batch_on_which_whole_steps_of_newton_lead_away(ridge):
    """A batch of a real training, at ridge 1e-4; float32 loses digits there long before the optimum is near."""
    kept = np.load(Path(__file__).parent / "functional" / "hard_batch.npz")
    batch = random_batch(0, [128, 128], 10, 128, torch.float32, "cuda")
    features, labels, index = (torch.from_numpy(kept[key]).cuda() for key in ("features", "labels", "environments"))
    batch = replace(batch, features=features, labels=labels.long(), index=index.long())
    expected, gradient = reference(batch, ridge)
    out = compare(batch, fused(10, 2, ridge=ridge, capacity=128, blocks=True), expected, gradient, tolerance=2e-2)
    assert out.solution.converged.all()
