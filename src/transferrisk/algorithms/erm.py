"""Empirical risk minimisation: the mean loss over all samples."""

from __future__ import annotations

from .base import Algorithm, Config, Logs, Pass
from .registry import register


@register("erm")
class ERM(Algorithm[Config]):
    """Minimises the mean loss over all samples.

    loss = mean_i l_i, with l_i the cross-entropy of sample i

    Examples
    --------
    >>> import torch
    >>> from transferrisk.algorithms import Batch, Setting, create
    >>> from transferrisk.models import Classifier
    >>> model = Classifier(torch.nn.Identity(), num_features=2, num_classes=2)
    >>> optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> batch = Batch(torch.randn(8, 2), torch.arange(8) % 2, torch.arange(8) // 4)
    >>> setting = Setting(num_environments=2, num_classes=2)
    >>> algorithm = create("erm", setting)
    >>> losses = [algorithm.step(model, batch, optimiser, epoch=0.0)["loss"] for _ in range(10)]
    >>> bool(losses[-1] < losses[0])
    True
    """

    weighted = True

    def objective(self, out: Pass, penalised: bool) -> Logs:
        return {"loss": out.empirical_risk}
