"""Meta-learning domain generalisation (Li et al.).

Each step holds one environment of the batch out at random (meta-test) and minimises

    (F(theta) + beta G(theta - rate dF/dtheta)) / (1 + beta)

with F the mean risk of the others and G the risk of the one held out. Li et al. do not divide by 1 + beta: with
beta = 1 and a small rate their gradient is twice ERM's, and a comparison at one rate would compare step sizes.
`order=2` differentiates through the inner step; `order=1` takes the inner gradient as constant, which saves a pass. The
inner step is a functional call on shifted parameters, which are never copied.

Batch norm normalises F by the statistics of the others and G by those of the one held out. With `statistics="joint"`
both passes are over the whole batch, as in the methods with one pass: F and G are then means over their own samples,
under the statistics of all.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import functional_call
from torch.optim import Optimizer

from ..errors import InputError
from ..functional import environment_means
from ..models import Classifier
from ..settings import NonNegative
from .base import Algorithm, Batch, Config, Grid, Logs, Statistics
from .registry import register

Parameters = Mapping[str, Tensor]


@dataclass(frozen=True)
class MLDGConfig(Config):
    """
    beta        Factor of the risk G of the environment that is held out.
    inner_lr    Rate of the inner step. None: the current rate of the optimiser.
    order       Order of the derivative: 2 differentiates through the inner step, 1 takes its gradient as constant.
    statistics  Statistics of batch norm: of each pass's "own" environments, or the "joint" ones of the whole batch.
    """

    beta: NonNegative = 1.0
    inner_lr: NonNegative | None = 0.01
    order: Literal[1, 2] = 1
    statistics: Statistics = "own"


def meta_gradient(
    meta_train: Callable[[Parameters], Tensor],
    meta_test: Callable[[Parameters], Tensor],
    parameters: Parameters,
    inner_lr: float | Tensor,
    beta: float,
    order: Literal[1, 2],
    average: Callable[[Sequence[Tensor]], list[Tensor]] = list,
) -> tuple[dict[str, Tensor], Tensor, Tensor]:
    """Return the gradient of (F(theta) + beta G(theta - inner_lr dF/dtheta)) / (1 + beta), F, and G.

    With f = dF/dtheta, H the Hessian of F, and v the gradient of G at the shifted parameters, the gradient is

        (f + beta (v - inner_lr H v)) / (1 + beta)        order 1 leaves out H v

    meta_train, meta_test  F and G, as functions of the parameters
    parameters             theta, by name
    average                takes the means of tensors over processes that have a part of the samples each
    """
    names, values = list(parameters), list(parameters.values())
    train_loss = meta_train(parameters)
    own = torch.autograd.grad(train_loss, values, create_graph=order == 2, materialize_grads=True)
    f = average([g.detach() for g in own])
    shifted = [(p - inner_lr * g).detach().requires_grad_() for p, g in zip(values, f, strict=True)]
    test_loss = meta_test(dict(zip(names, shifted, strict=True)))
    v = average(torch.autograd.grad(test_loss, shifted, materialize_grads=True))
    total = torch._foreach_add(f, v, alpha=beta)
    if order == 2:
        curving = [(g, direction) for g, direction in zip(own, v, strict=True) if g.requires_grad]
        if curving:
            gradients, directions = zip(*curving, strict=True)
            curved = torch.autograd.grad(gradients, values, directions, materialize_grads=True)
            torch._foreach_sub_(total, torch._foreach_mul(average(curved), inner_lr), alpha=beta)
    torch._foreach_div_(total, 1 + beta)
    losses = average([train_loss.detach(), test_loss.detach()])
    return dict(zip(names, total, strict=True)), losses[0], losses[1]


@register("mldg")
class MLDG(Algorithm[MLDGConfig]):
    """Minimises the risk of some environments and that of another one after a gradient step on the former.

    loss = (F(theta) + beta G(theta - inner_lr dF/dtheta)) / (1 + beta), with G the risk of a random environment and F
    the mean risk of the others

    Examples
    --------
    >>> import torch
    >>> from transferrisk.algorithms import Batch, Setting, create
    >>> from transferrisk.models import Classifier
    >>> model = Classifier(torch.nn.Identity(), num_features=2, num_classes=2)
    >>> optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> batch = Batch(torch.randn(8, 2), torch.arange(8) % 2, torch.arange(8) // 4)
    >>> setting = Setting(num_environments=2, num_classes=2)
    >>> algorithm = create("mldg", setting, beta=0.5, order=2)
    >>> logs = algorithm.step(model, batch, optimiser, epoch=0.0)
    >>> held_out, others = algorithm.plan(batch, epoch=0.0)  # drawn at random for each step
    >>> sorted([held_out, *others])
    [0, 1]
    """

    config_type = MLDGConfig
    weighted = True
    grid: ClassVar[Grid] = {"beta": (1.0, 0.5, 0.1, 0.05)}

    @property
    def twice_differentiated(self) -> bool:  # type: ignore[override]  # read only
        """Whether the step differentiates through the inner one."""
        return self.config.order == 2

    def plan(self, batch: Batch, epoch: float) -> tuple[int, tuple[int, ...]]:
        """Return the environment that is held out, and the others."""
        present = batch.present(self.setting.num_environments)
        if len(present) < 2:
            raise InputError(
                f"environments must be two or more in a batch of MLDG, got id {present[0]} alone: draw every batch "
                "from several environments"
            )
        held_out = present[int(torch.randint(len(present), ()))]
        return held_out, tuple(e for e in present if e != held_out)

    def act(self, plan: tuple[int, tuple[int, ...]], model: Classifier, batch: Batch, optimiser: Optimizer) -> Logs:
        held_out, others = plan

        def loss(environments: Sequence[int]) -> Callable[[Parameters], Tensor]:
            members = [batch.members(e) for e in environments]

            def of_members(values: Tensor) -> Tensor:
                return torch.cat([values[m] for m in members])

            labels, index = of_members(batch.labels), of_members(batch.environments)
            weights = None if batch.weights is None else of_members(batch.weights)
            joint = self.config.statistics == "joint"
            inputs = batch.inputs if joint else of_members(batch.inputs)

            def at(parameters: Parameters) -> Tensor:
                logits = functional_call(model, dict(parameters), (inputs,))
                logits = of_members(logits) if joint else logits
                losses = F.cross_entropy(logits, labels, reduction="none")
                risks, there = environment_means(losses, index, self.setting.num_environments, weights)
                return risks.sum() / there.sum().clamp(min=1)

            return at

        parameters = {name: p for name, p in model.named_parameters() if p.requires_grad}
        config = self.config
        inner_lr = optimiser.param_groups[0]["lr"] if config.inner_lr is None else config.inner_lr
        gradient, train_loss, test_loss = meta_gradient(
            loss(others), loss((held_out,)), parameters, inner_lr, config.beta, config.order, self.team.average
        )
        for name, parameter in parameters.items():
            parameter.grad = gradient[name]
        optimiser.step()
        return {"loss": (train_loss + config.beta * test_loss) / (1 + config.beta), "meta_test": test_loss}
