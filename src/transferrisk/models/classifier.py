"""A featuriser with a linear predictor on top: the decomposition that transfer risk is defined for."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm


class Classifier(nn.Module):
    """A featuriser with a linear head: w_all o Phi.

    `featurise` returns Phi(x), (n, d); calling the classifier returns logits, (n, C).

    Parameters
    ----------
    featuriser
        Phi, a module from inputs to features (n, d).
    num_features, num_classes
        d and C.

    Attributes
    ----------
    autocast
        Type in which Phi is computed, by autocast. Default: the type of its weights. Features are returned in float32,
        so that the head and whatever is computed from them keep full precision.
    dropout
        Share of the features that are set to 0 at random while training.
    apply_featuriser
        Function of the featuriser and inputs that returns features. Default: the featuriser is called.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from transferrisk.models import Classifier
    >>> model = Classifier(nn.Linear(5, 8), num_features=8, num_classes=3)
    >>> model(torch.randn(4, 5)).shape, model.featurise(torch.randn(4, 5)).shape
    (torch.Size([4, 3]), torch.Size([4, 8]))
    """

    autocast: torch.dtype | None = None
    dropout: float = 0.0
    apply_featuriser: Callable[[nn.Module, Tensor], Tensor] = staticmethod(nn.Module.__call__)

    def __init__(self, featuriser: nn.Module, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.featuriser = featuriser
        self.head = nn.Linear(num_features, num_classes)

    def featurise(self, inputs: Tensor) -> Tensor:
        """Return the features Phi(x).

        Parameters
        ----------
        inputs
            Inputs, (n, ...).

        Returns
        -------
        Tensor
            Features, (n, d).
        """
        if self.autocast is None:
            features = self.apply_featuriser(self.featuriser, inputs)
        else:
            with torch.autocast(inputs.device.type, self.autocast, cache_enabled=False):  # could not be captured
                features = self.apply_featuriser(self.featuriser, inputs).float()
        return F.dropout(features, self.dropout) if self.training and self.dropout else features

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the logits of the head.

        Parameters
        ----------
        inputs
            Inputs, (n, ...).

        Returns
        -------
        Tensor
            Logits, (n, C).
        """
        logits: Tensor = self.head(self.featurise(inputs))
        return logits

    @property
    def predictor(self) -> Tensor:
        """The head's weights with the bias as last column, (C, d + 1), detached."""
        return torch.cat([self.head.weight, self.head.bias.unsqueeze(-1)], -1).detach()


class Normalise(nn.Module):
    """Subtract a mean from each channel of images (n, c, h, w), and divide by a deviation.

    Both are buffers, which move with the network and are saved with it.

    Parameters
    ----------
    mean, std
        One number for each channel.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.models import Normalise
    >>> float(Normalise([0.5], [0.25])(torch.ones(1, 1, 2, 2)).mean())
    2.0
    """

    mean: Tensor
    std: Tensor

    def __init__(self, mean: Sequence[float], std: Sequence[float]) -> None:
        super().__init__()
        self.register_buffer("mean", torch.tensor(mean).reshape(-1, 1, 1))
        self.register_buffer("std", torch.tensor(std).reshape(-1, 1, 1))

    def forward(self, images: Tensor) -> Tensor:
        return (images - self.mean) / self.std


def freeze_batch_norm(module: nn.Module) -> None:
    """Put batch norm in evaluation mode until the next `train()`: it uses its running statistics and keeps them.

    Scale and shift are still trained. A `Featuriser` with `frozen` set does this after every `train()`.

    Parameters
    ----------
    module
        Module that has layers of batch norm.

    Examples
    --------
    >>> from torch import nn
    >>> from transferrisk.models import freeze_batch_norm
    >>> network = nn.Sequential(nn.BatchNorm1d(3))
    >>> freeze_batch_norm(network)
    >>> network[0].training
    False
    """
    for layer in module.modules():
        if isinstance(layer, _BatchNorm):
            layer.eval()


class Featuriser(nn.Sequential):
    """A network from inputs, as data sets give them, to features; inputs are normalised first.

    Invariant: while `frozen`, no layer of batch norm is in training mode, whoever calls `train()`. The flag is part of
    the state dict, as a tensor, so that a network from a file is as frozen as the one that was saved.

    Parameters
    ----------
    network
        Module from (n, ...) to (n, d).
    normalise
        Normalisation of inputs. Default: none.
    frozen
        Keep the statistics of batch norm.

    Examples
    --------
    >>> from torch import nn
    >>> from transferrisk.models import Featuriser
    >>> Featuriser(nn.BatchNorm1d(3), frozen=True).train().network.training
    False
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
    """A classifier on the standardised features of a fixed backbone.

    Invariant: the backbone has no gradients and is in evaluation mode, even after `train()` of the classifier.

    Parameters
    ----------
    backbone
        Classifier whose featuriser is used; its head is not.
    top
        Classifier of these features.
    standardise
        Module from the backbone's features to the inputs of `top`.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from transferrisk.models import Classifier, OnFrozen
    >>> model = OnFrozen(Classifier(nn.Linear(9, 4), 4, 10), Classifier(nn.Linear(4, 3), 3, 2), nn.Identity())
    >>> model(torch.randn(5, 9)).shape
    torch.Size([5, 2])
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


CHUNK = {"cuda": 8192, "cpu": 2048}  # most inputs at a time for a network that is not being trained
CHUNK_BYTES = {"cuda": 2**27, "cpu": 2**25}  # most bytes of them: the layers take many times as much


@contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Disable gradients, dropout and moving statistics in the block; afterwards the model has its mode back.

    Parameters
    ----------
    model
        The module.

    Returns
    -------
    Iterator[None]
        A context manager.

    Examples
    --------
    >>> from torch import nn
    >>> from transferrisk.models import evaluation_mode
    >>> model = nn.Dropout().train()
    >>> with evaluation_mode(model):
    ...     model.training
    False
    """
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
    """Compute Phi(x) in evaluation mode, for some inputs at a time.

    Parameters
    ----------
    model
        The classifier.
    batch
        Function from a slice of positions to the inputs there.
    count
        Number of inputs.
    on_rows
        Called with the number of inputs that are done, and `count`.

    Returns
    -------
    Tensor
        Features, (count, d).

    Examples
    --------
    >>> from torch import nn
    >>> from transferrisk.data import load_splits
    >>> from transferrisk.models import Classifier, features_of
    >>> data = load_splits("gaussian").test
    >>> features_of(Classifier(nn.Linear(15, 8), 8, 2), data.batch, len(data)).shape[1]
    8
    """
    device = model.head.weight.device
    # A compiled network is compiled for one number of inputs, so that the last chunk overlaps the one before.
    compiled = model.apply_featuriser is not Classifier.apply_featuriser
    kind = device.type if device.type in CHUNK else "cpu"
    chunk = max(1, min(CHUNK[kind], CHUNK_BYTES[kind] // max(1, batch(slice(0, 1)).nbytes)))
    with evaluation_mode(model):
        parts = [model.head.weight.new_empty(0, model.head.in_features)]
        for start in range(0, count, chunk):
            end = min(start + chunk, count)
            first = max(0, end - chunk) if compiled else start
            parts.append(model.featurise(batch(slice(first, end)).to(device))[start - first :])
            if on_rows is not None:
                on_rows(end, count)
    return torch.cat(parts)
