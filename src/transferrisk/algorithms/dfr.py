"""Deep feature reweighting (Kirichenko et al.): ERM, then the last layer fitted anew on balanced held-out samples.

    W = argmin  mean_g R_g(W) + ridge/2 |W|^2        over groups g of an environment and a class

A share of each training environment is held out of the steps. At each evaluation the head of the model that is
evaluated and saved becomes W, fitted on the standardised features of that share; the model that trains keeps its own.
The ridge is the one of the highest accuracy in the worst group of a half of these samples, under the W fitted on the
other half. So the method sees no more data than others, and validation data remains unseen.

How it differs from the authors' code: the penalty is the square of W, not its absolute value, so that W is unique and
exact; groups are weighed, where they average fits on ten balanced subsets; and they use validation data for it, or the
training data itself.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..functional import environment_means, optimal_predictor
from ..functional.predictor import full_precision
from ..models import Classifier
from ..settings import Bound, Length, Positive
from .base import Algorithm, Config, HeldOut, Logs, Pass, Setting
from .registry import register


@dataclass(frozen=True)
class DFRConfig(Config):
    """
    held_out  Share of each training environment that steps do not draw and the last layer is fitted on.
    ridges    Ridges to choose from.
    """

    held_out: Annotated[float, Bound(above=0, below=1)] = 0.2
    ridges: Annotated[tuple[Positive, ...], Length(1)] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)


@register("dfr")
class DFR(Algorithm[DFRConfig]):
    """Minimises the mean loss, and then by the last layer alone the mean risk of held-out (environment, class) groups.

    loss = mean_i l_i; then W = argmin mean_g R_g(W) + ridge/2 |W|^2 over groups g of held-out samples

    Examples
    --------
    >>> from transferrisk.algorithms import Setting, create
    >>> setting = Setting(num_environments=2, num_classes=2)
    >>> algorithm = create("dfr", setting, held_out=0.3, ridges=(0.01, 0.1))
    >>> algorithm.held_out  # `transferrisk.training.train` leaves this share out of the steps
    0.3
    """

    config_type: ClassVar[type[Config]] = DFRConfig
    weighted = True

    def __init__(self, setting: Setting, config: DFRConfig | None = None) -> None:
        super().__init__(setting, config)
        self.held_out = self.config.held_out

    def objective(self, out: Pass, penalised: bool) -> Logs:
        return {"loss": out.empirical_risk}

    def finish(self, model: Classifier, held: HeldOut) -> None:
        """Replace the head of the model by W (C, d + 1), in the units of the features."""
        with torch.no_grad(), full_precision(held.features.device):
            shares = self._balanced(held)
            mean = shares @ held.features
            deviation = (shares @ (held.features - mean).square()).sqrt()
            rounding = 100 * torch.finfo(mean.dtype).eps * mean.abs()  # all the deviation of a constant column
            scale = torch.where(deviation > rounding, deviation, 1)
            standard = held._replace(features=(held.features - mean) / scale)
            W = self._fitted(standard, self._chosen_ridge(standard))
            weight = W[:, :-1] / scale
            model.head.weight.copy_(weight)
            model.head.bias.copy_(W[:, -1] - weight @ mean)

    def _groups(self, held: HeldOut) -> Tensor:
        return held.environments * self.setting.num_classes + held.labels

    def _balanced(self, held: HeldOut) -> Tensor:
        """Return weights (n,) under which all groups that occur count the same; they sum to one."""
        each = torch.ones_like(held.features[:, 0]) if held.weights is None else held.weights.to(held.features.dtype)
        groups = self._groups(held)
        totals = each.new_zeros(self.setting.num_environments * self.setting.num_classes).index_add(0, groups, each)
        return each / totals.clamp(min=torch.finfo(each.dtype).tiny)[groups] / (totals > 0).sum()

    def _fitted(self, held: HeldOut, ridge: float) -> Tensor:
        weights = self._balanced(held)
        return optimal_predictor(held.features, held.labels, self.setting.num_classes, ridge, sample_weight=weights)

    def _chosen_ridge(self, held: HeldOut) -> float:
        """Return the ridge of the highest accuracy in the worst group of the second half; ties: at the lowest loss."""
        first, second = (held.only(held.halves == half) for half in (0, 1))
        if not len(first.labels) or not len(second.labels):
            return max(self.config.ridges)
        groups, count = self._groups(second), self.setting.num_environments * self.setting.num_classes
        scores = []
        for ridge in self.config.ridges:
            W = self._fitted(first, ridge)
            logits = second.features @ W[:, :-1].mT + W[:, -1]
            right = (logits.argmax(1) == second.labels).to(logits.dtype)
            accuracy, present = environment_means(right, groups, count, second.weights)
            loss = self._balanced(second) @ F.cross_entropy(logits, second.labels, reduction="none")
            scores.append((float(accuracy[present].min()), -float(loss), ridge))
        return max(scores)[-1]
