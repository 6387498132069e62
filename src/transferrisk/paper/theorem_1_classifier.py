"""The classifier of theorem 1 in a population: losses, gradients, accuracies and bounds. Letters as in `theorem_1`.

B = -B, so w_k is exactly the optimal predictor of environment k, for every k. y w_k o Phi = A + 1[z_e not in B]
2 mu_k . z_e, where A ~ N(2 n, 4 n) is what z_c says. All means lie in a plane. Let p (2,) be z_e's part in it and D(p)
the distance to the nearest centre; what is orthogonal has a squared length of chi^2_{d-2}, so that (given y = 1, by
symmetry)

    o(p)     = P(z_e not in B | p) = P(chi^2_{d-2} > 2 d - D(p)^2)
    M[k, l]  = E_{p ~ N(mu_l, I)} (1 - o(p)) L(0) + o(p) L(2 mu_k . p),      L(b) = E log(1 + e^-(A + b))
    grad_l   = -E_{p ~ N(mu_l, I)} o(p) E_A [sigmoid(-X) (t, p)],   X = A + 2 mu_i . p,   t = A sigma_c^2 / (2 |mu_c|)

are integrals over a plane and a line. grad_l is that of environment l's risk by w, at w_i: along mu_c and in the plane;
all other components are 0, and where z_e lies in B it vanishes because w_i is best there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from .quadrature import expected_loss, expected_slope, normal_cdf, normal_nodes

_REACH = 14.0  # reach of the nodes around a mean: given that z_e is in the tail, p has variance 2


@dataclass(frozen=True)
class Construction:
    """The theorem's classifier in dimension d; i is environment 0, j is environment 1."""

    dimension: int
    causal: float  # |mu_c|
    sigma_c: float
    means: Tensor  # (E, 2) in the plane

    @property
    def information(self) -> float:
        """n = |mu_c|^2 / sigma_c^2."""
        return (self.causal / self.sigma_c) ** 2

    @property
    def centres(self) -> Tensor:
        """Centres of the balls, (2 (E - 1), 2)."""
        return torch.cat([self.means[1:], -self.means[1:]])

    @property
    def separation(self) -> float:
        """Smallest |mu_i +- mu_k|, in units of sqrt(d); the proof needs at least 2 sqrt(2)."""
        return float((self.means[0] - self.centres).norm(dim=1).min()) / math.sqrt(self.dimension)

    def _room(self, plane: Tensor) -> Tensor:
        """Return 2 d - D(p)^2, at least 0."""
        squares = (plane.unsqueeze(-2) - self.centres).square().sum(-1)
        return (2 * self.dimension - squares.amin(-1)).clamp(min=0)

    def beyond(self, plane: Tensor) -> Tensor:
        """Return o(p) for p (..., 2)."""
        half = torch.full(plane.shape[:-1], (self.dimension - 2) / 2, dtype=plane.dtype)
        found: Tensor = torch.special.gammaincc(half, self._room(plane) / 2)
        return found

    def inside(self, plane: Tensor) -> Tensor:
        """Return 1 - o(p) without cancellation."""
        half = torch.full(plane.shape[:-1], (self.dimension - 2) / 2, dtype=plane.dtype)
        found: Tensor = torch.special.gammainc(half, self._room(plane) / 2)
        return found

    @cached_property
    def _line(self) -> tuple[Tensor, Tensor]:
        """Nodes and weights (N,).

        The step must resolve L(2 mu_k . p), which varies over 1/|mu_k| times the scale of A or that of the logistic
        loss, whichever is larger, and o, whose edge is sharp in low d.
        """
        scale = max(0.6 * math.sqrt(self.information), 0.3) / float(self.means.norm(dim=1).max())
        return normal_nodes(min(0.2, scale, 0.025 * self.dimension), _REACH)

    def _plane(self, mean: Tensor, axis: Tensor) -> tuple[Tensor, Tensor]:
        """Return points p (N, N, 2) around a mean and their weights (N, N); axis . p is constant along a row."""
        nodes, weights = self._line
        along = axis / axis.norm()
        across = torch.stack([-along[1], along[0]])
        points = mean + nodes[:, None, None] * along + nodes[:, None] * across
        return points, weights.unsqueeze(1) * weights

    def _loss(self, score: Tensor) -> Tensor:
        """Return L(b)."""
        n = self.information
        return expected_loss(2 * n + score, torch.full_like(score, 2 * math.sqrt(n)))

    @cached_property
    def invariant_loss(self) -> float:
        """L(0): risk, in any environment, of the classifier that uses only z_c."""
        return float(self._loss(torch.zeros((), dtype=torch.float64)))

    @cached_property
    def matrix(self) -> Tensor:
        """M[k, l], (E, E): loss of w_k o Phi in environment l."""
        found = [[self._transfer(own, mean) for mean in self.means] for own in self.means]
        return torch.tensor(found, dtype=torch.float64)

    def _transfer(self, own: Tensor, mean: Tensor) -> float:
        plane, weights = self._plane(mean, own)
        tail = (weights * self.beyond(plane)).sum(1)  # (N,)
        inside = (weights * self.inside(plane)).sum()
        return float((tail * self._loss(2 * plane[:, 0] @ own)).sum() + inside * self.invariant_loss)

    @cached_property
    def gradients(self) -> Tensor:
        """Gradient of each environment's risk by w, at w_i, (E, 3): along mu_c, and in the plane."""
        found, n, own = [], self.information, self.means[0]
        for mean in self.means:
            plane, weights = self._plane(mean, own)
            score = 2 * plane[:, 0] @ own  # (N,)
            slope, moment = expected_slope(2 * n + score, torch.full_like(score, 2 * math.sqrt(n)))
            along = (moment - score * slope) * self.sigma_c**2 / (2 * self.causal)  # E sigmoid(-X) t
            mass = weights * self.beyond(plane)
            by_plane = (slope[:, None, None] * mass.unsqueeze(-1) * plane).sum((0, 1))
            found.append(-torch.cat([(mass.sum(1) * along).sum()[None], by_plane]))
        return torch.stack(found)

    @property
    def penalties(self) -> Tensor:
        """|grad_l|^2, (E,); exactly 0 in environment i, where w_i is optimal."""
        return torch.cat([torch.zeros(1, dtype=torch.float64), self.gradients[1:].square().sum(1)])

    def far(self, delta: float) -> dict[str, Tensor]:
        """Return the means (2,) of two test environments: where mu_i misleads most, and where B is nearest."""
        first, second = self.means[:2]
        away = -first / first.norm() * (math.sqrt(2) + delta) * math.sqrt(self.dimension)
        return {"beyond -mu_i": -first + away, "beside mu_j": second + away}

    def inside_fraction(self, mean: Tensor) -> float:
        """Return P(z_e in B) for this mean: the share on which the classifier differs from w_i on (z_c, z_e)."""
        nodes, weights = normal_nodes(min(0.25, 0.0125 * self.dimension), 12 + 2 * math.sqrt(self.dimension))
        plane = mean + torch.cartesian_prod(nodes, nodes)
        return float(((weights.unsqueeze(1) * weights).flatten() * self.inside(plane)).sum())

    def accuracy(self, mean: Tensor) -> tuple[float, float, float]:
        """Return accuracies in an environment of this mean: classifier, w_i on (z_c, z_e), and z_c alone."""
        plane, weights = self._plane(mean, self.means[0])
        root = math.sqrt(self.information)
        free = self.beyond(plane)
        alone = float(normal_cdf(torch.tensor(root, dtype=torch.float64)))
        both = normal_cdf(root + plane @ self.means[0] / root)
        own = float((weights * (free * both + (1 - free) * alone)).sum())
        return own, float((weights * both).sum()), alone

    def features(self, inputs: Tensor) -> Tensor:
        """Return Phi of latents (n, d_c + d)."""
        kept = inputs.clone()
        z_e = kept[:, -self.dimension :]
        rest = z_e[:, 2:].square().sum(1)
        squares = (z_e[:, None, :2] - self.centres).square().sum(-1) + rest.unsqueeze(-1)
        z_e[squares.amin(1) <= 2 * self.dimension] = 0
        return kept


# Bounds on the classifier: ours, and those of the paper as printed.
# Ours use only P(chi^2_d >= 2 d) <= e^{-d/8} and E[chi^2_d | chi^2_d >= 2 d] <= 2 d + 4 (the density's logarithm is
# concave and falls by more than 1/4 there). A ball at distance (sqrt 2 + delta) sqrt d lies beyond a plane at distance
# delta sqrt d, which bounds how much of a far environment it holds.


def tail_bound(built: Construction, k: int, l: int) -> float:
    """Return an upper bound of E_{P_l} [loss of w_k on (z_c, z_e); |z_e - y mu_l| >= r]."""
    n, d, own = built.information, built.dimension, built.means[k]
    size = math.log(2) + 2 * n + 2 * math.sqrt(2 * n / math.pi) + 2 * abs(float(own @ built.means[l]))
    return math.exp(-d / 8) * (size + 2 * float(own.norm()) * math.sqrt(2 + 4 / d))


def risk_bound(built: Construction) -> float:
    """Return an upper bound of the sum over environments of the classifier's risk."""
    others = range(1, len(built.means))
    return len(built.means) * built.invariant_loss + sum(tail_bound(built, 0, k) for k in others)


def printed_risk_bound(built: Construction) -> float:
    """Return the bound of eq. 9 as printed."""
    d, E = built.dimension, len(built.means)
    size = 1 + math.log(2) + 4 * E * d / math.sqrt(2 * math.pi) * math.exp(-d / (2 * built.sigma_c**4))
    size += d / built.sigma_c**2 + 64 * d + 8 * E * math.sqrt(d) * (math.sqrt(d) + math.sqrt(d + 2))
    return math.exp(-d / 8) * size


def penalty_bound(built: Construction) -> float:
    """Return an upper bound of the sum of the penalties."""
    d = built.dimension
    lengths = built.means[1:].norm(dim=1) + math.sqrt(2 * d + 4)
    each = built.causal**2 + built.sigma_c**2 + lengths.square()
    return float(math.exp(-d / 4) * each.sum())


def printed_penalty_bound(built: Construction) -> float:
    """Return the paper's bound, with 1 for the constant that O(.) hides."""
    mean_square = float(built.means.square().sum(1).mean())
    return math.exp(-built.dimension / 4) * (2 * built.dimension * math.exp(4) + mean_square)


def transfer_bound(built: Construction) -> float:
    """Return a lower bound of the loss of w_j on environment i, if the balls keep away from environment i."""
    return math.log(2) - tail_bound(built, 1, 0)


def differs_bound(built: Construction, delta: float) -> float:
    """Return an upper bound of the share of a far environment on which the classifier is not w_i on (z_c, z_e)."""
    return (len(built.means) - 1) * math.erfc(delta * math.sqrt(built.dimension) / math.sqrt(2))


def printed_differs_bound(built: Construction, delta: float) -> float:
    """Return the paper's bound of that share, which lacks d."""
    return 2 * len(built.means) * math.exp(-(delta**2)) / (math.sqrt(math.pi) * delta)
