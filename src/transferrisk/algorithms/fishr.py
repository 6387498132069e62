"""Fishr (Rame et al.): variances of the gradients of single samples, alike in all environments.

    mean loss + lambda mean_e mean (v_e - v)^2        v = mean_e v_e, means over the entries of v_e

with v_e the variance, over the samples of environment e, of their gradients by the linear head, bias included. The
gradient of sample i is (s_i - y_i) [z_i, 1]^T, so that v_e takes two matrix products, and no gradient of one sample.

v_e is averaged over steps with the factor `decay`: a_e <- decay a_e + (1 - decay) v_e, and a_e / (1 - decay) takes the
place of v_e, as in the authors' code: so the gradient through the current v_e does not depend on `decay`. It is
averaged from the first step on, whether or not the penalty counts yet.

How it differs from the authors' code: an environment that a batch lacks keeps its average, and the penalty is over the
others; and the optimiser is not made anew when the penalty starts to count.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from torch import Tensor

from ..functional.penalties import gradient_variances
from ..settings import Bound, NonNegative
from .base import Algorithm, Config, Grid, Logs, Pass, Setting
from .registry import register


@dataclass(frozen=True)
class FishrConfig(Config):
    """
    penalty_weight  lambda, the factor of the distance of variances
    start_epoch     the epoch from which it counts: the authors' 1500 of 5000 steps, of ten epochs
    decay           of the moving average of variances; 0: those of the batch alone
    """

    penalty_weight: NonNegative = 1000.0
    start_epoch: NonNegative = 3.0
    decay: Annotated[float, Bound(least=0, below=1)] = 0.95


@register("fishr")
class Fishr(Algorithm[FishrConfig]):
    """Minimises the mean loss + lambda times the distance of the environments' variances of gradients.

    loss = mean_i l_i + lambda mean_e mean (v_e - mean_f v_f)^2, with v_e the variance over the samples of environment e
    of the gradients (s_i - y_i) [z_i, 1]^T of the head, averaged over steps
    """

    config_type = FishrConfig
    weighted = True
    # The authors draw 10^U(1, 4), U(0, 5000) of 5000 steps and U(0.90, 0.99).
    grid: ClassVar[Grid] = {
        "penalty_weight": (10.0, 100.0, 1000.0, 10000.0),
        "start_epoch": (0.0, 1.0, 3.0, 5.0),
        "decay": (0.90, 0.95, 0.99),
    }
    averages: Tensor  # (E, C, d + 1) a_e; empty before the first batch has shown d

    def __init__(self, setting: Setting, config: FishrConfig | None = None) -> None:
        super().__init__(setting, config)
        width = setting.num_features
        shape = (0,) if width is None else (setting.num_environments, setting.num_classes, width + 1)
        self.register_buffer("averages", torch.zeros(shape))

    def objective(self, out: Pass, penalised: bool) -> Logs:
        E, decay = self.setting.num_environments, self.config.decay
        features, logits = (out.features, out.logits) if penalised else (out.features.detach(), out.logits.detach())
        variances, present = gradient_variances(features, logits, out.labels, out.environments, E, out.weights)
        if self.averages.numel() == 0:
            self.averages = torch.zeros_like(variances)
        there = present[:, None, None]
        averages = torch.where(there, decay * self.averages + (1 - decay) * variances, self.averages)
        if self.training:
            self.averages.copy_(averages.detach())
        if not penalised:
            return {"loss": out.empirical_risk}
        count = present.sum()
        scaled = torch.where(there, averages / (1 - decay), 0)
        deviations = torch.where(there, scaled - scaled.sum(0) / count, 0)
        penalty = deviations.square().mean((1, 2)).sum() / count
        return {"loss": out.empirical_risk + self.config.penalty_weight * penalty, "penalty": penalty}
