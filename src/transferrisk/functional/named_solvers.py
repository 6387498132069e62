"""Solvers of the head by name, as configs and the command line give them."""

from __future__ import annotations

from typing import Any

from ..errors import InputError
from ..solvers import CG, Cholesky, GradientDescent, LinearSolver, Minimiser, Neumann, Newton, Woodbury
from .checks import check_solver

MINIMISERS: dict[str, Minimiser] = {
    "newton": Newton(),
    "dense": Newton(linear=Cholesky()),
    "captured": Newton.captured(),
    "sgd": GradientDescent(steps=30, rate=0.1),
}
IMPLICIT: dict[str, LinearSolver | None] = {
    "exact": CG(),
    "cholesky": Cholesky(),
    "woodbury": Woodbury(),
    "neumann": Neumann(terms=10),
    "none": None,
}
CAPTURED_IMPLICIT: dict[str, LinearSolver | None] = {
    "exact": CG(max_iterations=64, fixed=True),
    "cholesky": Cholesky(),
    "woodbury": Woodbury(),
    "neumann": Neumann(terms=10, raises=False),
    "none": None,
}


def chosen_solvers(
    solver: Minimiser | str | None, implicit: LinearSolver | str | None, captured: bool
) -> tuple[Minimiser, LinearSolver | None, bool]:
    """What finds the predictors and what inverts their Hessians, and whether these are the default ones.

    Where steps are captured, names mean a fixed number of iterations, and other solvers must not wait for the device.
    """
    if solver is None or (captured and solver == "newton"):
        solver = "captured" if captured else "newton"
    minimiser: Minimiser = _named(solver, MINIMISERS, "solver", "minimise")
    inverter: LinearSolver | None = _named(
        "exact" if implicit is None else implicit, CAPTURED_IMPLICIT if captured else IMPLICIT, "implicit", "solve"
    )
    if captured and not (minimiser.captures and (inverter is None or inverter.captures)):
        raise InputError(
            "captured=True needs solvers that read nothing from the device, such as Newton.captured() and "
            "CG(fixed=True)"
        )
    return minimiser, inverter, solver in ("captured", "newton") and implicit in (None, "exact", "none")


def _named(value: object, table: dict[str, Any], argument: str, method: str) -> Any:
    names = ", ".join(map(repr, table))
    if not isinstance(value, str):
        check_solver(argument, value, method, f"{names}, or ")
        return value
    if value not in table:
        raise InputError(f"{argument}={value!r} is not known: use one of {names}, or a solver")
    return table[value]
