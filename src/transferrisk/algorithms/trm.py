"""Transfer risk minimisation: the empirical risk + the transfer risk of the features (eq. 6 of the paper).

The empirical risk is over all samples, also with `query="random"`, where algorithm 1 takes it over those of Q: the
expectation is the same and the variance smaller.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from ..criterion import Query, TransferRisk, Weights
from ..settings import NonNegative, Positive
from ..solvers.minimisers import chosen_solvers
from .base import Algorithm, Config, Grid, Logs, Pass, Setting
from .registry import register


@dataclass(frozen=True)
class TransferConfig(Config):
    """
    ridge        of the predictors that are optimal in one environment each
    weights      alpha, which weighs the environments that a predictor is tested in: "eg" moves it by exponentiated
                 gradient, "worst" takes the one of the highest loss, "uniform" all the same
    weights_lr   the rate of alpha with "eg"
    query        the environments whose predictors are tested in each step: "all", or one at "random"
    solver       what finds the predictors: newton, dense, captured, sgd, or one of transferrisk.solvers as a value
    implicit     what inverts their Hessians for the gradient: exact, cholesky, woodbury, neumann, none, or a value
    bound        the largest norm of the implicit gradient as a multiple of the direct one; None: any
    start_epoch  the epoch from which the transfer risk counts
    """

    ridge: Positive = 1e-3
    weights: Weights = "eg"
    weights_lr: NonNegative = 0.01
    query: Query = "all"
    solver: str | Any = "newton"
    implicit: str | Any = "exact"
    bound: NonNegative | None = None
    start_epoch: NonNegative = 0.8  # 100 of the 125 steps of an epoch of 10C-CMNIST

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen_solvers(self.solver, self.implicit, captured=False)

    @property
    def gradient_matching(self) -> float:
        """The factor of the implicit gradient: 0, unless a config has it as a setting."""
        return 0.0


@dataclass(frozen=True)
class TRMConfig(TransferConfig):
    """The settings of `TransferConfig`, and

    gradient_matching  the factor of the implicit gradient, which runs through the predictors
    """

    gradient_matching: NonNegative = 1.0


@register("trm")
class TRM(Algorithm[TransferConfig]):
    """Minimises the empirical risk + the transfer risk of the features."""

    config_type: ClassVar[type[Config]] = TRMConfig
    weighted = True
    grid: ClassVar[Grid] = {"gradient_matching": (1e-3, 1e-2, 1e-1, 1.0)}

    def __init__(self, setting: Setting, config: TransferConfig | None = None) -> None:
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

    def capture(self, block: int) -> None:
        self.criterion.capture(block, blocks=True)

    def objective(self, out: Pass, penalised: bool) -> Logs:
        if not penalised:
            return {"loss": out.empirical_risk}
        start = out.model.predictor if self.criterion.takes_start(out.features, out.weights) else None
        transfer = self.criterion(out.features, out.labels, out.environments, start, out.weights)
        return {"loss": out.empirical_risk + transfer.risk, "transfer_risk": transfer.risk}


@register("trm-direct")
class TRMDirect(TRM):
    """TRM without the gradient-matching term: the predictors are taken as constant.

    The paper's tables call it "TRM w/ GM", though it is the one that goes without.
    """

    config_type = TransferConfig
    grid: ClassVar[Grid] = {}
