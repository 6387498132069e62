"""Generic solvers: values that are passed in, that know nothing of losses or environments."""

from .cg import CG
from .direct import Cholesky, Woodbury
from .gradient_descent import GradientDescent
from .neumann import Neumann
from .newton import Newton
from .protocols import Linearisation, LinearSolver, Minimiser, Problem, Product, System, euclidean
from .solution import Solution

__all__ = [
    "CG",
    "Cholesky",
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
