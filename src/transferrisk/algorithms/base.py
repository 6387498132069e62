"""What an algorithm is: an objective on one forward pass, or a step of its own.

Most algorithms are a function from the outputs of one forward pass to a scalar: they override `objective`.
Those that need several passes (MLDG, Fish) override `step`. Whatever changes while training (weights of
environments, ...) is a buffer, so that `state_dict` holds all there is to save.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

from ..functional import environment_means
from ..models import Classifier

Logs = dict[str, Tensor]
Grid = Mapping[str, tuple[Any, ...]]


class Batch(NamedTuple):
    """Samples of several environments, in any order."""

    inputs: Tensor
    labels: Tensor  # (n,) 0..C-1
    environments: Tensor  # (n,) 0..E-1


@dataclass(frozen=True)
class Setting:
    """What an algorithm must know of the data before the first batch."""

    num_environments: int
    num_classes: int
    group_priors: Tensor | None = None  # (E, C) share of each (environment, label) group among the samples drawn


@dataclass(frozen=True)
class Config:
    """Settings of an algorithm that has none; those that do derive theirs from it."""


@dataclass(frozen=True)
class Pass:
    """The outputs of one forward pass."""

    features: Tensor  # (n, d)
    logits: Tensor  # (n, C)
    labels: Tensor  # (n,)
    environments: Tensor  # (n,)
    predictor: Tensor  # (C, d + 1) the head's weights, bias last, detached

    @cached_property
    def losses(self) -> Tensor:
        """Cross-entropy of each sample, (n,)."""
        return F.cross_entropy(self.logits, self.labels, reduction="none")

    @cached_property
    def empirical_risk(self) -> Tensor:
        return self.losses.mean()

    def environment_risks(self, num_environments: int) -> tuple[Tensor, Tensor]:
        """Mean loss in each environment, (E,), and which are present, (E,) bool."""
        return environment_means(self.losses, self.environments, num_environments)


C = TypeVar("C", bound=Config)


class Algorithm(nn.Module, Generic[C]):
    """Base of all algorithms.

    config_type  the dataclass of its settings
    grid         the values of appendix B.2 over which the paper searches, by setting
    """

    name: ClassVar[str]
    config_type: ClassVar[type[Config]] = Config
    grid: ClassVar[Grid] = {}

    def __init__(self, setting: Setting, config: C | None = None) -> None:
        super().__init__()
        self.setting = setting
        self.config: C = config if config is not None else self.config_type()  # type: ignore[assignment]  # is a C

    def penalised(self, epoch: float) -> bool:
        """Whether the penalty is on: from `start_epoch` of the config, where it has one."""
        return epoch >= getattr(self.config, "start_epoch", 0.0)

    def objective(self, out: Pass, penalised: bool) -> Logs:
        """What is minimised, under "loss", and whatever else is worth recording."""
        raise NotImplementedError(f"{type(self).__name__} overrides neither objective nor step")

    def step(self, model: Classifier, batch: Batch, optimiser: Optimizer, epoch: float) -> Logs:
        """One update of the model; `epoch` counts from 0 and has fractions."""
        optimiser.zero_grad(set_to_none=True)
        logs = self.objective(forward(model, batch), self.penalised(epoch))
        logs["loss"].backward()
        optimiser.step()
        return {name: value.detach() for name, value in logs.items()}


def forward(model: Classifier, batch: Batch) -> Pass:
    features = model.featurise(batch.inputs)
    return Pass(features, model.head(features), batch.labels, batch.environments, model.predictor)
