"""Every way to apply an inverse, against a dense solve."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from problems import relative
from torch import Tensor

from transferrisk.errors import DivergedError
from transferrisk.solvers import CG, Cholesky, Neumann, Woodbury, solve_positive


@dataclass
class Factored:
    """A = F^T F + ridge I for explicit F, (B, rows, m)."""

    F: Tensor
    ridge: float

    def product(self, vector: Tensor) -> Tensor:
        return torch.einsum("bmk,bk->bm", self.dense(), vector)

    def dense(self) -> Tensor:
        return self.F.mT @ self.F + self.ridge * torch.eye(self.F.shape[-1], dtype=self.F.dtype)

    def direct(self, rhs: Tensor) -> Tensor:
        return solve_positive(self.dense(), rhs)

    def factor_gram(self) -> Tensor:
        return self.F @ self.F.mT

    def factor(self, vector: Tensor) -> Tensor:
        return torch.einsum("brm,bm->br", self.F, vector)

    def factor_adjoint(self, rows: Tensor) -> Tensor:
        return torch.einsum("brm,br->bm", self.F, rows)


def system(rows: int, m: int, scale: float = 1.0) -> tuple[Factored, Tensor]:
    generator = torch.Generator().manual_seed(rows * 100 + m)
    F = scale * torch.randn(3, rows, m, generator=generator, dtype=torch.float64)
    return Factored(F, ridge=0.01), torch.randn(3, m, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("solver", [CG(), Cholesky(), Woodbury()], ids=str)
@pytest.mark.parametrize(("rows", "m"), [(4, 9), (9, 4)])
def test_agrees_with_dense_solve(solver, rows, m):
    A, rhs = system(rows, m)
    solution = solver.solve(A, rhs)
    assert solution.converged.all()
    assert relative(solution.value, torch.linalg.solve(A.dense(), rhs)) < 1e-9
    true_residual = (A.product(solution.value) - rhs).norm(dim=1)
    torch.testing.assert_close(solution.residual, true_residual, atol=1e-9, rtol=0)


def test_neumann_is_the_partial_sum_and_reports_its_exact_residual():
    A, rhs = system(9, 4, scale=0.2)
    solution = Neumann(terms=10).solve(A, rhs)
    shrink = torch.eye(4, dtype=torch.float64) - A.dense()
    powers = [torch.linalg.matrix_power(shrink, i) for i in range(11)]
    expected = torch.einsum("bij,bj->bi", torch.stack(powers).sum(0), rhs)
    torch.testing.assert_close(solution.value, expected)
    torch.testing.assert_close(solution.residual, (rhs - A.product(expected)).norm(dim=1))


def test_neumann_converges_to_the_inverse_and_says_when_it_has_not():
    A, rhs = system(9, 4, scale=0.2)
    assert not Neumann(terms=10).solve(A, rhs).converged.any()
    solution = Neumann(terms=5000).solve(A, rhs)
    assert solution.converged.all()
    assert relative(solution.value, torch.linalg.solve(A.dense(), rhs)) < 1e-8


def test_neumann_never_returns_a_diverged_sum():
    A, rhs = system(9, 4, scale=3.0)
    with pytest.raises(DivergedError, match="eigenvalue above 2"):
        Neumann().solve(A, rhs)
    captured = Neumann(raises=False).solve(A, rhs)
    assert captured.value.isnan().all()
    assert not captured.converged.any()


def test_a_smaller_scale_mends_a_diverging_series():
    A, rhs = system(9, 4, scale=3.0)
    largest = float(torch.linalg.eigvalsh(A.dense()).max())
    solution = Neumann(terms=20000, scale=1 / largest).solve(A, rhs)
    assert relative(solution.value, torch.linalg.solve(A.dense(), rhs)) < 1e-6


def test_cg_says_when_it_did_not_arrive():
    A, rhs = system(9, 4)
    solution = CG(max_iterations=1).solve(A, rhs)
    assert not solution.converged.any()
    assert solution.iterations == 1


@pytest.mark.parametrize("tolerance", [1e-2, 1e-6])
def test_cg_stops_at_the_tolerance_that_is_asked_for(tolerance):
    A, rhs = system(9, 30)
    solution = CG(tolerance=tolerance).solve(A, rhs)
    assert solution.converged.all()
    assert (solution.residual <= 10 * tolerance * rhs.norm(dim=1)).all()
    assert solution.iterations < CG().solve(A, rhs).iterations
    short = CG(tolerance=tolerance, max_iterations=solution.iterations - 2).solve(A, rhs)
    assert not short.converged.all()


def test_cg_answers_do_not_depend_on_the_rest_of_the_batch():
    A, rhs = system(9, 4)
    A.F[1] *= 100  # a much harder neighbour
    together = CG().solve(A, rhs).value[0]
    alone = CG().solve(Factored(A.F[:1], A.ridge), rhs[:1]).value[0]
    assert torch.equal(together, alone)


def test_cg_fixed_equals_cg_after_as_many_iterations():
    A, rhs = system(4, 9)
    fixed = CG(max_iterations=30, fixed=True).solve(A, rhs)
    assert fixed.iterations == 30
    assert fixed.converged.all()
    torch.testing.assert_close(fixed.value, CG().solve(A, rhs).value)


def test_zero_right_hand_side_gives_zero():
    A, rhs = system(4, 9)
    for fixed in (True, False):
        solution = CG(max_iterations=5, fixed=fixed).solve(A, torch.zeros_like(rhs))
        assert solution.converged.all()
        assert not solution.value.any()


def test_cg_computes_its_residual_anew_and_does_not_claim_what_float32_cannot_give():
    """The residual that the iteration carries along says 1e-6; the true one, on an ill-conditioned system, does not."""
    generator = torch.Generator().manual_seed(0)
    F = torch.randn(2, 6, 40, generator=generator)
    F = F + 300 * torch.randn(2, 6, 1, generator=generator)  # one direction a hundred thousand times steeper
    A, rhs = Factored(F, ridge=1e-4), torch.randn(2, 40, generator=generator)
    A.dense = lambda: F.mT @ F + 1e-4 * torch.eye(40)  # float32 throughout
    solution = CG().solve(A, rhs)
    torch.testing.assert_close(solution.residual, (rhs - A.product(solution.value)).norm(dim=1))
    exact = torch.linalg.solve(F.double().mT @ F.double() + 1e-4 * torch.eye(40, dtype=torch.float64), rhs.double())
    error = (solution.value - exact).norm(dim=1) / exact.norm(dim=1)
    assert not (solution.converged & (error > 1e-3)).any()
