"""Variance risk extrapolation (Krueger et al.): mean of the environments' risks + lambda times their variance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..functional import risk_variance
from ..settings import NonNegative
from .base import Algorithm, Config, Grid, Logs, Pass
from .registry import register


@dataclass(frozen=True)
class VRExConfig(Config):
    """
    penalty_weight  Factor lambda of the variance.
    start_epoch     Epoch from which the variance counts.
    """

    penalty_weight: NonNegative = 1.0
    start_epoch: NonNegative = 1.0


@register("vrex")
class VREx(Algorithm[VRExConfig]):
    """Minimises the mean risk of the environments + lambda times the variance of their risks.

    loss = mean_e R_e + lambda mean_e (R_e - mean_f R_f)^2

    Examples
    --------
    >>> import torch
    >>> from transferrisk.algorithms import Batch, Setting, create
    >>> from transferrisk.models import Classifier
    >>> model = Classifier(torch.nn.Identity(), num_features=2, num_classes=2)
    >>> optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> batch = Batch(torch.randn(8, 2), torch.arange(8) % 2, torch.arange(8) // 4)
    >>> setting = Setting(num_environments=2, num_classes=2)
    >>> algorithm = create("vrex", setting, penalty_weight=10.0, start_epoch=0.0)
    >>> logs = algorithm.step(model, batch, optimiser, epoch=0.0)
    >>> bool(logs["penalty"] > 0)
    True
    """

    config_type = VRExConfig
    weighted = True
    grid: ClassVar[Grid] = {"penalty_weight": (1e-3, 1e-2, 1e-1, 1.0, 10.0), "start_epoch": (1, 2, 3, 4, 5)}

    def objective(self, out: Pass, penalised: bool) -> Logs:
        risks, present = out.environment_risks(self.setting.num_environments)
        risk = risks.sum() / present.sum()
        if not penalised:
            return {"loss": risk}
        variance = risk_variance(risks, present)
        return {"loss": risk + self.config.penalty_weight * variance, "penalty": variance}
