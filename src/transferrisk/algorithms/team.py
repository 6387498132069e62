"""Several processes that share a batch: each has its part of every environment, and together they take one step.

    features      gathered, so that every process has the whole batch and computes the same objective of it
    featuriser    the gradient of its weights is summed: each process knows what its own samples contribute
    predictor     its gradient is of the whole batch already

So a step is that of one process on the whole batch, whatever the objective is. Algorithms with passes of their own
average the gradients of each pass instead.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from ..errors import InputError


@dataclass(frozen=True)
class Team:
    """Process `rank` of `size`, with equal parts: of each environment, the samples rank, rank + size, ..."""

    rank: int = 0
    size: int = 1

    def check(self, per_environment: int | None) -> None:
        """Refuse a batch that cannot be shared: `per_environment` samples of each, or all there are."""
        if self.size == 1:
            return
        if per_environment is None:
            raise InputError("a batch of all samples cannot be shared by several devices: give a batch size")
        if per_environment % self.size:
            raise InputError(
                f"a batch of {per_environment} samples of each environment cannot be shared evenly by {self.size} "
                f"devices: use a multiple of {self.size}"
            )

    def share(self, index: Tensor, per_environment: int | None) -> Tensor:
        """This process's part of a batch of `per_environment` samples of each environment, in turn, (n,)."""
        self.check(per_environment)
        if self.size == 1 or per_environment is None:
            return index
        return index.reshape(-1, per_environment)[:, self.rank :: self.size].flatten()

    def gather(self, local: Tensor, environments: int) -> Tensor:
        """(E b, ...) of this process to (E b size, ...) of all, in the order one process would have them in.

        The gradient that flows back is that of this process's part.
        """
        if self.size == 1:
            return local
        gathered: Tensor = _Gather.apply(local, environments, self)  # type: ignore[no-untyped-call]  # torch's apply
        return gathered

    def sum_gradients(self, module: nn.Module) -> None:
        """Sum the gradients of the module's weights over the processes."""
        self._reduce([p.grad for p in module.parameters() if p.grad is not None], 1.0)

    def average_gradients(self, module: nn.Module) -> None:
        """Average the gradients of the module's weights over the processes."""
        self._reduce([p.grad for p in module.parameters() if p.grad is not None], 1 / self.size)

    def average(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The means of tensors over the processes."""
        if self.size == 1:
            return list(tensors)
        means = [tensor.detach().clone() for tensor in tensors]
        self._reduce(means, 1 / self.size)
        return means

    def _reduce(self, tensors: Sequence[Tensor], factor: float) -> None:
        """Sum over the processes in place, times a factor, in one message for each type."""
        if self.size == 1:
            return
        for kind in {tensor.dtype for tensor in tensors}:
            some = [tensor for tensor in tensors if tensor.dtype == kind]
            message = torch.cat([tensor.flatten() for tensor in some])
            dist.all_reduce(message)
            message *= factor
            for tensor, values in zip(some, message.split([t.numel() for t in some]), strict=True):
                tensor.copy_(values.view_as(tensor))


class _Gather(torch.autograd.Function):
    """The parts of all processes, interleaved again as `share` took them apart."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, environments: int, team: Team) -> Tensor:
        ctx.environments, ctx.team = environments, team
        parts = [torch.empty_like(local, memory_format=torch.contiguous_format) for _ in range(team.size)]
        dist.all_gather(parts, local.contiguous())
        shaped = [part.view(environments, -1, *local.shape[1:]) for part in parts]
        return torch.stack(shaped, 2).flatten(0, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        own = gradient.view(ctx.environments, -1, ctx.team.size, *gradient.shape[1:])[:, :, ctx.team.rank]
        return own.flatten(0, 1).contiguous(), None, None
