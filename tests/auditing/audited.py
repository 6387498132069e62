"""Cases that the tests of the audit share."""

from __future__ import annotations

import numpy as np

RIDGE = 0.02


def problem(n=240, d=5, E=3, C=3, seed=0, shift=0.8):
    """Gaussian classes whose means differ between environments; features (n, d), labels and environments (n,)."""
    rng = np.random.default_rng(seed)
    labels, environments = rng.integers(C, size=n), rng.integers(E, size=n)
    means = rng.normal(size=(C, d)) + shift * rng.normal(size=(E, C, d))
    return rng.normal(size=(n, d)) + means[environments, labels], labels, environments


def standardised(X):
    return (X - X.mean(0)) / X.std(0)
