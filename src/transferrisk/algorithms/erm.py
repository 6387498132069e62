"""Empirical risk minimisation: the mean loss over all samples."""

from __future__ import annotations

from .base import Algorithm, Config, Logs, Pass
from .registry import register


@register("erm")
class ERM(Algorithm[Config]):
    """Minimises the mean loss over all samples.

    loss = mean_i l_i, with l_i the cross-entropy of sample i
    """

    weighted = True

    def objective(self, out: Pass, penalised: bool) -> Logs:
        return {"loss": out.empirical_risk}
