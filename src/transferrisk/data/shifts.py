"""The bias engine of section 5.1, once for all synthetic sets.

A sample has a causal feature (its class), a non-causal one (a colour, a scene), which is one-to-one with the
label for a share of the samples, and a dummy one that says nothing. The share is the bias degree of the
environment; the other samples get a uniformly random value, which may be the label's own.
"""

from __future__ import annotations

import torch
from torch import Generator, Tensor

from ..errors import InputError


def random_bijection(size: int, generator: Generator) -> Tensor:
    """label -> non-causal value, drawn once a run and shared by its training environments, (size,)."""
    return torch.randperm(size, generator=generator)


def biased_values(labels: Tensor, bias: float, bijection: Tensor, generator: Generator) -> Tensor:
    """Non-causal value of each sample, (n,): the label's own with probability `bias`, else uniform.

    The realised share of samples with their label's value is bias + (1 - bias) / len(bijection).
    """
    if not 0 <= bias <= 1:
        raise InputError(f"bias degree {bias} is not a share: give a number from 0 to 1")
    obeys = torch.rand(len(labels), generator=generator) < bias
    uniform = torch.randint(len(bijection), labels.shape, generator=generator)
    return torch.where(obeys, bijection[labels], uniform)
