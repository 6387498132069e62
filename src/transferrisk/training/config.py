"""The settings of a training that are the same for every model and data set."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..settings import Count, NonNegative, Positive, Settings, Share

Precision = Literal["fp32", "tf32", "bf16"]
Extra = Literal["irm", "transfer"]


@dataclass(frozen=True)
class TrainConfig(Settings):
    """Settings of a training by SGD. The defaults are the paper's protocol for 10C-CMNIST (appendix B.3.2).

    epochs          passes over the smallest environment
    batch_size      samples of each environment in a step; None: every step sees all samples, however many each has
    decay_at        share of the steps after which the rate is multiplied by decay_factor; 1: never
    evaluations     how often the model is evaluated, evenly over the steps
    record          what evaluations measure besides accuracies and losses, on training-domain validation data: "irm"
                    the IRMv1 penalty of each environment, "transfer" the exact transfer matrix
    transfer_ridge  of the predictors in the recorded transfer matrix
    augment         vary images at random in each step
    """

    epochs: Count = 10
    batch_size: Count | None = 128
    lr: NonNegative = 0.1
    momentum: Share = 0.9
    weight_decay: NonNegative = 1e-4
    decay_at: Share = 0.4
    decay_factor: NonNegative = 0.1
    evaluations: Count = 10
    transfer_ridge: Positive = 1e-3
    augment: bool = False
    record: tuple[Extra, ...] = ("transfer",)

    def rate(self, step: int, total: int) -> float:
        """The learning rate of a step, counted from 0."""
        return self.lr * (self.decay_factor if step >= self.decay_at * total else 1.0)

    def evaluated(self, total: int) -> frozenset[int]:
        """The steps after which the model is evaluated, the last one among them."""
        return frozenset(max(1, round(total * (i + 1) / self.evaluations)) for i in range(self.evaluations))
