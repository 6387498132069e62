"""Sharpness-aware minimisation (Foret et al.) of the mean loss.

    min over theta of  max over |e| <= rho of  L(theta + e)

The maximum is taken to first order, e = rho g / |g| with the gradient g at theta. The step is along the gradient at
theta + e, with e taken as constant, so that it takes two passes. The running statistics of batch norm move in the first
pass, at theta, and not in the second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.optim import Optimizer

from ..models import Classifier
from ..settings import NonNegative
from .base import Algorithm, Batch, Config, Grid, Logs, Pass
from .registry import register


@dataclass(frozen=True)
class SAMConfig(Config):
    """
    rho  Distance |e| to the weights at which the gradient is taken. 0 is ERM.
    """

    rho: NonNegative = 0.05


@register("sam")
class SAM(Algorithm[SAMConfig]):
    """Minimises the largest mean loss at weights within a distance rho, to first order.

    loss = L(theta + rho g / |g|), with L the mean loss and g its gradient at theta, a constant

    Examples
    --------
    >>> import torch
    >>> from transferrisk.algorithms import Batch, Setting, create
    >>> from transferrisk.models import Classifier
    >>> model = Classifier(torch.nn.Identity(), num_features=2, num_classes=2)
    >>> optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> batch = Batch(torch.randn(8, 2), torch.arange(8) % 2, torch.arange(8) // 4)
    >>> setting = Setting(num_environments=2, num_classes=2)
    >>> algorithm = create("sam", setting, rho=0.1)
    >>> logs = algorithm.step(model, batch, optimiser, epoch=0.0)
    >>> bool(logs["sharpness"] > 0)  # how much the loss is larger at the distance rho
    True
    """

    config_type = SAMConfig
    weighted = True
    grid: ClassVar[Grid] = {"rho": (0.01, 0.02, 0.05, 0.1, 0.2, 0.5)}  # that of Foret et al.

    def objective(self, out: Pass, penalised: bool) -> Logs:
        return {"loss": out.empirical_risk}

    def act(self, plan: Any, model: Classifier, batch: Batch, optimiser: Optimizer) -> Logs:
        optimiser.zero_grad(set_to_none=True)
        here = self.differentiate(self.forward(model, batch), plan)["loss"]
        weights: list[Tensor] = [p for p in model.parameters() if p.grad is not None]
        gradient = [w.grad for w in weights if w.grad is not None]
        kept: list[Tensor] = [*weights, *model.buffers()]
        before = [tensor.detach().clone() for tensor in kept]
        with torch.no_grad():
            length = torch.stack(torch._foreach_norm(gradient)).norm()
            way = torch._foreach_mul(gradient, self.config.rho / length.clamp(min=1e-12))
            torch._foreach_add_(weights, list(way))
        optimiser.zero_grad(set_to_none=True)
        there = self.differentiate(self.forward(model, batch), plan)["loss"]
        with torch.no_grad():
            torch._foreach_copy_(kept, before)
        optimiser.step()
        return {"loss": here, "sharpness": there - here}
