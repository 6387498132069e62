"""Which samples are trained on, selected by and tested on, and which of them a batch holds.

For sets without a division of their own, one environment is held out for the test; a fifth of it, and of each training
environment, is kept for validation. The test-domain validation samples are not tested on, as in DomainBed, so that
selecting by them does not look ahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated

import torch
from torch import Generator, Tensor

from ..errors import InputError, choices
from ..settings import Bound, Count, convert
from .environments import EnvironmentSet, Splits, TestDomainValidation, TrainingDomainValidation, retyped

VALIDATION = 0.2  # share of each environment, as in the paper's folder sets


def hold_out(data: EnvironmentSet, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Positions of the kept and of the held-out samples: `share` of each environment, at least one sample of it.

    Samples with one source stay on one side. The draw depends on the seed alone, environment after environment.
    """
    convert("share", share, Annotated[float, Bound(above=0, below=1)])
    generator = Generator().manual_seed(30_000 + seed)
    sources = torch.arange(len(data)) if data.sources is None else data.sources.cpu()
    held = torch.zeros(len(data), dtype=torch.bool)
    for e, name in enumerate(data.environment_names):
        members = (data.environments.cpu() == e).nonzero().flatten()
        distinct, which = sources[members].unique(return_inverse=True)
        if len(distinct) < 2:
            raise InputError(
                f"environment {name!r} has {len(distinct)} different samples: two or more are needed to hold some out"
            )
        count = min(max(round(share * len(distinct)), 1), len(distinct) - 1)
        chosen = torch.zeros(len(distinct), dtype=torch.bool)
        chosen[torch.randperm(len(distinct), generator=generator)[:count]] = True
        held[members] = chosen[which]
    return (~held).nonzero().flatten(), held.nonzero().flatten()


def leave_out(data: EnvironmentSet, test_environment: str, seed: int, validation: float = VALIDATION) -> Splits:
    """Train on all environments but one, and test on that one."""
    names = data.environment_names
    if test_environment not in names:
        raise InputError(f"unknown test environment {test_environment!r}{choices(test_environment, names)}")
    others = tuple(name for name in names if name != test_environment)
    if len(others) < 2:
        raise InputError(
            f"{len(names)} environments leave {len(others)} to train on with {test_environment!r} held out: transfer "
            "needs at least two"
        )
    kept, held = hold_out(data, validation, seed)

    def part(positions: Tensor, environments: tuple[str, ...]) -> EnvironmentSet:
        return data.select(positions.to(data.labels.device)).only(environments)

    return Splits(
        train=part(kept, others),
        training_domain=retyped(part(held, others), TrainingDomainValidation),
        test_domain=retyped(part(held, (test_environment,)), TestDomainValidation),
        test=part(kept, (test_environment,)),
    )


def filled(data: EnvironmentSet, size: int) -> EnvironmentSet:
    """The set with all samples of an environment that has fewer than `size` repeated until there are that many."""
    counts = torch.bincount(data.environments, minlength=len(data.environment_names)).clamp(min=1)
    times = ((size + counts - 1) // counts).clamp(min=1)  # (E,)
    if bool((times == 1).all()):
        return data
    every = torch.arange(len(data), device=data.environments.device)
    return data.select(every.repeat_interleave(times[data.environments]))


class WholeSampler:
    """Every batch is the whole set, environment after environment, however many samples each has."""

    batch_size = None  # environments may differ in size
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
        self.batch_size = convert("batch_size", batch_size, Count)
        self.members = [(data.environments == e).nonzero().flatten() for e in range(len(names))]
        sizes = [len(m) for m in self.members]
        if min(sizes) < batch_size:
            raise InputError(
                f"environment {names[sizes.index(min(sizes))]!r} has {min(sizes)} training samples, fewer than "
                f"batch_size={batch_size}: lower the batch size"
            )
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
