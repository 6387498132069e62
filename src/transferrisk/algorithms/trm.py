"""Transfer risk minimisation: an empirical risk + the transfer risk of the features (eq. 6 of the paper).

    loss = sum_e q_e R_e + weight * R(Z / s)        R_e the risk of environment e, R(Z) the transfer risk of features Z

How it differs from the paper, each by a setting:

1. The empirical risk. The paper takes E_Q R_Q, the mean over environments (`empirical="mean"`, q_e = 1/E). By default q
   follows the environments' risks by exponentiated gradient, as alpha follows the losses of the predictors, so that the
   mean over Q becomes a supremum over Q. Without the transfer risk that is GroupDRO.
2. The start. The transfer of features that are not learnt yet says nothing. So it counts from when the empirical risk,
   averaged over recent steps, has fallen to a share of log C, the risk of a guess; or from a fixed epoch.
3. The scale. With `scale_free` the features are divided by s, the root of their mean square times sqrt(128 / n) with n
   samples an environment, taken as constant. One ridge then means the same for every network and batch size.

The mean is over all samples, also with `query="random"`, where algorithm 1 takes it over those of Q: the expectation is
the same and the variance smaller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..criterion import Query, TransferRisk, Weights
from ..settings import NonNegative, Positive, Share
from ..solvers.minimisers import chosen_solvers
from .base import Algorithm, Batch, Config, Grid, Logs, Pass, Setting
from .groupdro import robust_risk
from .registry import register

RECENT = 20  # steps over which the empirical risk is averaged to decide on the start
USUAL_SAMPLES = 128  # of an environment in a step: the batch for which a scale-free ridge is as given


@dataclass(frozen=True)
class TransferConfig(Config):
    """
    ridge            of the predictors that are optimal in one environment each
    weights          alpha, which weighs the environments that a predictor is tested in: "eg" moves it by exponentiated
                     gradient, "worst" takes the one of the highest loss, "uniform" all the same
    weights_lr       the rate of alpha with "eg"
    query            the environments whose predictors are tested in each step: "all", or one at "random"
    solver           what finds the predictors: newton, dense, captured, sgd, or one of transferrisk.solvers as a value
    implicit         what inverts their Hessians for the gradient: exact, cholesky, woodbury, neumann, none, or a value
    bound            the largest norm of the implicit gradient as a multiple of the direct one; None: any
    empirical        the empirical risk: "eg" weighs environments by exponentiated gradient, "mean" all samples the same
    empirical_lr     the rate of these weights with "eg"
    transfer_weight  the factor of the transfer risk
    start_risk       the transfer risk counts once the recent empirical risk is at most this share of log C
    start_epoch      the epoch from which it counts instead; None: by `start_risk`
    scale_free       whether the ridge is relative to the mean square of the features and to the batch size
    """

    ridge: Positive = 1e-3
    weights: Weights = "eg"
    weights_lr: NonNegative = 0.01
    query: Query = "all"
    solver: str | Any = "newton"
    implicit: str | Any = "exact"
    bound: NonNegative | None = None
    empirical: Literal["mean", "eg"] = "eg"
    empirical_lr: NonNegative = 0.1
    transfer_weight: NonNegative = 1.0
    start_risk: Share = 0.5
    start_epoch: NonNegative | None = None
    scale_free: bool = False

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
    """Minimises the empirical risk + the transfer risk of the features.

    loss = sum_e q_e R_e + transfer_weight mean_Q sum_P alpha_P(Q) R_P(W(Q)), with W(Q) the predictor that is optimal in
    environment Q, with this ridge, and P the others
    """

    config_type: ClassVar[type[Config]] = TRMConfig
    weighted = True
    grid: ClassVar[Grid] = {"gradient_matching": (1e-3, 1e-2, 1e-1, 1.0)}
    environment_weights: Tensor  # (E,) q, of the empirical risk
    recent_risk: Tensor  # () the empirical risk of recent steps, averaged
    started: Tensor  # () bool: whether the transfer risk counts

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
        E, adaptive = setting.num_environments, self.config.start_epoch is None
        self.register_buffer("environment_weights", torch.full((E,), 1 / E))
        self.register_buffer("recent_risk", torch.tensor(math.log(setting.num_classes)))
        self.register_buffer("started", torch.tensor(not adaptive or self.config.start_risk == 1.0))

    def plan(self, batch: Batch, epoch: float) -> bool:
        """Whether the transfer risk is computed. Without a fixed start it always is, and `started` decides on it."""
        return self.config.start_epoch is None or epoch >= self.config.start_epoch

    def capture(self, block: int) -> None:
        self.criterion.capture(block, blocks=True)

    def objective(self, out: Pass, penalised: bool) -> Logs:
        risk = self.empirical_risk(out)
        if not penalised:
            return {"loss": risk}
        if self.config.start_epoch is None and self.training:
            self.recent_risk.lerp_(out.empirical_risk.detach().to(self.recent_risk.dtype), 1 / RECENT)
            enough = self.config.start_risk * math.log(self.setting.num_classes)
            self.started.logical_or_(self.recent_risk <= enough)
        scale = self.feature_scale(out) if self.config.scale_free else None
        features = out.features if scale is None else out.features / scale.to(out.features.dtype)
        start = out.model.predictor if self.criterion.takes_start(features, out.weights) else None
        if start is not None and scale is not None:
            start = torch.cat([start[:, :-1] * scale.to(start.dtype), start[:, -1:]], 1)
        transfer = self.criterion(features, out.labels, out.environments, start, out.weights)
        factor = self.config.transfer_weight * self.started.to(transfer.risk.dtype)
        return {"loss": risk + factor * transfer.risk, "transfer_risk": transfer.risk}

    def empirical_risk(self, out: Pass) -> Tensor:
        """The mean loss of all samples, or of the environments by their weights, which move first."""
        if self.config.empirical == "mean":
            return out.empirical_risk
        risks, present = out.environment_risks(self.setting.num_environments)
        rate = self.config.empirical_lr if self.training else 0.0
        return robust_risk(risks, present, self.environment_weights, rate)

    def feature_scale(self, out: Pass) -> Tensor:
        """s, a constant for the gradient: with features Z / s, a ridge on W is ridge s^2 on the weights of Z."""
        samples = len(out.labels) / self.setting.num_environments
        mean_square = out.features.detach().float().square().mean()
        return (mean_square * (USUAL_SAMPLES / samples)).sqrt().clamp(min=torch.finfo(torch.float32).tiny)


@register("trm-direct")
class TRMDirect(TRM):
    """TRM without the gradient-matching term: the predictors are taken as constant.

    loss = that of `TRM`, whose gradient does not run through W(Q)

    The paper's tables call it "TRM w/ GM", though it is the one that goes without.
    """

    config_type = TransferConfig
    grid: ClassVar[Grid] = {}
