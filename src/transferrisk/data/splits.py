"""Which samples are trained on, selected by and tested on, for sets that come without such a division.

    hold out one environment for the test; of it, and of each training environment, a fifth for validation

The test-domain validation samples are not tested on, as in DomainBed, so that selecting by them is no looking ahead.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from ..errors import InputError
from .checks import did_you_mean, listed
from .environments import EnvironmentSet, Splits, TestDomainValidation, TrainingDomainValidation, retyped

VALIDATION = 0.2  # share of each environment, as in the paper's folder sets


def hold_out(data: EnvironmentSet, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Positions of the kept and of the held-out samples: `share` of each environment, at least one sample of it.

    Samples with one source stay on one side. Drawn by the seed alone, environment after environment.
    """
    if not 0 < share < 1:
        raise InputError(f"{share} is not a share to hold out: give a number between 0 and 1")
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
        raise InputError(
            f"test environment {test_environment!r} is not known: {did_you_mean(test_environment, names)}choose from "
            f"{listed(map(repr, names), 30)}"
        )
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
