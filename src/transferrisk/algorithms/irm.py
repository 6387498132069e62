"""Invariant risk minimisation, IRMv1 (Arjovsky et al.; eq. 2 of the paper).

    loss = mean_e (R_e + lambda |dR_e/dw|^2) / max(1, lambda)

The division, of Arjovsky et al., bounds the gradient where lambda is large. With `penalty="scale"` w is a scalar at 1
that multiplies the logits; with "halves" the square becomes the product of the derivatives on two halves of an
environment's samples, an unbiased estimate, as in their code; with "predictor" w is the whole linear predictor, as the
paper writes it. All derivatives are in closed form, so that a step costs one forward and one backward pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from ..functional import irm_penalty, irm_predictor_penalty
from ..settings import NonNegative
from .base import Algorithm, Config, Grid, Logs, Pass
from .registry import register


@dataclass(frozen=True)
class IRMConfig(Config):
    """
    penalty_weight  Factor lambda of the penalty.
    start_epoch     Epoch from which the penalty counts.
    penalty         Variable w of the derivative: a "scale" of the logits, the same on two "halves" of the samples, or
                    the whole linear "predictor".
    """

    penalty_weight: NonNegative = 1.0
    start_epoch: NonNegative = 1.0
    # With "halves", a sample of weight 2 is not the same as that sample twice.
    penalty: Literal["halves", "scale", "predictor"] = "scale"


@register("irm")
class IRM(Algorithm[IRMConfig]):
    """Minimises the mean risk of the environments + lambda times the squared derivatives of their risks (IRMv1).

    loss = mean_e (R_e + lambda |dR_e/dw|^2) / max(1, lambda), with w a scale of the logits at 1, or the predictor

    Examples
    --------
    >>> import torch
    >>> from transferrisk.algorithms import Batch, Setting, create
    >>> from transferrisk.models import Classifier
    >>> model = Classifier(torch.nn.Identity(), num_features=2, num_classes=2)
    >>> optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> batch = Batch(torch.randn(8, 2), torch.arange(8) % 2, torch.arange(8) // 4)
    >>> setting = Setting(num_environments=2, num_classes=2)
    >>> algorithm = create("irm", setting, penalty_weight=10.0, start_epoch=0.0)
    >>> logs = algorithm.step(model, batch, optimiser, epoch=0.0)
    >>> bool(logs["penalty"] > 0)
    True
    """

    config_type = IRMConfig
    weighted = True
    grid: ClassVar[Grid] = {"penalty_weight": (1e-3, 1e-2, 1e-1, 1.0, 10.0), "start_epoch": (1, 2, 3, 4, 5)}

    def objective(self, out: Pass, penalised: bool) -> Logs:
        E = self.setting.num_environments
        risks, present = out.environment_risks(E)
        risk = risks.sum() / present.sum()
        if not penalised:
            return {"loss": risk}
        if self.config.penalty == "predictor":
            penalties = irm_predictor_penalty(out.features, out.logits, out.labels, out.environments, E, out.weights)
        else:
            halves = self.config.penalty == "halves"
            penalties = irm_penalty(out.logits, out.labels, out.environments, E, out.weights, halves=halves)
        penalty = penalties.sum() / present.sum()
        weight = self.config.penalty_weight
        return {"loss": (risk + weight * penalty) / max(1.0, weight), "penalty": penalty}
