"""Newton's method and gradient descent, and the names of solvers in settings and on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from ..errors import InputError, choices
from .linear import CG, Cholesky, Neumann, Woodbury
from .protocols import (
    Linearisation,
    LinearSolver,
    Minimiser,
    Problem,
    Solution,
    accurate,
    euclidean,
    holds,
    norms,
    per_problem,
)

_PRODUCTS = CG(max_iterations=500)  # default solver for the direction of an iteration
_CANDIDATES = 8  # steps that are tried at once
_PATIENCE = 15  # iterations without halving the gradient after which it stops
_SUFFICIENT = 0.1  # share of the decrease predicted by the slope that a step must bring


@dataclass(frozen=True)
class Newton:
    """Newton's method with conjugate gradients inside, for a batch of strongly convex problems.

    Each iteration solves H p = -g to an accuracy that grows as the gradient g falls (so that convergence is
    superlinear), and then takes the longest of a series of steps, from 1 down to the problem's safe step, that lowers
    the function enough. The safe step always does, so that the method approaches the minimum from any start.

    It stops when |g| <= tolerance * scale, with the problem's own scale (`Linearisation`). With `tolerance=None` it
    stops when rounding prevents iterations from halving g or lowering the function, and counts as converged if g then
    bounds the error (`protocols.accurate`).

    It differs from a textbook line-search Newton:

    1. Candidate steps are evaluated together, and nothing is read on the host; on a CPU the step 1 is tried first.
    2. Problems of a batch that have converged stand still, so that an answer does not depend on its neighbours.
    3. `Newton.captured(...)` runs a fixed number of iterations and reads nothing from the device.

    Parameters
    ----------
    tolerance
        Norm of the gradient, relative to the problem's scale, at which it stops. None: rounding level.
    max_iterations
        Largest number of iterations.
    linear
        Solver for H p = -g: `CG` by products, or `Cholesky` by factoring H, which is faster up to about 300 rows.
    fixed
        Whether to run all iterations, and to read nothing from the device.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import solve_predictor
    >>> from transferrisk.solvers import Newton
    >>> features, labels = torch.randn(60, 5), torch.randint(2, (60,))
    >>> bool(solve_predictor(features, labels, 2, 1e-3, solver=Newton(tolerance=1e-6)).converged)
    True
    """

    tolerance: float | None = None
    max_iterations: int = 100
    linear: CG | Cholesky = _PRODUCTS
    fixed: bool = False

    @property
    def captures(self) -> bool:
        return self.fixed and self.linear.captures

    @classmethod
    def captured(cls, iterations: int = 10, products: int = 20, tolerance: float | None = None) -> Newton:
        """Return a Newton that a CUDA graph can hold, with fixed numbers of iterations and products.

        Parameters
        ----------
        iterations
            Number of iterations.
        products
            Number of products with the Hessian in each.
        tolerance
            As for `Newton`.

        Returns
        -------
        Newton
            The minimiser.
        """
        return cls(tolerance, iterations, CG(max_iterations=products, fixed=True), fixed=True)

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
        x = start
        target = torch.finfo(x.dtype).eps if self.tolerance is None else self.tolerance
        here = problem.linearise(x)
        residual = best = norms(here.gradient)
        scale, looks = here.scale, not self.fixed and x.device.type == "cpu"  # reading values costs nothing on a CPU
        active = residual > target * scale
        stalled = torch.zeros_like(residual)
        iterations = 0
        while iterations < self.max_iterations and (self.fixed or holds(active.any())):
            if isinstance(self.linear, CG):
                # sqrt(|g| / scale) gives convergence of order 1.5 with the fewest products; below target none help.
                forcing = torch.maximum((residual / scale).sqrt().clamp(max=0.1), 0.1 * target * scale / residual)
                forcing = torch.where(active, forcing, 1.0)
                direction = -self.linear.run(here.hessian.product, here.gradient, forcing).value
            else:
                direction = -here.hessian.direct(here.gradient)
            slope = euclidean(here.gradient, direction)  # (B,) <= 0
            ahead = None
            if looks:
                step = active.to(x.dtype)
                there = x + per_problem(step, x) * direction
                ahead = problem.linearise(there)
            if ahead is None or not bool(_enough(here.value(), ahead.value(), step * slope, x.dtype).all()):
                step = self._shorter_step(problem, x, here, direction, slope, looks)
                there = x + per_problem(torch.where(active, step, 0), x) * direction
                ahead = problem.linearise(there)
            before, x, here = here, there, ahead
            residual, scale = norms(here.gradient), here.scale
            moves = residual < 0.5 * best
            if looks:  # far from the optimum, the function may fall for long while the gradient does not
                moves |= ~_enough(here.value(), before.value(), torch.zeros_like(slope), x.dtype)
            stalled = torch.where(moves, 0, stalled + 1)
            best = torch.minimum(best, residual)
            # Far from the optimum the gradient may stall for a while; once the answer is good, one idle iteration ends.
            good = accurate(torch.maximum(norms(x), problem.unit), residual, problem.ridge)
            patience = torch.where(good, 1, _PATIENCE)
            active = active & (residual > target * scale) & (stalled < patience)
            iterations += 1
        if self.tolerance is None:
            converged = accurate(torch.maximum(norms(x), problem.unit), residual, problem.ridge)
        else:
            converged = residual <= target * scale
        return Solution(x, converged, iterations, residual)

    def _shorter_step(
        self, problem: Problem, x: Tensor, here: Linearisation, direction: Tensor, slope: Tensor, looks: bool
    ) -> Tensor:
        """Return the longest of a geometric series of steps, from 1 to the safe one, that lowers f enough."""
        curvature = euclidean(direction, here.hessian.product(direction))
        safe = problem.safe_step(direction, slope, curvature).clamp(max=1.0)
        powers = torch.linspace(0, 1, _CANDIDATES, dtype=x.dtype, device=x.device)
        steps = safe ** powers.unsqueeze(-1)  # (T, B)
        if looks:
            found, before = steps[-1], here.value()
            open_still = torch.ones_like(before, dtype=torch.bool)
            for tried in steps[:-1]:
                good = _enough(before, problem.along(x, direction, tried[None])[0], tried * slope, x.dtype)
                found = torch.where(open_still & good, tried, found)
                open_still &= ~good
                if not bool(open_still.any()):
                    break
            return found
        values = problem.along(x, direction, torch.cat([torch.zeros_like(slope)[None], steps]))
        good = _enough(values[0], values[1:], steps * slope, x.dtype)
        first = torch.cat([good[:-1], torch.ones_like(good[:1])]).to(torch.uint8).argmax(0)
        return steps.gather(0, first[None]).squeeze(0)


def _enough(before: Tensor, after: Tensor, promised: Tensor, dtype: torch.dtype) -> Tensor:
    """Return whether values fell by a share of the decrease that the slope predicts (<= 0), up to rounding."""
    rounding = 8 * torch.finfo(dtype).eps * (1 + before.abs())
    return after <= before + _SUFFICIENT * promised + rounding


@dataclass(frozen=True)
class GradientDescent:
    """Gradient descent with a fixed number of steps, by which the paper's public code finds w(Q).

    Parameters
    ----------
    steps
        Number of steps.
    rate
        Step size, the factor of the gradient.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import solve_predictor
    >>> from transferrisk.solvers import GradientDescent
    >>> features, labels = torch.randn(60, 5), torch.randint(2, (60,))
    >>> solve_predictor(features, labels, 2, 1e-3, solver=GradientDescent(steps=30, rate=0.1)).iterations
    30
    """

    fixed: ClassVar[bool] = True
    captures: ClassVar[bool] = True
    steps: int = 30
    rate: float = 0.1

    def minimise(self, problem: Problem, start: Tensor) -> Solution:
        """Take the steps.

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
        x = start
        for _ in range(self.steps):
            x = x - self.rate * problem.linearise(x).gradient
        residual = norms(problem.linearise(x).gradient)
        size = torch.maximum(norms(x), problem.unit)
        return Solution(x, accurate(size, residual, problem.ridge), self.steps, residual)


MINIMISERS: Mapping[str, Minimiser] = {
    "newton": Newton(),
    "dense": Newton(linear=Cholesky()),
    "rough": Newton(1e-2, linear=Cholesky()),
    "captured": Newton.captured(),
    "sgd": GradientDescent(steps=30, rate=0.1),
}
INVERTERS: Mapping[str, LinearSolver | None] = {
    "exact": CG(),
    "cholesky": Cholesky(),
    "woodbury": Woodbury(),
    "neumann": Neumann(terms=10),
    "none": None,
}
CAPTURED_INVERTERS: Mapping[str, LinearSolver | None] = {
    **INVERTERS,
    "exact": CG(max_iterations=64, fixed=True),
    "neumann": Neumann(terms=10, raises=False),
}


def chosen_solvers(
    solver: Minimiser | str | None, implicit: LinearSolver | str, captured: bool
) -> tuple[Minimiser, LinearSolver | None, bool]:
    """Return the minimiser, the linear solver for the implicit gradient, and whether both are the default ones.

    For captured steps, names stand for a fixed number of iterations, and other solvers must read nothing from the
    device.
    """
    if solver is None or (captured and solver == "newton"):
        solver = "captured" if captured else "newton"
    kinds = (
        ("solver", solver, MINIMISERS, "minimise"),
        ("implicit", implicit, CAPTURED_INVERTERS if captured else INVERTERS, "solve"),
    )
    found: list[Any] = []
    for argument, chosen, solvers, method in kinds:
        if not isinstance(chosen, str):
            check_solver(argument, chosen, method, f"{', '.join(map(repr, solvers))} or ")
        elif chosen not in solvers:
            raise InputError(f"{argument} must be the name of a solver, got {chosen!r}{choices(chosen, solvers)}")
        found.append(solvers[chosen] if isinstance(chosen, str) else chosen)
        if captured and found[-1] is not None and not found[-1].captures:
            raise InputError(
                f"{argument} must read nothing from the device in captured steps, got {found[-1]}: use "
                "Newton.captured() and CG(fixed=True)"
            )
    return found[0], found[1], solver in ("captured", "newton") and implicit in ("exact", "none")


def check_solver(name: str, solver: object, method: str, alternatives: str = "") -> None:
    """Refuse a solver without this method; `alternatives` names other values that may be given."""
    if isinstance(solver, type) and hasattr(solver, method):
        raise InputError(f"{name} must be a solver, got the class {solver.__name__}: write {solver.__name__}()")
    if not hasattr(solver, method):
        raise InputError(f"{name} must be {alternatives}a solver of transferrisk.solvers, got {solver!r}")
