"""Deep feature reweighting (Kirichenko et al.): ERM, whose last layer is then fitted anew on balanced held-out data.

    W = argmin  mean over groups (e, y) of their mean cross-entropy under W + ridge/2 |W|^2

A share of each training environment is held out of the steps. At each evaluation the head of the model that is
evaluated and saved is replaced by W, fitted on the standardised features of that share; the one that trains goes on
with its own. The ridge is the one under which the worst group of a half of these samples is classified best, by a W
fitted on the other half. So the method sees no more data than others do, and validation data is as free of it as of
them.

How it differs from the authors' code: the penalty is the square of W, not its absolute value, which makes W unique and
exact; groups are weighed, where they average fits on ten balanced subsets; and they hold validation data out for it, or
take the training data itself.
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
from .base import Algorithm, Config, HeldOut, Logs, Pass
from .registry import register


@dataclass(frozen=True)
class DFRConfig(Config):
    """
    held_out  the share of each training environment that the last layer is fitted on, and steps do not draw
    ridges    the ridges that are tried
    """

    held_out: Annotated[float, Bound(above=0, below=1)] = 0.2
    ridges: Annotated[tuple[Positive, ...], Length(1)] = (1e-4, 1e-3, 1e-2, 1e-1, 1.0)


@register("dfr")
class DFR(Algorithm[DFRConfig]):
    """Minimises the mean loss, and by the last layer alone the mean loss of (environment, label) groups held out.

    loss = mean_i l_i; then W = argmin mean_g R_g(W) + ridge/2 |W|^2 over groups g of samples that were held out
    """

    config_type: ClassVar[type[Config]] = DFRConfig
    weighted = True

    @property
    def held_out(self) -> float:
        return self.config.held_out

    def objective(self, out: Pass, penalised: bool) -> Logs:
        return {"loss": out.empirical_risk}

    def finish(self, model: Classifier, held: HeldOut) -> None:
        with torch.no_grad(), full_precision(held.features.device):
            shares = self._balanced(held)
            mean = shares @ held.features
            deviation = (shares @ (held.features - mean).square()).sqrt()
            rounding = 100 * torch.finfo(mean.dtype).eps * mean.abs()  # all that varies in a column that is constant
            scale = torch.where(deviation > rounding, deviation, 1)
            standard = held._replace(features=(held.features - mean) / scale)
            W = self._fitted(standard, self._chosen_ridge(standard))
            weight = W[:, :-1] / scale
            model.head.weight.copy_(weight)
            model.head.bias.copy_(W[:, -1] - weight @ mean)

    def _groups(self, held: HeldOut) -> Tensor:
        return held.environments * self.setting.num_classes + held.labels

    def _balanced(self, held: HeldOut) -> Tensor:
        """Weights under which every group that occurs counts the same, (n,); they sum to one."""
        each = torch.ones_like(held.features[:, 0]) if held.weights is None else held.weights.to(held.features.dtype)
        groups = self._groups(held)
        totals = each.new_zeros(self.setting.num_environments * self.setting.num_classes).index_add(0, groups, each)
        return each / totals.clamp(min=torch.finfo(each.dtype).tiny)[groups] / (totals > 0).sum()

    def _fitted(self, held: HeldOut, ridge: float) -> Tensor:
        weights = self._balanced(held)
        return optimal_predictor(held.features, held.labels, self.setting.num_classes, ridge, sample_weight=weights)

    def _chosen_ridge(self, held: HeldOut) -> float:
        """The ridge of the highest accuracy in the worst group of the second half, at the lowest loss."""
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
