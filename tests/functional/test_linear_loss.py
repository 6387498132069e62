"""Loss, gradient and Hessian against autograd and against each other."""

from __future__ import annotations

import math

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from problems import rows_of

from transferrisk.functional.linear_loss import (
    Hessian,
    cross_entropy,
    gradient,
    loss,
    softmax_jacobian,
    softmax_residual,
)

sizes = st.fixed_dictionaries(
    {"batch": st.integers(1, 3), "n": st.integers(4, 12), "classes": st.integers(2, 6), "width": st.integers(1, 9)}
)


def predictor_like(rows, targets):
    return torch.randn(
        len(rows), targets.shape[-1], rows.shape[-1], dtype=rows.dtype, generator=torch.Generator().manual_seed(1)
    )


@given(sizes, st.integers(0, 10**6))
def test_loss_and_its_derivatives_agree_with_autograd(shape, seed):
    rows, targets, weights = rows_of(seed, **shape)
    W = predictor_like(rows, targets).requires_grad_()
    value = loss(W, rows, targets, weights, 0.05)
    for b in range(len(rows)):
        real = weights[b] > 0
        plain = F.cross_entropy(rows[b, real] @ W[b].T, targets[b, real].argmax(-1)) + 0.025 * W[b].square().sum()
        torch.testing.assert_close(value[b], plain)
    (by_autograd,) = torch.autograd.grad(value.sum(), W)
    torch.testing.assert_close(gradient(W.detach(), rows, targets, weights, 0.05), by_autograd)


@given(sizes, st.integers(0, 10**6))
def test_hessian_product_dense_and_factor_agree_with_autograd(shape, seed):
    rows, targets, weights = rows_of(seed, **shape)
    W, V = predictor_like(rows, targets), predictor_like(rows, targets).flip(0) + 0.3
    _, by_autograd = torch.autograd.functional.hvp(lambda w: loss(w, rows, targets, weights, 0.05).sum(), W, V)
    hessian = Hessian.at(W, rows, weights, 0.05)
    torch.testing.assert_close(hessian.product(V), by_autograd)
    dense = torch.einsum("bij,bj->bi", hessian.dense(), V.flatten(1)).reshape(V.shape)
    torch.testing.assert_close(dense, by_autograd)
    through_factor = hessian.factor_adjoint(hessian.factor(V)) + 0.05 * V
    torch.testing.assert_close(through_factor, by_autograd)
    u = hessian.factor(V)
    gram = torch.einsum("bij,bj->bi", hessian.factor_gram(), u)
    torch.testing.assert_close(gram, hessian.factor(hessian.factor_adjoint(u)))


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
