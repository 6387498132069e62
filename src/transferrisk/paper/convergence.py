"""Regret of algorithm 1 on a convex problem, against the O(1/sqrt(T)) bound (appendix B.3.1).

    min over |phi| <= B of max over alpha of   L(phi, alpha) = mean over Q of sum over P != Q of alpha_P(Q) f_{Q,P}(phi)
    f_{Q,P}(phi) = E_Q[loss(w_all o Phi)] + E_P[loss(w(Q) o Phi)],     Phi(x) = phi * x, one factor a coordinate

on fixed samples of Rosenfeld's Gaussians in E environments. Convexity (assumption 3) must be arranged: where w(Q)
follows Phi, R(-Phi, -w_all) = R(Phi, w_all), so a convex R would be lowest at Phi = 0, the feature that says nothing;
and w_all o Phi is bilinear. Here w(Q) and w_all are the optimal predictors of the inputs themselves and then stay
fixed, as the stop-gradient in eq. 6 has it within one step. Two classes with w = w_1 - w_0 and bias c make
every loss log(1 + e^-(F phi + o)) with rows F = y x * w, o = y c.

Algorithm 1 is then stochastic mirror descent (Nemirovski et al. 2009, section 3): phi moves by a projected gradient
step, alpha by exponentiated gradient, both from the same point and from minibatches; phi and alpha are averaged over
the T steps. With g = q 2 / (M sqrt(5 T)), M^2 = 2 (R^2 C^2 + S), as rate, times 2 R^2 for phi and times
2 E log(E - 1), twice the range of the entropies, for alpha, the regret

    r_T = max over alpha of L(mean phi, alpha) - min over phi of L(phi, mean alpha)

has E r_T <= max(q, 1/q) 2 sqrt(10 (R^2 C^2 + S) / T), where R^2 = B^2 / 2 is the range of |phi|^2 / 2,
C^2 >= E |stochastic gradient by phi|^2, and S is range times squared gradient on alpha's side:

    all Q each step    S = B_l^2 log(E - 1)         E gradients f / E
    a random Q a step  S = E B_l^2 log(E - 1)       one gradient f

Where the paper's statement needs care:

1. With a random Q, as algorithm 1 has it, the logarithm gets the factor E: each alpha(Q) moves every E-th step only.
2. Its R^2 is B^2, twice what is needed; B_l^2 bounds the largest squared loss, not the sum of squares (dual of |.|_1).
3. Its regret is that of a single Q. One phi serves all Q, and its steps follow all of them, so the regret of a single
   Q does not vanish; that of their mean, above, does. Both are computed.

The minimum is bounded from below by L - <g, phi> - B |g| at a nearly optimal phi with gradient g, so that the regret
given is certain not to be too small; `certified` is how much too large it can be.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Annotated, Literal

import torch
import torch.nn.functional as F
from torch import Generator, Tensor

from ..data.sets.gaussian import Gaussian
from ..errors import InputError
from ..experiments.tasks import ignore_steps
from ..functional import exponentiated_gradient, optimal_predictor
from ..results import Record
from ..settings import Bound, Count, Length, Positive, Seed, Settings
from ..training import OnStep


@dataclass(frozen=True)
class ConvergenceSettings(Settings):
    """Settings of the runs and of their problem.

    steps    numbers of steps T
    factors  factors q of the rate for which the bound holds
    queries  "all" environments Q in each step, or a "random" one
    repeats  number of runs over which the regret is averaged
    samples  number of samples of each environment, of which a step uses batch_size
    radius   B
    """

    steps: Annotated[tuple[Count, ...], Length(1)] = (30, 100, 300, 1000, 3000, 10_000)
    factors: Annotated[tuple[Positive, ...], Length(1)] = (1.0, 10.0, 100.0)
    queries: Annotated[tuple[Literal["all", "random"], ...], Length(1)] = ("all", "random")
    repeats: Count = 8
    environments: Annotated[int, Bound(least=3)] = 4
    samples: Annotated[int, Bound(least=2)] = 100
    batch_size: Count = 8
    causal_width: Count = 5
    environment_width: Count = 5
    causal: float = 0.5
    radius: Positive = 4.0
    ridge: Positive = 0.1
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.batch_size > self.samples:
            raise InputError(f"batch_size must be <= samples, {self.samples}, got {self.batch_size}")


@dataclass(frozen=True)
class Problem:
    """Losses log(1 + e^-(F phi + o)) of E environments with n samples each.

    rows, offsets  (E, E, n, D) and (E, E, n): of w(Q) on P
    all_rows, all_offsets  (E, n, D) and (E, n): of w_all on Q
    """

    rows: Tensor
    offsets: Tensor
    all_rows: Tensor
    all_offsets: Tensor
    radius: float

    @classmethod
    def draw(cls, settings: ConvergenceSettings) -> Problem:
        E, n = settings.environments, settings.samples
        generator = Generator().manual_seed(settings.seed)
        means = torch.randn(E, settings.environment_width, generator=generator, dtype=torch.float64)
        causal = torch.full((settings.causal_width,), settings.causal, dtype=torch.float64)
        data = Gaussian(causal, means).draw(n, settings.seed + 1)
        inputs, labels = data.inputs[:], data.labels
        each = optimal_predictor(inputs.reshape(E, n, -1), labels.reshape(E, n), 2, settings.ridge)
        pooled = optimal_predictor(inputs, labels, 2, settings.ridge)
        w, w_all = each[:, 1] - each[:, 0], pooled[1] - pooled[0]  # (E, D + 1), (D + 1,)
        sign = (2 * labels - 1).to(inputs.dtype).reshape(E, n)
        signed = sign.unsqueeze(-1) * inputs.reshape(E, n, -1)  # (E, n, D)
        return cls(
            signed * w[:, None, None, :-1],
            sign * w[:, None, None, -1],
            signed * w_all[:-1],
            sign * w_all[-1],
            settings.radius,
        )

    @property
    def environments(self) -> int:
        return len(self.rows)

    @cached_property
    def others(self) -> Tensor:
        """(E, E), true where P is not Q."""
        return ~torch.eye(self.environments, dtype=torch.bool)

    def losses(self, phi: Tensor) -> Tensor:
        """Return f_{Q,P} (..., E, E) at phi (..., D); the diagonal is not used."""
        own = F.softplus(-_score(self.all_rows, phi, self.all_offsets)).mean(-1)  # (..., E)
        return own.unsqueeze(-1) + F.softplus(-_score(self.rows, phi, self.offsets)).mean(-1)

    def gradient(self, phi: Tensor, weights: Tensor) -> Tensor:
        """Return the gradient (..., D) of the sum of weights (..., E, E) times f_{Q,P}."""
        n = self.rows.shape[-2]
        own = -torch.sigmoid(-_score(self.all_rows, phi, self.all_offsets)) * weights.sum(-1, keepdim=True) / n
        cross = -torch.sigmoid(-_score(self.rows, phi, self.offsets)) * weights.unsqueeze(-1) / n
        return own.flatten(-2) @ self.all_rows.flatten(0, 1) + cross.flatten(-3) @ self.rows.flatten(0, 2)

    def minimum(self, weights: Tensor, tolerance: float = 1e-5, most: int = 20_000) -> tuple[Tensor, Tensor]:
        """Return a lower bound (R,) of the smallest weighted loss, for weights (R, E, E), and its largest error.

        The method is the accelerated projected gradient, which restarts its momentum whenever that points uphill. The
        step is the inverse of the largest curvature, which is at most a quarter of the rows' second moment.
        """

        def value(phi: Tensor) -> Tensor:
            return (weights * self.losses(phi)).sum((-2, -1))

        n = self.rows.shape[-2]
        moment = torch.einsum("rqp,qpnd,qpne->rde", weights / n, self.rows, self.rows)
        moment = moment + torch.einsum("rq,qnd,qne->rde", weights.sum(-1) / n, self.all_rows, self.all_rows)
        step = 4 / torch.linalg.eigvalsh(moment)[:, -1:]
        phi = ahead = torch.zeros(len(weights), self.rows.shape[-1], dtype=self.rows.dtype)
        momentum = torch.ones(len(weights), 1, dtype=phi.dtype)
        gap = torch.full((len(weights),), math.inf, dtype=phi.dtype)
        for k in range(most):
            slope = self.gradient(ahead, weights)
            moved = self.project(ahead - step * slope)
            uphill = ((ahead - moved) * (moved - phi)).sum(-1, keepdim=True) > 0
            momentum = torch.where(uphill, 1.0, momentum)
            following = (1 + (1 + 4 * momentum.square()).sqrt()) / 2
            ahead = moved + torch.where(uphill, 0.0, (momentum - 1) / following) * (moved - phi)
            phi, momentum = moved, following
            if k % 20 == 19:
                slope = self.gradient(phi, weights)
                gap = (slope * phi).sum(-1) + self.radius * slope.norm(dim=-1)
                if bool((gap < tolerance).all()):
                    break
        return value(phi) - gap, gap

    def project(self, phi: Tensor) -> Tensor:
        """Return the nearest point of the ball."""
        lengths: Tensor = phi.norm(dim=-1, keepdim=True)
        return phi * (self.radius / lengths.clamp(min=self.radius))

    @cached_property
    def gradient_bound(self) -> float:
        """C: the gradient of a sample is at most as long as its row, and a batch's mean square at most the samples'."""
        own = self.all_rows.square().sum(-1).mean(-1).sqrt()  # (E,)
        cross = torch.where(self.others, self.rows.square().sum(-1).mean(-1).sqrt(), 0).amax(-1)
        return float((own + cross).square().mean().sqrt())

    @cached_property
    def loss_bound(self) -> float:
        """B_l: its square bounds E max over P of the batch's squared f_{Q,P}, on average over Q."""

        def worst(rows: Tensor, offsets: Tensor) -> Tensor:
            """Return the mean square of the largest loss of each sample in the ball."""
            return F.softplus(self.radius * rows.norm(dim=-1) - offsets).square().mean(-1)

        own = worst(self.all_rows, self.all_offsets).sqrt()
        cross = torch.where(self.others, worst(self.rows, self.offsets), 0).sum(-1).sqrt()
        return float((own + cross).square().mean().sqrt())

    def constant(self, query: str) -> float:
        """Return R^2 C^2 + S."""
        entropy = math.log(self.environments - 1) * (self.environments if query == "random" else 1)
        return self.radius**2 / 2 * self.gradient_bound**2 + entropy * self.loss_bound**2

    @property
    def printed_constant(self) -> float:
        """R^2 C^2 + S as printed in the paper."""
        return self.radius**2 * self.gradient_bound**2 + self.loss_bound**2 * math.log(self.environments - 1)


def _score(rows: Tensor, phi: Tensor, offsets: Tensor) -> Tensor:
    """Return F phi + o for phi (..., D), in the shape (..., *rows' leading shape)."""
    return (phi @ rows.flatten(0, -2).mT).reshape(*phi.shape[:-1], *offsets.shape) + offsets


def algorithm_1(
    problem: Problem, steps: int, query: str, factor: float, repeats: int, batch_size: int, generator: Generator
) -> tuple[Tensor, Tensor]:
    """Return the averages of phi (repeats, D) and alpha (repeats, E, E) over the steps of independent runs."""
    E, n, D = problem.environments, problem.rows.shape[-2], problem.rows.shape[-1]
    rate = factor * 2 / math.sqrt(5 * steps * 2 * problem.constant(query))
    phi_rate, alpha_rate = rate * problem.radius**2, rate * 2 * E * math.log(E - 1)
    everyone = torch.arange(E)
    phi = torch.zeros(repeats, D, dtype=torch.float64)
    alpha = (problem.others / (E - 1)).to(phi.dtype).expand(repeats, -1, -1)
    phi_sum, alpha_sum = torch.zeros_like(phi), torch.zeros_like(alpha)
    for _ in range(steps):
        phi_sum, alpha_sum = phi_sum + phi, alpha_sum + alpha
        batch = torch.randint(n, (repeats, E, batch_size), generator=generator)
        if query == "random":
            queries = torch.randint(E, (repeats, 1), generator=generator)
        else:
            queries = everyone.expand(repeats, -1)  # (repeats, m)
        each = torch.arange(repeats).unsqueeze(1)
        m = queries.shape[1]
        used = alpha[each, queries] / m  # (repeats, m, E)
        at = (queries[:, :, None, None], everyone[:, None], batch.unsqueeze(1))  # (repeats, m, E, b)
        own_at = (queries[:, :, None], batch[each, queries])  # (repeats, m, b)
        rows, all_rows = problem.rows[at], problem.all_rows[own_at]
        score = (rows @ phi[:, None, None, :, None]).squeeze(-1) + problem.offsets[at]
        own_score = (all_rows @ phi[:, None, :, None]).squeeze(-1) + problem.all_offsets[own_at]
        slope = -torch.sigmoid(-score) * used.unsqueeze(-1) / batch_size
        own_slope = -torch.sigmoid(-own_score) / (m * batch_size)
        gradient = torch.einsum("rqpb,rqpbd->rd", slope, rows) + torch.einsum("rqb,rqbd->rd", own_slope, all_rows)
        losses = F.softplus(-score).mean(-1) + F.softplus(-own_score).mean(-1, keepdim=True)  # (repeats, m, E)
        gains = torch.zeros_like(alpha).index_put((each, queries), losses / m)
        moved = torch.zeros_like(alpha, dtype=torch.bool).index_put((each, queries), problem.others[queries])
        alpha = exponentiated_gradient(alpha, gains, alpha_rate, moved)
        phi = problem.project(phi - phi_rate * gradient)
    return phi_sum / steps, alpha_sum / steps


def regrets(problem: Problem, phi: Tensor, alpha: Tensor) -> tuple[Tensor, Tensor, float]:
    """Return r_T of each run (R,), the largest regret of a single Q (R,), and the largest error of these."""
    E = problem.environments
    highest = torch.where(problem.others, problem.losses(phi), -math.inf).amax(-1)  # (R, E)
    lowest, gap = problem.minimum(alpha / E)
    alone = torch.eye(E, dtype=alpha.dtype).unsqueeze(-1) * alpha.unsqueeze(1)  # (R, Q, E, E): the rows of Q only
    lowest_alone, gap_alone = problem.minimum(alone.flatten(0, 1))
    single = (highest - lowest_alone.reshape(-1, E)).amax(-1)
    return highest.mean(-1) - lowest, single, max(float(gap.max()), float(gap_alone.max()))


def convergence_records(settings: ConvergenceSettings, on_step: OnStep = ignore_steps) -> list[Record]:
    """Return records of three kinds, by their column "what".

    regret   mean and largest regret over the runs, with the bound, and the largest regret of a single Q
    rate     exponent of T in a power law fitted to the mean regrets of a query and factor
    problem  constants of the problem
    """
    problem = Problem.draw(settings)
    found: list[Record] = [
        {
            "what": "problem",
            "environments": problem.environments,
            "radius": problem.radius,
            "gradient_bound": problem.gradient_bound,
            "loss_bound": problem.loss_bound,
        }
    ]
    jobs = [(query, factor) for query in settings.queries for factor in settings.factors]
    done, total = 0, len(jobs) * sum(settings.steps)
    for query, factor in jobs:
        place = {"query": query, "factor": factor}
        means = []
        for steps in settings.steps:
            generator = Generator().manual_seed(settings.seed + 2)
            averages = algorithm_1(problem, steps, query, factor, settings.repeats, settings.batch_size, generator)
            regret, single, gap = regrets(problem, *averages)
            means.append(float(regret.mean()))
            stretch = max(factor, 1 / factor)
            bound = stretch * 2 * math.sqrt(10 * problem.constant(query) / steps)
            found.append(
                {
                    "what": "regret",
                    **place,
                    "steps": steps,
                    "regret": means[-1],
                    "largest_regret": float(regret.max()),
                    "single_query_regret": float(single.mean()),
                    "certified": gap,
                    "bound": bound,
                    "printed_bound": stretch * 2 * math.sqrt(10 * problem.printed_constant / steps),
                    "ratio": means[-1] / bound,
                }
            )
            done += steps
            on_step(done, total)
        if len(settings.steps) > 1:
            found.append({"what": "rate", **place, "exponent": _exponent(settings.steps, means)})
    return found


def _exponent(steps: tuple[int, ...], regrets: list[float]) -> float:
    """Return the slope of a least-squares line through the logarithms."""
    x, y = (torch.tensor([math.log(v) for v in values], dtype=torch.float64) for values in (steps, regrets))
    x, y = x - x.mean(), y - y.mean()
    return float((x @ y) / (x @ x))
