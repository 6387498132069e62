"""Protocols between problems and solvers, the solution that solvers return, and what all solvers use.

Conventions: a vector is any tensor with a leading batch dimension B. The problems of a batch are independent.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, replace
from typing import NamedTuple, Protocol, Self

import torch
from torch import Tensor

Product = Callable[[Tensor], Tensor]
GIVE_WAY: ContextVar[Callable[[], AbstractContextManager[None]] | None] = ContextVar("give_way", default=None)
"""A context in which this thread waits and others may run. None: there are no others."""


@dataclass(frozen=True)
class Solution:
    """Last iterate of a batch of B independent problems, and how good it is.

    Solvers report and callers decide: a solver that does not converge raises nothing. All fields but `iterations` are
    tensors on the problem's device, and only reading them waits for it.

    Attributes
    ----------
    value
        Last iterate, (B, ...).
    converged
        Whether the answer is within the solver's tolerance, (B,) bool.
    iterations
        Number of iterations, the largest over the batch; a tensor (B,) from the fused kernels.
    residual
        Norm of the gradient (minimisers) or of rhs - A value (linear solvers), (B,).

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
        """Return the solution in another floating type.

        Parameters
        ----------
        dtype
            Floating type.

        Returns
        -------
        Solution
            The solution in this type.
        """
        return replace(self, value=self.value.to(dtype), residual=self.residual.to(dtype))


def joined(solutions: Sequence[Solution]) -> Solution:
    """Return the solutions of several batches as one."""
    if len(solutions) == 1:
        return solutions[0]
    parts = zip(*((one.value, one.converged, one.residual) for one in solutions), strict=True)
    value, converged, residual = map(torch.cat, parts)
    return Solution(value, converged, max(one.iterations for one in solutions), residual)


class System(Protocol):
    """A batch of self-adjoint positive definite operators A = F^T F + ridge I, for some factor F.

    Iterative solvers use `product` alone, Cholesky `direct`, and Woodbury the factor, which has few rows.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import SoftmaxLoss
    >>> loss = SoftmaxLoss(torch.randn(1, 9, 4), torch.randint(2, (1, 9)), torch.full((1, 9), 1 / 9), 2, ridge=0.1)
    >>> system = loss.hessian(torch.zeros(1, 2, 4))
    >>> system.product(torch.ones(1, 2, 4)).shape, system.ridge
    (torch.Size([1, 2, 4]), 0.1)
    """

    @property
    def ridge(self) -> float:
        """Factor of the identity in A."""

    def product(self, vector: Tensor) -> Tensor:
        """Return A v.

        Parameters
        ----------
        vector
            Vector v for each operator, (B, ...).

        Returns
        -------
        Tensor
            Products, (B, ...).
        """

    def direct(self, rhs: Tensor) -> Tensor:
        """Return A^-1 b, by factoring A.

        Parameters
        ----------
        rhs
            Right-hand side b for each operator, (B, ...).

        Returns
        -------
        Tensor
            Solutions, (B, ...).
        """

    def factor_gram(self) -> Tensor:
        """Return F F^T.

        Returns
        -------
        Tensor
            Matrices, (B, rows, rows).
        """

    def factor(self, vector: Tensor) -> Tensor:
        """Return F v.

        Parameters
        ----------
        vector
            Vector v for each operator, (B, ...).

        Returns
        -------
        Tensor
            Products, (B, rows).
        """

    def factor_adjoint(self, rows: Tensor) -> Tensor:
        """Return F^T u.

        Parameters
        ----------
        rows
            Vector u for each operator, (B, rows).

        Returns
        -------
        Tensor
            Products, (B, ...).
        """


class Linearisation(NamedTuple):
    """A function f to second order around a point.

    Attributes
    ----------
    gradient
        Gradient, (B, C, D).
    scale
        Size of the terms that cancel in the gradient, (B,). Tolerances are relative to it.
    hessian
        Hessian, as a `System`.
    value
        Function without arguments that computes f at the point, (B,).

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
    """A batch of smooth functions f of matrices (B, C, D), given by value, gradient and approximate curvature.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import SoftmaxLoss
    >>> loss = SoftmaxLoss(torch.randn(1, 9, 4), torch.randint(2, (1, 9)), torch.full((1, 9), 1 / 9), 2, ridge=0.1)
    >>> value, gradient = loss.evaluate(torch.zeros(1, 2, 4))
    >>> value.shape, gradient.shape
    (torch.Size([1]), torch.Size([1, 2, 4]))
    """

    def evaluate(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return values and gradients.

        Parameters
        ----------
        x
            Points, (B, C, D).

        Returns
        -------
        values : Tensor
            Values f(x), (B,) in float64.
        gradients : Tensor
            Gradients, (B, C, D).
        """

    def only(self, kept: Tensor) -> Self:
        """Return some problems of the batch.

        Parameters
        ----------
        kept
            Whether to keep each problem, (B,) bool.

        Returns
        -------
        Evaluated
            The problems that are kept.
        """

    def rough_inverse(self) -> Tensor:
        """Return the approximate inverse Hessian of one row of x, the same for every row.

        Returns
        -------
        Tensor
            Matrices (B, D, D), or (B, 1, D) if diagonal. The leading dimension is 1 if all problems share it.
        """

    def curvature(self, x: Tensor) -> tuple[Tensor, Tensor] | None:
        """Return orthonormal directions in which the rough inverse is far off, and the Hessian there.

        Parameters
        ----------
        x
            Points, (B, C, D).

        Returns
        -------
        tuple of Tensor, or None
            Directions (B, b, D) and the approximate Hessian (B, C b, C b). None if it would cost more than it saves.
        """


class Problem(Evaluated, Protocol):
    """A batch of smooth functions f to minimise, for which f - ridge/2 |x|^2 is convex.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import SoftmaxLoss
    >>> loss = SoftmaxLoss(torch.randn(1, 9, 4), torch.randint(2, (1, 9)), torch.full((1, 9), 1 / 9), 2, ridge=0.1)
    >>> x, direction = torch.zeros(1, 2, 4), torch.ones(1, 2, 4)
    >>> loss.along(x, direction, torch.tensor([[0.0], [0.5], [1.0]])).shape
    torch.Size([3, 1])
    """

    @property
    def ridge(self) -> float:
        """Strength of the strong convexity."""

    @property
    def unit(self) -> Tensor:
        """Norm of x, (B,), below which errors are measured relative to it and not to |x|."""

    def linearise(self, x: Tensor) -> Linearisation:
        """Return f to second order around a point.

        Parameters
        ----------
        x
            Points, (B, C, D).

        Returns
        -------
        Linearisation
            Gradient, Hessian and value.
        """

    def along(self, x: Tensor, direction: Tensor, steps: Tensor) -> Tensor:
        """Return values f(x + t direction) on a line.

        Parameters
        ----------
        x
            Points, (B, C, D).
        direction
            Directions, (B, C, D).
        steps
            Steps t, (T, B).

        Returns
        -------
        Tensor
            Values, (T, B).
        """

    def safe_step(self, direction: Tensor, slope: Tensor, curvature: Tensor) -> Tensor:
        """Return a step along a descent direction at which f is certain to be lower.

        Parameters
        ----------
        direction
            Directions, (B, C, D).
        slope
            First derivative along the direction at the start, (B,).
        curvature
            Second derivative along the direction at the start, (B,).

        Returns
        -------
        Tensor
            Steps, (B,).
        """


class Solver(Protocol):
    """Properties of a solver, known before it runs."""

    @property
    def fixed(self) -> bool:
        """Whether the number of iterations is fixed, so that it may not converge."""

    @property
    def captures(self) -> bool:
        """Whether nothing is read from the device, so that a CUDA graph can hold it."""


class LinearSolver(Solver, Protocol):
    """Solves A x = b for a batch of systems.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import SoftmaxLoss
    >>> from transferrisk.solvers import CG
    >>> loss = SoftmaxLoss(torch.randn(1, 9, 4), torch.randint(2, (1, 9)), torch.full((1, 9), 1 / 9), 2, ridge=0.1)
    >>> CG().solve(loss.hessian(torch.zeros(1, 2, 4)), torch.ones(1, 2, 4)).converged
    tensor([True])
    """

    def solve(self, system: System, rhs: Tensor) -> Solution:
        """Solve A x = b.

        Parameters
        ----------
        system
            Operators A.
        rhs
            Right-hand side b for each operator, (B, ...).

        Returns
        -------
        Solution
            Solutions x, (B, ...), and how well they are solved.
        """


class Minimiser(Solver, Protocol):
    """Minimises every function of a batch.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import SoftmaxLoss
    >>> from transferrisk.solvers import Newton
    >>> loss = SoftmaxLoss(torch.randn(1, 9, 4), torch.randint(2, (1, 9)), torch.full((1, 9), 1 / 9), 2, ridge=0.1)
    >>> Newton().minimise(loss, torch.zeros(1, 2, 4)).converged
    tensor([True])
    """

    def minimise(self, problem: Problem, start: Tensor) -> Solution:
        """Minimise every function of a batch.

        Parameters
        ----------
        problem
            Functions.
        start
            Points to start from, (B, C, D).

        Returns
        -------
        Solution
            Minimisers, (B, C, D), and how well they are found.
        """


def euclidean(x: Tensor, y: Tensor) -> Tensor:
    """Return the inner product of each pair of vectors.

    Parameters
    ----------
    x, y
        Vectors, (B, ...).

    Returns
    -------
    Tensor
        Inner products, (B,).

    Examples
    --------
    >>> import torch
    >>> from transferrisk.solvers import euclidean
    >>> euclidean(torch.ones(2, 3), torch.tensor([[1.0, 2.0, 3.0], [0.0, 0.0, 1.0]]))
    tensor([6., 1.])
    """
    return (x * y).flatten(1).sum(1)


def norms(vectors: Tensor) -> Tensor:
    """Return the norm of each vector, (B,)."""
    return euclidean(vectors, vectors).sqrt()


def per_problem(scalars: Tensor, like: Tensor) -> Tensor:
    """Return scalars (B,) in a shape that multiplies a batch of vectors."""
    return scalars.reshape(-1, *[1] * (like.dim() - 1))


def accurate(size: Tensor, residual: Tensor, ridge: float) -> Tensor:
    """Return whether an answer of this norm, (B,), is certain to be good, (B,) bool.

    No eigenvalue is below the ridge, so that |error| <= residual / ridge, which must be at most 1e-6 (float64) or 1e-3
    (float32) times the norm. Only an error in the flattest direction reaches this bound; most are a thousand times
    smaller.
    """
    accuracy = 1e-6 if size.dtype == torch.float64 else 1e-3
    return residual <= accuracy * ridge * size


@contextmanager
def threads_set(count: int | None) -> Iterator[None]:
    """Set the number of torch's threads for the block.

    Parameters
    ----------
    count
        Number of threads. None: unchanged.

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


def wait_for(device: torch.device) -> None:
    """Wait until a device has finished what this thread asked for; the CPU has."""
    if device.type != "cuda":
        return
    stream, give_way = torch.cuda.current_stream(device), GIVE_WAY.get()
    if give_way is None:
        stream.synchronize()
    elif not stream.query():
        reached = torch.cuda.Event(blocking=True)  # leaves the core to others
        reached.record(stream)
        with give_way():
            reached.synchronize()


def holds(condition: Tensor) -> bool:
    """Return the value of a condition, a scalar."""
    if GIVE_WAY.get() is not None:
        wait_for(condition.device)
    return bool(condition)
