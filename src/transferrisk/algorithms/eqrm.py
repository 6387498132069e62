"""Empirical quantile risk minimisation (Eastwood et al., algorithm 1): a quantile of the environments' risks.

    q with  P(R <= q) = alpha        for the distribution of the risk R over environments

The distribution is a density of normal kernels around the risks of the batch's environments, of the width that is best
where they are normal; or a normal one itself. Beyond the largest risk this extrapolates: alpha near 1 asks for risks
that are all alike. Until the burn-in has passed, the mean of the risks is minimised.

How it differs from the authors' code: the quantile's gradient is the exact one, by the implicit function theorem, where
theirs is that of the ends of the bracket in which they search; and the rate stays what it is after the burn-in, where
they take another optimiser at the rate 1e-6.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from ..functional.penalties import risk_quantile
from ..settings import Bound, NonNegative
from .base import Algorithm, Config, Grid, Logs, Pass
from .registry import register


@dataclass(frozen=True)
class EQRMConfig(Config):
    """
    alpha         the share of environments whose risk is at most what is minimised
    start_epoch   the epoch from which the quantile counts: the authors' 2500 of 5000 steps, of ten epochs
    distribution  of risks over environments: "kernels" around those of the batch, or a "normal" one
    """

    alpha: Annotated[float, Bound(above=0, below=1)] = 0.75
    start_epoch: NonNegative = 5.0
    distribution: Literal["kernels", "normal"] = "kernels"


@register("eqrm")
class EQRM(Algorithm[EQRMConfig]):
    """Minimises the alpha-quantile of the risks over environments; until `start_epoch`, their mean.

    loss = q with mean_e Phi((q - R_e) / h) = alpha, with h = 1.06 std(R) E^(-1/5)
    """

    config_type = EQRMConfig
    weighted = True
    # The authors draw U(0.5, 0.99), and 10^U(2.5, 3.5) of 5000 steps.
    grid: ClassVar[Grid] = {"alpha": (0.5, 0.75, 0.9, 0.99), "start_epoch": (0.6, 2.0, 5.0)}

    def objective(self, out: Pass, penalised: bool) -> Logs:
        risks, present = out.environment_risks(self.setting.num_environments)
        mean = risks.sum() / present.sum()
        if not penalised:
            return {"loss": mean}
        kernels = self.config.distribution == "kernels"
        return {"loss": risk_quantile(risks, present, self.config.alpha, kernels), "mean_risk": mean}
