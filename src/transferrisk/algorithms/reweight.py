"""ERM with every sample weighted by the inverse prior of its group (Sagawa et al., as in appendix C.4).

A group is an environment and a label together. The paper draws samples with these weights; here the loss carries
them, which has the same expectation and works with any sampler. The priors are those of the samples as they are drawn,
so that each group counts the same in expectation; without them every group of the batch counts the same.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InputError
from .base import Algorithm, Config, Logs, Pass, Setting
from .registry import register


def reweighted_risk(losses: Tensor, groups: Tensor, priors: Tensor) -> Tensor:
    """Mean of losses (n,) with weights 1 / (G prior), for the group (n,) of each sample and G groups that occur.

    Its expectation is the mean over groups of their risks. An infinite prior leaves a group out.
    """
    return (losses / priors[groups]).mean() / ((priors > 0) & priors.isfinite()).sum()


@register("reweight")
class Reweight(Algorithm[Config]):
    """Minimises the mean over (environment, label) groups of their risks.

    loss = mean over groups g of R_g, with R_g the mean cross-entropy in g
    """

    weighted = True
    priors: Tensor  # (E C,); 0 where a group is not known to occur

    def __init__(self, setting: Setting, config: Config | None = None) -> None:
        super().__init__(setting, config)
        groups = setting.num_environments * setting.num_classes
        given = setting.group_priors
        self.register_buffer("priors", torch.zeros(groups) if given is None else given.flatten().float())
        self.from_batch = given is None

    def objective(self, out: Pass, penalised: bool) -> Logs:
        groups = out.environments * self.setting.num_classes + out.labels
        if self.from_batch:
            each = torch.ones_like(out.losses) if out.weights is None else out.weights.to(out.losses.dtype)
            counts = out.losses.new_zeros(len(self.priors)).index_add(0, groups, each)
            shares = torch.where(counts > 0, counts / len(groups), torch.inf)
            return {"loss": reweighted_risk(out.losses, groups, shares)}
        if not groups.is_cuda and bool((self.priors[groups] == 0).any()):  # on a GPU the loss is infinite and says so
            raise InputError(
                "a sample's (environment, label) group has prior 0 in Setting.group_priors: count the priors on the "
                "samples that are drawn"
            )
        return {"loss": reweighted_risk(out.losses, groups, self.priors)}
