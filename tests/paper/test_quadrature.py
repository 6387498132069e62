"""Expectations under normal laws, against a finer rule and closed forms."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy.special import expit, ndtr

from transferrisk.paper.quadrature import expected_loss, expected_slope, normal_cdf, normal_nodes


def expectation(f, mean, scale):
    """By many panels, which are narrow around the mean, where e^-x moves it, and where f changes its character."""
    steps = np.linspace(-14, 14, 57)
    around = [mean + steps * scale, mean - scale**2 + steps * scale, np.linspace(-60, 60, 241)]
    edges = np.unique(np.concatenate(around))
    nodes, weights = np.polynomial.legendre.leggauss(40)
    half = np.diff(edges)[:, None] / 2
    x = edges[:-1, None] + half * (nodes + 1)
    density = np.exp(-0.5 * ((x - mean) / scale) ** 2) / (scale * math.sqrt(2 * math.pi))
    return math.fsum((f(x) * density * half * weights).ravel())


def tensors(*values):
    return [torch.tensor([value], dtype=torch.float64) for value in values]


@pytest.mark.parametrize("scale", [0.01, 0.2, 1.0, 4.0, 16.0, 32.0])
@pytest.mark.parametrize("ratio", [0.0, 0.5, 0.8, 1.0, 1.4])
@pytest.mark.parametrize("shift", [-30.0, -1.0, 0.0, 3.0, 100.0])
def test_logistic_loss_of_a_normal_score(scale, ratio, shift):
    """Means from far below 0 to far above s^2, where no more than e^-m is left."""
    mean = ratio * scale**2 + shift
    m, s = tensors(mean, scale)
    rel = 1e-12 + 1e-15 * abs(mean) / scale
    if (true := expectation(lambda x: np.logaddexp(0, -x), mean, scale)) < 1e-290:
        assert float(expected_loss(m, s)) < 1e-290
        return
    assert float(expected_loss(m, s)) == pytest.approx(true, rel=rel, abs=0)
    plain, moment = expected_slope(m, s)
    assert float(plain) == pytest.approx(expectation(lambda x: expit(-x), mean, scale), rel=rel, abs=0)
    size = expectation(lambda x: abs(x) * expit(-x), mean, scale)
    assert float(moment) == pytest.approx(expectation(lambda x: x * expit(-x), mean, scale), rel=0, abs=rel * size)


@pytest.mark.parametrize(("mean", "scale"), [(100.0, 0.3), (300.0, 4.0), (600.0, 10.0)])
def test_a_score_far_above_zero(mean, scale):
    """E log(1 + e^-X) is E e^-X, but for what is as small as its square."""
    found = float(expected_loss(*tensors(mean, scale)))
    assert found == pytest.approx(math.exp(-mean + scale**2 / 2), rel=1e-12, abs=0)


def test_probabilities_keep_their_digits():
    x = torch.tensor([-37.0, -8.0, 0.0, 3.0], dtype=torch.float64)
    assert normal_cdf(x).tolist() == pytest.approx(ndtr(x.numpy()).tolist(), rel=1e-12, abs=0)


@pytest.mark.parametrize("n", [1.0, 30.0, 500.0])
def test_the_best_slope_has_no_gradient(n):
    """X ~ N(2 n, 4 n) is a log-likelihood ratio: E X sigmoid(-X) = 0."""
    mean, scale = torch.tensor([2 * n], dtype=torch.float64), torch.tensor([2 * n**0.5], dtype=torch.float64)
    plain, moment = expected_slope(mean, scale)
    assert abs(float(moment)) < 1e-10 * float(plain) * max(1.0, n)


def test_moments_of_the_nodes():
    nodes, weights = normal_nodes(0.2)
    for power, moment in [(0, 1), (1, 0), (2, 1), (4, 3), (6, 15)]:
        assert float((weights * nodes**power).sum()) == pytest.approx(moment, abs=1e-12)
