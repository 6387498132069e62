"""Penalties that the baselines add to the empirical risk."""

from __future__ import annotations

import torch
from torch import Tensor

from .checks import working_dtype
from .linear_loss import environment_means, one_hot, scale_slopes
from .predictor import full_precision


def irm_penalty(
    logits: Tensor,
    labels: Tensor,
    index: Tensor,
    num_environments: int,
    sample_weights: Tensor | None = None,
    *,
    halves: bool = False,
) -> Tensor:
    """Return IRMv1: per environment, the squared derivative of its risk by a scale s of the logits, at s = 1.

    It is written out, so that no double backward is needed. With `halves` it is the product of the derivatives on every
    other sample and on the rest: its mean over batches is the square of the mean. It may be negative, and is 0 where an
    environment has one sample.

    Parameters
    ----------
    logits
        (n, C).
    labels, index
        (n,) each sample's label and environment.
    num_environments
        E.
    sample_weights
        (n,); None: all the same.
    halves
        Take the product of the derivatives on two halves in place of the square.

    Returns
    -------
    Tensor
        (E,).

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import irm_penalty
    >>> irm_penalty(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1]), 2)
    tensor([0., 0.])
    """
    slopes = scale_slopes(logits, one_hot(labels, logits.shape[-1], logits.dtype))
    if halves:
        count = one_hot(index, num_environments, torch.int64).cumsum(0)  # of each environment's samples so far, (n, E)
        half = count.gather(1, index.unsqueeze(1)).squeeze(1) % 2
        means, _ = environment_means(slopes, 2 * index + half, 2 * num_environments, sample_weights)
        return means.view(num_environments, 2).prod(1)
    return environment_means(slopes, index, num_environments, sample_weights)[0].square()


def irm_predictor_penalty(
    features: Tensor,
    logits: Tensor,
    labels: Tensor,
    index: Tensor,
    num_environments: int,
    sample_weights: Tensor | None = None,
) -> Tensor:
    """Return IRM's penalty of the whole linear predictor in place of a scale, as the paper writes it (eq. 2).

    |dR_e/dW|^2 with dR_e/dW = mean over e of (S - Y)^T Z, the bias's column included.

    Parameters
    ----------
    features, logits
        (n, d) and (n, C).
    labels, index
        (n,) each sample's label and environment.
    num_environments
        E.
    sample_weights
        (n,); None: all the same.

    Returns
    -------
    Tensor
        (E,).

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import irm_predictor_penalty
    >>> features, logits = torch.tensor([[1.0], [1.0]]), torch.zeros(2, 2)
    >>> irm_predictor_penalty(features, logits, torch.tensor([0, 1]), torch.tensor([0, 1]), 2)
    tensor([1., 1.])
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
    """Return V-REx: the population variance of the risks of the environments that are present.

    Parameters
    ----------
    risks, present
        (E,), and which are present, (E,) bool.

    Returns
    -------
    Tensor
        A scalar.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import risk_variance
    >>> risk_variance(torch.tensor([1.0, 3.0, 9.0]), torch.tensor([True, True, False]))
    tensor(1.)
    """
    count = present.sum().clamp(min=1)
    mean = torch.where(present, risks, 0).sum() / count
    return torch.where(present, (risks - mean).square(), 0).sum() / count
