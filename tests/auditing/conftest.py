"""An audit that several tests look at."""

from __future__ import annotations

import pytest
from audited import RIDGE, problem

from transferrisk import audit
from transferrisk.auditing.samples import assign_folds


@pytest.fixture(scope="session")
def case():
    X, y, e = problem()
    held = assign_folds(e, y, 3, seed=1)
    return X, y, e, held, audit(X, y, e, ridge=RIDGE, folds=held, bootstrap=50)
