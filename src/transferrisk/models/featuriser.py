"""What stands below the head: normalisation of the inputs, a network, and whether its batch norm may move."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class Normalise(nn.Module):
    """(x - mean) / std by channel, (n, c, h, w). Both are buffers: they move and are saved with the network."""

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).reshape(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).reshape(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std


def freeze_batch_norm(module: nn.Module) -> None:
    """Until the next `train()`, batch norm inside uses its running statistics and leaves them as they are.

    Scale and shift go on training. A `Featuriser` with `frozen` set does this after every `train()`.
    """
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            layer.eval()


class Featuriser(nn.Module):
    """Inputs as the data layer gives them to features, (n, ...) to (n, d).

    Invariant: while `frozen`, no batch norm inside is ever in training mode, whoever calls `train()`. The flag is
    part of the state dict (as a tensor), so a network read back from a file stays as frozen as it was.
    """

    def __init__(self, network: nn.Module, normalise: Normalise | None = None, frozen: bool = False) -> None:
        super().__init__()
        self.normalise = nn.Identity() if normalise is None else normalise
        self.network = network
        self.frozen = frozen
        self.train()

    def forward(self, inputs: Tensor) -> Tensor:
        features: Tensor = self.network(self.normalise(inputs))
        return features

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        if self.frozen:
            freeze_batch_norm(self)
        return self

    def get_extra_state(self) -> Tensor:
        return torch.tensor(self.frozen)

    def set_extra_state(self, state: Tensor) -> None:
        self.frozen = bool(state)
        self.train(self.training)
