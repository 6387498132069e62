"""A small network on the features of a backbone that stays as it is."""

from __future__ import annotations

from typing import Self

import torch
from torch import Tensor, nn

from .head import Classifier
from .vectors import Standardise


class OnFrozen(nn.Module):
    """top((backbone(x) - mean) / scale), (n, ...) to (n, d).

    Invariant: the backbone takes no gradient and is in evaluation mode, whoever calls `train()`.
    """

    def __init__(self, backbone: nn.Module, standardise: Standardise, top: nn.Module) -> None:
        super().__init__()
        self.backbone = backbone.requires_grad_(False)
        self.standardise = standardise
        self.top = top
        self.train()

    def forward(self, inputs: Tensor) -> Tensor:
        features: Tensor = self.top(self.standardise(self.backbone(inputs)))
        return features

    def train(self, mode: bool = True) -> Self:
        super().train(mode)
        self.backbone.eval()
        return self


def on_frozen(
    backbone: Classifier, top: Classifier, mean: Tensor | None = None, scale: Tensor | None = None
) -> Classifier:
    """One network of a backbone, whose own head is left out, and one that takes its features, standardised.

    mean, scale  (d,) of the backbone's features; where the scale is 0 the feature was constant, and becomes 0.
                 0 and 1 when not given, for a state dict to be put into
    """
    width = backbone.head.in_features
    mean = torch.zeros(width) if mean is None else mean
    scale = torch.ones(width) if scale is None else torch.where(scale > 0, scale, torch.inf)
    standardise = Standardise(mean, scale, top.head.weight.dtype)
    whole = Classifier(
        OnFrozen(backbone.featuriser, standardise, top.featuriser), top.head.in_features, top.head.out_features
    )
    whole.head = top.head
    return whole
