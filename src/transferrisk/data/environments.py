"""Samples with a label and an environment: the one idea of the data layer."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import torch
from torch import Tensor

from ..errors import InputError, choices


class Inputs(Protocol):
    """The inputs of a set: a tensor, in memory or mapped from a file, or images that are not decoded yet."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor | slice, /) -> Tensor: ...


@dataclass(frozen=True)
class Rows:
    """Some of the stored inputs, by position: selections of a set share its memory."""

    stored: Inputs
    positions: Tensor  # (n,)

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: Tensor | slice, /) -> Tensor:
        return self.stored[self.positions[index]]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only these rows of a tensor, not all of it."""
        if isinstance(self.stored, Tensor):
            return Rows, (self[:], torch.arange(len(self), device=self.positions.device))
        return Rows, (self.stored, self.positions)


class Sample(NamedTuple):
    inputs: Tensor  # in the form a network takes
    label: int
    environment: int


@dataclass(frozen=True, eq=False)
class EnvironmentSet:
    """Samples with a label and an environment. Images stay uint8, on disk or undecoded, until a batch is asked for."""

    inputs: Inputs  # (n, ...) uint8 images or float vectors
    labels: Tensor  # (n,) index into class_names
    environments: Tensor  # (n,) index into environment_names
    environment_names: tuple[str, ...]
    class_names: tuple[str, ...]
    sources: Tensor | None = None  # (n,) samples that show the same thing share a number; None: each its own
    weights: Tensor | None = None  # (n,) how much each sample counts, about 1 on average; None: all the same

    def __post_init__(self) -> None:
        sizes = {len(self.inputs), len(self.labels), len(self.environments)}
        if len(sizes) > 1:
            raise InputError(
                f"{len(self.inputs)} inputs, {len(self.labels)} labels and {len(self.environments)} environments: "
                "every sample needs one of each"
            )
        for name, values in (("sources", self.sources), ("weights", self.weights)):
            if values is not None and len(values) != len(self.labels):
                raise InputError(f"{len(values)} {name} for {len(self.labels)} samples: give each one, or none")
        _check_numbers(self.labels, self.class_names, "label")
        _check_numbers(self.environments, self.environment_names, "environment")

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, position: int) -> Sample:
        if not -len(self) <= position < len(self):
            raise IndexError(f"sample {position} of {len(self)}")
        index = torch.tensor([position % len(self)], device=self.labels.device)
        return Sample(self.batch(index)[0], int(self.labels[position]), int(self.environments[position]))

    def select(self, index: Tensor | slice) -> Self:
        """The samples at these positions, or of a slice or mask; inputs are shared, not copied."""
        positions = torch.arange(len(self), device=self.labels.device)[index]
        inputs = self.inputs
        chosen = (
            Rows(inputs.stored, inputs.positions[positions]) if isinstance(inputs, Rows) else Rows(inputs, positions)
        )
        return self._mapped(chosen, lambda values: values[index])

    def _mapped(self, inputs: Inputs, change: Callable[[Tensor], Tensor]) -> Self:
        """The set with other inputs, and with the same change to everything else that has a row for each sample."""
        return replace(
            self,
            inputs=inputs,
            labels=change(self.labels),
            environments=change(self.environments),
            sources=None if self.sources is None else change(self.sources),
            weights=None if self.weights is None else change(self.weights),
        )

    def environment(self, name: str) -> Self:
        """The samples of one environment; the names stay, so that it keeps its number."""
        return self.select(self.environments == self._number(name))

    def _number(self, name: str) -> int:
        if name not in self.environment_names:
            raise InputError(f"unknown environment {name!r}{choices(name, self.environment_names)}")
        return self.environment_names.index(name)

    def only(self, names: Sequence[str]) -> Self:
        """The samples of these environments, which are numbered anew in the order given."""
        _refuse_repeated(names, "environment")
        number = torch.full((len(self.environment_names),), -1, device=self.labels.device)
        for i, name in enumerate(names):
            number[self._number(name)] = i
        members = (number[self.environments] >= 0).nonzero().flatten()
        chosen = self.select(members)
        return replace(chosen, environments=number[chosen.environments], environment_names=tuple(names))

    def by_group(self) -> Self:
        """The set with every (environment, class) as an environment: groups of worst-group accuracy and GroupDRO."""
        names = tuple(f"{e}, {c}" for e in self.environment_names for c in self.class_names)
        groups = self.environments * len(self.class_names) + self.labels
        return replace(self, environments=groups, environment_names=names)

    def batch(self, index: Tensor | slice = slice(None)) -> Tensor:
        """Inputs in the form a network takes: images as floats in 0..1."""
        inputs = self.inputs[index]
        return inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs

    def to(self, device: torch.device | str) -> Self:
        """The set with all its samples in the memory of a device."""
        return self._mapped(self.inputs[:].to(device), lambda values: values.to(device))

    def group_counts(self) -> Tensor:
        """Number of samples of each environment and class, or the sum of their weights if they have some, (E, C)."""
        E, C = len(self.environment_names), len(self.class_names)
        return torch.bincount(self.environments * C + self.labels, self.weights, E * C).reshape(E, C)


def _check_numbers(numbers: Tensor, names: Sequence[str], what: str) -> None:
    """Check indices into distinct names; on a GPU, where looking would mean waiting, the indices are trusted."""
    _refuse_repeated(names, what)
    if numbers.device.type != "cpu" or not len(numbers):
        return
    low, high = torch.stack(torch.aminmax(numbers)).tolist()
    if low < 0 or high >= len(names):
        raise InputError(
            f"{what}s are {low} to {high} where {len(names)} have names: number them from 0 to {len(names) - 1}"
        )


def _refuse_repeated(names: Sequence[str], what: str) -> None:
    if len(set(names)) < len(names):
        twice = next(name for i, name in enumerate(names) if name in names[:i])
        raise InputError(f"{what} {twice!r} is named twice: give each a name of its own")


class TrainingDomainValidation(EnvironmentSet):
    """Held-out samples distributed like the training environments: the validation data a practitioner has."""


class TestDomainValidation(EnvironmentSet):
    """Held-out samples distributed like the test environment: to be used only where a result says so."""

    __test__ = False  # not a test, whatever pytest makes of the name


@dataclass(frozen=True, eq=False)
class Splits:
    """One draw of a data set; the two kinds of validation have types of their own, so they cannot be mixed up."""

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


S = TypeVar("S", bound=EnvironmentSet)


def retyped(data: EnvironmentSet, kind: type[S]) -> S:
    """The same samples as a set of another kind."""
    return kind(**{field.name: getattr(data, field.name) for field in fields(data)})


def concatenate(sets: Sequence[S]) -> S:
    """Join sets of one kind that have the same names."""
    first = sets[0]
    sources = [one.sources for one in sets if one.sources is not None]
    weights = [one.weights for one in sets if one.weights is not None]
    if weights and len(weights) < len(sets):
        raise InputError("some of the sets have weights and others do not: give weights to all of them, or to none")
    return replace(
        first,
        inputs=torch.cat([one.inputs[:] for one in sets]),
        labels=torch.cat([one.labels for one in sets]),
        environments=torch.cat([one.environments for one in sets]),
        sources=torch.cat(sources) if len(sources) == len(sets) else None,
        weights=torch.cat(weights) if weights else None,
    )
