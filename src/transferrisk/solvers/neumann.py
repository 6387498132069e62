"""The truncated Neumann series for A^-1 rhs, as section 4.2 of the paper writes it.

    A^-1 rhs  ~  s * sum over i = 0..terms of (I - s A)^i rhs

with s = 1 in the paper. The partial sum h leaves rhs - A h = (I - s A)^(terms + 1) rhs, so the norm of the
next power is the residual, exactly. I - s A is symmetric, so the ratio of successive powers' norms never
falls: once it is above one the series diverges and no further term can mend it.

Differs from the public implementation: each power is a tensor of its own (there the running vector and
the sum are one object, which drops a term), and a diverged sum is never returned as if it were an answer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import DivergedError
from .protocols import Solution, System, accurate, norms, per_problem


@dataclass(frozen=True)
class Neumann:
    """`terms=10` sums i = 0..10. Few terms are rarely enough: `converged` and `residual` say how far they are off.

    A diverging series raises `DivergedError` or, with `raises=False`, where the host never looks at a value, gives nan.
    """

    terms: int = 10
    scale: float = 1.0
    raises: bool = True

    @property
    def fixed(self) -> bool:
        return True

    @property
    def captures(self) -> bool:
        return not self.raises

    def solve(self, system: System, rhs: Tensor) -> Solution:
        power = total = rhs
        norm = previous = norms(rhs)
        for i in range(self.terms + 1):
            power = power - self.scale * system.product(power)
            previous, norm = norm, norms(power)
            if i < self.terms:
                total = total + power
        contracting = (norm <= previous) & torch.isfinite(norm)
        if self.raises and not bool(contracting.all()):
            which = [int(i) for i in (~contracting).nonzero().flatten()]
            growth = float((norm / previous).nan_to_num(torch.inf).max())
            raise DivergedError(
                f"the Neumann series diverges for problem {which[0]} of {len(norm)} (terms grow {growth:.3g}-fold): "
                f"{self.scale:g} * A has an eigenvalue above 2. Use a smaller scale, scale the features down, "
                "or an exact solver (implicit='exact')."
            )
        value = torch.where(per_problem(contracting, total), self.scale * total, torch.nan)
        return Solution(value, accurate(norms(value), norm, system.ridge), self.terms + 1, norm)
