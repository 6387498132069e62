"""Weights a_P(Q) of the environments P in which the predictor of Q is tested, and how they move.

    uniform   a_P(Q) = 1 / (E - 1)                                  the sum-sum version
    worst     a_P(Q) = 1 for the P of the largest M[Q, P]           the exact sum-sup version
    given     a_P(Q) = alpha_P(Q), moved by `exponentiated_gradient` with gains M[Q, P] (eq. 3 of the paper)

Shapes: M and weights (m, E), for m queries Q among E environments; rows of weights sum to one.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

LEAST_WEIGHT = 1e-30
WeightRule = Callable[[Tensor, Tensor], Tensor]
"""A function of M (m, E) and of which pairs count, (m, E) bool: weights a_P(Q) (m, E), zero where they do not."""


def uniform_weights(matrix: Tensor, counted: Tensor) -> Tensor:
    """Return equal weights for all environments P but Q (the sum-sum version).

    Parameters
    ----------
    matrix, counted
        Matrix M[Q, P], (m, E), and which pairs count, (m, E) bool.

    Returns
    -------
    Tensor
        Weights a_P(Q), (m, E), zero where a pair does not count.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import uniform_weights
    >>> uniform_weights(torch.tensor([[0.1, 0.5, 0.3]]), torch.tensor([[False, True, True]]))
    tensor([[0.0000, 0.5000, 0.5000]])
    """
    return counted.to(matrix.dtype) / counted.sum(-1, keepdim=True).clamp(min=1)


def worst_weights(matrix: Tensor, counted: Tensor) -> Tensor:
    """Return weight 1 for the environment P of the largest loss, given Q, else 0 (the exact sum-sup version).

    Parameters
    ----------
    matrix, counted
        Matrix M[Q, P], (m, E), and which pairs count, (m, E) bool.

    Returns
    -------
    Tensor
        Weights a_P(Q), (m, E), zero where a pair does not count.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import worst_weights
    >>> worst_weights(torch.tensor([[0.1, 0.5, 0.3]]), torch.tensor([[False, True, True]]))
    tensor([[0., 1., 0.]])
    """
    worst = torch.where(counted, matrix, -torch.inf).argmax(-1, keepdim=True)
    return torch.zeros_like(matrix).scatter_(-1, worst, 1.0) * counted


def given_weights(alpha: Tensor) -> WeightRule:
    """Return a rule that gives the weights alpha, scaled to sum to one over the pairs that count.

    Parameters
    ----------
    alpha
        Weights of P, given Q, (m, E).

    Returns
    -------
    WeightRule
        Rule for the `weights` of `transfer_risk`.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import given_weights
    >>> given_weights(torch.tensor([[0.0, 0.25, 0.75]]))(torch.ones(1, 3), torch.tensor([[False, True, True]]))
    tensor([[0.0000, 0.2500, 0.7500]])
    """

    def rule(matrix: Tensor, counted: Tensor) -> Tensor:
        kept = torch.where(counted, alpha.to(matrix.dtype), 0)
        return kept / kept.sum(-1, keepdim=True).clamp(min=torch.finfo(kept.dtype).tiny)

    return rule


def exponentiated_gradient(weights: Tensor, gains: Tensor, rate: float, moved: Tensor | None = None) -> Tensor:
    """Take a step of exponentiated gradient ascent on a simplex (eq. 3 of the paper).

        weights_i <- mass weights_i exp(rate gains_i) / sum_j weights_j exp(rate gains_j)

    over the entries i, j in `moved`, whose sum, the mass, stays the same; so do the other entries, as the weight of an
    absent environment does. No weight falls below 1e-30, because it could not grow again from zero.

    Parameters
    ----------
    weights, gains
        Point of the simplex and gain of each entry, (..., E), over the last dimension.
    rate
        Rate of the step.
    moved
        Entries that take part, (..., E) bool. None: all of them, whose mass is 1.

    Returns
    -------
    Tensor
        New weights, (..., E).

    Examples
    --------
    >>> import torch
    >>> from transferrisk.functional import exponentiated_gradient
    >>> exponentiated_gradient(torch.tensor([0.5, 0.5]), torch.tensor([0.0, 1.0]), 1.0, torch.tensor([True, True]))
    tensor([0.2689, 0.7311])
    """
    if moved is None:
        return torch.softmax(torch.add(weights.clamp(min=LEAST_WEIGHT).log(), gains, alpha=rate), -1)
    mass = torch.where(moved, weights, 0).sum(-1, keepdim=True)
    logits = torch.where(moved, weights.clamp(min=LEAST_WEIGHT).log() + rate * gains, -torch.inf)
    shares = torch.softmax(logits, -1).nan_to_num(0.0)  # nan: a row with nothing to move
    return torch.where(moved, (mass * shares).clamp(min=LEAST_WEIGHT), weights)
