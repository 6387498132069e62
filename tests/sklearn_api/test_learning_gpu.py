"""TransferRiskClassifier on a CUDA device learns what it learns on a CPU."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from shifted import sites

pytest.importorskip("sklearn", reason="scikit-learn is not installed")
pytestmark = [pytest.mark.gpu, pytest.mark.usefixtures("fabric")]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize(("algorithm", "batch_size"), [("trm", None), ("trm", 32), ("erm", 32), ("mldg", 32)])
def test_on_a_gpu(algorithm, batch_size, weighted):
    from transferrisk.sklearn import TransferRiskClassifier

    X, y, site = sites(200, (0.9, 0.3, 0.6))
    weights = np.linspace(0.5, 1.5, len(X)) if weighted else None
    scores = []
    for device in ("cpu", "cuda", "auto"):
        fitted = TransferRiskClassifier(algorithm, batch_size=batch_size, max_epochs=20, random_state=0, device=device)
        fitted.fit(X, y, environments=site, sample_weight=weights)
        assert next(fitted.model_.parameters()).device == torch.device("cpu")
        scores.append(fitted.score(X, y))
    assert scores == pytest.approx([scores[0]] * 3, abs=0.03)
