"""Transfer risk minimisation: the empirical risk + the transfer risk of the features (eq. 6 of the paper)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..criterion import Query, TransferRisk, Weights
from .base import Algorithm, Config, Grid, Logs, Pass, Setting
from .registry import register


@dataclass(frozen=True)
class TRMConfig(Config):
    """As `TransferRisk` takes them; `start_epoch` is the warm-up before the transfer risk is switched on."""

    ridge: float = 1e-3
    gradient_matching: float = 1.0
    weights: Weights = "eg"
    weights_lr: float = 0.01
    query: Query = "all"
    solver: str = "newton"
    implicit: str = "exact"
    bound: float | None = None
    start_epoch: float = 0.8


@dataclass(frozen=True)
class TRMDirectConfig(TRMConfig):
    gradient_matching: float = 0.0


@register("trm")
class TRM(Algorithm[TRMConfig]):
    config_type = TRMConfig
    grid: ClassVar[Grid] = {"gradient_matching": (1e-3, 1e-2, 1e-1, 1.0)}

    def __init__(self, setting: Setting, config: TRMConfig | None = None) -> None:
        super().__init__(setting, config)
        self.criterion = TransferRisk(
            self.config.ridge,
            self.config.gradient_matching,
            self.config.weights,
            num_classes=setting.num_classes,
            environments=setting.num_environments,
            weights_lr=self.config.weights_lr,
            query=self.config.query,
            solver=self.config.solver,
            implicit=self.config.implicit,
            bound=self.config.bound,
        )

    def objective(self, out: Pass, penalised: bool) -> Logs:
        if not penalised:
            return {"loss": out.empirical_risk}
        transfer = self.criterion(out.features, out.labels, out.environments, start=out.predictor)
        return {"loss": out.empirical_risk + transfer.risk, "transfer_risk": transfer.risk}


@register("trm-direct")
class TRMDirect(TRM):
    """TRM without the gradient-matching term: the predictors are taken as constant ("TRM w/ GM" in the tables)."""

    config_type = TRMDirectConfig
    grid: ClassVar[Grid] = {}
