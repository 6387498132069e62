"""A featuriser with a linear predictor on top, the decomposition everything here rests on."""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Classifier(nn.Module):
    """w_all o Phi: `featurise` gives Phi(x), (n, d); calling it gives logits, (n, C)."""

    def __init__(self, featuriser: nn.Module, num_features: int, num_classes: int) -> None:
        super().__init__()
        self.featuriser = featuriser
        self.head = nn.Linear(num_features, num_classes)

    def featurise(self, inputs: Tensor) -> Tensor:
        features: Tensor = self.featuriser(inputs)
        return features

    def forward(self, inputs: Tensor) -> Tensor:
        logits: Tensor = self.head(self.featurise(inputs))
        return logits

    @property
    def predictor(self) -> Tensor:
        """The head's weights with the bias as last column, (C, d + 1), detached."""
        return torch.cat([self.head.weight, self.head.bias.unsqueeze(-1)], -1).detach()
