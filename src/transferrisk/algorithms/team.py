"""Several processes that share a batch and together take one step on it.

Invariant: the step is that of one process on the whole batch, for any objective. Each process has a part of every
environment.

    features      gathered, so that every process has the whole batch and computes the same objective
    featuriser    the gradient of its weights is summed: each process has the part of its own samples
    head          its gradient is that of the whole batch in every process

Algorithms with several passes in a step average the gradients of each pass instead.
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
    """Process `rank` of `size` that share a batch: of each environment it has the samples rank, rank + size, ...

    Parameters
    ----------
    rank, size
        Number of this process, from 0, and of all processes.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.algorithms import Team
    >>> Team(rank=1, size=2).share(torch.arange(8), per_environment=4)
    tensor([1, 3, 5, 7])
    """

    rank: int = 0
    size: int = 1

    def check(self, per_environment: int | None) -> None:
        """Raise an error if a batch cannot be shared by the processes.

        Parameters
        ----------
        per_environment
            Number of samples of each environment in a batch. None: all of them.
        """
        if self.size == 1:
            return
        if per_environment is None:
            raise InputError(
                f"batch_size must be a number where {self.size} devices share a batch, got None, a batch of all samples"
            )
        if per_environment % self.size:
            raise InputError(
                f"batch_size must be a multiple of {self.size}, so that {self.size} devices share a batch evenly, got "
                f"{per_environment}"
            )

    def share(self, index: Tensor, per_environment: int | None) -> Tensor:
        """Return the part of a batch that this process works on.

        Parameters
        ----------
        index
            Positions of the samples of the batch, (n,), one environment after another.
        per_environment
            Number of samples of each environment in a batch. None: all of them.

        Returns
        -------
        Tensor
            Positions of the samples of this process.
        """
        self.check(per_environment)
        if self.size == 1 or per_environment is None:
            return index
        return index.reshape(-1, per_environment)[:, self.rank :: self.size].flatten()

    def gather(self, local: Tensor, environments: int) -> Tensor:
        """Return values of the samples of all processes.

        The gradient that flows back is that of this process's part.

        Parameters
        ----------
        local
            Values of the samples of this process, (E b, ...).
        environments
            Number E of environments.

        Returns
        -------
        Tensor
            Values of all, (E b size, ...), in the order that a single process would have.
        """
        if self.size == 1:
            return local
        gathered: Tensor = _Gather.apply(local, environments, self)  # type: ignore[no-untyped-call]  # torch's apply
        return gathered

    def part(self, whole: Tensor, environments: int) -> Tensor:
        """Return values of the samples of this process, the inverse of `gather`.

        Parameters
        ----------
        whole
            Values of all, (E b size, ...), in the order of `gather`.
        environments
            Number E of environments.

        Returns
        -------
        Tensor
            Values of the samples of this process, (E b, ...).
        """
        if self.size == 1:
            return whole
        return whole.view(environments, -1, self.size, *whole.shape[1:])[:, :, self.rank].flatten(0, 1)

    def reduce_gradients(self, module: nn.Module, *, mean: bool) -> None:
        """Sum or average the gradients of the module's weights over the processes.

        Parameters
        ----------
        module
            Module whose weights have gradients.
        mean
            Whether to average and not to sum.
        """
        gradients = [p.grad for p in module.parameters() if p.grad is not None]
        self._reduce(gradients, 1 / self.size if mean else 1.0)

    def average(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """Return the means of tensors over the processes.

        Parameters
        ----------
        tensors
            Tensors, of the same shapes in all processes.

        Returns
        -------
        list of Tensor
            Means.
        """
        if self.size == 1:
            return list(tensors)
        means = [tensor.detach().clone() for tensor in tensors]
        self._reduce(means, 1 / self.size)
        return means

    def _reduce(self, tensors: Sequence[Tensor], factor: float) -> None:
        """Sum over the processes in place, times a factor, in one message for each type."""
        for kind in {tensor.dtype for tensor in tensors}:
            some = [tensor for tensor in tensors if tensor.dtype == kind]
            message = torch.cat([tensor.flatten() for tensor in some])
            dist.all_reduce(message)
            message *= factor
            for tensor, values in zip(some, message.split([t.numel() for t in some]), strict=True):
                tensor.copy_(values.view_as(tensor))


class _Gather(torch.autograd.Function):
    """Gather the parts of all processes and interleave them, as the inverse of `Team.share`."""

    @staticmethod
    def forward(ctx: Any, local: Tensor, environments: int, team: Team) -> Tensor:
        ctx.environments, ctx.team = environments, team
        parts = [torch.empty_like(local, memory_format=torch.contiguous_format) for _ in range(team.size)]
        dist.all_gather(parts, local.contiguous())
        shaped = [part.view(environments, -1, *local.shape[1:]) for part in parts]
        return torch.stack(shaped, 2).flatten(0, 2)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return ctx.team.part(gradient, ctx.environments).contiguous(), None, None
