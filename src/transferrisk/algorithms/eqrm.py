"""Empirical quantile risk minimisation (Eastwood et al., algorithm 1): a quantile of the environments' risks.

    loss = q  with  P(R <= q) = alpha        for the distribution of the risk R over environments

The distribution is a density of normal kernels around the risks of the batch's environments, with the bandwidth that is
best where these are normal; or a normal distribution. It extrapolates beyond the largest risk, so that alpha near 1
favours equal risks. Until `start_epoch`, the mean of the risks is minimised.

How it differs from the authors' code: the gradient of the quantile is exact, by the implicit function theorem, where
theirs is that of the ends of the bracket of their search; and the learning rate stays as it is after `start_epoch`,
where they continue with another optimiser at the rate 1e-6.
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
    alpha         Level of the quantile: the share of environments whose risk is at most the loss.
    start_epoch   Epoch from which the quantile is minimised; 5 of 10 is the authors' 2500 of 5000 steps.
    distribution  Distribution of risks over environments: normal "kernels" around those of the batch, or "normal".
    """

    alpha: Annotated[float, Bound(above=0, below=1)] = 0.75
    start_epoch: NonNegative = 5.0
    distribution: Literal["kernels", "normal"] = "kernels"


@register("eqrm")
class EQRM(Algorithm[EQRMConfig]):
    """Minimises the alpha-quantile of the risks over environments; until `start_epoch`, their mean.

    loss = q with mean_e Phi((q - R_e) / h) = alpha, with h = 1.06 std(R) E^(-1/5)

    Examples
    --------
    >>> import torch
    >>> from transferrisk.algorithms import Batch, Setting, create
    >>> from transferrisk.models import Classifier
    >>> model = Classifier(torch.nn.Identity(), num_features=2, num_classes=2)
    >>> optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> batch = Batch(torch.randn(8, 2), torch.arange(8) % 2, torch.arange(8) // 4)
    >>> setting = Setting(num_environments=2, num_classes=2)
    >>> algorithm = create("eqrm", setting, alpha=0.9, start_epoch=0.0)
    >>> logs = algorithm.step(model, batch, optimiser, epoch=0.0)
    >>> bool(logs["loss"] > logs["mean_risk"])
    True
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
