"""Batches with the same number of samples from every environment."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Generator, Tensor

from ..errors import InputError
from .environments import EnvironmentSet


def filled(data: EnvironmentSet, size: int) -> EnvironmentSet:
    """With the samples of environments that have fewer than `size` repeated, all of them as often as it takes."""
    counts = torch.bincount(data.environments, minlength=len(data.environment_names)).clamp(min=1)
    times = ((size + counts - 1) // counts).clamp(min=1)  # (E,)
    if bool((times == 1).all()):
        return data
    every = torch.arange(len(data), device=data.environments.device)
    return data.select(every.repeat_interleave(times[data.environments]))


class WholeSampler:
    """Every batch is the whole set, environment after environment, however many samples each has."""

    batch_size = None  # of each environment: they may differ
    steps_per_epoch = 1

    def __init__(self, data: EnvironmentSet) -> None:
        self.order = data.environments.argsort(stable=True)

    def next(self) -> Tensor:
        """Positions of all samples, (n,)."""
        return self.order

    def state_dict(self) -> dict[str, Tensor]:
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Nothing moves."""


class BalancedSampler:
    """Draws `batch_size` samples of each environment, each environment shuffled anew when it runs out.

    An epoch is one pass over the smallest environment: floor(smallest / batch_size) batches.
    """

    def __init__(self, data: EnvironmentSet, batch_size: int, seed: int) -> None:
        names = data.environment_names
        if batch_size < 1:
            raise InputError(f"batch_size={batch_size} is no number of samples: give 1 or more")
        self.members = [(data.environments == e).nonzero().flatten() for e in range(len(names))]
        sizes = [len(m) for m in self.members]
        if min(sizes) < batch_size:
            raise InputError(
                f"environment {names[sizes.index(min(sizes))]!r} has {min(sizes)} training samples, fewer than "
                f"batch_size={batch_size}: lower the batch size"
            )
        self.batch_size = batch_size
        self.steps_per_epoch = min(sizes) // batch_size
        self.generator = Generator().manual_seed(20_000 + seed)  # not the stream that drew the data
        self.orders = [self._shuffle(m) for m in self.members]
        self.positions = [0] * len(self.members)

    def _shuffle(self, members: Tensor) -> Tensor:
        return members[torch.randperm(len(members), generator=self.generator)]

    def next(self) -> Tensor:
        """Positions of the next batch's samples, environment after environment, (E batch_size,)."""
        drawn = []
        for e, members in enumerate(self.members):
            if self.positions[e] + self.batch_size > len(members):
                self.orders[e], self.positions[e] = self._shuffle(members), 0
            start = self.positions[e]
            drawn.append(self.orders[e][start : start + self.batch_size])
            self.positions[e] += self.batch_size
        return torch.cat(drawn)

    def state_dict(self) -> dict[str, Tensor]:
        state = {f"order.{e}": order for e, order in enumerate(self.orders)}
        return state | {"positions": torch.tensor(self.positions), "generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        self.orders = [state[f"order.{e}"] for e in range(len(self.members))]
        self.positions = state["positions"].tolist()
        self.generator.set_state(state["generator"])
