"""Expectations under normal laws, by sums that converge faster than any power of their step.

    E f(z), z ~ N(0, 1)  ~  sum_k w_k f(z_k),   z_k = k step for |z_k| <= reach,   w_k proportional to exp(-z_k^2 / 2)

The trapezoid rule's error is about exp(-2 pi c / step), where f is analytic within |Im z| < c, plus what lies beyond
`reach`.

The logistic loss of a normal score X ~ N(m, s^2) is written as a closed form plus a remainder that decays like e^-|x|:

    log(1 + e^-x)   = max(-x, 0) + log(1 + e^-|x|)
    sigmoid(-x)     = 1[x < 0]   + sign(x) sigmoid(-|x|)

so that it keeps its digits where it is as small as e^-s^2/8 and where it is large. For s from 1 up and m up to s^2/2,
where the remainder times the density still decays like e^-x/2.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

_NODES = 128
_REACH = 80.0


def normal_nodes(step: float = 0.1, reach: float = 10.0) -> tuple[Tensor, Tensor]:
    """Nodes (n,) and weights (n,) that sum to one."""
    half = math.ceil(reach / step)
    nodes = step * torch.arange(-half, half + 1, dtype=torch.float64)
    weights = torch.exp(-0.5 * nodes.square())
    return nodes, weights / weights.sum()


def expected_loss(mean: Tensor, scale: Tensor) -> Tensor:
    """E log(1 + e^-X) of X ~ N(mean, scale^2), in the shape of `mean`."""
    nodes, above, below = _densities(mean, scale)
    return -_negative_part(mean, scale) + (torch.log1p(torch.exp(-nodes[0])) * nodes[1] * (above + below)).sum(-1)


def expected_slope(mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
    """E sigmoid(-X) and E X sigmoid(-X)."""
    nodes, above, below = _densities(mean, scale)
    tail = torch.sigmoid(-nodes[0]) * nodes[1]
    plain = torch.special.ndtr(-mean / scale) + (tail * (above - below)).sum(-1)
    moment = _negative_part(mean, scale) + (tail * nodes[0] * (above + below)).sum(-1)
    return plain, moment


def _negative_part(mean: Tensor, scale: Tensor) -> Tensor:
    """E min(X, 0) = m P(X < 0) - s phi(m / s), with phi taken out so that large m keeps its digits."""
    ratio = mean / scale
    density = torch.exp(-0.5 * ratio.square()) / math.sqrt(2 * math.pi)
    mills = math.sqrt(math.pi / 2) * torch.special.erfcx(ratio.clamp(min=0) / math.sqrt(2))
    right = density * (mean * mills - scale)
    return torch.where(ratio > 0, right, mean * torch.special.ndtr(-ratio) - scale * density)


def _densities(mean: Tensor, scale: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Gauss-Legendre nodes x and weights on (0, 80), (2, n), and the density of X at x and at -x, (..., n)."""
    nodes = torch.stack(_legendre(_NODES))
    x, m, s = nodes[0], mean.unsqueeze(-1), scale.unsqueeze(-1)

    def density(at: Tensor) -> Tensor:
        return torch.exp(-0.5 * ((at - m) / s).square()) / (s * math.sqrt(2 * math.pi))

    return nodes, density(x), density(-x)


def _legendre(order: int) -> tuple[Tensor, Tensor]:
    """On (0, 80), from the eigenvalues of the Jacobi matrix (Golub and Welsch)."""
    k = torch.arange(1, order, dtype=torch.float64)
    beside = k / (4 * k.square() - 1).sqrt()
    values, vectors = torch.linalg.eigh(torch.diag(beside, 1) + torch.diag(beside, -1))
    return _REACH / 2 * (values + 1), _REACH * vectors[0].square()
