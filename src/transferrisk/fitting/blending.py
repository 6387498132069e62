"""Weighted average of candidates, p(x) = sum_k w_k p_k(x), with weights learned in held-out environments.

Conventions, for n rows in E environments, K candidates and C classes:
    chances   (n, K), probability of the true class by each candidate
    shares    (R, n), weight of each row in each of R problems, one in sum
    weights   (R, K), on the simplex

Each environment counts the same. The weights for an environment are learned from the others or, if environments are
ordered in time, from the earlier ones.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .candidates import named
from .decisions import others_of
from .metrics import Floats, Ints, row_losses

STEPS = 200  # of EM: after these, only similar candidates still trade weight
MOST = 4  # members of an average, each of which is trained again on all rows
LEAST = 0.05  # smallest weight among all candidates with which one becomes a member
FEWEST = 3  # held-out environments, so that weights without one of them come from two


def mixture_weights(chances: Floats, shares: Floats, members: NDArray[np.bool_] | None = None) -> NDArray[np.float64]:
    """Maximise sum_n shares_rn log sum_k w_rk chances_nk over weights w, by EM from equal weights.

    The likelihood is concave; a step sets each weight to the mean responsibility of its candidate.

    members  (R, K), candidates that may have a weight; None: all
    """
    among = np.ones((len(shares), chances.shape[1])) if members is None else members.astype(np.float64)
    weights: NDArray[np.float64] = among / among.sum(1, keepdims=True)
    for _ in range(STEPS):
        weights *= (shares / (weights @ chances.T)) @ chances
    return weights


def pick_members(chances: Floats, shares: Floats) -> NDArray[np.bool_]:
    """Pick candidates to average, (R, K): the `MOST` with the largest weights, if those are at least `LEAST`."""
    weights = mixture_weights(chances, shares)
    rank = (-weights).argsort(1).argsort(1)
    return np.asarray((rank < MOST) & (weights >= np.minimum(LEAST, weights.max(1, keepdims=True))))


def blend_held_out(
    labels: Ints, probabilities: Mapping[str, Floats], environments: Ints, ordered: bool = False
) -> tuple[NDArray[np.float64], dict[str, float]]:
    """Return averaged probabilities (n, C), nan in rows that were not held out, and the weights learned from all rows.

    Each average has a few members, see `pick_members`. Weights are equal if there is no earlier environment.

    ordered  environments are ordered in time by their numbers
    """
    given = np.stack([*probabilities.values()])  # (K, n, C)
    tested = np.flatnonzero(np.isfinite(given).all((0, 2)))
    names, places = np.unique(environments[tested], return_inverse=True)
    chances = np.exp([-row_losses(labels[tested], one[tested]) for one in given]).T
    within = np.eye(len(names))[places].T  # (E, n)
    within /= within.sum(1, keepdims=True)
    among = np.concatenate([others_of(len(names), ordered), np.ones((1, len(names)), bool)])  # the last is for all
    learned = among.any(1)
    shares = among[learned] / among[learned].sum(1, keepdims=True) @ within
    weights = np.full((len(among), len(given)), 1 / len(given))
    weights[learned] = mixture_weights(chances, shares, pick_members(chances, shares))
    blended = np.full(given.shape[1:], np.nan)
    blended[tested] = np.einsum("nk,knc->nc", weights[places], given[:, tested])
    return blended, {name: float(weight) for name, weight in zip(probabilities, weights[-1], strict=True) if weight}


def told_members(members: Mapping[str, float]) -> str:
    """Name the members of an average, the largest weight first: "0.55 Linear model, 0.45 Gradient boosting"."""
    ordered = sorted(members, key=members.__getitem__, reverse=True)
    return ", ".join(f"{members[name]:.2f} {named(name)}" for name in ordered)
