"""Loss, gradient and Hessian against autograd and against each other."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from problems import padded_loss, random_predictors

from transferrisk.functional import BlockLoss
from transferrisk.functional.linear_loss import cross_entropy, softmax_jacobian, softmax_residual, with_bias

sizes = st.fixed_dictionaries(
    {"batch": st.integers(1, 3), "n": st.integers(4, 12), "classes": st.integers(2, 6), "width": st.integers(1, 9)}
)


@given(sizes, st.integers(0, 10**6))
def test_loss_and_its_derivatives_agree_with_autograd(shape, seed):
    loss = padded_loss(seed, **shape)
    W = random_predictors(loss).requires_grad_()
    value = loss.value(W)
    for b in range(len(W)):
        real = loss.weights[b] > 0
        entropy = F.cross_entropy(loss.rows[b, real] @ W[b].T, loss.labels[b, real])
        torch.testing.assert_close(value[b], entropy + 0.025 * W[b].square().sum())
    (by_autograd,) = torch.autograd.grad(value.sum(), W)
    torch.testing.assert_close(loss.linearise(W.detach()).gradient, by_autograd)
    evaluated, gradient = loss.evaluate(W.detach())
    torch.testing.assert_close(evaluated, value.detach())
    torch.testing.assert_close(gradient, by_autograd)


@given(sizes, st.integers(0, 10**6))
def test_hessian_product_dense_and_factor_agree_with_autograd(shape, seed):
    loss = padded_loss(seed, **shape)
    W, V = random_predictors(loss), random_predictors(loss).flip(0) + 0.3
    _, by_autograd = torch.autograd.functional.hvp(lambda w: loss.value(w).sum(), W, V)
    hessian = loss.hessian(W)
    torch.testing.assert_close(hessian.product(V), by_autograd)
    dense = torch.einsum("bij,bj->bi", hessian.dense(), V.flatten(1)).reshape(V.shape)
    torch.testing.assert_close(dense, by_autograd)
    through_factor = hessian.factor_adjoint(hessian.factor(V)) + 0.05 * V
    torch.testing.assert_close(through_factor, by_autograd)
    u = hessian.factor(V)
    gram = torch.einsum("bij,bj->bi", hessian.factor_gram(), u)
    torch.testing.assert_close(gram, hessian.factor(hessian.factor_adjoint(u)))


@given(sizes, st.integers(0, 10**6))
def test_the_hessian_along_directions_is_the_dense_one_there(shape, seed):
    loss = padded_loss(seed, **shape)
    W = random_predictors(loss)
    directions, found = loss.curvature(W)
    dense = loss.hessian(W).dense().unflatten(1, W.shape[1:]).unflatten(3, W.shape[1:])
    expected = torch.einsum("bcdke,bid,bje->bcikj", dense, directions, directions)
    torch.testing.assert_close(found, expected.reshape(found.shape))


@pytest.mark.parametrize("chunk", [1 << 20, 20], ids=["whole blocks", "chunks"])
def test_the_loss_of_blocks_is_that_of_the_rows_they_hold(chunk):
    generator = torch.Generator().manual_seed(0)
    rows = with_bias(torch.randn(30, 4, generator=generator, dtype=torch.float64))
    labels = torch.randint(3, (30,), generator=generator)
    blocks = [slice(0, 9), slice(9, 9), slice(9, 21), slice(21, 30)]
    included = torch.tensor([[1, 1, 0, 1], [0, 0, 1, 0]]).bool()
    loss = BlockLoss(rows, labels, blocks, included, 3, 0.1, rows.new_ones(1, 1, 5), chunk)
    W = torch.randn(2, 3, 5, generator=generator, dtype=torch.float64)
    W -= W.mean(1, keepdim=True)
    values, gradients = loss.evaluate(W)
    directions, curvatures = loss.curvature(W)
    for k in range(2):
        those = torch.cat([torch.arange(30)[block] for block, taken in zip(blocks, included[k], strict=True) if taken])

        def alone(w, those=those):
            return F.cross_entropy(rows[those] @ w.T, labels[those]) + 0.05 * w.square().sum()

        def along(a, k=k, alone=alone):
            return alone(W[k] + a @ directions[k])

        w = W[k].clone().requires_grad_()
        value = alone(w)
        torch.testing.assert_close(values[k], value.detach())
        torch.testing.assert_close(gradients[k], torch.autograd.grad(value, w)[0])
        hessian = torch.autograd.functional.hessian(along, W.new_zeros(3, directions.shape[1]))
        torch.testing.assert_close(curvatures[k], hessian.view_as(curvatures[k]))


def test_near_certain_predictions_keep_their_digits_in_float32():
    """Loss, residual and Jacobian where the probability of the true class rounds to one."""
    logits = torch.tensor([[20.0, 0.0, -1.0]])
    targets, weights = torch.tensor([[1.0, 0.0, 0.0]]), torch.ones(1)
    direction = torch.tensor([[5.0, 7.0, -2.0]])

    def quantities(dtype):
        S = torch.softmax(logits.to(dtype), -1)
        residual = softmax_residual(S, targets.to(dtype))
        return residual, softmax_jacobian(S, direction.to(dtype))

    for single, double in zip(quantities(torch.float32), quantities(torch.float64), strict=True):
        torch.testing.assert_close(single.double(), double, rtol=1e-5, atol=0)
    exact = math.log1p(math.exp(-20) + math.exp(-21))
    assert float(cross_entropy(logits, targets, weights)) == pytest.approx(exact, rel=1e-6)
    assert float(cross_entropy(-1e4 * logits, targets, weights)) == pytest.approx(2.1e5)
