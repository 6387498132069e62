"""Fits that end too early are told, with what can be done about them where they were asked for."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from transferrisk import audit
from transferrisk.auditing.columns import column_effects
from transferrisk.auditing.samples import settle_indicators
from transferrisk.auditing.shift import decompose_shift
from transferrisk.data.infer import Declared, infer_schema
from transferrisk.errors import ConvergenceWarning
from transferrisk.solvers import LBFGS


@pytest.fixture
def table(monkeypatch):
    """A table with missing values, and a minimiser that stops after one iteration."""
    minimise = LBFGS.minimise
    monkeypatch.setattr(LBFGS, "minimise", lambda self, *args: minimise(replace(self, max_iterations=1), *args))
    random = np.random.default_rng(0)
    x, z = random.normal(size=(2, 150))
    z[random.random(150) < 0.3] = np.nan
    return pd.DataFrame({"x": x, "z": z, "y": np.where(x > 0, "b", "a"), "site": np.arange(150) % 3})


def test_a_rough_fit_tells_the_way_out_of_its_caller(table):
    schema = infer_schema(table, "y", "site")
    features = schema.encode(table).features
    ways = {
        "with ridge": lambda: audit(features, table["y"], table["site"], ridge=0.01, bootstrap=2),
        "columns": lambda: column_effects(features, {"x": [0], "z": [1, 2]}, table["y"], table["site"]),
        "shifts": lambda: decompose_shift(np.arange(150), features, table["y"], table["site"]),
        "--missing-indicators": lambda: settle_indicators(schema, Declared(), table, table["y"], table["site"]),
    }
    for place, (words, call) in enumerate(ways.items()):
        with pytest.warns(ConvergenceWarning, match="roughly") as caught:
            call()
        told = [str(one.message) for one in caught]
        assert any(words in line for line in told)
        assert place == 0 or not any("with ridge" in line for line in told)
