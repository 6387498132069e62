"""Tilted risk (Li et al. 2021): between the mean of the environments' risks and the largest of them.

loss = log(mean_e exp(t R_e)) / t,   the mean as t goes to 0, the maximum as it grows
"""

from __future__ import annotations

from dataclasses import dataclass

from transferrisk.algorithms import Algorithm, Config, Logs, Pass
from transferrisk.settings import Positive


@dataclass(frozen=True)
class TiltedConfig(Config):
    tilt: Positive = 1.0


class Tilted(Algorithm[TiltedConfig]):
    config_type = TiltedConfig
    weighted = True

    def objective(self, out: Pass, penalised: bool) -> Logs:
        risks, present = out.environment_risks(self.setting.num_environments)
        tilted = (self.config.tilt * risks).masked_fill(~present, -float("inf"))
        loss = (tilted.logsumexp(0) - present.sum().log()) / self.config.tilt
        return {"loss": loss, "mean_risk": out.empirical_risk}
