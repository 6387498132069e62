"""What every solver returns."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor


@dataclass(frozen=True)
class Solution:
    """The last iterate of a batch of B independent problems, and how far it got.

    value       (B, ...)  the last iterate
    converged   (B,) bool whether `residual` is within the solver's tolerance
    iterations  int       iterations that were run (the largest number over the batch); (B,) where they stay on a device
    residual    (B,)      norm of the gradient (minimisers) or of rhs - A value (linear solvers)

    Solvers report, callers decide: nothing is raised or hidden here. All fields but `iterations` are
    tensors on the problem's device, so reading them is the only thing that waits for the device.
    """

    value: Tensor
    converged: Tensor
    iterations: int | Tensor
    residual: Tensor

    @property
    def all_converged(self) -> bool:
        return bool(self.converged.all())

    def to(self, dtype: torch.dtype) -> Solution:
        """The same, of another floating type."""
        return replace(self, value=self.value.to(dtype), residual=self.residual.to(dtype))
