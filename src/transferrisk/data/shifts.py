"""The bias engine of section 5.1, once for all synthetic sets.

A sample has a causal feature (its class), a non-causal one (a colour, a scene) and a dummy one. The non-causal
feature is one-to-one with the label for a share of the samples, the bias degree of the environment; the others
get a uniformly random value, which may be the label's own. The dummy feature says nothing of the label, but
each environment draws it from values of its own.

    label-correlated     training environments differ in bias degree; the dummy feature is constant
    label-uncorrelated   environments differ in the values of the dummy feature; the non-causal one is constant
    combined             both
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

import torch
from torch import Generator, Tensor

from ..errors import InputError

Kind = Literal["label-correlated", "label-uncorrelated", "combined"]


def random_bijection(size: int, generator: Generator) -> Tensor:
    """label -> non-causal value, drawn once a run and shared by its training environments, (size,)."""
    return torch.randperm(size, generator=generator)


def biased_values(labels: Tensor, bias: float, bijection: Tensor, generator: Generator) -> Tensor:
    """Non-causal value of each sample, (n,): the label's own with probability `bias`, else uniform.

    The realised share of samples with their label's value is bias + (1 - bias) / len(bijection).
    """
    obeys = torch.rand(len(labels), generator=generator) < bias
    uniform = torch.randint(len(bijection), labels.shape, generator=generator)
    return torch.where(obeys, bijection[labels], uniform)


@dataclass(frozen=True)
class Shift:
    """What differs between environments.

    biases   bias degree of each training environment, 0 to 1; the test environment has none
    dummies  how many values the dummy feature takes in an environment
    """

    kind: Kind = "label-correlated"
    biases: tuple[float, ...] = (1.0, 0.9)
    dummies: int = 5

    def __post_init__(self) -> None:
        if self.kind not in get_args(Kind):
            raise InputError(f"shift {self.kind!r} is not known: use {', '.join(map(repr, get_args(Kind)))}")
        if len(self.biases) < 2:
            raise InputError(f"{len(self.biases)} bias degree given: there must be two training environments or more")
        for bias in self.biases:
            if not 0 <= bias <= 1:
                raise InputError(f"bias degree {bias} is not a share: give a number from 0 to 1")
        if self.dummies < 1:
            raise InputError(f"dummies={self.dummies}: an environment draws from one value or more")

    @property
    def correlated(self) -> bool:
        """The non-causal feature takes part."""
        return self.kind != "label-uncorrelated"

    @property
    def dummy(self) -> bool:
        """The dummy feature takes part."""
        return self.kind != "label-correlated"

    @property
    def environment_names(self) -> tuple[str, ...]:
        """Of the training environments, with as many digits as tell them apart."""
        for digits in (6, 9, 12, 15) if self.correlated else ():
            names = tuple(f"bias {100 * bias:.{digits}g}%" for bias in self.biases)
            if len(set(names)) == len(names):
                return names
        return tuple(f"training {i + 1}" for i in range(len(self.biases)))
