"""The two spaces in which a linear predictor can be sought.

At its optimum the predictor lies in the span of the rows: ridge W = -(r (S - Y))^T Z. So it can be sought
either as W itself, C x D numbers, or as coefficients A over the rows, W = A^T Z, n x C numbers. With
K = Z Z^T the second needs products with the n x n matrix K only, at a cost that does not depend on D.

Both are the same Newton method: the inner product of two coefficient matrices is that of the predictors
they stand for, <A, B> = tr(A^T K B). A space maps a vector to its logits and back:

    logits(x)    Z W^T                                        (B, n, C)
    adjoint(u)   the vector x with <x, y> = sum(u logits(y))   for u of shape (B, n, C)
    dot(x, y)    inner product of the predictors               (B,)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ..solvers import euclidean


class Space(Protocol):
    @property
    def rows(self) -> Tensor: ...

    def logits(self, x: Tensor) -> Tensor: ...

    def adjoint(self, u: Tensor) -> Tensor: ...

    def dot(self, x: Tensor, y: Tensor) -> Tensor: ...

    def refresh(self, x: Tensor) -> Tensor:
        """Undo the rounding that recurrences have left in a redundant representation."""

    def start(self, predictor: Tensor) -> Tensor:
        """The vector for a predictor, or for its nearest one in this space."""

    def predictor(self, x: Tensor) -> Tensor:
        """W, (B, C, D)."""


@dataclass(frozen=True)
class PredictorSpace:
    """d x C: a vector is W, (B, C, D)."""

    rows: Tensor  # (B, n, D)

    def logits(self, x: Tensor) -> Tensor:
        return (x @ self.rows.mT).mT  # this way round it is twice as fast on a CPU

    def adjoint(self, u: Tensor) -> Tensor:
        return u.mT @ self.rows

    def dot(self, x: Tensor, y: Tensor) -> Tensor:
        return euclidean(x, y)

    def refresh(self, x: Tensor) -> Tensor:
        return x

    def start(self, predictor: Tensor) -> Tensor:
        return predictor

    def predictor(self, x: Tensor) -> Tensor:
        return x


class SampleSpace:
    """n x C: a vector is the pair (A, K A), (B, 2, n, C), so that K is applied once per Hessian product.

    Linear recurrences keep the two halves consistent up to rounding, which `refresh` removes.
    """

    def __init__(self, rows: Tensor) -> None:
        self.rows = rows
        self.gram = rows @ rows.mT  # (B, n, n)

    def logits(self, x: Tensor) -> Tensor:
        return x[:, 1]

    def adjoint(self, u: Tensor) -> Tensor:
        return torch.stack([u, self.gram @ u], 1)

    def dot(self, x: Tensor, y: Tensor) -> Tensor:
        return euclidean(x[:, 0], y[:, 1])

    def refresh(self, x: Tensor) -> Tensor:
        return self.adjoint(x[:, 0])

    def start(self, predictor: Tensor) -> Tensor:
        """A predictor outside the span of the rows has no coefficients; start from none."""
        n, C = self.rows.shape[1], predictor.shape[1]
        return self.rows.new_zeros(len(self.rows), 2, n, C)

    def predictor(self, x: Tensor) -> Tensor:
        return x[:, 0].mT @ self.rows
