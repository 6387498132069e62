"""Transfer risk minimisation: an empirical risk + the transfer risk of the features (eq. 6 of the paper).

    loss = sum_e q_e R_e + transfer_weight R(Z / s)

with R_e the mean cross-entropy in environment e, and R(Z) the transfer risk of the features Z (n, d)

How it differs from the paper, each by a setting:

1. The empirical risk. The paper takes the mean over environments (`empirical="mean"`, q_e = 1/E). By default q follows
   the risks R_e by exponentiated gradient, as alpha follows the losses of the predictors, so that the mean over
   environments becomes a supremum. Without the transfer risk that is GroupDRO.
2. The start. The transfer risk of features that are not learnt yet means little. It counts once the empirical risk,
   averaged over recent steps, has fallen to `start_risk` times log C, the risk of a guess; or from `start_epoch` on.
3. The scale. With `scale_free` the features are divided by s, the root of their mean square times sqrt(128 / n) for n
   samples of each environment; s is a constant for the gradient. One ridge then means the same for every network and
   batch size.

The empirical risk is over all samples, also with `query="random"`, where algorithm 1 takes those of Q: its expectation
is the same and its variance smaller.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..criterion import Query, TransferRisk, Weights
from ..settings import Count, NonNegative, Positive, Share
from ..solvers.minimisers import chosen_solvers
from .base import Algorithm, Batch, Config, Grid, Logs, Pass, Setting, robust_risk
from .registry import register

RECENT = 20  # steps over which the empirical risk is averaged to decide on the start
USUAL_SAMPLES = 128  # samples of an environment in a step for which a scale-free ridge is the one given


@dataclass(frozen=True)
class TransferConfig(Config):
    """
    ridge            Strength of the penalty ridge/2 |W|^2 of each predictor W(Q).
    weights          Weights alpha_P(Q) of the environments P that W(Q) is tested in: "eg" moves them by exponentiated
                     gradient (the paper), "worst" takes the P of the largest loss, "uniform" the mean.
    weights_lr       Rate of the exponentiated gradient of alpha.
    query            Environments Q in each step: "all", or one at "random" (algorithm 1).
    solver           Minimiser that finds W(Q): newton, dense, rough, captured, sgd, or a minimiser of
                     transferrisk.solvers.
    implicit         Solver that applies the inverse Hessian of Q: exact, cholesky, woodbury, neumann, none, or a linear
                     solver of transferrisk.solvers.
    bound            Largest norm of the implicit gradient, as a multiple of the direct one's. None: no bound.
    empirical        Weights q of the environments in the empirical risk: "eg" moves them by exponentiated gradient,
                     "mean" weighs all samples the same (the paper).
    empirical_lr     Rate of the exponentiated gradient of q.
    transfer_weight  Factor of the transfer risk.
    every            Number of steps from one with the transfer risk to the next; it then counts so many times. None: 1.
    start_risk       Share of log C at which the transfer risk begins to count: once the empirical risk, averaged over
                     20 steps, is at most this.
    start_epoch      Epoch from which the transfer risk counts. None: `start_risk` decides.
    scale_free       Whether the ridge is relative to the mean square of the features and to the batch size.
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
    every: Count | None = None
    start_risk: Share = 0.5
    start_epoch: NonNegative | None = None
    scale_free: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen_solvers(self.solver, self.implicit, captured=False)

    @property
    def gradient_matching(self) -> float:
        """Factor of the implicit gradient: 0 unless a config has it as a setting."""
        return 0.0


@dataclass(frozen=True)
class TRMConfig(TransferConfig):
    """The settings of `TransferConfig`, and

    gradient_matching  Factor of the implicit gradient, the paper's lambda. 1 is exact, 0 leaves the direct gradient.
    """

    gradient_matching: NonNegative = 1.0


@register("trm")
class TRM(Algorithm[TransferConfig]):
    """Minimises the empirical risk + the transfer risk of the features.

    loss = sum_e q_e R_e + transfer_weight mean_Q sum_P alpha_P(Q) R_P(W(Q)), with W(Q) = argmin R_Q(W) + ridge/2 |W|^2
    the optimal predictor of environment Q, and P the other environments

    Examples
    --------
    >>> import torch
    >>> from transferrisk.algorithms import Batch, Setting, create
    >>> from transferrisk.models import Classifier
    >>> model = Classifier(torch.nn.Identity(), num_features=2, num_classes=2)
    >>> optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> batch = Batch(torch.randn(8, 2), torch.arange(8) % 2, torch.arange(8) // 4)
    >>> setting = Setting(num_environments=2, num_classes=2)
    >>> algorithm = create("trm", setting, ridge=0.01, start_epoch=0.0)
    >>> logs = algorithm.step(model, batch, optimiser, epoch=0.0)
    >>> sorted(logs)
    ['loss', 'transfer_risk']
    """

    config_type: ClassVar[type[Config]] = TRMConfig
    weighted = True
    grid: ClassVar[Grid] = {"gradient_matching": (1e-3, 1e-2, 1e-1, 1.0)}
    environment_weights: Tensor  # (E,) q, weights in the empirical risk
    recent_risk: Tensor  # () the empirical risk of recent steps, averaged
    started: Tensor  # () bool: whether the transfer risk counts
    waited: Tensor  # () steps since the last one with the transfer risk, modulo `interval`

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
        self.interval = self.config.every or 1  # steps from one with the transfer risk to the next
        E, adaptive = setting.num_environments, self.config.start_epoch is None
        self.register_buffer("environment_weights", torch.full((E,), 1 / E))
        self.register_buffer("recent_risk", torch.tensor(math.log(setting.num_classes)))
        self.register_buffer("started", torch.tensor(not adaptive or self.config.start_risk == 1.0))
        self.register_buffer("waited", torch.tensor(0))

    def plan(self, batch: Batch, epoch: float) -> bool:
        """Return whether the step computes the transfer risk: in its turn, and from `start_epoch` on.

        Without `start_epoch`, `started` decides if it counts.
        """
        turn = self.interval == 1 or int(self.waited) == 0  # by default, nothing is read from the device
        return turn and (self.config.start_epoch is None or epoch >= self.config.start_epoch)

    def capture(self, block: int) -> None:
        """Let the criterion expect blocks of this many samples and read nothing from the device."""
        self.criterion.capture(block, blocks=True)

    def objective(self, out: Pass, penalised: bool) -> Logs:
        if self.config.empirical == "mean":
            risk = out.empirical_risk
        else:  # the weights move before they weigh the risks
            risks, present = out.environment_risks(self.setting.num_environments)
            rate = self.config.empirical_lr if self.training else 0.0
            risk = robust_risk(risks, None if out.all_present else present, self.environment_weights, rate)
        if self.training and self.interval > 1:
            self.waited.add_(1).remainder_(self.interval)
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
        factor = self.config.transfer_weight * self.interval * self.started.to(transfer.risk.dtype)
        return {"loss": risk + factor * transfer.risk, "transfer_risk": transfer.risk}

    def feature_scale(self, out: Pass) -> Tensor:
        """Return s, a scalar without a gradient: a ridge on the predictor of Z / s is ridge s^2 on that of Z."""
        E = self.setting.num_environments  # all are present in a batch in blocks
        samples = len(out.labels) / (E if out.block is not None else int((out.environments.bincount() > 0).sum()))
        mean_square = out.features.detach().float().square().mean()
        return (mean_square * (USUAL_SAMPLES / samples)).sqrt().clamp(min=torch.finfo(torch.float32).tiny)


@register("trm-direct")
class TRMDirect(TRM):
    """Minimises the loss of `TRM` with the predictors W(Q) taken as constants: without gradient matching.

    loss = that of `TRM`; its gradient leaves out how W(Q) depends on the features. The paper's tables call this method
    "TRM w/ GM"

    Examples
    --------
    >>> import torch
    >>> from transferrisk.algorithms import Batch, Setting, create
    >>> from transferrisk.models import Classifier
    >>> model = Classifier(torch.nn.Identity(), num_features=2, num_classes=2)
    >>> optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> batch = Batch(torch.randn(8, 2), torch.arange(8) % 2, torch.arange(8) // 4)
    >>> setting = Setting(num_environments=2, num_classes=2)
    >>> algorithm = create("trm-direct", setting, ridge=0.01, start_epoch=0.0)
    >>> logs = algorithm.step(model, batch, optimiser, epoch=0.0)
    >>> sorted(logs)
    ['loss', 'transfer_risk']
    """

    config_type = TransferConfig
    grid: ClassVar[Grid] = {}
