"""Mean and deviation by column: against NumPy, weights as repetitions, numbers of any size."""

from __future__ import annotations

import numpy as np
import pytest

from transferrisk.data import standardise as module
from transferrisk.data.standardise import moments

ROWS = np.random.default_rng(0).normal(3, [1.0, 1e-3, 1e3], (50, 3))


@pytest.mark.parametrize("chunk", [1, 30, 1 << 20])
def test_weights_count_as_repetitions(monkeypatch, chunk):
    monkeypatch.setattr(module, "_CHUNK", chunk)
    times = np.arange(len(ROWS)) % 3
    repeated = np.repeat(ROWS, times, axis=0)
    np.testing.assert_allclose(moments(ROWS, times * 1.0), (repeated.mean(0), repeated.std(0)))
    np.testing.assert_allclose(moments(ROWS), (ROWS.mean(0), ROWS.std(0)))


@pytest.mark.parametrize("size", [1e-200, 1e200, 5e307])
def test_nothing_overflows(size):
    unit = ROWS / np.abs(ROWS).max(0)
    np.testing.assert_allclose(moments(unit * size), (unit.mean(0) * size, unit.std(0) * size))


@pytest.mark.parametrize(("dtype", "step"), [(np.float32, 1e-7), (np.float64, 1e-15)])
def test_a_column_that_varies_by_rounding_alone_is_constant(dtype, step):
    rows = np.outer([1, 1 + step, 1, 1 + 100 * step], [0.1, 1000, 0]).astype(dtype)
    mean, scale = moments(rows[:3])
    np.testing.assert_array_equal(mean, rows[0])
    np.testing.assert_array_equal(scale, 0)
    assert (moments(rows)[1] > 0).tolist() == [True, True, False]
    assert (moments(rows[:3], rounding=0)[1] > 0).tolist() == [True, True, False]
    np.testing.assert_array_equal(moments(np.array([[5e-324], [0.0]]))[1], 0)  # nothing that can be divided by
