"""Errors and variances of the implicit gradient, on small versions and against batches taken one by one."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from transferrisk.functional import transfer_risk, uniform_weights
from transferrisk.paper.implicit_gradient import (
    Batches,
    ImplicitGradientSettings,
    _spread,
    finite_difference,
    implicit_gradient_records,
)
from transferrisk.solvers import CG, Cholesky

SETTINGS = ImplicitGradientSettings(environments=3, causal_width=2, environment_width=4, features=3)


def drawn(count=5, samples=20):
    return Batches.draw(SETTINGS.family(), count, samples, seed=7), SETTINGS.map()


def alone(batch, map, ridge):
    """Risk and gradient of one batch by the library's function, without the others."""
    own = map.clone().requires_grad_()
    _, E, n, D = batch.inputs.shape
    features = batch.inputs.reshape(-1, D) @ own.mT
    index = torch.arange(E).repeat_interleave(n)
    labels = batch.labels.flatten()
    risk = transfer_risk(features, labels, index, E, 2, ridge, weights=uniform_weights, implicit=Cholesky()).risk
    risk.backward()
    return float(risk.detach()), own.grad.flatten()


def test_batches_solved_together_are_as_if_alone():
    batches, map = drawn()
    gradients = batches.gradients(map, 0.05, CG())
    risks = batches.risks(map.expand(len(batches), -1, -1), 0.05)
    for k in range(len(batches)):
        risk, gradient = alone(batches[k], map, 0.05)
        assert float(risks[k]) == pytest.approx(risk, rel=1e-9)
        torch.testing.assert_close(gradients[k], gradient, rtol=1e-7, atol=1e-10)


def test_many_batches_are_solved_in_turns():
    batches, map = drawn(count=70, samples=4)
    assert batches.together < 70
    risks = batches.risks(map.expand(len(batches), -1, -1), 0.1)
    assert float(risks[-1]) == pytest.approx(alone(batches[69], map, 0.1)[0], rel=1e-9)


def test_batches_hold_every_environment_once():
    family = SETTINGS.family()
    batches = Batches.draw(family, 6, 2000, seed=3)
    signed = (2 * batches.labels - 1).unsqueeze(-1) * batches.inputs
    means = torch.cat([family.causal_mean.expand(3, -1), family.environment_means], 1)
    torch.testing.assert_close(signed.mean(2), means.expand(6, -1, -1), atol=0.15, rtol=0)


def test_the_exact_gradient_is_the_finite_difference():
    batches, map = drawn(count=1)
    directions = torch.eye(map.numel(), dtype=torch.float64)
    gradient = batches.gradients(map, 0.01, CG())[0]
    torch.testing.assert_close(finite_difference(batches, map, directions, 0.01), gradient, rtol=1e-7, atol=1e-9)


def test_what_is_drawn_shares_no_draws():
    names = ("means", "map", "pool", "batches", "directions")
    streams = [ImplicitGradientSettings(seed=seed).stream(name) for seed in range(50) for name in names]
    assert len(set(streams)) == len(streams)
    settings = ImplicitGradientSettings()
    generator = torch.Generator().manual_seed(settings.stream("map"))
    draws = torch.randn(settings.width, settings.features, generator=generator, dtype=torch.float64)
    assert torch.equal(settings.map(), settings.scale * torch.linalg.qr(draws).Q.mT)
    means = settings.family().environment_means / settings.spread
    assert not torch.isclose(means.flatten()[:, None], draws.flatten()).any()


def test_the_pool_and_the_batches_are_drawn_apart(monkeypatch):
    seeds, draw = [], Batches.draw

    def noted(family, count, samples, seed):
        seeds.append(seed)
        return draw(family, count, samples, seed)

    monkeypatch.setattr(Batches, "draw", noted)
    for seed in range(2):
        implicit_gradient_records(
            ImplicitGradientSettings(batch_sizes=(4,), ridges=(0.1,), terms=(1,), batches=2, pool=8, seed=seed)
        )
    assert len(set(seeds)) == 4


def test_spread_is_bias_and_deviation_of_gradients_around_the_truth():
    """Two gradients, (1, 2) and (3, 2), around (2, 0): their mean (2, 2) is off by 2, each is 1 from it."""
    spread = _spread(torch.tensor([[1.0, 2.0], [3.0, 2.0]], dtype=torch.float64), torch.tensor([2.0, 0.0]).double())
    cosine = (1 / 5**0.5 + 3 / 13**0.5) / 2
    assert spread == pytest.approx({"bias": 1.0, "deviation": 0.5, "error": 1.25**0.5, "cosine": cosine})


def test_rows_hold_the_spread_of_the_batches_taken_one_by_one():
    settings = ImplicitGradientSettings(batch_sizes=(20,), ridges=(0.05,), terms=(1,), batches=4, pool=300)
    family, map = settings.family(), settings.map()
    batches = Batches.draw(family, 4, 20, settings.stream("batches"))
    each = torch.stack([alone(batches[k], map, 0.05)[1] for k in range(4)])
    truth = alone(Batches.draw(family, 1, 300, settings.stream("pool")), map, 0.05)[1]
    (row,) = [r for r in implicit_gradient_records(settings) if (r["what"], r.get("method")) == ("variance", "exact")]
    assert row["bias"] == pytest.approx(float((each.mean(0) - truth).norm() / truth.norm()), rel=1e-6)
    assert row["deviation"] == pytest.approx(float(each.var(0, correction=0).sum().sqrt() / truth.norm()), rel=1e-6)


@pytest.fixture(scope="module")
def found():
    return implicit_gradient_records(
        ImplicitGradientSettings(batch_sizes=(16, 256), ridges=(1e-3, 0.1), terms=(1, 10, 100), batches=24, pool=10_000)
    )


def test_errors_fall_from_none_to_exact(found):
    errors = {(r["ridge"], r["batch_size"], r["method"]): r["error"] for r in found if r["what"] == "error"}
    for ridge in (1e-3, 0.1):
        for size in (16, 256):
            assert errors[ridge, size, "exact"] < 1e-7
            assert errors[ridge, size, "none"] > 0.1
    for size in (16, 256):
        series = [errors[0.1, size, name] for name in ("none", "neumann-1", "neumann-10", "neumann-100", "exact")]
        assert all(after < before + 1e-13 for before, after in pairwise(series))  # what differences resolve
        assert series[3] < 1e-4
    assert errors[1e-3, 16, "neumann-10"] > 0.3  # the paper's ten terms on a small batch


def test_small_batches_have_large_variance_and_the_implicit_part_the_larger(found):
    deviation = {(r["ridge"], r["batch_size"], r["part"]): r["deviation"] for r in found if r["what"] == "part"}
    for ridge in (1e-3, 0.1):
        for part in ("direct", "implicit"):
            assert deviation[ridge, 16, part] > 2 * deviation[ridge, 256, part]
        assert deviation[ridge, 16, "implicit"] > deviation[ridge, 16, "direct"]
    assert deviation[1e-3, 16, "implicit"] > 3 * deviation[0.1, 16, "implicit"]


def test_exact_wins_on_large_batches_and_loses_on_small_ones(found):
    error = {
        (r["batch_size"], r["method"]): r["error"] for r in found if r["what"] == "variance" and r["ridge"] == 1e-3
    }
    assert error[256, "exact"] < error[256, "none"]
    assert error[16, "exact"] > error[16, "none"]
    for row in (r for r in found if r["what"] == "variance"):
        assert row["error"] ** 2 == pytest.approx(row["bias"] ** 2 + row["deviation"] ** 2)


def test_a_series_that_diverges_is_counted_and_left_out():
    """Features that say little of the labels and are large: H has eigenvalues above 2."""
    settings = ImplicitGradientSettings(
        batch_sizes=(64,), ridges=(0.1,), terms=(10,), batches=4, pool=500, scale=20.0, spread=0.01
    )
    found = {r["method"]: r for r in implicit_gradient_records(settings) if r["what"] == "variance"}
    assert found["neumann-10"]["diverged"] == 1
    assert found["none"]["diverged"] == found["exact"]["diverged"] == 0
    assert found["neumann-10"]["error"] == found["none"]["error"]


def test_numbers(found):
    """As they were when all else here held; draws of another release of torch would change them."""
    by = {(r["what"], r["ridge"], r["batch_size"], r.get("method", r.get("part"))): r for r in found}
    numbers = {
        ("variance", 1e-3, 16, "none"): 7.47604,
        ("variance", 1e-3, 16, "exact"): 24.5043,
        ("variance", 1e-3, 256, "none"): 0.880442,
        ("variance", 1e-3, 256, "exact"): 0.500101,
        ("variance", 0.1, 16, "exact"): 2.09905,
        ("error", 1e-3, 256, "neumann-10"): 0.0607472,
        ("error", 1e-3, 16, "none"): 0.902657,
        ("part", 1e-3, 16, "direct"): 9.92233,
        ("part", 1e-3, 16, "implicit"): 29.5369,
    }
    assert {place: by[place]["error"] for place in numbers} == pytest.approx(numbers, rel=1e-3)
