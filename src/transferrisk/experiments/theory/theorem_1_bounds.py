"""Bounds of theorem 1 on the losses of its classifier: ours, and those of the paper as they are printed.

Ours use only P(chi^2_d >= 2 d) <= e^{-d/8} and E[chi^2_d | chi^2_d >= 2 d] <= 2 d + 4 (the density's logarithm is
concave and falls by more than 1/4 there). A ball at distance (sqrt 2 + delta) sqrt d lies beyond a plane at distance
delta sqrt d, which bounds how much of a far environment it holds.
"""

from __future__ import annotations

import math

from .theorem_1_classifier import Construction


def tail_bound(built: Construction, k: int, l: int) -> float:
    """At least E_{P_l} [loss of w_k on (z_c, z_e); |z_e - y mu_l| >= r]."""
    n, d, own = built.information, built.dimension, built.means[k]
    size = math.log(2) + 2 * n + 2 * math.sqrt(2 * n / math.pi) + 2 * abs(float(own @ built.means[l]))
    return math.exp(-d / 8) * (size + 2 * float(own.norm()) * math.sqrt(2 + 4 / d))


def risk_bound(built: Construction) -> float:
    """At least the sum over environments of the classifier's risk."""
    others = range(1, len(built.means))
    return len(built.means) * built.invariant_loss + sum(tail_bound(built, 0, k) for k in others)


def printed_risk_bound(built: Construction) -> float:
    """Eq. 9."""
    d, E = built.dimension, len(built.means)
    size = 1 + math.log(2) + 4 * E * d / math.sqrt(2 * math.pi) * math.exp(-d / (2 * built.sigma_c**4))
    size += d / built.sigma_c**2 + 64 * d + 8 * E * math.sqrt(d) * (math.sqrt(d) + math.sqrt(d + 2))
    return math.exp(-d / 8) * size


def penalty_bound(built: Construction) -> float:
    """At least the sum of the penalties."""
    d = built.dimension
    lengths = built.means[1:].norm(dim=1) + math.sqrt(2 * d + 4)
    each = built.causal**2 + built.sigma_c**2 + lengths.square()
    return float(math.exp(-d / 4) * each.sum())


def printed_penalty_bound(built: Construction) -> float:
    """The paper's O(.) hides a constant: here 1."""
    mean_square = float(built.means.square().sum(1).mean())
    return math.exp(-built.dimension / 4) * (2 * built.dimension * math.exp(4) + mean_square)


def transfer_bound(built: Construction) -> float:
    """At most the loss of w_j on environment i, where the balls keep away from that."""
    return math.log(2) - tail_bound(built, 1, 0)


def differs_bound(built: Construction, delta: float) -> float:
    """At least the part of a far environment on which the classifier is not w_i on (z_c, z_e)."""
    return (len(built.means) - 1) * math.erfc(delta * math.sqrt(built.dimension) / math.sqrt(2))


def printed_differs_bound(built: Construction, delta: float) -> float:
    """Without d."""
    return 2 * len(built.means) * math.exp(-(delta**2)) / (math.sqrt(math.pi) * delta)
