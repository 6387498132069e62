"""TRM as the authors' public code trains it, to measure how much exact solutions improve on it.

    loss = mean cross-entropy + (1/E) sum_Q [ sum_P a_P(Q) l_P(W_Q) - lambda <h_Q, dl_Q/dW> ]

with W_Q, h_Q and a taken as constant. Where W_Q is the minimiser of l_Q and H_Q h_Q = sum_P a_P(Q) dl_P/dW, the
gradient for lambda = 1 is the total derivative of the transfer risk: that of <h_Q, dl_Q/dW> by the features is the
implicit part (`functional.implicit_vjp`). The public code differs from that in
six ways, each a setting here:

1. W_Q is a head for each environment that persists over batches, and moves by a hundred steps of gradient descent on
   each: it is not optimal, and remembers earlier features.
2. It has no ridge, so where a batch is separable there is nothing to converge to.
3. h_Q is a sum of eleven Neumann terms, sum over i = 0..10 of (I - H_Q)^i v, which may be far from H_Q^-1 v.
4. h_Q has no bias: the heads' biases are taken as constant.
5. lambda is 1e-4, which leaves almost nothing of the implicit part.
6. a takes a step of exponentiated gradient on a_P(Q) l_P(W_Q), where the paper has l_P(W_Q). With two environments
   there is only one P, and a is 1.

Differences from the public code: heads start at zero, not at random; and all eleven terms are added, where there one
of them is lost, as the vector that they are computed in is also their sum.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..algorithms import Algorithm, Config, Logs, Pass, Setting
from ..functional import SoftmaxLoss, exponentiated_gradient
from ..functional.linear_loss import logits_of, probabilities_of, row_losses, softmax_residual
from ..functional.transfer import Grouped, group
from ..functional.weights import given_weights
from ..settings import Count, NonNegative, Positive
from ..solvers import GradientDescent


@dataclass(frozen=True)
class PublicTRMConfig(Config):
    """Settings of the public code.

    gradient_matching  lambda, the factor of the implicit gradient
    head_steps         number of steps of gradient descent that the heads take on each batch
    head_lr            learning rate of the heads
    ridge              ridge of the heads
    terms              number of Neumann terms
    through_biases     whether the implicit gradient includes the biases of the heads
    weights_lr         learning rate of the weights a_P(Q)
    start_epoch        epoch from which the transfer risk is added: 100 steps of the public code, with 145 in an epoch
    """

    gradient_matching: NonNegative = 1e-4
    head_steps: Count = 100
    head_lr: Positive = 0.1
    ridge: NonNegative = 0.0
    terms: Count = 11
    through_biases: bool = False
    weights_lr: NonNegative = 0.01
    start_epoch: NonNegative = 0.685


def neumann_sum(product: Callable[[Tensor], Tensor], vector: Tensor, terms: int) -> Tensor:
    """Return the sum over i = 0..terms - 1 of (I - H)^i v, whether or not the series converges."""
    power = total = vector
    for _ in range(terms - 1):
        power = power - product(power)
        total = total + power
    return total


class PublicTRM(Algorithm[PublicTRMConfig]):
    """Minimises the mean loss plus the transfer risk, with heads that persist over batches and few Neumann terms.

    loss = mean_i l_i + mean_Q (sum_P a_P(Q) R_P(W_Q) - lambda <h_Q, dR_Q/dW>), with W_Q, h_Q and a as constants
    """

    config_type: ClassVar[type[Config]] = PublicTRMConfig
    weighted = True
    heads: Tensor  # (E, C, d + 1), bias last; empty before the first batch has shown d
    alpha: Tensor  # (E, E) weight of P (column), given Q (row); zero on the diagonal

    def __init__(self, setting: Setting, config: PublicTRMConfig | None = None) -> None:
        super().__init__(setting, config)
        E = setting.num_environments
        self.block: int | None = None
        self.register_buffer("heads", torch.empty(0))
        self.register_buffer("alpha", (1 - torch.eye(E)) / max(E - 1, 1))

    def capture(self, block: int) -> None:
        self.block = block

    def objective(self, out: Pass, penalised: bool) -> Logs:
        if not penalised:
            return {"loss": out.empirical_risk}
        E, C = self.setting.num_environments, self.setting.num_classes
        grouped = group(out.features, out.labels, out.environments, E, C, self.block, out.weights)
        heads = self._fitted_heads(grouped)
        assert grouped.counts is not None  # `group` counts them
        present = grouped.counts > 0
        counted = (present.unsqueeze(-1) & present).logical_and(~torch.eye(E, dtype=torch.bool, device=present.device))
        logits = torch.einsum("qcd,pnd->qpnc", heads, grouped.rows)
        matrix = (grouped.weights * row_losses(logits, grouped.targets)).sum(-1)  # (E, E), row Q, column P
        used = given_weights(self.alpha)(matrix, counted)
        share = used / counted.any(-1).sum().clamp(min=1)
        implicit = self._implicit(grouped, heads, logits.detach(), share)
        transfer = (share * matrix).sum()
        if self.training:
            gains = (used * matrix).detach()
            self.alpha.copy_(exponentiated_gradient(self.alpha, gains, self.config.weights_lr, counted))
        loss = out.empirical_risk + transfer - self.config.gradient_matching * implicit
        return {"loss": loss, "transfer_risk": transfer}

    @torch.no_grad()
    def _fitted_heads(self, grouped: Grouped) -> Tensor:
        """Return the heads after their steps on this batch; the head of an absent environment does not move."""
        rows = grouped.rows.detach()
        if self.heads.numel() == 0:
            self.heads = rows.new_zeros(len(rows), grouped.num_classes, rows.shape[-1])
        loss = SoftmaxLoss(rows, grouped.labels, grouped.weights, grouped.num_classes, self.config.ridge)
        descent = GradientDescent(self.config.head_steps, self.config.head_lr)
        moved = descent.minimise(loss, self.heads.to(rows.dtype)).value
        there = grouped.weights.sum(-1) > 0
        fitted = torch.where(there[:, None, None], moved, self.heads)
        if self.training:
            self.heads.copy_(fitted)
        return fitted

    def _implicit(self, grouped: Grouped, heads: Tensor, logits: Tensor, share: Tensor) -> Tensor:
        """Return sum_Q <h_Q, dl_Q/dW>, whose gradient by the features is weighted by `gradient_matching`."""
        with torch.no_grad():
            rows = grouped.rows.detach()
            mask = torch.ones_like(heads[:1])
            if not self.config.through_biases:
                mask[..., -1] = 0
            loss = SoftmaxLoss(rows, grouped.labels, grouped.weights, grouped.num_classes, self.config.ridge)
            hessian = loss.hessian(heads)
            residual = softmax_residual(torch.softmax(logits, -1), grouped.targets)
            residual = share[..., None, None] * grouped.weights.unsqueeze(-1) * residual
            v = mask * torch.einsum("qpnc,pnd->qcd", residual, rows)
            h = neumann_sum(lambda vector: mask * hessian.product(vector), v, self.config.terms)
        own = probabilities_of(logits_of(heads, grouped.rows)) - grouped.targets
        return (grouped.weights.unsqueeze(-1) * own * logits_of(h, grouped.rows)).sum()
