"""Small tables, and a model of one that is fitted once."""

from __future__ import annotations

import pytest
from rows import ASKED, table

from transferrisk.fitting import Plan, fit, save_fit


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("TRANSFERRISK_CACHE", str(tmp_path_factory.mktemp("cache")))


@pytest.fixture(scope="session")
def fitted(tmp_path_factory):
    """ERM on a table with every kind of column, without a comparison."""
    file = tmp_path_factory.mktemp("table") / "visits.csv"
    table(400).to_csv(file, index=False)
    return fit(file, ASKED, Plan(algorithm="erm", compared=False, device="cpu"))


@pytest.fixture
def folder(fitted, tmp_path):
    save_fit(fitted, tmp_path / "model", "trm fit visits.csv")
    return tmp_path / "model"
