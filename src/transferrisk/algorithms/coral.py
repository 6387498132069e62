"""Deep CORAL (Sun & Saenko; over pairs of environments as in DomainBed): features alike in mean and covariance.

    loss = mean_e R_e + lambda mean over pairs (e, f) of [mean (m_e - m_f)^2 + mean (S_e - S_f)^2]

with m_e (d,) the mean and S_e (d, d) the covariance of the features in environment e; the inner means are over entries.
The mean over pairs is 2 / (E - 1) sum_e mean (m_e - m)^2, with m the mean of the m_e, and likewise for S, so that the
cost grows with E and not with the number of pairs.

How it differs from DomainBed: covariances divide by n and not by n - 1, so that samples may have weights; and
environments that are absent from a batch are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..functional.penalties import moment_distance
from ..settings import NonNegative
from .base import Algorithm, Config, Grid, Logs, Pass
from .registry import register


@dataclass(frozen=True)
class CORALConfig(Config):
    """
    penalty_weight  Factor lambda of the distance; gamma in DomainBed.
    """

    penalty_weight: NonNegative = 1.0


@register("coral")
class CORAL(Algorithm[CORALConfig]):
    """Minimises the mean risk of the environments + lambda times the distance of their features' first two moments.

    loss = mean_e R_e + lambda mean over pairs (e, f) of [mean (m_e - m_f)^2 + mean (S_e - S_f)^2], with m_e the mean
    and S_e the covariance of the features in environment e

    Examples
    --------
    >>> import torch
    >>> from transferrisk.algorithms import Batch, Setting, create
    >>> from transferrisk.models import Classifier
    >>> model = Classifier(torch.nn.Identity(), num_features=2, num_classes=2)
    >>> optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> batch = Batch(torch.eye(2).repeat(4, 1), torch.arange(8) % 2, torch.arange(8) // 4)
    >>> setting = Setting(num_environments=2, num_classes=2)
    >>> algorithm = create("coral", setting, penalty_weight=3.0)
    >>> logs = algorithm.step(model, batch, optimiser, epoch=0.0)
    >>> float(logs["penalty"])  # both environments have the same features
    0.0
    """

    config_type = CORALConfig
    weighted = True
    grid: ClassVar[Grid] = {"penalty_weight": (0.1, 0.3, 1.0, 3.0, 10.0)}  # DomainBed draws 10^U(-1, 1)

    def objective(self, out: Pass, penalised: bool) -> Logs:
        E = self.setting.num_environments
        risks, present = out.environment_risks(E)
        distance = moment_distance(out.features, out.environments, E, out.weights)
        risk = risks.sum() / present.sum()
        return {"loss": risk + self.config.penalty_weight * distance, "penalty": distance}
