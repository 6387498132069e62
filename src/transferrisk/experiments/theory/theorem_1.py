"""Theorem 1 (appendix A.1): a classifier that IRMv1 likes and the transfer risk does not, on Rosenfeld's Gaussians.

    y uniform on {-1, +1};   z_c ~ N(y mu_c, sigma_c^2 I),   z_e ~ N(y mu_k, I) in R^d in environment k;   r = sqrt(2 d)
    B      = union of the balls of radius r around mu_k and -mu_k, k != i
    Phi    = (z_c, 0) where z_e lies in B,  (z_c, z_e) elsewhere
    w_k    = (2 mu_c / sigma_c^2, 2 mu_k),  the classifier is w_i o Phi

Everything is a population's: B = -B, so w_k is exactly the optimal predictor of environment k, for every k. With
n = |mu_c|^2 / sigma_c^2, y w_k o Phi = A + 1[z_e not in B] 2 mu_k . z_e, where A ~ N(2 n, 4 n) is what z_c says.
All means lie in a plane. Let p (2,) be z_e's part in it and D(p) the distance to the nearest centre; what is
orthogonal has a squared length of chi^2_{d-2}, so that (given y = 1, by symmetry)

    o(p)     = P(z_e not in B | p) = P(chi^2_{d-2} > 2 d - D(p)^2)
    M[k, l]  = E_{p ~ N(mu_l, I)} (1 - o(p)) L(0) + o(p) L(2 mu_k . p),      L(b) = E log(1 + e^-(A + b))
    grad_l   = -E_{p ~ N(mu_l, I)} o(p) E_A [sigmoid(-X) (t, p)],   X = A + 2 mu_i . p,   t = A sigma_c^2 / (2 |mu_c|)

are integrals over a plane and a line. grad_l is that of environment l's risk by w, at w_i: along mu_c and in the plane;
all other components are 0, and where z_e lies in B it vanishes because w_i is best there. For d of some tens a sample
of any feasible size shows none of this: no point of environment k != i lies outside B, so its predictor ignores z_e.
The rows "sample" show it, with the library's own transfer matrix.

Where the paper's statement needs care:

1. Its assumption |mu_i - mu_k| >= 2 r does not keep B away from environment i, since B holds the balls around -mu_k
   too; |mu_i + mu_k| >= 2 r is needed as well. The construction "opposite", mu_j = -mu_i, meets every assumption as
   printed: there B covers environment i, Phi is the invariant feature and the transfer risk goes to 0.
2. "Close to ln 2" is a lower bound: the loss of w_j on environment i is E log(1 + e^-X) with X ~ N(2 n + 2 mu_i . mu_j,
   4 n + 4 |mu_j|^2), whose mean is at most 0, which grows like sqrt(d) at least.
3. The bounds as printed lose factors E and 2 on the way. Those of `Construction` use only P(chi^2_d >= 2 d) <= e^{-d/8}
   and E[chi^2_d | chi^2_d >= 2 d] <= 2 d + 4 (the density's logarithm is concave and falls by more than 1/4 there).
4. The fraction of a far test environment on which the classifier is w_i's is printed without d. A ball at distance
   (sqrt 2 + delta) sqrt d lies beyond a plane at distance delta sqrt d, so 1 - 2 (E - 1) P(N(0, 1) > delta sqrt d)
   bounds it, which for d >= 2 is above the printed 1 - 2 E exp(-delta^2) / (sqrt(pi) delta), itself below 0 for
   delta up to about 1.
5. "ERM" there is the optimal classifier of environment i alone, w_i on (z_c, z_e); not that of the pooled data.
6. Eq. 1 sums over Q; the library takes the mean. Both are given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from ...data.sets.gaussian import Gaussian
from ...errors import InputError
from ...functional import transfer_matrix
from .fields import OnStep, above_zero, at_least, check_settings, finite, from_zero, seed, several, silent
from .quadrature import expected_loss, expected_slope, normal_nodes

_REACH = 14.0  # of the nodes around a mean: given that z_e is in the tail, p has variance 2


@dataclass(frozen=True)
class Settings:
    """What the theorem leaves open.

    dimensions   d = d_e
    causal       |mu_c| / sqrt(d), from 1 to 8
    means        mu_k / sqrt(d) in their plane, |.| <= 8: i first, j second, then the others
    deltas       how far test environments are: (sqrt 2 + delta) sqrt(d) beyond -mu_i, or from mu_j in that direction
    penalty      lambda of IRMv1
    samples      of each environment, for the transfer risk that a sample shows, at `ridge` and d up to `sampled`
    """

    dimensions: tuple[int, ...] = (4, 8, 16, 32, 64, 128, 256, 512)
    causal: float = 1.0
    sigma_c: float = 1.0
    means: tuple[tuple[float, float], ...] = ((2.5, 0.0), (-0.4, 2.5), (1.5, 3.0))
    deltas: tuple[float, ...] = (0.5, 1.0, 2.0)
    penalty: float = 1.0
    samples: int = 2000
    sampled: int = 128
    ridge: float = 1e-3
    seed: int = 0

    def __post_init__(self) -> None:
        check_settings(
            self,
            dimensions=several(at_least(3)),
            causal=above_zero,
            sigma_c=above_zero,
            means=several(several(finite, 2), 2),
            deltas=several(above_zero),
            penalty=from_zero,
            samples=at_least(2),
            sampled=at_least(1),
            ridge=above_zero,
            seed=seed,
        )
        if any(len(mean) != 2 for mean in self.means):
            raise InputError(f"means={self.means} are not in a plane: give two numbers for each environment")
        if not 1 <= self.causal <= 8:
            raise InputError(f"causal={self.causal:g} is outside the theorem's assumption: give 1 to 8")
        missing = broken_assumptions(self.means, self.causal, self.sigma_c)
        if missing:
            raise InputError(f"means={self.means} break the theorem's assumption {missing[0]}: choose others")

    @property
    def constructions(self) -> dict[str, tuple[tuple[float, float], ...]]:
        """The means that were asked for, and mu_j = -mu_i."""
        x, y = self.means[0]
        return {"separated": self.means, "opposite": ((x, y), (-x, -y))}


def broken_assumptions(means: tuple[tuple[float, float], ...], causal: float, sigma_c: float) -> list[str]:
    """Of the theorem as it is printed, in units of sqrt(d); the bounds of `causal` are checked elsewhere."""
    first, *others = torch.tensor(means, dtype=torch.float64)
    broken = [f"|mu_{k + 1}| <= 8 sqrt(d)" for k, mean in enumerate([first, *others]) if mean.norm() > 8]
    for k, mean in enumerate(others, start=2):
        if (first - mean).norm() < 2 * math.sqrt(2):
            broken.append(f"|mu_1 - mu_{k}| >= 2 sqrt(2 d)")
    if first @ others[0] > -((causal / sigma_c) ** 2) + 1e-12:
        broken.append("mu_1 . mu_2 <= -|mu_c|^2 / sigma_c^2")
    return broken


@dataclass(frozen=True)
class Construction:
    """The theorem's classifier in dimension d: i is environment 0, j environment 1."""

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
        """Of the balls, (2 (E - 1), 2)."""
        return torch.cat([self.means[1:], -self.means[1:]])

    @property
    def separation(self) -> float:
        """The smallest |mu_i +- mu_k|, in units of sqrt(d); the proof needs 2 sqrt(2)."""
        return float((self.means[0] - self.centres).norm(dim=1).min()) / math.sqrt(self.dimension)

    def _room(self, plane: Tensor) -> Tensor:
        """2 d - D(p)^2, or 0."""
        squares = (plane.unsqueeze(-2) - self.centres).square().sum(-1)
        return (2 * self.dimension - squares.amin(-1)).clamp(min=0)

    def outside(self, plane: Tensor) -> Tensor:
        """o(p) for p (..., 2)."""
        half = torch.full(plane.shape[:-1], (self.dimension - 2) / 2, dtype=plane.dtype)
        found: Tensor = torch.special.gammaincc(half, self._room(plane) / 2)
        return found

    def inside(self, plane: Tensor) -> Tensor:
        """1 - o(p), with its digits."""
        half = torch.full(plane.shape[:-1], (self.dimension - 2) / 2, dtype=plane.dtype)
        found: Tensor = torch.special.gammainc(half, self._room(plane) / 2)
        return found

    @cached_property
    def _line(self) -> tuple[Tensor, Tensor]:
        """Nodes and weights (N,).

        Their step must resolve L, which varies over 1/|mu_k| times the scale of A, and o, whose edge is sharp in low d.
        """
        scale = math.sqrt(self.information) / float(self.means.norm(dim=1).max())
        return normal_nodes(min(0.2, 0.6 * scale, 0.025 * self.dimension), _REACH)

    def _plane(self, mean: Tensor, axis: Tensor) -> tuple[Tensor, Tensor]:
        """Points p (N, N, 2) around a mean and their weights (N, N); axis . p is the same all along a row."""
        nodes, weights = self._line
        along = axis / axis.norm()
        across = torch.stack([-along[1], along[0]])
        points = mean + nodes[:, None, None] * along + nodes[:, None] * across
        return points, weights.unsqueeze(1) * weights

    def _loss(self, score: Tensor) -> Tensor:
        """L(b)."""
        n = self.information
        return expected_loss(2 * n + score, torch.full_like(score, 2 * math.sqrt(n)))

    @cached_property
    def invariant_loss(self) -> float:
        """L(0): the risk, in any environment, of the classifier that uses z_c alone."""
        return float(self._loss(torch.zeros((), dtype=torch.float64)))

    @cached_property
    def matrix(self) -> Tensor:
        """M[k, l], (E, E): the loss of w_k o Phi in environment l."""
        found = [[self._transfer(own, mean) for mean in self.means] for own in self.means]
        return torch.tensor(found, dtype=torch.float64)

    def _transfer(self, own: Tensor, mean: Tensor) -> float:
        plane, weights = self._plane(mean, own)
        tail = (weights * self.outside(plane)).sum(1)  # (N,)
        inside = (weights * self.inside(plane)).sum()
        return float((tail * self._loss(2 * plane[:, 0] @ own)).sum() + inside * self.invariant_loss)

    @cached_property
    def gradients(self) -> Tensor:
        """Of each environment's risk by w, at w_i, (E, 3): along mu_c, and in the plane."""
        found, n, own = [], self.information, self.means[0]
        for mean in self.means:
            plane, weights = self._plane(mean, own)
            score = 2 * plane[:, 0] @ own  # (N,)
            slope, moment = expected_slope(2 * n + score, torch.full_like(score, 2 * math.sqrt(n)))
            along = (moment - score * slope) * self.sigma_c**2 / (2 * self.causal)  # E sigmoid(-X) t
            mass = weights * self.outside(plane)
            by_plane = (slope[:, None, None] * mass.unsqueeze(-1) * plane).sum((0, 1))
            found.append(-torch.cat([(mass.sum(1) * along).sum()[None], by_plane]))
        return torch.stack(found)

    @property
    def penalties(self) -> Tensor:
        """|grad_l|^2, (E,). w_i is optimal in environment i, where what is left is rounding."""
        return torch.cat([torch.zeros(1, dtype=torch.float64), self.gradients[1:].square().sum(1)])

    def tail_bound(self, k: int, l: int) -> float:
        """At least E_{P_l} [loss of w_k on (z_c, z_e); |z_e - y mu_l| >= r]."""
        n, d, own = self.information, self.dimension, self.means[k]
        size = math.log(2) + 2 * n + 2 * math.sqrt(2 * n / math.pi) + 2 * abs(float(own @ self.means[l]))
        return math.exp(-d / 8) * (size + 2 * float(own.norm()) * math.sqrt(2 + 4 / d))

    @property
    def risk_bound(self) -> float:
        """At least the sum over environments of the classifier's risk."""
        others = range(1, len(self.means))
        return len(self.means) * self.invariant_loss + sum(self.tail_bound(0, k) for k in others)

    @property
    def penalty_bound(self) -> float:
        """At least the sum of the penalties."""
        d = self.dimension
        lengths = self.means[1:].norm(dim=1) + math.sqrt(2 * d + 4)
        each = self.causal**2 + self.sigma_c**2 + lengths.square()
        return float(math.exp(-d / 4) * each.sum())

    @property
    def transfer_bound(self) -> float:
        """At most the loss of w_j on environment i, where the balls keep away from that."""
        return math.log(2) - self.tail_bound(1, 0)

    @property
    def printed_risk_bound(self) -> float:
        """Eq. 9, as printed."""
        d, E = self.dimension, len(self.means)
        size = 1 + math.log(2) + 4 * E * d / math.sqrt(2 * math.pi) * math.exp(-d / (2 * self.sigma_c**4))
        size += d / self.sigma_c**2 + 64 * d + 8 * E * math.sqrt(d) * (math.sqrt(d) + math.sqrt(d + 2))
        return math.exp(-d / 8) * size

    @property
    def printed_penalty_bound(self) -> float:
        """As printed, where O(.) hides a constant: here 1."""
        mean_square = float(self.means.square().sum(1).mean())
        return math.exp(-self.dimension / 4) * (2 * self.dimension * math.exp(4) + mean_square)

    def far(self, delta: float) -> dict[str, Tensor]:
        """The means of two test environments, (2,): where mu_i misleads most, and where B is nearest."""
        first, second = self.means[:2]
        away = -first / first.norm() * (math.sqrt(2) + delta) * math.sqrt(self.dimension)
        return {"beyond -mu_i": -first + away, "beside mu_j": second + away}

    def inside_fraction(self, mean: Tensor) -> float:
        """P(z_e in B) where z_e has this mean: the part on which the classifier is not w_i on (z_c, z_e)."""
        nodes, weights = normal_nodes(min(0.25, 0.0125 * self.dimension), 12 + 2 * math.sqrt(self.dimension))
        plane = mean + torch.cartesian_prod(nodes, nodes)
        return float(((weights.unsqueeze(1) * weights).flatten() * self.inside(plane)).sum())

    def accuracy(self, mean: Tensor) -> tuple[float, float, float]:
        """In an environment of this mean: of the classifier, of w_i on (z_c, z_e), and of z_c alone."""
        plane, weights = self._plane(mean, self.means[0])
        root = math.sqrt(self.information)
        outside = self.outside(plane)
        alone = float(torch.special.ndtr(torch.tensor(root, dtype=torch.float64)))
        both = torch.special.ndtr(root + plane @ self.means[0] / root)
        own = float((weights * (outside * both + (1 - outside) * alone)).sum())
        return own, float((weights * both).sum()), alone

    def features(self, inputs: Tensor) -> Tensor:
        """Phi of latents (n, d_c + d)."""
        kept = inputs.clone()
        z_e = kept[:, -self.dimension :]
        rest = z_e[:, 2:].square().sum(1)
        squares = (z_e[:, None, :2] - self.centres).square().sum(-1) + rest.unsqueeze(-1)
        z_e[squares.amin(1) <= 2 * self.dimension] = 0
        return kept


def construct(settings: Settings, name: str, dimension: int) -> Construction:
    root = math.sqrt(dimension)
    means = root * torch.tensor(settings.constructions[name], dtype=torch.float64)
    return Construction(dimension, settings.causal * root, settings.sigma_c, means)


def rows(settings: Settings, on_step: OnStep = silent) -> list[dict[str, Any]]:
    """what = "classifier"  its IRMv1 loss, penalty and transfer risk, beside their bounds
    "far"         test environments at each delta, for the separated construction; "differs" is the part on
                  which the classifier is not w_i on (z_c, z_e)
    "sample"      what a sample of the training environments shows of the transfer risk, for that one too
    """
    found: list[dict[str, Any]] = []
    jobs = [(name, d) for name in settings.constructions for d in settings.dimensions]
    for done, (name, d) in enumerate(jobs, start=1):
        built = construct(settings, name, d)
        place = {"construction": name, "dimension": d}
        found.append({"what": "classifier", **place, **_classifier(built, settings.penalty)})
        if name == "separated":
            far = [(delta, *pair) for delta in settings.deltas for pair in built.far(delta).items()]
            found += [
                {"what": "far", **place, "delta": delta, "place": p, **_far(built, delta, m)} for delta, p, m in far
            ]
            if d <= settings.sampled:
                found.append({"what": "sample", **place, **_sample(built, settings)})
        on_step(done, len(jobs))
    return found


def _classifier(built: Construction, penalty: float) -> dict[str, Any]:
    E = len(built.means)
    risk, penalties = float(built.matrix[0].sum()), float(built.penalties.sum())
    worst = torch.where(torch.eye(E, dtype=torch.bool), -torch.inf, built.matrix).amax(1)
    invariant = E * built.invariant_loss
    return {
        "separation": built.separation,
        "separated_both_signs": built.separation >= 2 * math.sqrt(2),
        "risk": risk,
        "risk_bound": built.risk_bound,
        "printed_risk_bound": built.printed_risk_bound,
        "penalty": penalties,
        "penalty_bound": built.penalty_bound,
        "printed_penalty_bound": built.printed_penalty_bound,
        "irm_loss": risk + penalty * penalties,
        "invariant_irm_loss": invariant,  # its penalty is 0
        "excess": risk - invariant + penalty * penalties,
        "transfer_risk_sum": float(worst.sum()),
        "transfer_risk_mean": float(worst.mean()),
        "loss_of_j_on_i": float(built.matrix[1, 0]),
        "transfer_bound": built.transfer_bound,
        "invariant_transfer_risk_sum": invariant,
    }


def _far(built: Construction, delta: float, mean: Tensor) -> dict[str, Any]:
    E, root = len(built.means), math.sqrt(built.dimension)
    own, erm, invariant = built.accuracy(mean)
    nearest = min(float((mean - sign * other).norm()) for other in built.means for sign in (1, -1))
    return {
        "nearest": nearest / root,
        "assumption_holds": nearest / root >= math.sqrt(2) + delta - 1e-9,
        "differs": built.inside_fraction(mean),
        "differs_bound": (E - 1) * math.erfc(delta * root / math.sqrt(2)),
        "printed_differs_bound": 2 * E * math.exp(-(delta**2)) / (math.sqrt(math.pi) * delta),
        "accuracy": own,
        "erm_accuracy": erm,
        "invariant_accuracy": invariant,
    }


def _sample(built: Construction, settings: Settings) -> dict[str, Any]:
    d, E = built.dimension, len(built.means)
    means = torch.nn.functional.pad(built.means, (0, d - 2))
    causal = torch.tensor([built.causal], dtype=torch.float64)
    data = Gaussian(causal, means, causal_scale=built.sigma_c).load(settings.samples, settings.seed)
    features = built.features(data.inputs[:])
    matrix = transfer_matrix(features, data.labels, data.environments, 2, settings.ridge)
    worst = torch.where(torch.eye(E, dtype=torch.bool), -torch.inf, matrix).amax(1)
    others = data.environments != 0
    return {
        "samples": settings.samples,
        "ridge": settings.ridge,
        "outside": int((features[others, -d:] != 0).any(1).sum()),
        "outside_share": float((features[others, -d:] != 0).any(1).double().mean()),
        "transfer_risk_sum": float(worst.sum()),
        "transfer_risk_mean": float(worst.mean()),
        "loss_of_j_on_i": float(matrix[1, 0]),
    }
