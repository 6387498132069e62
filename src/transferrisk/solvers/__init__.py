"""Solvers for batches of linear systems and convex problems, as values to pass in; they report how far they got."""

from .lbfgs import LBFGS
from .linear import CG, Cholesky, Neumann, Woodbury, solve_positive
from .minimisers import GradientDescent, Newton
from .protocols import (
    Evaluated,
    Linearisation,
    LinearSolver,
    Minimiser,
    Problem,
    Product,
    Solution,
    System,
    euclidean,
    threads_set,
)

__all__ = [
    "CG",
    "LBFGS",
    "Cholesky",
    "Evaluated",
    "GradientDescent",
    "LinearSolver",
    "Linearisation",
    "Minimiser",
    "Neumann",
    "Newton",
    "Problem",
    "Product",
    "Solution",
    "System",
    "Woodbury",
    "euclidean",
    "solve_positive",
    "threads_set",
]
