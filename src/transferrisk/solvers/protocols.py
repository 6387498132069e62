"""What solvers ask of a problem.

Conventions: a vector is any tensor with a leading batch dimension B; the problems of a batch are
independent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from .solution import Solution

Product = Callable[[Tensor], Tensor]


def euclidean(x: Tensor, y: Tensor) -> Tensor:
    """Inner product of each pair of vectors, (B,)."""
    return (x * y).flatten(1).sum(1)


def per_problem(scalars: Tensor, like: Tensor) -> Tensor:
    """(B,) reshaped to multiply a batch of vectors."""
    return scalars.reshape(-1, *[1] * (like.dim() - 1))


class System(Protocol):
    """A batch of self-adjoint positive definite operators A.

    A = F^T F + ridge I for some factor F with `rows` rows; the direct solvers use whichever of F^T F and
    F F^T is asked for, the iterative ones only `product`.
    """

    @property
    def ridge(self) -> float: ...

    def product(self, vector: Tensor) -> Tensor:
        """A vector."""

    def dense(self) -> Tensor:
        """A as (B, m, m) on flattened vectors."""

    def factor_gram(self) -> Tensor:
        """F F^T as (B, rows, rows)."""

    def factor(self, vector: Tensor) -> Tensor:
        """F vector, (B, rows)."""

    def factor_adjoint(self, rows: Tensor) -> Tensor:
        """F^T rows, shaped like a vector."""


class LinearSolver(Protocol):
    """Solves A x = rhs."""

    def solve(self, system: System, rhs: Tensor) -> Solution: ...


class Linearisation(NamedTuple):
    """A function to second order around a point."""

    gradient: Tensor
    scale: Tensor  # (B,) the size of the terms that cancel in the gradient: tolerances are relative to it
    product: Product  # with the Hessian


class Problem(Protocol):
    """A batch of smooth, strongly convex functions to minimise."""

    def linearise(self, x: Tensor) -> Linearisation: ...

    def along(self, x: Tensor, direction: Tensor, steps: Tensor) -> Tensor:
        """Values f(x + t direction) for steps t of shape (T, B), as (T, B)."""

    def safe_step(self, direction: Tensor, slope: Tensor, curvature: Tensor) -> Tensor:
        """A step (B,) along a descent direction at which f is certain to be lower."""


class Minimiser(Protocol):
    @property
    def fixed(self) -> bool:
        """True when the number of iterations is fixed and nothing waits for the device."""

    def minimise(self, problem: Problem, start: Tensor) -> Solution: ...


def default_tolerance(dtype: torch.dtype) -> float:
    """Relative gradient norm below which a minimiser counts as found in this precision."""
    return 1e-10 if dtype == torch.float64 else 1e-5
