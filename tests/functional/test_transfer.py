"""Transfer matrix, risk and gradient, against plain loops and finite differences."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from problems import overlapping_batch, random_batch, relative
from torch.autograd import forward_ad

from transferrisk import TransferRisk
from transferrisk.errors import DivergedError, InputError
from transferrisk.functional import (
    exponentiated_gradient,
    optimal_predictor,
    transfer,
    transfer_matrix,
    transfer_risk,
    uniform_weights,
    worst_weights,
)
from transferrisk.functional.linear_loss import with_bias
from transferrisk.solvers import CG, Cholesky, Neumann, Woodbury

batches = st.builds(
    random_batch,
    seed=st.integers(0, 10**6),
    sizes=st.lists(st.integers(1, 25), min_size=2, max_size=6),
    classes=st.integers(2, 30),
    width=st.integers(1, 40),
)


def by_loops(batch, ridge):
    """M[Q, P] the slow way."""
    E = batch.num_environments
    matrix = torch.empty(E, E, dtype=torch.float64)
    for q in range(E):
        own = batch.index == q
        W = optimal_predictor(batch.features[own], batch.labels[own], batch.num_classes, ridge)
        for p in range(E):
            there = batch.index == p
            matrix[q, p] = F.cross_entropy(with_bias(batch.features[there]) @ W.T, batch.labels[there])
    return matrix


def finite_difference(batch, direction, ridge, step=1e-5, **options):
    """Central difference, fourth order, that solves every predictor anew."""

    def at(t):
        return float(batch.risk(batch.features + t * direction, ridge, **options))

    return (8 * (at(step) - at(-step)) - (at(2 * step) - at(-2 * step))) / (12 * step)


@given(batches, st.sampled_from([1e-1, 1e-2, 1e-3]))
def test_matrix_agrees_with_plain_loops(batch, ridge):
    matrix = transfer_matrix(batch.features, batch.labels, 10 - 3 * batch.index, batch.num_classes, ridge)
    torch.testing.assert_close(matrix.flip(0, 1), by_loops(batch, ridge), rtol=1e-8, atol=1e-9)


def test_matrix_of_features_that_float32_cannot_resolve_is_solved_in_float64():
    generator = torch.Generator().manual_seed(0)
    features = 100 * torch.randn(12, 200, generator=generator).repeat(8, 1)
    labels, sites = torch.randint(5, (96,), generator=generator), torch.arange(96) % 3
    one_try = transfer_risk(features, labels, sites, 3, 5, 1e-3)
    assert not one_try.solution.converged.all()  # the case is hard, and the test one that can fail
    matrix = transfer_matrix(features, labels, sites)
    assert matrix.dtype == torch.float32
    assert relative(matrix, transfer_matrix(features.double(), labels, sites)) < 1e-5


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": np.zeros((4, 2))}, "features must be a torch.Tensor, got ndarray"),
        ({"environments": None}, "environments must be a torch.Tensor, got NoneType"),
        ({"num_classes": 2.0}, "num_classes must .* got 2.0"),
        ({"ridge": None}, "ridge must .* got None"),
        ({"solver": CG()}, r"solver must .* got CG\("),
    ],
)
def test_matrix_of_bad_input_says_what_to_do(change, message):
    pairs = torch.tensor([0, 1, 0, 1])
    arguments = {"features": torch.zeros(4, 2), "labels": pairs, "environments": pairs}
    with pytest.raises(InputError, match=message):
        transfer_matrix(**(arguments | change))


@given(batches, st.sampled_from([1e-1, 1e-2, 1e-3]))
def test_gradient_is_the_total_derivative(batch, ridge):
    gradient = batch.gradient(ridge)
    noise = torch.randn(batch.features.shape, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    for direction in (noise, gradient / gradient.norm()):
        expected = finite_difference(batch, direction, ridge)
        assert abs(float((gradient * direction).sum()) - expected) < 1e-6 * max(
            abs(expected), float(gradient.norm()) * 1e-2
        )


def test_gradient_in_every_coordinate():
    batch = random_batch(0, [3, 2, 4], classes=4, width=3)
    gradient = batch.gradient(1e-3)
    numeric = torch.empty_like(gradient)
    for i in range(gradient.numel()):
        direction = torch.zeros_like(gradient).flatten()
        direction[i] = 1
        numeric.view(-1)[i] = finite_difference(batch, direction.reshape(gradient.shape), 1e-3)
    assert relative(gradient, numeric) < 1e-6


def test_worst_case_gradient_is_that_of_the_largest_losses():
    batch = random_batch(1, [12, 9, 15], classes=3, width=4)
    arguments = (batch.labels, batch.index, 3, 3, 1e-2)
    features = batch.features.clone().requires_grad_()
    out = transfer_risk(features, *arguments, weights=worst_weights)
    largest = out.matrix.masked_fill(torch.eye(3, dtype=torch.bool), -torch.inf).amax(1)
    torch.testing.assert_close(out.risk.detach(), largest.mean())
    out.risk.backward()
    direction = torch.randn_like(batch.features)

    def at(t):
        return float(transfer_risk(batch.features + t * direction, *arguments, weights=worst_weights).risk)

    expected = (at(1e-5) - at(-1e-5)) / 2e-5
    assert float((features.grad * direction).sum()) == pytest.approx(expected, rel=1e-6)


def test_sum_sum_is_the_mean_over_the_others_with_the_digits_of_float64():
    batch = random_batch(6, [9, 8, 7, 6], classes=2, width=3)
    out = transfer_risk(batch.features, batch.labels, batch.index, 4, 2, 1e-2, weights=uniform_weights)
    assert out.risk.dtype == out.weights.dtype == torch.float64
    off = ~torch.eye(4, dtype=torch.bool)
    assert float(out.risk) == pytest.approx(float(out.matrix[off].mean()), rel=1e-13)


def test_one_query_at_a_time_averages_to_all():
    batch = random_batch(3, [8, 9, 7, 5], classes=3, width=6)
    arguments = (batch.labels, batch.index, 4, 3, 1e-2)
    total = torch.zeros_like(batch.features)
    risks = []
    for q in range(4):
        features = batch.features.clone().requires_grad_()
        out = transfer_risk(features, *arguments, weights=worst_weights, queries=torch.tensor([q]))
        out.risk.backward()
        total += features.grad / 4
        risks.append(out.risk.detach())
    features = batch.features.clone().requires_grad_()
    together = transfer_risk(features, *arguments, weights=worst_weights)
    together.risk.backward()
    torch.testing.assert_close(torch.stack(risks).mean(), together.risk.detach())
    torch.testing.assert_close(total, features.grad)


@pytest.mark.parametrize("queries", [[0, 0, 1], [1, 1], [2, 0, 2]])
def test_a_query_that_is_named_twice_counts_twice(queries):
    batch = random_batch(5, [8, 9, 7], classes=3, width=6)
    batch = replace(batch, alpha=batch.alpha[queries])  # a row for each query
    options = {"queries": torch.tensor(queries)}
    gradient = batch.gradient(1e-2, **options)
    direction = gradient / gradient.norm()
    expected = finite_difference(batch, direction, 1e-2, **options)
    assert float((gradient * direction).sum()) == pytest.approx(expected, rel=1e-6)


@pytest.mark.filterwarnings("ignore:.torch.jit.script:DeprecationWarning")  # used by torch itself
def test_forward_mode_has_the_same_derivative():
    batch = random_batch(6, [8, 9, 7], classes=3, width=6)
    gradient, direction = batch.gradient(1e-2), torch.ones_like(batch.features)
    expected = (gradient * direction).sum()
    _, found = torch.func.jvp(lambda features: batch.risk(features, 1e-2), (batch.features,), (direction,))
    torch.testing.assert_close(found, expected)
    with forward_ad.dual_level():
        risk = batch.risk(forward_ad.make_dual(batch.features, direction), 1e-2)
        torch.testing.assert_close(forward_ad.unpack_dual(risk).tangent, expected)
    torch.testing.assert_close(torch.func.grad(lambda features: batch.risk(features, 1e-2))(batch.features), gradient)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": np.zeros((6, 2))}, "features must be a torch.Tensor, got ndarray"),
        ({"labels": torch.zeros(5).long()}, r"labels and index .* \(5,\)"),
        ({"index": torch.zeros(6)}, "index must be integers, got torch.float32"),
        ({"ridge": 0.0}, "ridge must .* got 0"),
        ({"solver": "newton"}, "solver must .* got 'newton'"),
        ({"implicit": "exact"}, "implicit must .* got 'exact'"),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
def test_risk_of_bad_input_says_what_to_do(change, message):
    arguments = {"features": torch.randn(6, 2), "labels": torch.arange(6) % 2, "index": torch.arange(6) // 3}
    with pytest.raises(InputError, match=message):
        transfer_risk(**{**arguments, "num_environments": 2, "num_classes": 2, "ridge": 1e-2, **change})


@pytest.mark.parametrize("sizes", [[6, 9], [30, 25]], ids=["n<d", "n>d"])
def test_every_route_gives_the_same_gradient(sizes):
    batch = random_batch(4, sizes, classes=4, width=12)
    exact = batch.gradient(1e-3)
    for space in ("predictor", "sample"):
        for implicit in (CG(), Cholesky(), Woodbury()):
            assert relative(batch.gradient(1e-3, space=space, implicit=implicit), exact) < 1e-8


@pytest.mark.parametrize("kept", [0, 1 << 20], ids=["computed again", "kept"])
def test_queries_one_at_a_time_give_the_gradient_of_all_at_once(monkeypatch, kept):
    batch = random_batch(13, [6, 9, 7], classes=30, width=40)
    together = batch.gradient(1e-2, bound=2.0)
    monkeypatch.setattr(transfer, "MOST_LOGITS", ((1, kept), (1, kept)))
    torch.testing.assert_close(batch.gradient(1e-2, bound=2.0), together, rtol=1e-9, atol=1e-12)


def test_solving_h_in_the_span_of_its_own_rows_would_be_wrong():
    """The trap of the n x C space: v_Q is not in the span of Q's rows, so the part outside must be kept."""
    batch = random_batch(5, [6, 9], classes=4, width=20)
    exact, direct = batch.gradient(1e-2), batch.gradient(1e-2, gradient_matching=0.0)
    own = batch.index == 0
    basis = torch.linalg.qr(with_bias(batch.features[own]).T).Q[:-1]
    inside = (exact - direct)[own] @ basis @ basis.T
    assert relative(inside, (exact - direct)[own]) > 0.1


def test_neumann_approaches_the_exact_gradient():
    batch = random_batch(6, [20, 30], classes=3, width=3)
    exact = batch.gradient(0.2)
    errors = [relative(batch.gradient(0.2, implicit=Neumann(terms, scale=0.3)), exact) for terms in (10, 100, 1000)]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-6


def test_neumann_on_large_features_refuses():
    with pytest.raises(DivergedError):
        overlapping_batch(7).gradient(1e-3, implicit=Neumann())


def test_gradient_matching_scales_the_implicit_part_only():
    batch = random_batch(8, [10, 12, 8], classes=3, width=5)
    direct = batch.gradient(1e-2, gradient_matching=0.0)
    full, half = batch.gradient(1e-2), batch.gradient(1e-2, gradient_matching=0.5)
    torch.testing.assert_close(half - direct, 0.5 * (full - direct))


def test_direct_part_is_the_derivative_with_predictors_held():
    batch = random_batch(9, [10, 12], classes=3, width=5)
    features = batch.features.clone().requires_grad_()
    risk = 0
    for q, p in ((0, 1), (1, 0)):
        own, there = batch.index == q, batch.index == p
        W = optimal_predictor(batch.features[own], batch.labels[own], 3, 1e-2)
        risk = risk + F.cross_entropy(with_bias(features[there]) @ W.T, batch.labels[there]) / 2
    risk.backward()
    torch.testing.assert_close(batch.gradient(1e-2, gradient_matching=0.0), features.grad)


def test_bound_limits_the_implicit_gradient_and_keeps_its_direction():
    batch = random_batch(10, [10, 12], classes=3, width=5)
    direct = batch.gradient(1e-3, gradient_matching=0.0)
    implicit = batch.gradient(1e-3) - direct
    ratio = float(implicit.norm() / direct.norm())
    bound = 0.25 * ratio
    limited = batch.gradient(1e-3, bound=bound) - direct
    assert float(limited.norm() / direct.norm()) == pytest.approx(bound)
    assert float(F.cosine_similarity(limited.flatten(), implicit.flatten(), 0)) == pytest.approx(1)
    torch.testing.assert_close(batch.gradient(1e-3, bound=2 * ratio), batch.gradient(1e-3))


@pytest.mark.parametrize("scale", [0.1, 1.0, 10.0])
def test_float32_gradient_is_close_to_float64(scale):
    double = random_batch(11, [64, 48], classes=10, width=96)
    features = scale * double.features
    exact, single = features.clone().requires_grad_(), features.float().requires_grad_()
    double.risk(exact, 1e-3).backward()
    double.risk(single, 1e-3).backward()
    assert relative(single.grad, exact.grad) < 1e-3


def test_gradient_cannot_be_differentiated_again():
    batch = random_batch(12, [5, 5], classes=2, width=3)
    features = batch.features.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(batch.risk(features, 1e-2), features, create_graph=True)
    with pytest.raises(RuntimeError, match="cannot be differentiated again"):
        gradient.sum().backward()


@given(st.integers(0, 10**6), st.integers(2, 8), st.floats(0.001, 10))
def test_exponentiated_gradient_is_its_closed_form(seed, size, rate):
    generator = torch.Generator().manual_seed(seed)
    weights = torch.softmax(torch.randn(size, generator=generator, dtype=torch.float64), 0)
    gains = torch.randn(size, generator=generator, dtype=torch.float64)
    moved = torch.ones(size, dtype=torch.bool)
    expected = weights * torch.exp(rate * gains)
    torch.testing.assert_close(exponentiated_gradient(weights, gains, rate, moved), expected / expected.sum())


def test_exponentiated_gradient_over_all_entries_needs_no_mask():
    weights, gains = torch.rand(4, 5).softmax(-1), torch.randn(4, 5)
    everything = torch.ones(4, 5, dtype=torch.bool)
    torch.testing.assert_close(
        exponentiated_gradient(weights, gains, 0.3), exponentiated_gradient(weights, gains, 0.3, everything)
    )


def test_exponentiated_gradient_leaves_the_absent_alone():
    weights, gains = torch.tensor([0.5, 0.3, 0.2]), torch.tensor([1.0, torch.nan, 2.0])
    new = exponentiated_gradient(weights, gains, 1.0, torch.tensor([True, False, True]))
    assert new[1] == weights[1]
    torch.testing.assert_close(new.sum(), torch.tensor(1.0))
    assert new[2] > weights[2]


@pytest.mark.parametrize("stable", [0.6, 0.75, 0.9, 0.99])
def test_a_shortcut_in_the_same_direction_lowers_the_transfer_risk_and_a_reversed_one_raises_it(stable):
    """Populations, as weighted rows: a column agrees with the label in `stable` of the rows, another in a site's share.

    Where the shares are 95 and 85 %, the risk itself prefers to use the second column, however good the first one is.
    """

    def risk(shares, used):
        rows = [(e, y, s, c) for e in range(2) for y, s, c in itertools.product((0, 1), repeat=3)]
        columns = torch.tensor([[2.0 * s - 1, used * (2.0 * c - 1)] for _, _, s, c in rows], dtype=torch.float64)
        weights = [(stable if s == y else 1 - stable) * (shares[e] if c == y else 1 - shares[e]) for e, y, s, c in rows]
        site, label = torch.tensor([row[0] for row in rows]), torch.tensor([row[1] for row in rows])
        criterion = TransferRisk(ridge=1e-6, weights="worst")
        return float(criterion(columns, label, site, sample_weights=torch.tensor(weights, dtype=torch.float64)).risk)

    entropy = -(stable * np.log(stable) + (1 - stable) * np.log(1 - stable))
    assert risk((0.95, 0.85), 0) == pytest.approx(entropy, abs=1e-3)
    assert risk((0.95, 0.85), 1) < risk((0.95, 0.85), 0)
    assert risk((0.95, 0.3), 1) > risk((0.95, 0.3), 0)
    if stable == 0.9:
        assert [risk((0.95, 0.85), used) for used in (1, 0)] == pytest.approx([0.208, 0.325], abs=1e-3)
