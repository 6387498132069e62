"""Group distributionally robust optimisation, online (Sagawa et al., algorithm 1).

    q_g <- q_g exp(rate R_g), normalised;    loss = sum_g q_g R_g

A group g is an environment or, as in appendix C.4, an environment and a class together. A group that is absent from the
batch keeps its weight, and the weights of the others are scaled to sum to one in the loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..functional import environment_means
from ..settings import NonNegative
from .base import Algorithm, Config, Grid, Logs, Pass, Setting, robust_risk
from .registry import register


@dataclass(frozen=True)
class GroupDROConfig(Config):
    """
    weights_lr  Rate of the exponentiated gradient of q. 0 keeps the weights equal.
    groups      Groups to weigh: "environments", or "environments-classes" for each environment and class together.
    """

    weights_lr: NonNegative = 0.01
    groups: Literal["environments", "environments-classes"] = "environments"


@register("groupdro")
class GroupDRO(Algorithm[GroupDROConfig]):
    """Minimises the risk of the worst group, by weights of the groups that follow their risks.

    loss = sum_g q_g R_g, with R_g the mean cross-entropy in group g, after q_g <- q_g exp(weights_lr R_g), normalised

    Examples
    --------
    >>> import torch
    >>> from transferrisk.algorithms import Batch, Setting, create
    >>> from transferrisk.models import Classifier
    >>> model = Classifier(torch.nn.Identity(), num_features=2, num_classes=2)
    >>> optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> batch = Batch(torch.randn(8, 2), torch.arange(8) % 2, torch.arange(8) // 4)
    >>> setting = Setting(num_environments=2, num_classes=2)
    >>> algorithm = create("groupdro", setting, weights_lr=0.1)
    >>> risks, present = algorithm.forward(model, batch).environment_risks(num_environments=2)
    >>> logs = algorithm.step(model, batch, optimiser, epoch=0.0)
    >>> bool(algorithm.weights[risks.argmax()] > 0.5)  # the worse environment has the larger weight
    True
    """

    config_type = GroupDROConfig
    weighted = True
    grid: ClassVar[Grid] = {"weights_lr": (1e-3, 1e-2, 1e-1)}
    weights: Tensor  # (G,) q; G = E, or E C

    def __init__(self, setting: Setting, config: GroupDROConfig | None = None) -> None:
        super().__init__(setting, config)
        self.by_class = self.config.groups == "environments-classes"
        count = setting.num_environments * (setting.num_classes if self.by_class else 1)
        self.register_buffer("weights", torch.full((count,), 1 / count))

    def objective(self, out: Pass, penalised: bool) -> Logs:
        groups = out.environments * self.setting.num_classes + out.labels if self.by_class else out.environments
        risks, present = environment_means(out.cross_entropies, groups, len(self.weights), out.weights)
        rate = self.config.weights_lr if self.training else 0.0
        return {"loss": robust_risk(risks, present, self.weights, rate), "worst_risk": risks.max()}
