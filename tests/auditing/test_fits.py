"""Fits of many parts of the same rows, against the exact predictors and the dense Hessian."""

from __future__ import annotations

import math
import warnings

import pytest
import torch
from audited import problem, standardised

from transferrisk.auditing import fits
from transferrisk.auditing.fits import fit
from transferrisk.errors import ConvergenceWarning
from transferrisk.functional import optimal_predictor


@pytest.mark.parametrize("largest", [4096, 2], ids=["factor", "diagonal"])
def test_fits_of_many_parts_are_the_exact_predictors(largest, monkeypatch):
    monkeypatch.setattr("transferrisk.auditing.fits._LARGEST_FACTOR", largest)
    monkeypatch.setattr("transferrisk.auditing.fits.CHUNK", 60)
    X, y, _ = problem(n=90, d=6)
    X[:, 1] += 5 * X[:, 0]
    X, y = torch.from_numpy(X), torch.from_numpy(y)
    blocks = [(X[i::3], y[i::3]) for i in range(3)]
    included = torch.tensor([[1, 1, 0], [0, 1, 0], [1, 1, 1], [0, 0, 0]]).bool()
    Z = torch.cat([X, torch.ones(90, 1)], 1)
    found = fit(blocks, included, 3, 1e-3, Z.T @ Z / 90)
    assert found.converged.all()
    assert found.value[3].isnan().all()
    for k in range(3):
        rows = torch.cat([X[i::3] for i in range(3) if included[k, i]])
        labels = torch.cat([y[i::3] for i in range(3) if included[k, i]])
        torch.testing.assert_close(found.value[k], optimal_predictor(rows, labels, 3, 1e-3), atol=1e-4, rtol=1e-4)


def test_the_curvature_of_logits_is_the_hessians_and_spares_iterations(monkeypatch):
    X, y, _ = problem(n=4000, d=40, E=1, C=4, seed=3, shift=0)
    rows, labels = torch.tensor(standardised(X)), torch.tensor(y)
    blocks = [(rows[k::4], labels[k::4]) for k in range(4)]
    included, gram = ~torch.eye(4, dtype=torch.bool), torch.eye(41, dtype=torch.float64)
    refined = fit(blocks, included, 4, 1e-3, gram)
    monkeypatch.setattr(fits, "_REFINED_AFTER", -1)
    assert refined.iterations < fit(blocks, included, 4, 1e-3, gram).iterations

    monkeypatch.setattr(fits, "_ROWS_PER_DIRECTION", 10**6)  # all rows
    W = refined.value[:1]
    basis, hessian = fits._Task(blocks, included[:1], torch.tensor([3000.0]), 1e-3).curvature(W)
    Z = torch.nn.functional.pad(torch.cat([block[0] for block in blocks[1:]]), (0, 1), value=1.0)
    y = torch.cat([block[1] for block in blocks[1:]])

    def loss(a):
        V = W[0] + a @ basis[0]
        return torch.nn.functional.cross_entropy(Z @ V.T, y) + 0.5e-3 * V.square().sum()

    true = torch.autograd.functional.hessian(loss, W.new_zeros(4, basis.shape[1])).view_as(hessian[0])
    torch.testing.assert_close(hessian[0], true)


def test_features_of_a_size_that_leaves_no_curvature_are_fitted_all_the_same():
    rows = 1e19 * torch.randn(30, 1, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    blocks = [(rows[k::3], torch.arange(30)[k::3] % 2) for k in range(3)]
    gram = torch.diag(torch.tensor([1e38, 1.0], dtype=torch.float64))
    with warnings.catch_warnings(action="ignore", category=ConvergenceWarning):
        found = fit(blocks, ~torch.eye(3, dtype=torch.bool), 2, 1e-3, gram)
    assert found.value.isfinite().all()
    assert (found.objective <= math.log(2)).all()
