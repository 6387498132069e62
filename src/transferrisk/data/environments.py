"""The one idea of the data layer: samples with a label and an environment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Self, TypeVar

import torch
from torch import Tensor

from ..errors import InputError


@dataclass(frozen=True)
class EnvironmentSet:
    """Samples in memory. Images stay uint8 until a batch is asked for."""

    inputs: Tensor  # (n, ...) uint8 images or float vectors
    labels: Tensor  # (n,) index into class_names
    environments: Tensor  # (n,) index into environment_names
    environment_names: tuple[str, ...]
    class_names: tuple[str, ...]
    sources: Tensor | None = None  # (n,) samples that show the same thing share a number; None: each its own

    def __post_init__(self) -> None:
        sizes = {len(self.inputs), len(self.labels), len(self.environments)}
        if len(sizes) > 1:
            raise InputError(
                f"{len(self.inputs)} inputs, {len(self.labels)} labels and {len(self.environments)} environments: "
                "every sample needs one of each"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def select(self, index: Tensor) -> Self:
        """These samples, by position or mask."""
        return replace(
            self,
            inputs=self.inputs[index],
            labels=self.labels[index],
            environments=self.environments[index],
            sources=None if self.sources is None else self.sources[index],
        )

    def environment(self, name: str) -> Self:
        return self.select(self.environments == self.environment_names.index(name))

    def batch(self, index: Tensor | slice = slice(None)) -> Tensor:
        """Inputs as a network takes them: images as floats in 0..1."""
        inputs = self.inputs[index]
        return inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs

    def group_counts(self) -> Tensor:
        """Number of samples of each environment and class, (E, C)."""
        E, C = len(self.environment_names), len(self.class_names)
        return torch.bincount(self.environments * C + self.labels, minlength=E * C).reshape(E, C)


class TrainingDomainValidation(EnvironmentSet):
    """Held-out samples distributed like the training environments: what a practitioner has."""


class TestDomainValidation(EnvironmentSet):
    """Held-out samples distributed like the test environment: only to be used where that is said."""

    __test__ = False  # not a test, whatever pytest makes of the name


@dataclass(frozen=True)
class Splits:
    """One draw of a data set; the two kinds of validation have types of their own, so they cannot be mixed up."""

    train: EnvironmentSet
    training_domain: TrainingDomainValidation
    test_domain: TestDomainValidation
    test: EnvironmentSet


S = TypeVar("S", bound=EnvironmentSet)


def concatenate(parts: Sequence[S]) -> S:
    """Sets of one kind and with the same names, one after the other."""
    first = parts[0]
    sources = [part.sources for part in parts if part.sources is not None]
    return replace(
        first,
        inputs=torch.cat([part.inputs for part in parts]),
        labels=torch.cat([part.labels for part in parts]),
        environments=torch.cat([part.environments for part in parts]),
        sources=torch.cat(sources) if len(sources) == len(parts) else None,
    )
