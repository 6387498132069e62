"""Solvers by name, as settings and the command line give them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..errors import InputError, choices
from .cg import CG
from .direct import Cholesky, Woodbury
from .gradient_descent import GradientDescent
from .neumann import Neumann
from .newton import Newton
from .protocols import LinearSolver, Minimiser

MINIMISERS: dict[str, Minimiser] = {
    "newton": Newton(),
    "dense": Newton(linear=Cholesky()),
    "captured": Newton.captured(),
    "sgd": GradientDescent(steps=30, rate=0.1),
}
INVERTERS: dict[str, LinearSolver | None] = {
    "exact": CG(),
    "cholesky": Cholesky(),
    "woodbury": Woodbury(),
    "neumann": Neumann(terms=10),
    "none": None,
}
CAPTURED_INVERTERS: dict[str, LinearSolver | None] = {
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
    minimiser: Minimiser = _named(solver, MINIMISERS, "solver", "minimise")
    inverters = CAPTURED_INVERTERS if captured else INVERTERS
    inverter: LinearSolver | None = _named("exact" if implicit is None else implicit, inverters, "implicit", "solve")
    for name, chosen in (("solver", minimiser), ("implicit", inverter)):
        if captured and chosen is not None and not chosen.captures:
            raise InputError(
                f"{name} must read nothing from the device where steps are captured, got {chosen}: use "
                "Newton.captured() and CG(fixed=True)"
            )
    return minimiser, inverter, solver in ("captured", "newton") and implicit in (None, "exact", "none")


def check_solver(name: str, solver: object, method: str, alternatives: str = "") -> None:
    """Refuse what has no such method; `alternatives` says what may be given instead of a solver."""
    if isinstance(solver, type) and hasattr(solver, method):
        raise InputError(f"{name} must be a solver, got the class {solver.__name__}: write {solver.__name__}()")
    if not hasattr(solver, method):
        raise InputError(f"{name} must be {alternatives}a solver of transferrisk.solvers, got {solver!r}")


def _named(value: object, solvers: Mapping[str, Any], argument: str, method: str) -> Any:
    if isinstance(value, str):
        if value not in solvers:
            raise InputError(f"{argument} must be the name of a solver, got {value!r}{choices(value, solvers)}")
        return solvers[value]
    check_solver(argument, value, method, f"{', '.join(map(repr, solvers))} or ")
    return value
