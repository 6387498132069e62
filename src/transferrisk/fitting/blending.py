"""A weighted average of candidates, p(x) = sum_k w_k p_k(x), with weights from predictions in held-out environments.

Conventions, for n rows in E environments, K candidates and C classes:
    chances   (n, K), the probability that each candidate gives to the class that happened
    shares    (R, n), how much each row counts in each of R problems, one in sum
    weights   (R, K), on the simplex

Each environment counts the same. What is averaged in an environment has weights that were learned without it.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .candidates import named
from .metrics import Floats, Ints, row_losses

STEPS = 200  # of EM; beyond them, candidates that are alike still trade weight, and little else changes
MOST = 4  # members of an average, each of which is trained again in the end
WORTH = 1e-3  # of log loss that a further member has to bring
TRIAL_STEPS, TRIAL_ROWS = 20, 4000  # of EM and for it, by which members are picked
FEWEST = 3  # environments that are held out, so that weights without one of them come from two


def mixture_weights(
    chances: Floats, shares: Floats, members: NDArray[np.bool_] | None = None, steps: int = STEPS
) -> NDArray[np.float64]:
    """Weights with the largest sum_n shares_rn log sum_k w_rk chances_nk, by EM from equal ones.

    The likelihood is concave, and a step sets each weight to the mean responsibility of its candidate.

    members  (R, K), those that may have a weight; None: all
    """
    among = np.ones((len(shares), chances.shape[1])) if members is None else members.astype(np.float64)
    weights: NDArray[np.float64] = among / among.sum(1, keepdims=True)
    for _ in range(steps):
        weights *= (shares / (weights @ chances.T)) @ chances
    return weights


def pick_members(chances: Floats, shares: Floats) -> NDArray[np.bool_]:
    """Pick candidates to average, (R, K): the best one, then again and again the one that lowers the log loss most.

    It ends with `MOST` of them, or where the next one would not bring `WORTH`.
    """
    rows = np.random.default_rng(0).permutation(len(chances))[:TRIAL_ROWS]
    chances, shares = chances[rows], shares[:, rows] / shares[:, rows].sum(1, keepdims=True)
    R, K = len(shares), chances.shape[1]
    members, reached = np.zeros((R, K), bool), np.full(R, np.inf)
    for _ in range(MOST):
        losses = np.empty((R, K))
        for k in range(K):
            tried = members | (np.arange(K) == k)
            weights = mixture_weights(chances, shares, tried, TRIAL_STEPS)
            losses[:, k] = -(shares * np.log(weights @ chances.T)).sum(1)
        better = losses.min(1) < reached - WORTH
        members[better, losses.argmin(1)[better]] = True
        reached = np.where(better, losses.min(1), reached)
    return members


def blend_held_out(
    labels: Ints, probabilities: Mapping[str, Floats], environments: Ints
) -> tuple[NDArray[np.float64], dict[str, float]]:
    """The averaged probabilities (n, C), nan in rows that were not held out, and the weights that all rows give.

    Every average is of a few candidates, see `pick_members`.
    """
    given = np.stack([*probabilities.values()])  # (K, n, C)
    known = np.flatnonzero(np.isfinite(given).all((0, 2)))
    names, places = np.unique(environments[known], return_inverse=True)
    chances = np.exp([-row_losses(labels[known], one[known]) for one in given]).T
    within = np.eye(len(names))[places].T  # (E, n)
    within /= within.sum(1, keepdims=True)
    others = 1 - np.eye(len(names))
    among = np.concatenate([others / others.sum(1, keepdims=True), np.full((1, len(names)), 1 / len(names))])
    shares = among @ within  # without each environment, and with all
    weights = mixture_weights(chances, shares, pick_members(chances, shares))
    blended = np.full(given.shape[1:], np.nan)
    blended[known] = np.einsum("nk,knc->nc", weights[places], given[:, known])
    return blended, {name: float(weight) for name, weight in zip(probabilities, weights[-1], strict=True) if weight}


def told_members(members: Mapping[str, float]) -> str:
    """What an average is made of, the largest weight first: "0.55 Linear model, 0.45 Gradient boosting"."""
    ordered = sorted(members, key=lambda name: -members[name])
    return ", ".join(f"{members[name]:.2f} {named(name)}" for name in ordered)
