"""Fishr (Rame et al.): variances of the gradients of single samples, alike in all environments.

    loss = mean_i l_i + lambda mean_e mean (v_e - v)^2,        v = mean_e v_e

with v_e (C, d + 1) the variance, over the samples of environment e, of their gradients with respect to the linear head,
bias included; the inner mean is over its entries. The gradient of sample i is (s_i - y_i) [z_i, 1]^T, so that two
matrix products give v_e, without a gradient for each sample.

Variances are averaged over steps, a_e <- decay a_e + (1 - decay) v_e, from the first step on, and a_e / (1 - decay)
takes the place of v_e, as in the authors' code: the gradient through the current v_e does not depend on `decay`.

How it differs from the authors' code: an environment that is absent from a batch keeps its average, and the penalty is
over the others; and the optimiser is not reset when the penalty begins to count.
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
    penalty_weight  Factor lambda of the distance of the variances.
    start_epoch     Epoch from which the distance counts; 3 of 10 is the authors' 1500 of 5000 steps.
    decay           Decay of the moving average of the variances. 0: those of the batch alone.
    """

    penalty_weight: NonNegative = 1000.0
    start_epoch: NonNegative = 3.0
    decay: Annotated[float, Bound(least=0, below=1)] = 0.95


@register("fishr")
class Fishr(Algorithm[FishrConfig]):
    """Minimises the mean loss + lambda times the distance of the environments' gradient variances.

    loss = mean_i l_i + lambda mean_e mean (v_e - mean_f v_f)^2, with v_e the variance over the samples of environment e
    of the gradients (s_i - y_i) [z_i, 1]^T of the head, averaged over steps

    Examples
    --------
    >>> import torch
    >>> from transferrisk.algorithms import Batch, Setting, create
    >>> from transferrisk.models import Classifier
    >>> model = Classifier(torch.nn.Identity(), num_features=2, num_classes=2)
    >>> optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> batch = Batch(torch.randn(8, 2), torch.arange(8) % 2, torch.arange(8) // 4)
    >>> setting = Setting(num_environments=2, num_classes=2)
    >>> algorithm = create("fishr", setting, penalty_weight=100.0, start_epoch=0.0)
    >>> logs = algorithm.step(model, batch, optimiser, epoch=0.0)
    >>> algorithm.averages.shape  # variances: environment, class, feature or bias
    torch.Size([2, 2, 3])
    """

    config_type = FishrConfig
    weighted = True
    # The authors draw 10^U(1, 4), U(0, 5000) of 5000 steps and U(0.90, 0.99).
    grid: ClassVar[Grid] = {
        "penalty_weight": (10.0, 100.0, 1000.0, 10000.0),
        "start_epoch": (0.0, 1.0, 3.0, 5.0),
        "decay": (0.90, 0.95, 0.99),
    }
    averages: Tensor  # (E, C, d + 1) a_e; empty until the first batch if d is not given

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
