"""Variance risk extrapolation (Krueger et al.): mean of the environments' risks + lambda times their variance."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..functional import risk_variance
from .base import Algorithm, Config, Grid, Logs, Pass
from .fields import check_fields
from .registry import register


@dataclass(frozen=True)
class VRExConfig(Config):
    penalty_weight: float = 1.0
    start_epoch: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self)


@register("vrex")
class VREx(Algorithm[VRExConfig]):
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
