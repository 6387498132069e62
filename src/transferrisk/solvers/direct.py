"""Direct solves of A x = rhs for A = F^T F + ridge I."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .protocols import Solution, System, accurate, norms


def _solve(matrix: Tensor, rhs: Tensor) -> Tensor:
    """matrix (B, m, m) positive definite, rhs (B, m)."""
    factor, _ = torch.linalg.cholesky_ex(matrix)
    return torch.cholesky_solve(rhs.unsqueeze(-1), factor).squeeze(-1)


def _report(system: System, rhs: Tensor, value: Tensor) -> Solution:
    """A failed factorisation leaves nan, which is not converged."""
    residual = norms(system.product(value) - rhs)
    return Solution(value, accurate(norms(value), residual, system.ridge), 1, residual)


@dataclass(frozen=True)
class _Direct:
    @property
    def fixed(self) -> bool:
        return False

    @property
    def captures(self) -> bool:
        return True


@dataclass(frozen=True)
class Cholesky(_Direct):
    """Factors A itself, (B, m, m)."""

    def solve(self, system: System, rhs: Tensor) -> Solution:
        value = _solve(system.dense(), rhs.flatten(1)).reshape(rhs.shape)
        return _report(system, rhs, value)


@dataclass(frozen=True)
class Woodbury(_Direct):
    """Factors F F^T + ridge I instead, which is smaller when F has fewer rows than columns:

    A^-1 rhs = (rhs - F^T (F F^T + ridge I)^-1 F rhs) / ridge
    """

    def solve(self, system: System, rhs: Tensor) -> Solution:
        gram = system.factor_gram()
        gram = gram + system.ridge * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        correction = system.factor_adjoint(_solve(gram, system.factor(rhs)))
        return _report(system, rhs, (rhs - correction) / system.ridge)
