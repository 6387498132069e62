"""The 2-d example (figure 2, appendix A.2): transfer risk over the circle of linear features.

    y uniform on {-1, +1};   z_c ~ N(y mu_c, 1),   z_e ~ N(y mu_i, 1) in environment i = 1..E
    Phi(x) = a z_c + b z_e,   (a, b) = (cos t, sin t),   m_i = a mu_c + b mu_i

so that y Phi ~ N(m_i, 1), w(P_i) = 2 m_i, and with f(x) = log(1 + e^-x)

    g(m_i, m_j) = E f(2 m_i s), s ~ N(m_j, 1)                  the loss of w(P_i) on P_j
    sum-sum   R(t) = mean over i != j of g(m_i, m_j)            what the appendix analyses
    sum-sup   R(t) = mean over i of max over j != i of g(m_i, m_j)          eq. 1
    pooled    R(t) = min over w of mean over i of E f(w s), s ~ N(m_i, 1)   ERM, for comparison

Proposition 2: where the mu_i have mean 0, (+-1, 0) is the minimiser. The proof, mended in three places:

1. i != j are not independent: the mean of mu_i mu_j over pairs is -sum mu_i^2 / (E (E - 1)), not 0. That lowers the
   argument of the decreasing f, so Jensen's bound R >= E f(2 a^2 mu_c z_c) stands.
2. Its last step, a^2 = 1 being best, needs that 2 mu_c is the best slope on z_c alone, which it is.
3. The factors 2 before the expectations, and the second one inside f, are slips.

It follows for sum-sup too, which is never below sum-sum and equals it at (+-1, 0). The same Jensen step holds for
pooled, so a zero mean does not tell TRM from ERM.

Where the mean M of the mu_i is not 0: at (1, 0) all w(P_i) = 2 mu_c are optimal everywhere, so only the m_j on which
they are tested move the risk. With c = 2 mu_c E sigmoid(-2 mu_c s) > 0, s ~ N(mu_c, 1),

    sum-sum, pooled   dR/dt = -c M
    sum-sup           dR/dt = -c mean over i of min_{j != i} mu_j  towards t > 0,  max in place of min towards t < 0

So sum-sum and pooled leave (1, 0) however large the spread, towards (mu_c, M) / |(mu_c, M)|, which is the minimiser
without spread. Sum-sup has a kink there: (1, 0) stays a local minimiser as long as that mean of minima is at most 0
and that of maxima at least 0, so that a move to either side is punished by environments of the other sign.

All three risks are the library's own, on nodes of a quadrature instead of samples: environment i has the features
m_i + z_k with label 1, their mirror images with label 0, and the nodes' weights. Noise along Phi has the same law at
every angle and noise across it averages out of the gradient, so dR/dt follows from the features' gradient through m_i.
The library's predictors have a ridge and a bias: the first is small, the second 0 by symmetry.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import torch
from torch import Tensor

from ..errors import InputError
from ..experiments.tasks import ignore_steps
from ..functional import solve_predictor, transfer_risk, uniform_weights, worst_weights
from ..functional.linear_loss import one_hot, row_losses, with_bias
from ..results import Record
from ..settings import Bound, Count, Length, NonNegative, Positive, Seed, Settings
from ..solvers import Cholesky, Newton
from ..training import OnStep
from .quadrature import normal_nodes

_LONGEST = 10.0  # longest step of the descent, degrees
_BESIDE = 1e-5  # degrees from (1, 0) at which its one-sided slopes are taken
_NARROW = 2e-3  # degrees within which the slope is taken as linear
_TOGETHER = 8  # number of populations that are solved at once

Objective = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(angles t (K,), means mu_i (K, E)) -> risks (K,) and their derivatives by t (K,)."""


@dataclass(frozen=True)
class Toy2DSettings(Settings):
    """Numbers of the example, which the paper does not give.

    causal      mu_c
    deviations  deviations of the mu_i from their mean, times each of `spreads`; they sum to 0
    offsets     the means of the mu_i
    start       angle of Phi_1, in degrees from the invariant feature (1, 0)
    rate        rate of the descent on the angle, divided by the root of the step's number so that it settles at a kink
    seed        without effect: this experiment draws nothing
    """

    causal: Positive = 1.0
    deviations: Annotated[tuple[float, ...], Length(2)] = (-2.0, 0.5, 1.5)
    offsets: Annotated[tuple[float, ...], Length(1)] = (0.0, 0.25, 0.5, 1.0, 2.0)
    spreads: Annotated[tuple[NonNegative, ...], Length(1)] = (0.0, 0.5, 1.0, 2.0)
    angles: Annotated[int, Bound(least=5)] = 91
    start: float = 75.0
    steps: Count = 150
    rate: Positive = 0.3
    ridge: Positive = 1e-6
    node_step: Positive = 0.2
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if abs(sum(self.deviations)) > 1e-9:
            raise InputError(
                f"deviations must sum to 0, got {self.deviations} of sum {sum(self.deviations):g}: subtract the mean"
            )


@dataclass(frozen=True)
class Toy:
    """Risks of K populations at once, each at its own angle and with its own means, by nodes.

    Populations are environments of one problem, in which only those of the same population are paired.
    """

    causal: float = 1.0
    ridge: float = 1e-6
    node_step: float = 0.2

    @property
    def objectives(self) -> dict[str, Objective]:
        return {
            "sum-sum": self.transfer,
            "sum-sup": partial(self.transfer, sup=True),
            "pooled": self.pooled,
        }

    def features(self, angles: Tensor, means: Tensor) -> Tensor:
        """Return features (K, E, 2 N): for each environment, label 1 then label 0."""
        nodes, _ = normal_nodes(self.node_step)
        moved = torch.cos(angles).unsqueeze(-1) * self.causal + torch.sin(angles).unsqueeze(-1) * means  # m_i, (K, E)
        positive = moved.unsqueeze(-1) + nodes
        return torch.cat([positive, -positive], -1)

    def population(self) -> tuple[Tensor, Tensor]:
        """Return labels and weights (2 N,) of an environment's features."""
        nodes, weights = normal_nodes(self.node_step)
        return torch.tensor([1, 0]).repeat_interleave(len(nodes)), weights.repeat(2) / 2

    def transfer(
        self, angles: Tensor, means: Tensor, sup: bool = False, gradient_matching: float = 1.0
    ) -> tuple[Tensor, Tensor]:
        """Return sum-sum or sum-sup and its derivative; without gradient matching predictors are taken as constant."""
        K, E = means.shape
        same = torch.block_diag(*[torch.ones(E, E)] * K) > 0
        labels, weights = self.population()
        angles = angles.detach().requires_grad_()
        out = transfer_risk(
            self.features(angles, means).reshape(-1, 1),
            labels.repeat(K * E),
            torch.arange(K * E).repeat_interleave(len(labels)),
            K * E,
            2,
            self.ridge,
            weights=lambda matrix, counted: (worst_weights if sup else uniform_weights)(matrix, counted & same),
            gradient_matching=gradient_matching,
            solver=Newton(linear=Cholesky()),
            implicit=Cholesky(),
            sample_weights=weights.repeat(K * E),
        )
        (slopes,) = torch.autograd.grad(out.risk, angles)
        return (out.weights * out.matrix).sum(1).reshape(K, E).mean(1), K * slopes  # the risk is the mean over K

    def pooled(self, angles: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
        """Return the pooled risk and its derivative; the predictor is optimal, so it can be taken as constant."""
        K, E = means.shape
        labels, weights = (part.repeat(K, E) for part in self.population())
        angles = angles.detach().requires_grad_()
        features = self.features(angles, means).reshape(K, -1, 1)
        predictors = solve_predictor(features.detach(), labels, 2, self.ridge, sample_weight=weights).value
        logits = with_bias(features) @ predictors.mT
        risks = (weights / E * row_losses(logits, one_hot(labels, 2, features.dtype))).sum(-1)
        (slopes,) = torch.autograd.grad(risks.sum(), angles)
        return risks.detach(), slopes


def toy_2d_records(settings: Toy2DSettings, on_step: OnStep = ignore_steps) -> list[Record]:
    """Return records of four kinds, by their column "what".

    curve      risk at each angle, in degrees from -90 to 90; Phi and -Phi have the same risk
    path       gradient descent on the angle, from Phi_1; "direct" takes the predictors as constant
    minimiser  best angle of each risk, and the slopes on both sides of (1, 0), also in closed form
    spread     best angle at every offset and spread; `no_spread` is the angle of (mu_c, mean)
    """
    toy = Toy(settings.causal, settings.ridge, settings.node_step)
    deviations = torch.tensor(settings.deviations, dtype=torch.float64)
    means = torch.tensor(settings.offsets, dtype=torch.float64).unsqueeze(-1) + deviations  # (offsets, E)
    paths: dict[str, Objective] = {
        **toy.objectives,
        "sum-sum, direct": partial(toy.transfer, gradient_matching=0.0),
    }
    cases = [(offset, spread) for offset in settings.offsets for spread in settings.spreads]
    others = torch.stack([offset + spread * deviations for offset, spread in cases])
    done, total = 0, 2 * len(toy.objectives) + len(paths)
    found: list[Record] = []
    for name, risk in toy.objectives.items():
        curves = _curves(risk, means, settings.angles)
        for offset, curve in zip(settings.offsets, curves[1].tolist(), strict=True):
            points = zip(curves[0].tolist(), curve, strict=True)
            found += [{"what": "curve", "objective": name, "offset": offset, "angle": a, "risk": r} for a, r in points]
        for offset, row in zip(settings.offsets, _minimisers(toy, name, means, curves), strict=True):
            found.append({"what": "minimiser", "objective": name, "offset": offset, **row})
        on_step(done := done + 1, total)
    for name, risk in paths.items():
        found += [{"what": "path", "objective": name, **row} for row in _paths(settings, risk, means)]
        on_step(done := done + 1, total)
    for name, risk in toy.objectives.items():
        best = _refined(risk, others, _curves(risk, others, min(settings.angles, 19)))
        values = zip(cases, best.tolist(), _evaluate(risk, best, others)[0].tolist(), strict=True)
        for (offset, spread), angle, value in values:
            without = math.degrees(math.atan2(offset, settings.causal))
            kept = {"angle": angle, "risk": value, "no_spread": without}
            found.append({"what": "spread", "objective": name, "offset": offset, "spread": spread, **kept})
        on_step(done := done + 1, total)
    return found


def invariant_slopes(toy: Toy, objective: str, means: Tensor) -> tuple[float, float]:
    """Return dR/dt to the left and to the right of (1, 0), in closed form up to a one-dimensional expectation."""
    nodes, weights = normal_nodes(toy.node_step)
    c = 2 * toy.causal * float((weights * torch.sigmoid(-2 * toy.causal * (toy.causal + nodes))).sum())
    if objective != "sum-sup":
        return -c * float(means.mean()), -c * float(means.mean())
    others = [torch.cat([means[:i], means[i + 1 :]]) for i in range(len(means))]
    left, right = (torch.stack([pick(o) for o in others]).mean() for pick in (torch.amax, torch.amin))
    return -c * float(left), -c * float(right)


def _evaluate(risk: Objective, degrees: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """Return risks and slopes (K,) at degrees (K,) with means (K, E), computed in parts."""
    pairs = zip(torch.deg2rad(degrees).split(_TOGETHER), means.split(_TOGETHER), strict=True)
    risks, slopes = zip(*[risk(angles, own) for angles, own in pairs], strict=True)
    return torch.cat(risks), torch.cat(slopes)


def _curves(risk: Objective, means: Tensor, angles: int) -> tuple[Tensor, Tensor]:
    """Return the grid in degrees (A,), and the risks of each set of means (K, A)."""
    grid = torch.linspace(-90, 90, angles, dtype=torch.float64)
    values, _ = _evaluate(risk, grid.repeat(len(means)), means.repeat_interleave(angles, 0))
    return grid, values.reshape(len(means), angles)


def _refined(risk: Objective, means: Tensor, curves: tuple[Tensor, Tensor]) -> Tensor:
    """Return the lowest point of each curve, (K,) in degrees.

    The interval in which the slope changes its sign is halved until the slope is nearly linear in it. At a kink it is
    not, so the point of the grid is returned if it is lower.
    """
    grid, values = curves
    width = grid[1] - grid[0]
    best = grid[values.argmin(1)]
    low, high = best - width, best + width
    while float((high - low).max()) > _NARROW:
        middle = (low + high) / 2
        rises = _evaluate(risk, middle, means)[1] > 0
        low, high = torch.where(rises, low, middle), torch.where(rises, middle, high)
    (_, falling), (_, rising) = _evaluate(risk, low, means), _evaluate(risk, high, means)
    share = (falling / (falling - rising)).clamp(0, 1).nan_to_num(0.5)
    found = low + share * (high - low)
    return torch.where(_evaluate(risk, found, means)[0] < values.amin(1), found, best)


def _minimisers(toy: Toy, name: str, means: Tensor, curves: tuple[Tensor, Tensor]) -> Iterator[dict[str, float]]:
    risk = toy.objectives[name]
    best = _refined(risk, means, curves)
    at_best, _ = _evaluate(risk, best, means)
    at_invariant, _ = _evaluate(risk, torch.zeros_like(best), means)
    (_, left), (_, right) = (_evaluate(risk, torch.full_like(best, beside), means) for beside in (-_BESIDE, _BESIDE))
    for k, angle in enumerate(best.tolist()):
        closed = invariant_slopes(toy, name, means[k])
        yield {
            "angle": angle,
            "a": math.cos(math.radians(angle)),
            "b": math.sin(math.radians(angle)),
            "risk": float(at_best[k]),
            "invariant_risk": float(at_invariant[k]),
            "left_slope": float(left[k]),
            "left_slope_closed_form": closed[0],
            "right_slope": float(right[k]),
            "right_slope_closed_form": closed[1],
        }


def _paths(settings: Toy2DSettings, risk: Objective, means: Tensor) -> Iterator[dict[str, float]]:
    degrees = torch.full((len(means),), settings.start, dtype=torch.float64)
    for step in range(settings.steps + 1):
        values, slopes = _evaluate(risk, degrees, means)
        for offset, angle, value in zip(settings.offsets, degrees.tolist(), values.tolist(), strict=True):
            a, b = math.cos(math.radians(angle)), math.sin(math.radians(angle))
            yield {"offset": offset, "step": step, "angle": angle, "a": a, "b": b, "risk": value}
        moves = torch.rad2deg(settings.rate * slopes / math.sqrt(step + 1))
        degrees = degrees - moves.clamp(-_LONGEST, _LONGEST)
