"""Penalties that the baselines add to the empirical risk, and weights on a simplex."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import working_dtype
from .linear_loss import one_hot, scale_slopes
from .predictor import full_precision

_SMALLEST = 1e-30


def environment_means(
    values: Tensor, index: Tensor, num_environments: int, sample_weights: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Mean of values (n,) in each environment, (E,), and which environments are present, (E,) bool.

    With weights (n,), sum w v / sum w. An absent environment, or one whose weights are all zero, has mean 0, so that
    sums over environments need no special case.
    """
    member = one_hot(index, num_environments, values.dtype)  # (n, E)
    if sample_weights is not None:
        member = member * sample_weights.to(values.dtype).unsqueeze(-1)
    counts = member.sum(0)
    total = (values.unsqueeze(-1) * member).sum(0)  # not a matrix product, which autocast would round
    return total / torch.where(counts > 0, counts, 1), counts > 0


def irm_penalty(
    logits: Tensor, labels: Tensor, index: Tensor, num_environments: int, sample_weights: Tensor | None = None
) -> Tensor:
    """IRMv1: per environment, the squared derivative of its risk by a scale s of the logits, at s = 1, (E,).

    It is written out, so that no double backward is needed.
    """
    slopes = scale_slopes(logits, one_hot(labels, logits.shape[-1], logits.dtype))
    return environment_means(slopes, index, num_environments, sample_weights)[0].square()


def irm_predictor_penalty(
    features: Tensor,
    logits: Tensor,
    labels: Tensor,
    index: Tensor,
    num_environments: int,
    sample_weights: Tensor | None = None,
) -> Tensor:
    """The same with the whole linear predictor in place of a scale, as the paper writes it (eq. 2), (E,).

    |dR_e/dW|^2 with dR_e/dW = mean over e of (S - Y)^T Z, the bias's column included.
    """
    with full_precision(features.device):
        logits, features = (t.to(working_dtype(t.dtype)) for t in (logits, features))
        residual = torch.softmax(logits, -1) - one_hot(labels, logits.shape[-1], logits.dtype)
        member = one_hot(index, num_environments, logits.dtype)
        if sample_weights is not None:
            member = member * sample_weights.to(member.dtype).unsqueeze(-1)
        total = member.sum(0)
        share = member / torch.where(total > 0, total, 1)  # (n, E)
        by_weight = torch.einsum("ne,nc,nd->ecd", share, residual, features)
        by_bias = share.mT @ residual  # (E, C)
        return by_weight.square().sum((1, 2)) + by_bias.square().sum(1)


def risk_variance(risks: Tensor, present: Tensor) -> Tensor:
    """V-REx: the population variance of the risks of the environments that are present."""
    count = present.sum().clamp(min=1)
    mean = torch.where(present, risks, 0).sum() / count
    return torch.where(present, (risks - mean).square(), 0).sum() / count


def exponentiated_gradient(weights: Tensor, gains: Tensor, rate: float, moved: Tensor) -> Tensor:
    """One step of exponentiated gradient ascent on a simplex, over the last dimension (eq. 3 of the paper).

    weights_i <- weights_i exp(rate gains_i), normalised. Only entries in `moved` take part: they share the
    mass they had, and the others keep theirs, so an absent environment neither gains nor loses. No weight falls below
    1e-30, from where it can come back; from zero it could not.
    """
    mass = torch.where(moved, weights, 0).sum(-1, keepdim=True)
    logits = torch.where(moved, weights.clamp(min=_SMALLEST).log() + rate * gains, -torch.inf)
    shares = torch.softmax(logits, -1).nan_to_num(0.0)  # nan: a row with nothing to move
    return torch.where(moved, (mass * shares).clamp(min=_SMALLEST), weights)
