"""Pooling against closed forms, a published meta-analysis, and how often prediction intervals hold."""

from __future__ import annotations

import math

import numpy as np
import pytest

from transferrisk.auditing.report import pool
from transferrisk.errors import InputError

BCG = np.array([
    [4, 119, 11, 128], [6, 300, 29, 274], [3, 228, 11, 209], [62, 13536, 248, 12619], [33, 5036, 47, 5761],
    [180, 1361, 372, 1079], [8, 2537, 10, 619], [505, 87886, 499, 87892], [29, 7470, 45, 7232], [17, 1699, 65, 1600],
    [186, 50448, 141, 27197], [5, 2493, 3, 2338], [27, 16886, 29, 17825],
])  # fmt: skip
"""Colditz et al. (1994), 13 trials of a vaccine: ill and well of the vaccinated, ill and well of the others."""


def test_three_values_by_hand():
    """Equal errors: Q = 18, tau^2 = 16 / 2, and the weights are 1 / 9 each."""
    found = pool([-3, 0, 3], [1, 1, 1])
    assert (found.mean, found.k) == (0, 3)
    assert found.q == pytest.approx(18)
    assert found.tau2 == pytest.approx(8)
    assert found.i2 == pytest.approx(16 / 18)
    assert found.error == pytest.approx(math.sqrt(3))
    half = math.tan(0.95 * math.pi / 2) * math.sqrt(8 + 3)  # Student's t with one degree is Cauchy's distribution
    assert (found.low, found.high) == pytest.approx((-half, half))


def test_unequal_errors_by_hand():
    """w = (1, 1/4), m = 0.8, Q = 0.64 + 10.24 / 4 = 3.2, tau^2 = 2.2 / (1.25 - 1.0625 / 1.25) = 5.5."""
    found = pool([0, 4], [1, 4])
    assert found.q == pytest.approx(3.2)
    assert found.tau2 == pytest.approx(5.5)
    u = 1 / 6.5, 1 / 9.5
    assert found.mean == pytest.approx(4 * u[1] / sum(u))
    assert math.isnan(found.low)


def test_a_published_example():
    """The numbers of metafor's rma(method="DL") for the trials of the BCG vaccine, log relative risks."""
    ill, well, ill_others, well_others = BCG.T
    treated, others = ill + well, ill_others + well_others
    found = pool(np.log(ill / treated / (ill_others / others)), 1 / ill - 1 / treated + 1 / ill_others - 1 / others)
    assert found.mean == pytest.approx(-0.7141, abs=1e-4)
    assert found.tau2 == pytest.approx(0.3088, abs=1e-4)
    assert found.q == pytest.approx(152.2330, abs=1e-4)
    assert found.i2 == pytest.approx(0.9212, abs=1e-4)


def test_environments_that_agree():
    found = pool([1.0, 1.0, 1.0, 1.0], [0.5] * 4)
    assert (found.mean, found.tau2, found.q, found.i2) == (1, 0, 0, 0)
    assert found.error == pytest.approx(math.sqrt(0.5 / 4))  # not zero, though they agree exactly


def test_few_or_unknown_values():
    assert pool([math.nan], [1.0]).k == 0
    one = pool([2.0, math.nan, 3.0], [4.0, 1.0, math.inf])
    assert (one.mean, one.error, one.k) == (2, 2, 1)
    assert math.isnan(one.tau2)
    assert math.isnan(one.low)
    np.testing.assert_allclose(pool([1.0, 2.0, 4.0], [0.0, 0.0, 0.0]).tau2, np.var([1, 2, 4], ddof=1))
    assert np.isfinite(pool([0.0, 0.0, 0.0], [0.0, 0.0, 0.0]).high)


@pytest.mark.parametrize("tau", [0.0, 1.0])
def test_prediction_intervals_hold_a_new_environment(tau):
    """In 95 % of meta-analyses of 12 environments, within four standard errors or above."""
    rng, held, times = np.random.default_rng(0), 0, 1000
    for _ in range(times):
        v = rng.uniform(0.1, 0.5, 12)
        found = pool(rng.normal(rng.normal(0, tau, 12), np.sqrt(v)), v)
        held += found.low <= rng.normal(0, tau) <= found.high
    assert held / times > 0.95 - 4 * math.sqrt(0.95 * 0.05 / times)


@pytest.mark.parametrize(("values", "variances"), [([1.0, 2.0], [1.0]), ([[1.0]], [[1.0]])])
def test_shapes_are_checked(values, variances):
    with pytest.raises(InputError, match="variances"):
        pool(values, variances)


def test_negative_variances_are_refused():
    with pytest.raises(InputError, match=r"variances.*-1"):
        pool([1.0, 2.0], [1.0, -1.0])
