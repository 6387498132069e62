"""A featuriser with a linear predictor on top, the decomposition everything here rests on."""

from __future__ import annotations

import torch
from torch import Tensor, nn


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
