"""Generic solvers: values that are passed in, and that know nothing of losses or environments."""

from .cg import CG
from .direct import Cholesky, Woodbury
from .gradient_descent import GradientDescent
from .lbfgs import LBFGS
from .neumann import Neumann
from .newton import Newton
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
]
