"""The n x C space: features in an orthonormal basis of their span.

At its optimum a predictor lies in the span of the rows it is fitted on: ridge W = -(r (S - Y))^T Z. With
Z = R Q^T, Q (D, k) orthonormal and k = min(n, D), it is W = X Q^T for some X of C x k numbers, and because Q
keeps norms the problem in X is the same one with rows R in place of Z. When there are far fewer rows than
columns, its products no longer depend on D.

Why not coefficients over the rows themselves, W = A^T Z, with the Gram matrix Z Z^T: where rows are nearly
equal and their labels are not, A is huge and cancels in A^T Z, and float32 has no digits left to give.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..errors import InputError

SpaceName = Literal["auto", "predictor", "sample"]


@dataclass(frozen=True)
class Reduction:
    """Z = rows basis^T."""

    rows: Tensor  # (B, n, k)
    basis: Tensor  # (B, D, k) orthonormal columns

    @classmethod
    def of(cls, rows: Tensor) -> Reduction:
        basis, triangle = torch.linalg.qr(rows.mT)
        return cls(triangle.mT, basis)

    def project(self, predictors: Tensor) -> Tensor:
        """The part of (B, C, D) inside the span, (B, C, k)."""
        return predictors @ self.basis

    def lift(self, reduced: Tensor) -> Tensor:
        """(B, C, k) back to (B, C, D)."""
        return reduced @ self.basis.mT


def choose_reduction(rows: Tensor, space: SpaceName = "auto") -> Reduction | None:
    """The reduction for "sample" (n x C), none for "predictor" (d x C).

    "auto" reduces where products with the rows are what takes the time: on a CPU, when that at least halves them.
    On a GPU the small products cost their launch, whatever their size.
    """
    if space == "auto":
        space = "sample" if rows.device.type == "cpu" and 2 * rows.shape[1] <= rows.shape[2] else "predictor"
    if space not in ("sample", "predictor"):
        raise InputError(f"space={space!r} is not known: use 'auto', 'predictor' (d x C) or 'sample' (n x C)")
    return Reduction.of(rows) if space == "sample" else None
