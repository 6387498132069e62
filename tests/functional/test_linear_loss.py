"""Loss, gradient and Hessian against autograd and against each other."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from problems import padded_loss, random_predictors

from transferrisk.functional import SoftmaxLoss
from transferrisk.functional.linear_loss import (
    losses_and_residuals,
    row_losses,
    softmax_jacobian,
    softmax_residual,
    with_bias,
)

sizes = st.fixed_dictionaries(
    {"batch": st.integers(1, 3), "n": st.integers(4, 12), "classes": st.integers(2, 6), "width": st.integers(1, 9)}
)


def by_torch(loss, W):
    """l(W), (B,), from torch's own cross-entropy."""
    entropies = F.cross_entropy(W @ loss.rows.mT, loss.labels.clamp(min=0), reduction="none")
    return (loss.weights * entropies).sum(1) + loss.ridge / 2 * W.square().sum((1, 2))


@given(sizes, st.integers(0, 10**6))
def test_loss_and_its_derivatives_agree_with_autograd(shape, seed):
    loss = padded_loss(seed, **shape)
    W = random_predictors(loss).requires_grad_()
    expected = by_torch(loss, W)
    (by_autograd,) = torch.autograd.grad(expected.sum(), W)
    W = W.detach()
    torch.testing.assert_close(loss.linearise(W).gradient, by_autograd)
    evaluated, gradient = loss.evaluate(W)
    torch.testing.assert_close(evaluated, expected.detach())
    torch.testing.assert_close(gradient, by_autograd)
    along = loss.along(W, 0.3 - W, torch.tensor([[0.0], [0.25]], dtype=W.dtype))
    torch.testing.assert_close(along, torch.stack([evaluated, by_torch(loss, 0.75 * W + 0.075)]))


@given(sizes, st.integers(0, 10**6))
def test_hessian_product_dense_and_factor_agree_with_autograd(shape, seed):
    loss = padded_loss(seed, **shape)
    W, V = random_predictors(loss), random_predictors(loss).flip(0) + 0.3
    _, by_autograd = torch.autograd.functional.hvp(lambda w: by_torch(loss, w).sum(), W, V)
    hessian = loss.hessian(W)
    torch.testing.assert_close(hessian.product(V), by_autograd)
    dense = torch.einsum("bij,bj->bi", hessian.dense(), V.flatten(1)).reshape(V.shape)
    torch.testing.assert_close(hessian.direct(dense), V)
    torch.testing.assert_close(dense, by_autograd)
    through_factor = hessian.factor_adjoint(hessian.factor(V)) + 0.05 * V
    torch.testing.assert_close(through_factor, by_autograd)
    u = hessian.factor(V)
    gram = torch.einsum("bij,bj->bi", hessian.factor_gram(), u)
    torch.testing.assert_close(gram, hessian.factor(hessian.factor_adjoint(u)))


@pytest.mark.parametrize("classes", [3, 16, 17, 40])
def test_a_factored_hessian_inverts_the_product(classes):
    loss = padded_loss(0, batch=2, n=12, classes=classes, width=2)
    W, V = random_predictors(loss), random_predictors(loss).flip(0) + 0.3
    with torch.inference_mode():  # leaves nothing behind that autograd refuses
        loss.hessian(W).direct(V)
    hessian = loss.hessian(W)
    rhs = hessian.product(V).requires_grad_()
    found = hessian.direct(rhs)
    torch.testing.assert_close(found, V)
    (gradient,) = torch.autograd.grad((found * V).sum(), rhs)  # H is symmetric
    torch.testing.assert_close(gradient, hessian.direct(V))


def test_a_factored_hessian_of_many_classes_is_small():
    """The pairs of 50 classes, each with a matrix of their differences, would take 23 MB."""
    loss = padded_loss(0, batch=1, n=4, classes=50, width=1)
    W = random_predictors(loss)
    hessian = loss.hessian(W)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        hessian.direct(W)
    assert max(event.cpu_memory_usage for event in profile.events()) < 2e6


@given(sizes, st.integers(0, 10**6))
def test_the_hessian_along_directions_is_the_dense_one_there(shape, seed):
    loss = padded_loss(seed, **shape)
    W = random_predictors(loss)
    directions, found = loss.curvature(W)
    dense = loss.hessian(W).dense().unflatten(1, W.shape[1:]).unflatten(3, W.shape[1:])
    expected = torch.einsum("bcdke,bid,bje->bcikj", dense, directions, directions)
    torch.testing.assert_close(found, expected.reshape(found.shape))


@pytest.mark.parametrize("chunks", [None, (slice(0, 9), slice(9, 15), slice(15, 30))], ids=["whole", "chunks"])
def test_problems_may_share_their_rows(chunks):
    """Predictors that sum to zero over classes, on rows of which each problem counts some."""
    generator = torch.Generator().manual_seed(0)
    rows = with_bias(torch.randn(30, 4, generator=generator, dtype=torch.float64))
    labels = torch.randint(3, (30,), generator=generator)
    place = torch.arange(30)
    counted = torch.stack([(place < 9) | (place >= 21), (place >= 9) & (place < 21)]).double()
    weights = counted / counted.sum(1, keepdim=True)
    loss = SoftmaxLoss(rows, labels, weights, 3, 0.1, centred=True, chunks=chunks)
    W = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    W -= W.mean(1, keepdim=True)
    apart = SoftmaxLoss(rows.expand(2, -1, -1), labels.expand(2, -1), weights, 3, 0.1)
    for found, expected in zip(loss.evaluate(W), apart.evaluate(W), strict=True):
        torch.testing.assert_close(found, expected)
    (directions, found), (same, expected) = loss.curvature(W), apart.curvature(W)
    torch.testing.assert_close(directions, same)
    # Alike for steps that sum to zero over classes, which are all that a centred problem takes.
    common = torch.ones(3, 3, dtype=torch.float64) / 3
    centred = torch.kron(torch.eye(3, dtype=torch.float64) - common, torch.eye(5, dtype=torch.float64))
    torch.testing.assert_close(centred @ found @ centred, centred @ expected @ centred)
    torch.testing.assert_close(loss.rough_inverse(), apart.rough_inverse())


def test_near_certain_predictions_keep_their_digits_in_float32():
    """Loss, residual and Jacobian where the probability of the true class rounds to one."""
    logits = torch.tensor([[20.0, 0.0, -1.0]])
    targets = torch.tensor([[1.0, 0.0, 0.0]])
    direction = torch.tensor([[5.0, 7.0, -2.0]])

    def quantities(dtype):
        S = torch.softmax(logits.to(dtype), -1)
        residual = softmax_residual(S, targets.to(dtype))
        return residual, softmax_jacobian(S, direction.to(dtype))

    for single, double in zip(quantities(torch.float32), quantities(torch.float64), strict=True):
        torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=0)
    exact = math.log1p(math.exp(-20) + math.exp(-21))
    assert float(row_losses(logits, targets)) == pytest.approx(exact, rel=1e-6)
    assert float(row_losses(-1e4 * logits, targets)) == pytest.approx(2.1e5)


@given(st.integers(0, 10**6), st.integers(1, 9), st.integers(2, 40), st.sampled_from([1.0, 100.0]))
def test_losses_and_residuals_at_once_are_those_one_by_one(seed, n, classes, scale):
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(2, n, classes, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (n,), generator=generator)
    targets = F.one_hot(labels, classes).to(torch.float64)
    expected = row_losses(logits, targets), softmax_residual(torch.softmax(logits, -1), targets)
    for found, known in zip(losses_and_residuals(logits.clone(), labels), expected, strict=True):
        torch.testing.assert_close(found, known, rtol=1e-12, atol=0)
