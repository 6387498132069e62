"""Fish (Shi et al.): gradient matching between environments by first-order meta-learning.

    theta <- theta_0 + meta_lr (theta_E - theta_0)

where theta_e comes from theta_(e-1) by one step of the optimiser on environment e, in random order. With SGD of rate a
and no momentum, on average over the orders and to second order in a, this descends the summed risks minus a/2 times the
sum, over pairs of environments, of the inner products of their gradients. The running statistics of batch norm move by
the same share, so that they fit the weights; the optimiser's momentum is that of the inner steps. An inner step
normalises by the statistics of its environment or, with `statistics="joint"`, by those of the whole batch, as the
methods with one pass do.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.optim import Optimizer

from ..functional import environment_means
from ..models import Classifier
from ..settings import Positive
from .base import Algorithm, Batch, Config, Grid, Logs, Statistics
from .registry import register


@dataclass(frozen=True)
class FishConfig(Config):
    """
    meta_lr     Share of the way from the parameters before the inner steps to those after them.
    statistics  Statistics of batch norm in an inner step: of its "own" environment, or the "joint" ones of the batch.
    """

    meta_lr: Positive = 0.5
    statistics: Statistics = "own"


@register("fish")
class Fish(Algorithm[FishConfig]):
    """Minimises the summed risks of the environments and aligns their gradients, by first-order meta-learning.

    step = meta_lr (theta_E - theta_0), after one step of the optimiser on each environment; with SGD of rate a, to
    second order in a, a descent on sum_e R_e - a/2 sum over pairs e < f of <dR_e/dtheta, dR_f/dtheta>

    Examples
    --------
    >>> import torch
    >>> from transferrisk.algorithms import Batch, Setting, create
    >>> from transferrisk.models import Classifier
    >>> model = Classifier(torch.nn.Identity(), num_features=2, num_classes=2)
    >>> optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> batch = Batch(torch.randn(8, 2), torch.arange(8) % 2, torch.arange(8) // 4)
    >>> setting = Setting(num_environments=2, num_classes=2)
    >>> algorithm = create("fish", setting, meta_lr=0.1)
    >>> logs = algorithm.step(model, batch, optimiser, epoch=0.0)
    >>> order = algorithm.plan(batch, epoch=0.0)  # of the environments in a step, drawn at random
    >>> sorted(order)
    [0, 1]
    """

    config_type = FishConfig
    weighted = True
    grid: ClassVar[Grid] = {"meta_lr": (1.0, 0.5, 0.1, 0.05)}

    def plan(self, batch: Batch, epoch: float) -> tuple[int, ...]:
        """Return the order of the environments."""
        present = batch.present(self.setting.num_environments)
        return tuple(present[i] for i in torch.randperm(len(present)))

    def act(self, plan: tuple[int, ...], model: Classifier, batch: Batch, optimiser: Optimizer) -> Logs:
        moving: list[Tensor] = [p for p in model.parameters() if p.requires_grad]
        moving += [buffer for buffer in model.buffers() if buffer.is_floating_point()]
        before = [tensor.detach().clone() for tensor in moving]
        losses = []
        for environment in plan:
            members = batch.members(environment)
            optimiser.zero_grad(set_to_none=True)
            joint = self.config.statistics == "joint"
            logits = model(batch.inputs)[members] if joint else model(batch.inputs[members])
            labels = batch.labels[members]
            if batch.weights is None:
                loss = F.cross_entropy(logits, labels)
            else:
                losses_of = F.cross_entropy(logits, labels, reduction="none")
                means, _ = environment_means(losses_of, torch.zeros_like(labels), 1, batch.weights[members])
                loss = means.squeeze(0)
            loss.backward()
            if self.team.size > 1:
                self.team.reduce_gradients(model, mean=True)
            optimiser.step()
            losses.append(loss.detach())
        with torch.no_grad():
            torch._foreach_lerp_(before, moving, self.config.meta_lr)
            torch._foreach_copy_(moving, before)
        return {"loss": self.team.average([torch.stack(losses).mean()])[0]}
