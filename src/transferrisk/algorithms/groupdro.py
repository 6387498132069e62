"""Group distributionally robust optimisation, online (Sagawa et al., algorithm 1).

Groups are environments. Their weights q take one step of exponentiated gradient on the batch's risks, and
then weigh them: q_e <- q_e exp(rate R_e), normalised; loss = sum_e q_e R_e. An environment absent from the batch
keeps its weight and the others share the loss.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..functional import exponentiated_gradient
from .base import Algorithm, Config, Grid, Logs, Pass, Setting
from .fields import check_fields
from .registry import register


@dataclass(frozen=True)
class GroupDROConfig(Config):
    weights_lr: float = 0.01

    def __post_init__(self) -> None:
        check_fields(self)


@register("groupdro")
class GroupDRO(Algorithm[GroupDROConfig]):
    config_type = GroupDROConfig
    weighted = True
    grid: ClassVar[Grid] = {"weights_lr": (1e-3, 1e-2, 1e-1)}
    weights: Tensor  # (E,)

    def __init__(self, setting: Setting, config: GroupDROConfig | None = None) -> None:
        super().__init__(setting, config)
        self.register_buffer("weights", torch.full((setting.num_environments,), 1 / setting.num_environments))

    def objective(self, out: Pass, penalised: bool) -> Logs:
        risks, present = out.environment_risks(self.setting.num_environments)
        if self.training:
            moved = exponentiated_gradient(self.weights, risks.detach(), self.config.weights_lr, present)
            self.weights.copy_(moved)
        shares = torch.where(present, self.weights, 0)
        return {"loss": (shares * risks).sum() / shares.sum(), "worst_risk": risks.max()}
