"""Empirical risk minimisation: the mean loss over all samples."""

from __future__ import annotations

from .base import Algorithm, Config, Logs, Pass
from .registry import register


@register("erm")
class ERM(Algorithm[Config]):
    """Minimises the mean loss over all samples of all environments. It has no settings."""

    weighted = True

    def objective(self, out: Pass, penalised: bool) -> Logs:
        return {"loss": out.empirical_risk}
