"""Newton's method and gradient descent, and solvers by the names that settings and the command line give them."""

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
    norms,
    per_problem,
)

_PRODUCTS = CG(max_iterations=500)  # the default solver of an iteration's linear system
_CANDIDATES = 8  # steps that are tried at once
_PATIENCE = 15  # iterations that may pass without halving the gradient
_SUFFICIENT = 0.1  # part of the decrease that the slope promises, below which a step is too long


@dataclass(frozen=True)
class Newton:
    """Newton's method with conjugate gradients inside, for a batch of strongly convex problems.

    Each iteration solves H p = -g only as exactly as the gradient is small (so convergence is superlinear), then takes
    the longest of a series of steps, from 1 down to the problem's safe step, that lowers the function enough. The safe
    step always does, so the method converges from any start.

    Stops when |gradient| <= tolerance * scale, the scale being the problem's own (`Linearisation`). With
    `tolerance=None` it goes on until rounding lets an iteration no longer halve the gradient, and calls the result
    converged when the gradient that is left bounds the error (`protocols.accurate`).

    Differs from a textbook trust-region or line-search Newton:

    1. The candidate steps are evaluated together, without looking at them on the host; on a CPU the whole step is
       tried by itself first.
    2. Problems of a batch that are done stand still, so that an answer does not depend on its neighbours.
    3. `Newton.captured(...)` runs a fixed number of iterations and never waits for the device.

    Parameters
    ----------
    tolerance
        The gradient's norm, relative to the problem's scale, at which it stops; None: rounding level.
    max_iterations
        Iterations after which it stops in any case.
    linear
        How H p = -g is solved: by products, or by factoring H, which is faster where H is small, some 300 rows.
    fixed
        Run all of them, and look at nothing.

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
        """A fixed number of iterations and of Hessian products in each, fit for a CUDA graph."""
        return cls(tolerance, iterations, CG(max_iterations=products, fixed=True), fixed=True)

    def minimise(self, problem: Problem, start: Tensor) -> Solution:
        x = start
        target = torch.finfo(x.dtype).eps if self.tolerance is None else self.tolerance
        here = problem.linearise(x)
        residual = best = norms(here.gradient)
        scale, looks = here.scale, not self.fixed and x.device.type == "cpu"  # where looking at values costs nothing
        active = residual > target * scale
        stalled = torch.zeros_like(residual)
        iterations = 0
        while iterations < self.max_iterations and (self.fixed or bool(active.any())):
            if isinstance(self.linear, CG):
                # sqrt(|g| / scale) gives convergence of order 1.5 with the fewest products; below target nothing is
                # gained.
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
            x, here = there, ahead
            residual, scale = norms(here.gradient), here.scale
            stalled = torch.where(residual < 0.5 * best, 0, stalled + 1)
            best = torch.minimum(best, residual)
            # Far from the optimum the gradient may rest a while; once the answer is good, one idle iteration is enough.
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
        """The longest of a geometric series of steps, from 1 down to the safe one, that lowers the function enough."""
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
    """Tell whether values fell by a fair part of what the slope promises, (<= 0), or by no less than rounding hides."""
    rounding = 8 * torch.finfo(dtype).eps * (1 + before.abs())
    return after <= before + _SUFFICIENT * promised + rounding


@dataclass(frozen=True)
class GradientDescent:
    """Take steps of plain gradient descent, as the paper's public code does to find w(Q).

    Parameters
    ----------
    steps
        How many.
    rate
        Their length.

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
        x = start
        for _ in range(self.steps):
            x = x - self.rate * problem.linearise(x).gradient
        residual = norms(problem.linearise(x).gradient)
        size = torch.maximum(norms(x), problem.unit)
        return Solution(x, accurate(size, residual, problem.ridge), self.steps, residual)


MINIMISERS: Mapping[str, Minimiser] = {
    "newton": Newton(),
    "dense": Newton(linear=Cholesky()),
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
    solver: Minimiser | str | None, implicit: LinearSolver | str | None, captured: bool
) -> tuple[Minimiser, LinearSolver | None, bool]:
    """The minimiser of predictors, the solver that inverts their Hessians, and whether both are the default ones.

    Where steps are captured, names mean a fixed number of iterations, and other solvers must not wait for the device.
    """
    if solver is None or (captured and solver == "newton"):
        solver = "captured" if captured else "newton"
    kinds = (
        ("solver", solver, MINIMISERS, "minimise"),
        ("implicit", "exact" if implicit is None else implicit, CAPTURED_INVERTERS if captured else INVERTERS, "solve"),
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
                f"{argument} must read nothing from the device where steps are captured, got {found[-1]}: use "
                "Newton.captured() and CG(fixed=True)"
            )
    return found[0], found[1], solver in ("captured", "newton") and implicit in (None, "exact", "none")


def check_solver(name: str, solver: object, method: str, alternatives: str = "") -> None:
    """Refuse what has no such method; `alternatives` says what may be given instead of a solver."""
    if isinstance(solver, type) and hasattr(solver, method):
        raise InputError(f"{name} must be a solver, got the class {solver.__name__}: write {solver.__name__}()")
    if not hasattr(solver, method):
        raise InputError(f"{name} must be {alternatives}a solver of transferrisk.solvers, got {solver!r}")
