"""Group distributionally robust optimisation, online (Sagawa et al., algorithm 1).

Groups are environments or, as in appendix C.4, environments and labels together. Their weights q take one step of
exponentiated gradient on the batch's risks, and then weigh them: q_g <- q_g exp(rate R_g), normalised; loss = sum_g
q_g R_g. A group absent from the batch keeps its weight and the others share the loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..functional import environment_means, exponentiated_gradient
from ..settings import NonNegative
from .base import Algorithm, Config, Grid, Logs, Pass, Setting
from .registry import register


@dataclass(frozen=True)
class GroupDROConfig(Config):
    """
    weights_lr  the rate of the groups' weights; 0 keeps them equal
    groups      what a group is: an environment, or an environment and a class together
    """

    weights_lr: NonNegative = 0.01
    groups: Literal["environments", "environments-classes"] = "environments"


def robust_risk(risks: Tensor, present: Tensor, weights: Tensor, rate: float) -> Tensor:
    """Move the weights (G,) of groups towards their risks (G,), in place, and return the risk under them.

    q_g <- q_g exp(rate R_g), normalised, then sum_g q_g R_g over the groups that are present, which share it.
    """
    weights.copy_(exponentiated_gradient(weights, risks.detach(), rate, present))
    shares = torch.where(present, weights, 0)
    return (shares * risks).sum() / shares.sum()


@register("groupdro")
class GroupDRO(Algorithm[GroupDROConfig]):
    """Minimises the risk of the worst group, through weights of the groups that follow their risks.

    loss = sum_g q_g R_g, with q_g <- q_g exp(weights_lr R_g) before it, normalised
    """

    config_type = GroupDROConfig
    weighted = True
    grid: ClassVar[Grid] = {"weights_lr": (1e-3, 1e-2, 1e-1)}
    weights: Tensor  # (E,), or (E C,)

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
