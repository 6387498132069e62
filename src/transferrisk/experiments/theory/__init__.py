"""The paper's theory in numbers: one module an experiment, each with its `Settings` and `rows(settings, on_step)`.

Rows are flat, of strings, numbers and truth values; their column "what" says which quantity a row is about. All is
computed in float64 on the CPU, and the same settings give the same rows.
"""

from . import convergence, implicit_gradient, theorem_1, toy_2d

__all__ = ["convergence", "implicit_gradient", "theorem_1", "toy_2d"]
