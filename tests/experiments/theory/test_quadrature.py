"""Expectations under normal laws, against adaptive quadrature and closed forms."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from scipy.integrate import quad
from scipy.special import expit
from scipy.stats import norm

from transferrisk.experiments.theory.quadrature import expected_loss, expected_slope, normal_nodes


def expectation(f, mean, scale):
    """With the break at 0 where f changes its character, and at the mean."""
    low, high = min(mean - 12 * scale, -60), max(mean + 12 * scale, 60)
    edges = sorted({low, 0.0, mean, high})
    pieces = [
        quad(lambda x: f(x) * norm.pdf(x, mean, scale), a, b, epsabs=0, epsrel=1e-11, limit=400)[0]
        for a, b in pairwise(edges)
    ]
    return sum(pieces)


@pytest.mark.parametrize(("mean", "scale"), [(0.0, 1.0), (3.0, 2.0), (-8.0, 5.0), (20.0, 4.0), (128.0, 16.0)])
def test_logistic_loss_of_a_normal_score(mean, scale):
    m, s = (torch.tensor([v], dtype=torch.float64) for v in (mean, scale))
    assert float(expected_loss(m, s)) == pytest.approx(
        expectation(lambda x: np.logaddexp(0, -x), mean, scale), rel=1e-9
    )
    plain, moment = expected_slope(m, s)
    assert float(plain) == pytest.approx(expectation(lambda x: expit(-x), mean, scale), rel=1e-9)
    size = expectation(lambda x: abs(x) * expit(-x), mean, scale)
    assert float(moment) == pytest.approx(expectation(lambda x: x * expit(-x), mean, scale), abs=1e-9 * size)


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
