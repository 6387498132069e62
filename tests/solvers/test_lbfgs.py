"""L-BFGS on problems that share rows, against the exact predictors."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
import torch

from transferrisk.functional import SoftmaxLoss, optimal_predictor
from transferrisk.functional.linear_loss import with_bias
from transferrisk.solvers import LBFGS


def shared_blocks(n, d, blocks, included, classes=3, ridge=1e-3, correlation=5.0):
    """Overlapping classes in blocks of equal size, standardised; the second column nearly repeats the first."""
    generator = torch.Generator().manual_seed(n)
    labels = torch.randint(classes, (n,), generator=generator)
    centres = torch.randn(classes, d, generator=generator, dtype=torch.float64)
    features = torch.randn(n, d, generator=generator, dtype=torch.float64) + centres[labels]
    features[:, 1] += correlation * features[:, 0]
    rows, size = with_bias((features - features.mean(0)) / features.std(0)), n // blocks
    chunks = [slice(b * size, (b + 1) * size) for b in range(blocks)]
    counted = included.double().repeat_interleave(size, 1)
    weights = counted / counted.sum(1, keepdim=True)
    return SoftmaxLoss(rows, labels, weights, classes, ridge, True, (rows.T @ rows / n).unsqueeze(0), chunks)


def zero(loss):
    return loss.rows.new_zeros(len(loss.weights), loss.num_classes, loss.rows.shape[1])


@pytest.mark.parametrize("diagonal", [False, True], ids=["factor", "diagonal"])
def test_fits_of_many_parts_are_the_exact_predictors(diagonal):
    included = torch.tensor([[1, 1, 0], [0, 1, 0], [1, 1, 1]]).bool()
    loss = shared_blocks(90, 6, 3, included)
    if diagonal:
        loss = replace(loss, gram=loss.gram.diagonal(dim1=1, dim2=2).unsqueeze(1))
    found = LBFGS().minimise(loss, zero(loss))
    assert found.converged.all()
    for k in range(3):
        those = included[k].repeat_interleave(30)
        exact = optimal_predictor(loss.rows[those, :-1], loss.labels[those], 3, 1e-3)
        torch.testing.assert_close(found.value[k], exact, atol=1e-4, rtol=1e-4)
    _, gradient = loss.evaluate(found.value)
    torch.testing.assert_close(found.residual, gradient.flatten(1).norm(dim=1))


def test_a_problem_is_solved_the_same_whatever_its_neighbours():
    included = torch.tensor([[1, 1, 0], [0, 1, 0], [1, 1, 1]]).bool()
    loss = shared_blocks(90, 6, 3, included)
    together = LBFGS().minimise(loss, zero(loss)).value
    alone = loss.only(torch.tensor([False, True, False]))
    torch.testing.assert_close(LBFGS().minimise(alone, zero(alone)).value[0], together[1], rtol=1e-6, atol=1e-8)


def test_the_curvature_of_logits_spares_iterations():
    loss = shared_blocks(4000, 40, 4, ~torch.eye(4, dtype=torch.bool), classes=4, correlation=0)
    loss = replace(loss, gram=torch.eye(41, dtype=torch.float64).unsqueeze(0))
    refined, unrefined = (LBFGS(refine_after=after).minimise(loss, zero(loss)) for after in (6, None))
    assert refined.converged.all()
    assert refined.iterations < unrefined.iterations


def test_it_says_when_it_did_not_arrive():
    loss = shared_blocks(90, 6, 3, torch.ones(1, 3).bool())
    found = LBFGS(max_iterations=2).minimise(loss, zero(loss))
    assert found.iterations == 2
    assert not found.converged.all()


def test_steps_stay_centred_where_the_curvature_is_nearly_flat():
    """Rounding once led predictors off the ones that sum to zero over classes, which alone are fitted."""
    loss = shared_blocks(60, 30, 3, ~torch.eye(3, dtype=torch.bool), classes=2, ridge=1e-4)
    rows = torch.cat([loss.rows[:, :-1].sign(), loss.rows], 1)
    loss = replace(loss, rows=rows, gram=(rows.T @ rows / 60).unsqueeze(0))
    found = LBFGS().minimise(loss, zero(loss))
    assert found.converged.all()
    torch.testing.assert_close(found.value.sum(1), torch.zeros_like(found.value[:, 0]), rtol=0, atol=1e-10)


def test_features_of_a_size_that_leaves_no_curvature_are_fitted_all_the_same():
    loss = shared_blocks(30, 2, 3, ~torch.eye(3, dtype=torch.bool), classes=2)
    rows = torch.cat([1e19 * loss.rows[:, :-1], loss.rows[:, -1:]], 1)
    gram = torch.diag(torch.tensor([1e38, 1e38, 1.0], dtype=torch.float64)).unsqueeze(0)
    loss = replace(loss, rows=rows, gram=gram)
    found = LBFGS().minimise(loss, zero(loss))
    assert found.value.isfinite().all()
    assert (loss.evaluate(found.value)[0] <= math.log(2)).all()
