"""Tables with a known truth: what decides the label everywhere, and what only seems to."""

from __future__ import annotations

import numpy as np


def sites(n, agreement, seed=0, d=6):
    """n rows of each site: d - 1 columns decide the label; the last agrees with it in this share of a site's rows."""
    rng = np.random.default_rng(seed)
    direction = np.random.default_rng(0).normal(size=d - 1)
    direction /= np.linalg.norm(direction)
    X, y, site = [], [], []
    for e, share in enumerate(agreement):
        rows = rng.normal(size=(n, d))
        labels = (rows[:, :-1] @ direction + 0.7 * rng.normal(size=n) > 0).astype(int)
        seeming = np.where(rng.random(n) < share, labels, 1 - labels)
        rows[:, -1] = 2 * seeming - 1 + 0.3 * rng.normal(size=n)
        X.append(rows)
        y.append(labels)
        site += [f"site {e}"] * n
    return np.concatenate(X), np.concatenate(y), np.array(site)
