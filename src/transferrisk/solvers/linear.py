"""Solvers for batches of linear systems A x = rhs: conjugate gradients, direct ones, and the paper's Neumann series."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from ..errors import DivergedError
from .protocols import Product, Solution, System, accurate, holds, norms, per_problem


@dataclass(frozen=True)
class CG:
    """Conjugate gradients.

    It stops when the recursive residual is <= tolerance * |rhs|. `solve` then computes the residual itself, and counts
    as converged if that bounds the error (`protocols.accurate`) or, with a tolerance given, is within ten times that.

    It differs from the textbook routine in two ways:

    1. Problems of a batch that have converged stand still, so that an answer does not depend on its neighbours.
    2. With `fixed=True` it runs `max_iterations` iterations and reads nothing on the host, so that a CUDA graph can
       hold a whole training step.

    Parameters
    ----------
    tolerance
        Residual, relative to |rhs|, at which it stops. None: 1e-12 in float64, 1e-6 in float32.
    max_iterations
        Largest number of iterations.
    fixed
        Whether to run all iterations, and to read nothing from the device.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import Hessian
    >>> from transferrisk.solvers import CG
    >>> hessian = Hessian(torch.randn(1, 9, 4), torch.full((1, 9, 2), 0.5), torch.full((1, 9), 1 / 9), ridge=0.1)
    >>> CG().solve(hessian, torch.ones(1, 2, 4)).converged
    tensor([True])
    """

    tolerance: float | None = None
    max_iterations: int = 1000
    fixed: bool = False

    @property
    def captures(self) -> bool:
        return self.fixed

    def solve(self, system: System, rhs: Tensor) -> Solution:
        """Solve A x = rhs.

        Parameters
        ----------
        system
            Operators A.
        rhs
            Right-hand side for each operator, (B, ...).

        Returns
        -------
        Solution
            Solutions, (B, ...), and how well they are solved.
        """
        found = self.run(system.product, rhs)
        residual = norms(rhs - system.product(found.value))
        if self.tolerance is None:
            converged = accurate(norms(found.value), residual, system.ridge)
        else:
            converged = residual <= 10 * self.tolerance * norms(rhs)
        return replace(found, converged=converged, residual=residual)

    def run(self, product: Product, rhs: Tensor, tolerance: Tensor | None = None) -> Solution:
        """Run the iteration alone, on operators that are given by their products.

        Parameters
        ----------
        product
            Function that returns A v, (B, ...), for vectors v, (B, ...).
        rhs
            Right-hand side for each operator, (B, ...).
        tolerance
            Tolerance of each system, (B,), as in an inexact Newton method. None: that of the solver.

        Returns
        -------
        Solution
            Solutions, (B, ...), and how well they are solved.
        """
        if tolerance is None:
            default = 1e-12 if rhs.dtype == torch.float64 else 1e-6
            own = default if self.tolerance is None else self.tolerance
            tolerance = rhs.new_full(rhs.shape[:1], own)
        axes = tuple(range(1, rhs.dim()))  # scalars of a system keep these, of length 1, so that they multiply vectors
        x = torch.zeros_like(rhs)
        residual, direction = rhs.clone(), rhs
        square = (rhs * rhs).sum(axes, keepdim=True)
        target = square * per_problem(tolerance.square(), rhs)
        tiny = torch.finfo(rhs.dtype).tiny
        iterations = 0
        while iterations < self.max_iterations:
            active = square > target
            if not self.fixed and not holds(active.any()):
                break
            image = product(direction)
            # A system that is solved takes steps of length zero, which leave its residual as it is.
            step = square / torch.where(active, (direction * image).sum(axes, keepdim=True), torch.inf)
            x.addcmul_(step, direction)
            residual.addcmul_(step, image, value=-1)
            previous, square = square, (residual * residual).sum(axes, keepdim=True)
            direction = torch.addcmul(residual, square / previous.clamp(min=tiny), direction)
            iterations += 1
        square, target = square.flatten(), target.flatten()
        return Solution(x, square <= target, iterations, square.sqrt())


def solve_positive(matrix: Tensor, rhs: Tensor) -> Tensor:
    """Solve matrix x = rhs by a Cholesky factorisation; one that fails gives nan.

    Parameters
    ----------
    matrix
        Positive definite matrices, (B, m, m).
    rhs
        Right-hand sides, (B, m).

    Returns
    -------
    Tensor
        Solutions x, (B, m).

    Examples
    --------
    >>> import torch
    >>> from transferrisk.solvers import solve_positive
    >>> solve_positive(2 * torch.eye(2)[None], torch.tensor([[2.0, 4.0]]))
    tensor([[1., 2.]])
    """
    factor, _ = torch.linalg.cholesky_ex(matrix)
    return torch.cholesky_solve(rhs.unsqueeze(-1), factor).squeeze(-1)


def _report(system: System, rhs: Tensor, value: Tensor) -> Solution:
    residual = norms(system.product(value) - rhs)
    return Solution(value, accurate(norms(value), residual, system.ridge), 1, residual)


@dataclass(frozen=True)
class Cholesky:
    """Solve A x = rhs by a Cholesky factorisation of A.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import Hessian
    >>> from transferrisk.solvers import Cholesky
    >>> hessian = Hessian(torch.randn(1, 9, 4), torch.full((1, 9, 2), 0.5), torch.full((1, 9), 1 / 9), ridge=0.1)
    >>> Cholesky().solve(hessian, torch.ones(1, 2, 4)).converged
    tensor([True])
    """

    fixed: ClassVar[bool] = False
    captures: ClassVar[bool] = True

    def solve(self, system: System, rhs: Tensor) -> Solution:
        """Solve A x = rhs.

        Parameters
        ----------
        system
            Operators A.
        rhs
            Right-hand side for each operator, (B, ...).

        Returns
        -------
        Solution
            Solutions, (B, ...), and how well they are solved.
        """
        return _report(system, rhs, system.direct(rhs))


@dataclass(frozen=True)
class Woodbury:
    """Solve A x = rhs by factoring F F^T + ridge I, which is smaller than A if F has fewer rows than columns.

        A^-1 rhs = (rhs - F^T (F F^T + ridge I)^-1 F rhs) / ridge

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import Hessian
    >>> from transferrisk.solvers import Woodbury
    >>> hessian = Hessian(torch.randn(1, 2, 9), torch.full((1, 2, 2), 0.5), torch.full((1, 2), 1 / 2), ridge=0.1)
    >>> Woodbury().solve(hessian, torch.ones(1, 2, 9)).converged
    tensor([True])
    """

    fixed: ClassVar[bool] = False
    captures: ClassVar[bool] = True

    def solve(self, system: System, rhs: Tensor) -> Solution:
        """Solve A x = rhs.

        Parameters
        ----------
        system
            Operators A.
        rhs
            Right-hand side for each operator, (B, ...).

        Returns
        -------
        Solution
            Solutions, (B, ...), and how well they are solved.
        """
        gram = system.factor_gram()
        gram = gram + system.ridge * torch.eye(gram.shape[-1], dtype=gram.dtype, device=gram.device)
        correction = system.factor_adjoint(solve_positive(gram, system.factor(rhs)))
        return _report(system, rhs, (rhs - correction) / system.ridge)


@dataclass(frozen=True)
class Neumann:
    """Truncated Neumann series, as in section 4.2 of the paper.

        A^-1 rhs  ~  s * sum over i = 0..terms of (I - s A)^i rhs

    with s = 1 in the paper. The partial sum h has rhs - A h = (I - s A)^(terms + 1) rhs, so that the norm of the next
    power is exactly the residual. I - s A is symmetric, so that the ratio of the norms of successive powers never
    falls: once it is above one the series diverges. That raises `DivergedError` or, with `raises=False`, gives nan and
    reads nothing on the host. Few terms are rarely enough: `converged` and `residual` tell how far they are off.

    It differs from the public implementation: each power is a tensor of its own (there the running vector and the sum
    are one object, which drops a term), and a diverged sum is never returned as an answer.

    Parameters
    ----------
    terms
        Last power i.
    scale
        Factor s.
    raises
        Whether divergence raises an error; otherwise it gives nan.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import Hessian
    >>> from transferrisk.solvers import Neumann
    >>> hessian = Hessian(torch.zeros(1, 9, 4), torch.full((1, 9, 2), 0.5), torch.full((1, 9), 1 / 9), ridge=0.5)
    >>> Neumann(terms=40).solve(hessian, torch.ones(1, 2, 4)).value[0, 0, 0]
    tensor(2.)
    """

    fixed: ClassVar[bool] = True

    terms: int = 10
    scale: float = 1.0
    raises: bool = True

    @property
    def captures(self) -> bool:
        return not self.raises

    def solve(self, system: System, rhs: Tensor) -> Solution:
        """Sum the series for A x = rhs.

        Parameters
        ----------
        system
            Operators A.
        rhs
            Right-hand side for each operator, (B, ...).

        Returns
        -------
        Solution
            Solutions, (B, ...), and how well they are solved.
        """
        power = total = rhs
        norm = previous = norms(rhs)
        for i in range(self.terms + 1):
            power = power - self.scale * system.product(power)
            previous, norm = norm, norms(power)
            if i < self.terms:
                total = total + power
        contracting = (norm <= previous) & torch.isfinite(norm)
        if self.raises and not bool(contracting.all()):
            first = int((~contracting).nonzero()[0])
            growth = float((norm / previous).nan_to_num(torch.inf).max())
            raise DivergedError(
                f"the Neumann series diverges for problem {first} of {len(norm)} (terms grow {growth:.3g}-fold), since "
                f"{self.scale:g} * A has an eigenvalue above 2: use a smaller scale, scale the features down, or use "
                "an exact solver (implicit='exact')"
            )
        value = torch.where(per_problem(contracting, total), self.scale * total, torch.nan)
        return Solution(value, accurate(norms(value), norm, system.ridge), self.terms + 1, norm)
