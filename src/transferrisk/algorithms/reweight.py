"""ERM with each sample weighted by the inverse prior of its group (Sagawa et al., as in appendix C.4).

A group is an environment and a class together. The paper draws samples with these weights; here they are in the loss,
which has the same expectation and works with any sampler. The priors are the shares of the groups among the samples
that are drawn, so that each group counts the same in expectation. If they are not given, each batch's own are used.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..errors import InputError
from .base import Algorithm, Config, Logs, Pass, Setting
from .registry import register


def reweighted_risk(losses: Tensor, groups: Tensor, priors: Tensor) -> Tensor:
    """Return (1/n) sum_i losses_i / (G priors_{g(i)}), for G groups that occur; its expectation is mean_g R_g.

    losses, groups  (n,) the loss and the group g(i) of each sample
    priors          (groups,) share of each group; 0 or infinity: the group does not occur
    """
    return (losses / priors[groups]).mean() / ((priors > 0) & priors.isfinite()).sum()


@register("reweight")
class Reweight(Algorithm[Config]):
    """Minimises the mean risk over groups of an environment and a class.

    loss = mean_g R_g, with R_g the mean cross-entropy in group g

    Examples
    --------
    >>> import torch
    >>> from transferrisk.algorithms import Setting, create
    >>> shares = torch.tensor([[0.4, 0.1], [0.1, 0.4]])  # environment, class
    >>> setting = Setting(num_environments=2, num_classes=2, group_priors=shares)
    >>> algorithm = create("reweight", setting)
    >>> algorithm.priors
    tensor([0.4000, 0.1000, 0.1000, 0.4000])
    """

    weighted = True
    priors: Tensor  # (E C,); 0 where a group does not occur

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
        if not groups.is_cuda and bool((self.priors[groups] == 0).any()):  # on a GPU the loss becomes infinite
            raise InputError(
                "group_priors must be > 0 for each group of a batch, got 0 for one: count the priors on the samples "
                "that are drawn"
            )
        return {"loss": reweighted_risk(out.losses, groups, self.priors)}
