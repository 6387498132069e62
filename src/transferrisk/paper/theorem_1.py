"""Theorem 1 (appendix A.1): a classifier with low IRMv1 loss and high transfer risk, on Rosenfeld's Gaussians.

    y uniform on {-1, +1};   z_c ~ N(y mu_c, sigma_c^2 I),   z_e ~ N(y mu_k, I) in R^d in environment k;   r = sqrt(2 d)
    B      = union of the balls of radius r around mu_k and -mu_k, k != i
    Phi    = (z_c, 0) where z_e lies in B,  (z_c, z_e) elsewhere
    w_k    = (2 mu_c / sigma_c^2, 2 mu_k),  the classifier is w_i o Phi
    n      = |mu_c|^2 / sigma_c^2

All values are those of the population, with their bounds (`theorem_1_classifier`). From d of some tens on, a sample of
any feasible size shows nothing of this: no point of environment k != i lies outside B, so its predictor ignores z_e.
The records "sample" show that, with the library's own transfer matrix.

Where the paper's statement needs care:

1. Its assumption |mu_i - mu_k| >= 2 r does not keep B away from environment i, since B holds the balls around -mu_k
   too; |mu_i + mu_k| >= 2 r is needed as well. The construction "opposite", mu_j = -mu_i, meets every assumption as
   printed: there B covers environment i, Phi is the invariant feature and the transfer risk goes to 0.
2. "Close to ln 2" is a lower bound: the loss of w_j on environment i is E log(1 + e^-X) with X ~ N(2 n + 2 mu_i . mu_j,
   4 n + 4 |mu_j|^2), whose mean is at most 0, which grows like sqrt(d) at least.
3. The bounds as printed lose factors E and 2 on the way. Ours are beside them.
4. The fraction of a far test environment on which the classifier is w_i's is printed without d. Our bound
   1 - 2 (E - 1) P(N(0, 1) > delta sqrt d) is for d >= 2 above the printed 1 - 2 E exp(-delta^2) / (sqrt(pi) delta),
   itself below 0 for delta up to about 1.
5. "ERM" there is the optimal classifier of environment i alone, w_i on (z_c, z_e); not that of the pooled data.
6. Eq. 1 sums over Q; the library takes the mean. Both are given.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated, Any

import torch
from torch import Tensor

from ..data.sets.gaussian import Gaussian
from ..errors import InputError
from ..experiments.tasks import ignore_steps
from ..functional import transfer_matrix
from ..results import Record
from ..settings import Bound, Count, Length, NonNegative, Positive, Seed, Settings
from ..training import OnStep
from .theorem_1_classifier import (
    Construction,
    differs_bound,
    penalty_bound,
    printed_differs_bound,
    printed_penalty_bound,
    printed_risk_bound,
    risk_bound,
    transfer_bound,
)


@dataclass(frozen=True)
class Theorem1Settings(Settings):
    """Values that the theorem does not fix.

    dimensions   d = d_e
    causal       |mu_c| / sqrt(d), from 1 to 8
    means        mu_k / sqrt(d) in their plane, two numbers each, |.| <= 8: i first, j second, then the others
    deltas       how far test environments are: (sqrt 2 + delta) sqrt(d) beyond -mu_i, or from mu_j in that direction
    penalty      lambda of IRMv1
    samples      number of samples of each environment, whose transfer risk is computed with `ridge` for d <= `sampled`
    """

    dimensions: Annotated[tuple[Annotated[int, Bound(least=3)], ...], Length(1)] = (4, 8, 16, 32, 64, 128, 256, 512)
    causal: Annotated[float, Bound(least=1, most=8)] = 1.0
    sigma_c: Positive = 1.0
    means: Annotated[tuple[tuple[float, float], ...], Length(2)] = ((2.5, 0.0), (-0.4, 2.5), (1.5, 3.0))
    deltas: Annotated[tuple[Positive, ...], Length(1)] = (0.5, 1.0, 2.0)
    penalty: NonNegative = 1.0
    samples: Annotated[int, Bound(least=2)] = 2000
    sampled: Count = 128
    ridge: Positive = 1e-3
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if broken := broken_assumptions(self.means, self.causal, self.sigma_c):
            raise InputError(f"means must meet the theorem's assumption {broken[0]}, got {self.means}: choose others")

    @property
    def constructions(self) -> dict[str, tuple[tuple[float, float], ...]]:
        """Name of a construction -> its means: those of the settings, and mu_j = -mu_i."""
        x, y = self.means[0]
        return {"separated": self.means, "opposite": ((x, y), (-x, -y))}


def broken_assumptions(means: tuple[tuple[float, float], ...], causal: float, sigma_c: float) -> list[str]:
    """Return the printed assumptions of the theorem that do not hold, in units of sqrt(d); `causal` has its bounds."""
    first, *others = torch.tensor(means, dtype=torch.float64)
    broken = [f"|mu_{k + 1}| <= 8 sqrt(d)" for k, mean in enumerate([first, *others]) if mean.norm() > 8]
    for k, mean in enumerate(others, start=2):
        if (first - mean).norm() < 2 * math.sqrt(2):
            broken.append(f"|mu_1 - mu_{k}| >= 2 sqrt(2 d)")
    if first @ others[0] > -((causal / sigma_c) ** 2) + 1e-12:
        broken.append("mu_1 . mu_2 <= -|mu_c|^2 / sigma_c^2")
    return broken


def construct(settings: Theorem1Settings, name: str, dimension: int) -> Construction:
    """Return the classifier of a construction in dimension d."""
    root = math.sqrt(dimension)
    means = root * torch.tensor(settings.constructions[name], dtype=torch.float64)
    return Construction(dimension, settings.causal * root, settings.sigma_c, means)


def theorem_1_records(settings: Theorem1Settings, on_step: OnStep = ignore_steps) -> list[Record]:
    """Return records of three kinds, by their column "what".

    classifier  its IRMv1 loss, penalty and transfer risk, with their bounds
    far         test environments at each delta, for the separated construction; "differs" is the share on which the
                classifier differs from w_i on (z_c, z_e)
    sample      transfer risk on a sample of the training environments, for the separated construction
    """
    found: list[Record] = []
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
    invariant, separated = E * built.invariant_loss, built.separation >= 2 * math.sqrt(2)
    return {
        "separation": built.separation,
        "separated_both_signs": separated,
        "risk": risk,
        "risk_bound": risk_bound(built),
        "printed_risk_bound": printed_risk_bound(built),
        "penalty": penalties,
        "penalty_bound": penalty_bound(built),
        "printed_penalty_bound": printed_penalty_bound(built),
        "irm_loss": risk + penalty * penalties,
        "invariant_irm_loss": invariant,  # its penalty is 0
        "excess": risk - invariant + penalty * penalties,
        "transfer_risk_sum": float(worst.sum()),
        "transfer_risk_mean": float(worst.mean()),
        "loss_of_j_on_i": float(built.matrix[1, 0]),
        "transfer_bound": transfer_bound(built) if separated else None,  # otherwise balls reach into environment i
        "invariant_transfer_risk_sum": invariant,
    }


def _far(built: Construction, delta: float, mean: Tensor) -> dict[str, Any]:
    root = math.sqrt(built.dimension)
    own, erm, invariant = built.accuracy(mean)
    nearest = min(float((mean - sign * other).norm()) for other in built.means for sign in (1, -1))
    return {
        "nearest": nearest / root,
        "assumption_holds": nearest / root >= math.sqrt(2) + delta - 1e-9,
        "differs": built.inside_fraction(mean),
        "differs_bound": differs_bound(built, delta),
        "printed_differs_bound": printed_differs_bound(built, delta),
        "accuracy": own,
        "erm_accuracy": erm,
        "invariant_accuracy": invariant,
    }


def _sample(built: Construction, settings: Theorem1Settings) -> dict[str, Any]:
    d, E = built.dimension, len(built.means)
    means = torch.nn.functional.pad(built.means, (0, d - 2))
    causal = torch.tensor([built.causal], dtype=torch.float64)
    data = Gaussian(causal, means, causal_scale=built.sigma_c).draw(settings.samples, settings.seed)
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
