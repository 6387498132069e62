"""A featuriser with a linear predictor on top, the decomposition everything here rests on."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class Classifier(nn.Module):
    """w_all o Phi: `featurise` gives Phi(x), (n, d); calling it gives logits, (n, C).

    autocast  the type Phi computes in, by autocast; None: that of its weights. Features come back in float32, so
              that the head and whatever is computed from them keep full precision
    """

    autocast: torch.dtype | None = None

    def __init__(self, featuriser: nn.Module, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.featuriser = featuriser
        self.head = nn.Linear(num_features, num_classes)

    def featurise(self, inputs: Tensor) -> Tensor:
        if self.autocast is None:
            features: Tensor = self.featuriser(inputs)
            return features
        with torch.autocast(inputs.device.type, self.autocast, cache_enabled=False):  # a cache could not be captured
            features = self.featuriser(inputs)
        return features.float()

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.featurise(inputs))
        return logits

    @property
    def predictor(self) -> Tensor:
        """The head's weights with the bias as last column, (C, d + 1), detached."""
        return torch.cat([self.head.weight, self.head.bias.unsqueeze(-1)], -1).detach()


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
    """Until the next `train()`, let batch norm inside use its running statistics and leave them as they are.

    Scale and shift go on training. A `Featuriser` with `frozen` set does this after every `train()`.
    """
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            layer.eval()


class Featuriser(nn.Sequential):
    """Inputs in the form of the data layer to features, (n, ...) to (n, d): a network, and its inputs' normalisation.

    Invariant: while `frozen`, no batch norm inside is ever in training mode, whoever calls `train()`. The flag is
    part of the state dict (as a tensor), so a network read back from a file stays as frozen as it was.
    """

    network: nn.Module

    def __init__(self, network: nn.Module, normalise: Normalise | None = None, frozen: bool = False) -> None:
        super().__init__(OrderedDict(normalise=normalise or nn.Identity(), network=network))
        self.frozen = frozen
        self.train()

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


class OnFrozen(Classifier):
    """A classifier of the standardised features of a fixed backbone, whose own head is left out.

    Invariant: the backbone takes no gradient and is in evaluation mode, also after `train()` of the classifier.
    """

    def __init__(self, backbone: Classifier, top: Classifier, standardise: nn.Module) -> None:
        fixed = backbone.featuriser.requires_grad_(False)
        whole = nn.Sequential(OrderedDict(backbone=fixed, standardise=standardise, top=top.featuriser))
        super().__init__(whole, top.head.in_features, top.head.out_features)
        self.head = top.head
        self.train()

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.featuriser.get_submodule("backbone").eval()
        return self


CHUNK = 2048  # inputs at a time that a network takes where it is not trained
CHUNK_BYTES = {"cuda": 2**27, "cpu": 2**25}  # and no more than this of them: the layers make many times as much


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Disable gradients, dropout and moving statistics for the block; the mode of the model is restored afterwards."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        model.train(was_training)


def features_of(
    model: Classifier,
    batch: Callable[[slice], Tensor],
    count: int,
    on_rows: Callable[[int, int], None] | None = None,
) -> Tensor:
    """Phi(x) of `count` inputs, (count, d), in evaluation mode, computed in chunks.

    batch    gives inputs by their positions
    on_rows  called with how many are done, and how many there are

    >>> features = features_of(model, data.batch, len(data))
    """
    device = model.head.weight.device
    most = CHUNK_BYTES.get(device.type, CHUNK_BYTES["cpu"])
    chunk = max(1, min(CHUNK, most // max(1, batch(slice(0, 1)).nbytes)))
    with evaluation_mode(model):
        parts = [model.head.weight.new_empty(0, model.head.in_features)]
        for start in range(0, count, chunk):
            end = min(start + chunk, count)
            parts.append(model.featurise(batch(slice(start, end)).to(device)))
            if on_rows is not None:
                on_rows(end, count)
    return torch.cat(parts)
