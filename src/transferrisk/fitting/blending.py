"""Weighted average of candidates, p(x) = sum_k w_k p_k(x), with weights learned in held-out environments.

Conventions, for n rows in E environments, K candidates and C classes:
    chances   (n, K), probability of the true class by each candidate
    shares    (R, n), weight of each row in each of R problems, one in sum
    weights   (R, K), on the simplex

Members are the candidates whose log loss is close to the lowest. They would be worth the same in one more environment
(`mixture_weights`), so that weights learned from few environments stay nearly equal. Each environment counts the same.
The weights for an environment are learned from the others or, if environments are ordered in time, from the earlier
ones.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from .candidates import named
from .decisions import others_of
from .metrics import Floats, Ints, row_losses

STEPS = 200  # of EM: after these, only similar candidates still trade weight
MOST = 6  # members of an average, each of which is trained again on all rows
CLOSE, CLOSE_BY = 0.05, 0.01  # of the lowest loss, or log loss, by which that of a member may be higher
FEWEST = 3  # held-out environments, so that weights without one of them come from two


def mixture_weights(
    chances: Floats, shares: Floats, members: NDArray[np.bool_] | None = None, prior: Floats | float = 0.0
) -> NDArray[np.float64]:
    """Maximise sum_n shares_rn log sum_k w_rk chances_nk + prior_r sum_k e_rk log w_rk over weights w, by EM.

    The objective is concave. A step sets each weight to the mean responsibility of its candidate, where the prior is a
    part of the rows, for which all members are equally responsible.

    members  (R, K), candidates that may have a weight; None: all. Equal weights of them are e, where EM starts
    prior    (R,), weight of the prior; that of the rows is 1
    """
    among = np.ones((len(shares), chances.shape[1])) if members is None else members.astype(np.float64)
    equal: NDArray[np.float64] = among / among.sum(1, keepdims=True)
    weights, part = equal, np.asarray(prior)[..., None]
    for _ in range(STEPS):
        weights = (weights * ((shares / (weights @ chances.T)) @ chances) + part * equal) / (1 + part)
    return weights


def pick_members(chances: Floats, shares: Floats) -> NDArray[np.bool_]:
    """Pick candidates to average, (R, K): those with a log loss close to the lowest, but no more than `MOST`."""
    losses = shares @ -np.log(chances)
    rank, lowest = losses.argsort(1).argsort(1), losses.min(1, keepdims=True)
    return np.asarray((rank < MOST) & (losses <= lowest + np.maximum(CLOSE * lowest, CLOSE_BY)))


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
    prior = 1 / among[learned].sum(1)  # as much as one environment
    weights[learned] = mixture_weights(chances, shares, pick_members(chances, shares), prior)
    blended = np.full(given.shape[1:], np.nan)
    blended[tested] = np.einsum("nk,knc->nc", weights[places], given[:, tested])
    return blended, {name: float(weight) for name, weight in zip(probabilities, weights[-1], strict=True) if weight}


def told_members(members: Mapping[str, float]) -> str:
    """Name the members of an average, the largest weight first: "0.55 Linear model, 0.45 Gradient boosting"."""
    ordered = sorted(members, key=members.__getitem__, reverse=True)
    return ", ".join(map("{:.2f} {}".format, map(members.__getitem__, ordered), map(named, ordered)))
