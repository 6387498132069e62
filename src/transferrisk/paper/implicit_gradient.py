"""Accuracy of the implicit gradient: its error on a batch, and its variance between batches (sections 4.1, 4.2 and 6).

    x (D,) of environment e is drawn from Rosenfeld's Gaussians (section 3.2);   Phi(x) = A x, A (d, D), d < D
    R(A)  = mean over Q of the mean over P != Q of the cross-entropy of w(Q; Phi) on P,  on a batch of n samples each
    g     = dR/dA = direct + implicit,   implicit = -d/dA (sg(H_Q^-1 v_Q) . dl_Q/dw)      (proposition 1)

d < D matters: predictors undo any invertible A, so that without a ridge R would not depend on it.

The methods differ only in H_Q^-1 v_Q: "none" leaves the implicit part out, "neumann-k" sums the series over
i = 0..k (the paper: k = 10), "exact" solves the system. On one batch, truth is a finite difference that solves every
predictor anew, along some random directions of A. Between batches, truth is the gradient g* of a pool that is large
against any batch, at the same ridge:

    bias       |mean over batches of g - g*| / |g*|
    deviation  sqrt(mean over batches of |g - mean g|^2) / |g*|
    error      sqrt(bias^2 + deviation^2)

The paper names the variance of H^-1 v on small batches as its limitation. Records "part" compare the two parts of the
exact gradient, each with its own pool's norm. The bias does not come from the solver: a batch of n samples has another
optimal predictor than the population, and the smaller the ridge the more so, as small batches are separable.

Batches are solved together, as environments of one problem in which only those of the same batch are paired. Where the
series diverges (H has an eigenvalue above 2), a batch's implicit part is left out, as in "none", and it is counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from torch import Generator, Tensor

from ..data.sets.gaussian import Gaussian
from ..errors import InputError
from ..experiments.tasks import ignore_steps
from ..functional import Transfer, given_weights, transfer_risk
from ..results import Record
from ..settings import Bound, Count, Length, Positive, Seed, Settings
from ..solvers import CG, Cholesky, LinearSolver, Neumann, Newton
from ..training import OnStep

_TOGETHER = 32  # largest number of batches that are solved at once
_PAIRS = 2**18  # largest number of rows of all pairs of their environments
_STEP = 1e-4  # of the finite differences, of fourth order
_STENCIL = {-2: 1 / 12, -1: -8 / 12, 1: 8 / 12, 2: -1 / 12}
_STREAMS = ("means", "map", "pool", "batches", "directions")


@dataclass(frozen=True)
class ImplicitGradientSettings(Settings):
    """Settings of the batches, and of the comparison of their gradients.

    batch_sizes  numbers of samples of each environment
    terms        k of each Neumann series
    batches      number of batches from which bias and deviation are estimated
    checked      number of batches that are compared with finite differences, along `directions`
    pool         number of samples of each environment that represent the population
    causal       mu_c in each of its `causal_width` coordinates
    spread       the mu_e are N(0, spread^2) in each of their `environment_width` coordinates, drawn by the seed
    features     d; the rows of A are `scale` times orthonormal ones, drawn by the seed
    """

    batch_sizes: Annotated[tuple[Annotated[int, Bound(least=2)], ...], Length(1)] = (16, 32, 64, 128, 256, 512)
    ridges: Annotated[tuple[Positive, ...], Length(1)] = (1e-4, 1e-3, 1e-2, 1e-1)
    terms: Annotated[tuple[Count, ...], Length(1)] = (1, 10, 100)
    batches: Annotated[int, Bound(least=2)] = 48
    checked: Count = 2
    directions: Count = 8
    pool: Annotated[int, Bound(least=2)] = 50_000
    environments: Annotated[int, Bound(least=2)] = 2
    causal_width: Count = 5
    environment_width: Count = 10
    causal: float = 0.3
    spread: Positive = 0.5
    features: Count = 8
    scale: Positive = 1.0
    seed: Seed = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.features >= self.width:
            raise InputError(
                f"features must be < {self.width}, the inputs, got {self.features}: else predictors undo any map"
            )

    @property
    def width(self) -> int:
        """D."""
        return self.causal_width + self.environment_width

    @property
    def methods(self) -> dict[str, LinearSolver | None]:
        series = {f"neumann-{k}": Neumann(terms=k, raises=False) for k in self.terms}
        return {"none": None, **series, "exact": CG()}

    def stream(self, name: str) -> int:
        """Return the seed of a stream of draws; streams share no draws, whether they have the same seed or not."""
        sequence = np.random.SeedSequence(self.seed, spawn_key=(_STREAMS.index(name),))
        return int(sequence.generate_state(1)[0])

    def family(self) -> Gaussian:
        """Return the distribution of the environments."""
        generator = Generator().manual_seed(self.stream("means"))
        size = (self.environments, self.environment_width)
        means = self.spread * torch.randn(*size, generator=generator, dtype=torch.float64)
        return Gaussian(torch.full((self.causal_width,), self.causal, dtype=torch.float64), means)

    def map(self) -> Tensor:
        """Return A."""
        return self.scale * _orthonormal(self.features, self.width, self.stream("map"))


def _orthonormal(rows: int, columns: int, seed: int) -> Tensor:
    """Return random orthonormal rows (rows, columns)."""
    draws = torch.randn(columns, rows, generator=Generator().manual_seed(seed), dtype=torch.float64)
    basis: Tensor = torch.linalg.qr(draws).Q
    return basis.mT.contiguous()


@dataclass(frozen=True)
class Batches:
    """K batches of n samples of each of E environments."""

    inputs: Tensor  # (K, E, n, D)
    labels: Tensor  # (K, E, n)

    @classmethod
    def draw(cls, family: Gaussian, count: int, samples: int, seed: int) -> Batches:
        data = family.draw(count * samples, seed)
        E = len(family.environment_means)
        inputs = data.inputs[:].reshape(E, count, samples, -1).transpose(0, 1)
        return cls(inputs, data.labels.reshape(E, count, samples).transpose(0, 1))

    def __len__(self) -> int:
        return len(self.inputs)

    def __getitem__(self, k: int) -> Batches:
        return Batches(self.inputs[k : k + 1], self.labels[k : k + 1])

    @property
    def together(self) -> int:
        """Number of batches that are solved at once."""
        _, E, n, _ = self.inputs.shape
        return max(1, min(_TOGETHER, int((_PAIRS / n) ** 0.5 / E)))

    def split(self) -> Iterator[Batches]:
        for inputs, labels in zip(self.inputs.split(self.together), self.labels.split(self.together), strict=True):
            yield Batches(inputs, labels)

    def transfer(self, maps: Tensor, ridge: float, method: LinearSolver | None) -> Transfer:
        """Return the transfer risk with an A for each batch, (K, d, D); the risk is the mean over the batches."""
        K, E, n, _ = self.inputs.shape
        features = torch.einsum("kend,kfd->kenf", self.inputs, maps).flatten(0, 2)
        within = (1 - torch.eye(E, dtype=torch.float64)) / (E - 1)
        return transfer_risk(
            features,
            self.labels.flatten(),
            torch.arange(K * E).repeat_interleave(n),
            K * E,
            2,
            ridge,
            weights=given_weights(torch.block_diag(*[within] * K)),
            gradient_matching=0.0 if method is None else 1.0,
            solver=Newton(linear=Cholesky()),
            implicit=method,
            space="predictor",
        )

    def gradients(self, map: Tensor, ridge: float, method: LinearSolver | None) -> Tensor:
        """Return dR/dA (K, d D) of each batch at one A; nan where a series diverges."""
        found = []
        for part in self.split():
            own = map.expand(len(part), -1, -1).clone().requires_grad_()
            part.transfer(own, ridge, method).risk.backward()
            assert own.grad is not None
            found.append(len(part) * own.grad.flatten(1))
        return torch.cat(found)

    def risks(self, maps: Tensor, ridge: float) -> Tensor:
        """Return R (K,) of each batch at its own A."""
        found = []
        E = self.inputs.shape[1]
        for part, own in zip(self.split(), maps.split(self.together), strict=True):
            with torch.no_grad():
                out = part.transfer(own, ridge, None)
            losses = torch.where(out.weights > 0, out.weights * out.matrix, 0).sum(1)
            found.append(losses.reshape(-1, E).mean(1))
        return torch.cat(found)


def finite_difference(batch: Batches, map: Tensor, directions: Tensor, ridge: float) -> Tensor:
    """Return dR/dA (m,) of one batch along directions (m, d D), with every predictor solved anew."""
    moves = torch.cat([_STEP * k * directions for k in _STENCIL]).reshape(-1, *map.shape)  # (4 m, d, D)
    copies = Batches(batch.inputs.expand(len(moves), -1, -1, -1), batch.labels.expand(len(moves), -1, -1))
    risks = copies.risks(map + moves, ridge).reshape(len(_STENCIL), -1)
    factors = torch.tensor(list(_STENCIL.values()), dtype=map.dtype)
    return factors @ risks / _STEP


def implicit_gradient_records(settings: ImplicitGradientSettings, on_step: OnStep = ignore_steps) -> list[Record]:
    """Return records of three kinds, by their column "what".

    error     error of each method on a batch against finite differences, mean over the checked batches
    variance  bias, deviation and error of each method against the pool
    part      bias, deviation and error of the direct and of the implicit part of the exact gradient
    """
    family, methods, map = settings.family(), settings.methods, settings.map()
    directions = _orthonormal(min(settings.directions, map.numel()), map.numel(), settings.stream("directions"))
    pool = Batches.draw(family, 1, settings.pool, settings.stream("pool"))
    found: list[Record] = []
    done, total = 0, len(settings.ridges) * len(settings.batch_sizes)
    for ridge in settings.ridges:
        truth = {name: pool.gradients(map, ridge, methods[name])[0] for name in ("none", "exact")}
        for size in settings.batch_sizes:
            drawn = Batches.draw(family, settings.batches, size, settings.stream("batches"))
            place = {"ridge": ridge, "batch_size": size}
            given = {name: drawn.gradients(map, ridge, method) for name, method in methods.items()}
            diverged = {name: ~g.isfinite().all(1) for name, g in given.items()}
            for name, gone in diverged.items():
                given[name] = torch.where(gone.unsqueeze(1), given["none"], given[name])
            checked = [drawn[k] for k in range(min(settings.checked, len(drawn)))]
            difference = torch.stack([finite_difference(batch, map, directions, ridge) for batch in checked])
            for name, g in given.items():
                error = (g[: len(checked)] @ directions.mT - difference).norm(dim=1) / difference.norm(dim=1)
                which = {**place, "method": name, "diverged": float(diverged[name].double().mean())}
                found.append({"what": "error", **which, "error": float(error.mean())})
                found.append({"what": "variance", **which, **_spread(g, truth["exact"])})
            halves = {
                "direct": (given["none"], truth["none"]),
                "implicit": (given["exact"] - given["none"], truth["exact"] - truth["none"]),
            }
            for name, (g, own) in halves.items():
                found.append({"what": "part", **place, "part": name, "pool_norm": float(own.norm()), **_spread(g, own)})
            done += 1
            on_step(done, total)
    return found


def _spread(gradients: Tensor, truth: Tensor) -> dict[str, float]:
    """Return bias and deviation of gradients (K, D) around the truth (D,), relative to its norm."""
    centre, norm = gradients.mean(0), truth.norm()
    bias = float((centre - truth).norm() / norm)
    deviation = float((gradients - centre).square().sum(1).mean().sqrt() / norm)
    cosine = torch.nn.functional.cosine_similarity(gradients, truth, dim=1).mean()
    return {"bias": bias, "deviation": deviation, "error": (bias**2 + deviation**2) ** 0.5, "cosine": float(cosine)}
