"""The samples of a data set to train on, to validate with and to test on.

For sets without a division of their own, one environment is held out for the test; a fifth of it, and of each training
environment, is kept for validation. The test-domain validation samples are not tested on, as in DomainBed, so that
selecting by them does not look ahead.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Annotated, TypeVar

import torch
from torch import Generator, Tensor

from ..errors import InputError, choices
from ..settings import Bound, convert
from .environments import EnvironmentSet

VALIDATION = 0.2  # share of each environment that is held out, as in the paper's folder sets
S = TypeVar("S", bound=EnvironmentSet)


class TrainingDomainValidation(EnvironmentSet):
    """Held-out samples distributed like the training environments: the validation data a practitioner has.

    Parameters
    ----------
    inputs, labels, environments, environment_names, class_names, sources, weights
        See `EnvironmentSet`.

    Examples
    --------
    >>> from transferrisk.data import load_splits
    >>> type(load_splits("gaussian").training_domain).__name__
    'TrainingDomainValidation'
    """


class TestDomainValidation(EnvironmentSet):
    """Held-out samples distributed like the test environment, which a result must name if it uses them.

    Parameters
    ----------
    inputs, labels, environments, environment_names, class_names, sources, weights
        See `EnvironmentSet`.

    Examples
    --------
    >>> from transferrisk.data import load_splits
    >>> type(load_splits("gaussian").test_domain).__name__
    'TestDomainValidation'
    """

    __test__ = False  # not a test, in spite of its name


@dataclass(frozen=True, eq=False)
class Splits:
    """One draw of a data set; the two kinds of validation have types of their own, so they cannot be mixed up.

    Attributes
    ----------
    train
        Samples to train on.
    training_domain
        Validation data distributed like the training environments.
    test_domain
        Validation data distributed like the test environment.
    test
        Samples to report on.

    Examples
    --------
    >>> from transferrisk.data import load_splits
    >>> splits = load_splits("gaussian")
    >>> splits.train.environment_names, splits.test.environment_names
    (('environment 1', 'environment 2', 'environment 3'), ('far',))
    """

    train: EnvironmentSet
    training_domain: TrainingDomainValidation
    test_domain: TestDomainValidation
    test: EnvironmentSet


SPLITS = {
    "train": "train",
    "training_domain": "validation, like training",
    "test_domain": "validation, like the test",
    "test": "test",
}
"""Field of `Splits` -> its name in text, in order."""


def retyped(data: EnvironmentSet, kind: type[S]) -> S:
    """Return the same samples as a set of another type."""
    return kind(**{field.name: getattr(data, field.name) for field in fields(data)})


def hold_out(data: EnvironmentSet, share: float, seed: int) -> tuple[Tensor, Tensor]:
    """Return the positions of the kept samples and of the held-out ones: `share` of each environment, at least one.

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
                f"environment {name!r} must have two different samples or more to hold some out, got {len(distinct)}: "
                "give more, or leave it out"
            )
        count = min(max(round(share * len(distinct)), 1), len(distinct) - 1)
        chosen = torch.zeros(len(distinct), dtype=torch.bool)
        chosen[torch.randperm(len(distinct), generator=generator)[:count]] = True
        held[members] = chosen[which]
    return (~held).nonzero().flatten(), held.nonzero().flatten()


def leave_out(data: EnvironmentSet, test_environment: str, seed: int, validation: float = VALIDATION) -> Splits:
    """Train on all environments but one, and test on that one.

    Parameters
    ----------
    data
        All environments.
    test_environment
        Name of the environment to test on.
    seed
        Random seed of the draw of validation data.
    validation
        Share of each environment that is held out for validation.

    Returns
    -------
    Splits
        The four parts.

    Examples
    --------
    >>> from transferrisk.data import leave_out, load_splits
    >>> leave_out(load_splits("gaussian").train, "environment 2", seed=0).train.environment_names
    ('environment 1', 'environment 3')
    """
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
