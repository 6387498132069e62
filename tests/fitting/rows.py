"""A table with every kind of column; the outcome depends on x0 to x3, and through `shortcut` on the site."""

from __future__ import annotations

import numpy as np
import pandas as pd

from transferrisk.data import Options

ASKED = Options(label="outcome", environment="site")


def table(rows: int, sites: int = 3, seed: int = 0) -> pd.DataFrame:
    random = np.random.default_rng(seed)
    site = np.arange(rows) % sites
    x = random.normal(size=(rows, 4))
    outcome = x.sum(1) + 0.5 * random.logistic(size=rows) > 0
    agrees = random.random(rows) < np.linspace(0.9, 0.3, sites)[site]
    frame = pd.DataFrame(x, columns=[f"x{i}" for i in range(4)])
    frame["shortcut"] = np.where(agrees == outcome, 1.0, -1.0) + 0.3 * random.normal(size=rows)
    frame["income"] = 1e6 + 1e3 * random.normal(size=rows)
    frame.loc[::11, "income"] = np.nan
    frame["smokes"] = random.random(rows) < 0.3
    frame["colour"] = random.choice(["red", "green", "blue"], rows)
    frame.loc[::13, "colour"] = None
    frame["seen"] = pd.Timestamp("2023-02-27") + pd.to_timedelta(random.integers(0, 800, rows), unit="D")
    frame["version"] = 7
    frame["code"] = [f"c{i}" for i in range(rows)]
    frame["site"] = [f"site {chr(65 + s)}" for s in site]
    frame["outcome"] = np.where(outcome, "yes", "no")
    return frame
