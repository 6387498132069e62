"""The protocols between problems and solvers, and the solution that solvers return.

Conventions: a vector is any tensor with a leading batch dimension B; the problems of a batch are independent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Solution:
    """The last iterate of a batch of B independent problems, and how far it got.

    Solvers report, callers decide: nothing is raised or hidden here. All fields but `iterations` are tensors on the
    problem's device, so that reading them is the only thing that waits for the device.

    Attributes
    ----------
    value
        (B, ...) the last iterate.
    converged
        (B,) bool whether the answer is within the solver's tolerance.
    iterations
        Number of iterations that were run (the largest over the batch); (B,) where they stay on a device.
    residual
        (B,) norm of the gradient (minimisers) or of rhs - A value (linear solvers).

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import solve_predictor
    >>> solution = solve_predictor(torch.randn(60, 5), torch.randint(2, (60,)), 2, 1e-3)
    >>> bool(solution.converged), solution.value.shape
    (True, torch.Size([2, 6]))
    """

    value: Tensor
    converged: Tensor
    iterations: int | Tensor
    residual: Tensor

    def to(self, dtype: torch.dtype) -> Solution:
        """The same in another floating type."""
        return replace(self, value=self.value.to(dtype), residual=self.residual.to(dtype))


def joined(solutions: Sequence[Solution]) -> Solution:
    """Solutions of several batches as one."""
    if len(solutions) == 1:
        return solutions[0]
    parts = zip(*((one.value, one.converged, one.residual) for one in solutions), strict=True)
    value, converged, residual = map(torch.cat, parts)
    return Solution(value, converged, max(one.iterations for one in solutions), residual)


class System(Protocol):
    """A batch of self-adjoint positive definite operators A.

    A = F^T F + ridge I for some factor F with `rows` rows; the direct solvers use whichever of F^T F and F F^T is
    smaller, the iterative ones only `product`.
    """

    @property
    def ridge(self) -> float: ...

    def product(self, vector: Tensor) -> Tensor:
        """A vector."""

    def direct(self, rhs: Tensor) -> Tensor:
        """A^-1 rhs, by factoring A."""

    def factor_gram(self) -> Tensor:
        """F F^T as (B, rows, rows)."""

    def factor(self, vector: Tensor) -> Tensor:
        """F vector, (B, rows)."""

    def factor_adjoint(self, rows: Tensor) -> Tensor:
        """F^T rows, shaped like a vector."""


class Linearisation(NamedTuple):
    """A function to second order around a point.

    Attributes
    ----------
    gradient
        (B, C, D).
    scale
        (B,) the size of the terms that cancel in the gradient: tolerances are relative to it.
    hessian
        The second derivative, as a `System`.
    value
        A function that computes f there, (B,), when it is called.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import SoftmaxLoss
    >>> loss = SoftmaxLoss(torch.randn(1, 9, 4), torch.randint(2, (1, 9)), torch.full((1, 9), 1 / 9), 2, ridge=0.1)
    >>> loss.linearise(torch.zeros(1, 2, 4)).gradient.shape
    torch.Size([1, 2, 4])
    """

    gradient: Tensor
    scale: Tensor
    hessian: System
    value: Callable[[], Tensor]


class Evaluated(Protocol):
    """A batch of smooth functions of matrices (B, C, D), given by value and gradient, and roughly by curvature."""

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Values f(x), (B,) in float64, and gradients."""

    def only(self, kept: Tensor) -> Self:
        """The problems at these places of the batch, (B,) bool."""

    def rough_inverse(self) -> Tensor:
        """About the inverse Hessian of one row of x, the same for every row.

        (B, D, D), or (B, 1, D) where it is diagonal; the leading dimension is 1 where all problems share it.
        """

    def curvature(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Orthonormal directions (B, b, D) on which the rough inverse is far off, and about the Hessian on C x these.

        The Hessian is (B, C b, C b). None where it would cost more than it saves.
        """


class Problem(Evaluated, Protocol):
    """A batch of smooth functions to minimise, each at least `ridge`/2 |x|^2 more convex than a linear one."""

    @property
    def ridge(self) -> float: ...

    @property
    def unit(self) -> Tensor:
        """(B,) how long an x is that matters: shorter ones count as that long when errors are judged."""

    def linearise(self, x: Tensor) -> Linearisation: ...

    def along(self, x: Tensor, direction: Tensor, steps: Tensor) -> Tensor:
        """Values f(x + t direction) for steps t of shape (T, B), as (T, B)."""

    def safe_step(self, direction: Tensor, slope: Tensor, curvature: Tensor) -> Tensor:
        """A step (B,) along a descent direction at which f is certain to be lower."""


class Solver(Protocol):
    """The properties of any solver that callers may ask for before it runs."""

    @property
    def fixed(self) -> bool:
        """The number of iterations is set beforehand, so that arriving is not promised."""

    @property
    def captures(self) -> bool:
        """Nothing is read from the device, so that a CUDA graph can hold it."""


class LinearSolver(Solver, Protocol):
    """Solves A x = rhs."""

    def solve(self, system: System, rhs: Tensor) -> Solution: ...


class Minimiser(Solver, Protocol):
    """Minimises every function of a batch."""

    def minimise(self, problem: Problem, start: Tensor) -> Solution: ...


def euclidean(x: Tensor, y: Tensor) -> Tensor:
    """Return the inner product of each pair of vectors.

    Parameters
    ----------
    x, y
        (B, ...).

    Returns
    -------
    Tensor
        (B,).

    Examples
    --------
    >>> import torch
    >>> from transferrisk.solvers import euclidean
    >>> euclidean(torch.ones(2, 3), torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 1.0]]))
    tensor([6., 1.])
    """
    return (x * y).flatten(1).sum(1)


def norms(vectors: Tensor) -> Tensor:
    """Norm of each vector, (B,)."""
    return euclidean(vectors, vectors).sqrt()


def per_problem(scalars: Tensor, like: Tensor) -> Tensor:
    """(B,) reshaped to multiply a batch of vectors."""
    return scalars.reshape(-1, *[1] * (like.dim() - 1))


def accurate(size: Tensor, residual: Tensor, ridge: float) -> Tensor:
    """Tell whether an answer of this size (B,) is certain to be good, (B,) bool.

    No eigenvalue is below the ridge, so |error| <= |residual| / ridge, and that must be within 1e-6 (float64) or 1e-3
    (float32) of the size. Only an error in the flattest direction meets the bound; most are a thousand times smaller.
    """
    accuracy = 1e-6 if size.dtype == torch.float64 else 1e-3
    return residual <= accuracy * ridge * size


@contextmanager
def threads_set(count: int | None) -> Iterator[None]:
    """Set the number of torch's threads for the block; None: leave it.

    Parameters
    ----------
    count
        The number of threads.

    Returns
    -------
    Iterator[None]
        A context manager.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.solvers import threads_set
    >>> with threads_set(1):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
