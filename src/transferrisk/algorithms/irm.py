"""Invariant risk minimisation, IRMv1 (Arjovsky et al.; eq. 2 of the paper).

    mean over environments of  R_e + lambda |dR_e/dw|^2,        divided by lambda where it is above 1

The division, of Arjovsky et al., keeps the gradient's length where lambda is large. `penalty="halves"` multiplies the
derivatives of two halves of an environment's samples, which estimates the square without bias; as in their code.
"scale" differentiates by the same scalar, which multiplies the logits, on all samples; "predictor" by the whole linear
predictor, as the paper writes it. All derivatives are written down in closed form, so a step costs one forward and one
backward pass.
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
    penalty_weight  lambda, the factor of the penalty
    start_epoch     the epoch from which the penalty counts
    penalty         what the risk is differentiated by: a "scale" of the logits, the same on two "halves" of the
                    samples, or the whole "predictor"
    """

    penalty_weight: NonNegative = 1.0
    start_epoch: NonNegative = 1.0
    penalty: Literal["halves", "scale", "predictor"] = (
        "scale"  # with "halves", a weight of 2 is not the same as a sample twice
    )


@register("irm")
class IRM(Algorithm[IRMConfig]):
    """Minimises the mean risk of the environments + lambda times the squared slopes of their risks (IRMv1).

    loss = mean_e (R_e + lambda |dR_e/dw|^2) / max(1, lambda), with w a scale of the logits at 1, or the predictor
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
