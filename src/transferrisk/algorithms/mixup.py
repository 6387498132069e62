"""Mixup across environments: within a class (LISA's intra-label mixing, Yao et al.), or of any samples (DomainBed's).

    x = lambda x_i + (1 - lambda) x_j,    y = lambda y_i + (1 - lambda) y_j,    lambda ~ Beta(alpha, alpha)

Each sample i of the batch is mixed with a random sample j of another environment, and of the same class with
`within="class"`; a sample without such a j stays as it is. One lambda is drawn for each step, as in both papers' code.
Within a class labels stay as they are, and differences between environments are blurred.

How it differs: LISA draws in each step whether to mix within a class or within an environment (its `p_sel`); here a run
does one of them. DomainBed takes the risk of each pair of environments; here the mean is over samples.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.distributions import Dirichlet

from ..functional.linear_loss import one_hot
from ..models import Classifier
from ..settings import Positive
from .base import Algorithm, Batch, Config, Grid, Logs, Pass, Setting
from .registry import register


@dataclass(frozen=True)
class MixupConfig(Config):
    """
    alpha   Parameter of the Beta distribution of lambda: near 0 or 1 if small, uniform for 1, near 1/2 if large.
    within  Samples to mix: two of one "class", or "any" two.
    """

    alpha: Positive = 2.0
    within: Literal["class", "any"] = "class"


def partners(kinds: Tensor, environments: Tensor, num_environments: int, weights: Tensor | None = None) -> Tensor:
    """Return for each sample a random one of its kind and another environment, (n,); itself if there is none.

    Samples are drawn by their weights. They are laid side by side, each as long as its weight, ordered by kind and
    environment: the samples that one may be mixed with are a stretch with a gap, and a point of it is drawn.
    """
    groups = kinds * num_environments + environments
    order = groups.argsort(stable=True)
    lengths = torch.ones_like(groups, dtype=torch.float64) if weights is None else weights.double()
    ends = lengths[order].cumsum(0)

    def stretch(of: Tensor) -> tuple[Tensor, Tensor]:
        """Return where the samples of the same number begin, and how long they are, (n,)."""
        sorted_of = of[order]
        first = torch.searchsorted(sorted_of, of)
        last = torch.searchsorted(sorted_of, of, right=True) - 1
        begin = ends[first] - lengths[order][first]
        return begin, ends[last] - begin

    begin, length = stretch(kinds)
    gap, gap_length = stretch(groups)
    allowed = length - gap_length
    point = begin + torch.rand(len(kinds), dtype=torch.float64, device=kinds.device) * allowed
    point = torch.where(point >= gap, point + gap_length, point)
    drawn = order[torch.searchsorted(ends, point, right=True).clamp(max=len(kinds) - 1)]
    alone = (kinds[drawn] != kinds) | (environments[drawn] == environments)
    return torch.where(alone, torch.arange(len(kinds), device=kinds.device), drawn)


@register("mixup")
class Mixup(Algorithm[MixupConfig]):
    """Minimises the mean loss of samples that are mixed with samples of other environments.

    loss = mean_i l(lambda x_i + (1 - lambda) x_j, lambda y_i + (1 - lambda) y_j), with a random j of another
    environment for each i, and lambda ~ Beta(alpha, alpha) in each step

    Examples
    --------
    >>> import torch
    >>> from transferrisk.algorithms import Batch, Setting, create
    >>> from transferrisk.models import Classifier
    >>> model = Classifier(torch.nn.Identity(), num_features=2, num_classes=2)
    >>> batch = Batch(torch.randn(8, 2), torch.arange(8) % 2, torch.arange(8) // 4)
    >>> setting = Setting(num_environments=2, num_classes=2)
    >>> algorithm = create("mixup", setting, within="any")
    >>> out = algorithm.forward(model, batch)
    >>> out.targets.sum(1)  # probabilities of the classes, mixed as the inputs are
    tensor([1., 1., 1., 1., 1., 1., 1., 1.])
    """

    config_type = MixupConfig
    weighted = True
    grid: ClassVar[Grid] = {"alpha": (0.1, 0.3, 1.0, 2.0, 10.0)}  # DomainBed draws 10^U(-1, 1); LISA takes 2
    concentration: Tensor  # (2,) alpha, alpha

    def __init__(self, setting: Setting, config: MixupConfig | None = None) -> None:
        super().__init__(setting, config)
        self.register_buffer("concentration", torch.full((2,), self.config.alpha), persistent=False)

    def forward(self, model: Classifier, batch: Batch) -> Pass:
        """Return the pass over the mixed batch; all processes that share it draw the same partners."""
        inputs, whole = self.gather(batch, batch.inputs), self.gathered(batch)
        kinds = whole.labels if self.config.within == "class" else torch.zeros_like(whole.labels)
        other = partners(kinds, whole.environments, self.setting.num_environments, whole.weights)
        share = Dirichlet(self.concentration, validate_args=False).sample()[0]
        own = inputs.lerp(inputs[other], (1 - share).to(inputs.dtype))
        if self.team.size > 1:
            own = self.team.part(own, self._environments_in(batch))
        out = super().forward(model, batch._replace(inputs=own))
        if self.config.within == "class":
            return out
        targets = one_hot(whole.labels, self.setting.num_classes, out.logits.dtype)
        return replace(out, targets=targets.lerp(targets[other], (1 - share).to(targets.dtype)))

    def objective(self, out: Pass, penalised: bool) -> Logs:
        return {"loss": out.empirical_risk}
