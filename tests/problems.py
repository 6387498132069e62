"""Shared cases with known answers."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from transferrisk.functional import SoftmaxLoss, given_weights, transfer_risk
from transferrisk.functional.linear_loss import with_bias


@dataclass(frozen=True)
class Batch:
    """Random features of several environments of unequal size, in random order."""

    features: Tensor  # (n, d)
    labels: Tensor  # (n,)
    index: Tensor  # (n,) in 0..E-1
    num_environments: int
    num_classes: int
    alpha: Tensor  # (E, E) random, rows sum to one, zero diagonal

    def risk(self, features: Tensor, ridge: float, **options: object) -> Tensor:
        return transfer_risk(
            features,
            self.labels,
            self.index,
            self.num_environments,
            self.num_classes,
            ridge,
            weights=given_weights(self.alpha),
            **options,  # type: ignore[arg-type]  # of several types
        ).risk

    def gradient(self, ridge: float, **options: object) -> Tensor:
        features = self.features.clone().requires_grad_()
        self.risk(features, ridge, **options).backward()
        assert features.grad is not None
        return features.grad


def random_batch(
    seed: int, sizes: list[int], classes: int, width: int, dtype: torch.dtype = torch.float64, device: str = "cpu"
) -> Batch:
    generator = torch.Generator().manual_seed(seed)
    E, n = len(sizes), sum(sizes)
    index = torch.repeat_interleave(torch.arange(E), torch.tensor(sizes))[torch.randperm(n, generator=generator)]
    labels = torch.randint(classes, (n,), generator=generator)
    centres = torch.randn(classes, width, generator=generator, dtype=torch.float64)
    features = torch.randn(n, width, generator=generator, dtype=torch.float64) + centres[labels]
    alpha = 0.1 + torch.rand(E, E, generator=generator, dtype=torch.float64)
    alpha.fill_diagonal_(0)
    alpha /= alpha.sum(1, keepdim=True)
    moved = [t.to(device) for t in (features.to(dtype), labels, index)]
    return Batch(*moved, E, classes, alpha.to(device))


def overlapping_batch(seed: int) -> Batch:
    """Large features that say nothing about the labels: the Hessian's eigenvalues are far above 2."""
    batch = random_batch(seed, [60, 50], classes=3, width=8)
    return replace(batch, features=5 * batch.features, labels=batch.labels.flip(0))


def padded_loss(seed: int, batch: int, n: int, classes: int, width: int, ridge: float = 0.05) -> SoftmaxLoss:
    """A batch of problems in the conventions of linear_loss, in which environment b lacks b of its n rows."""
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(batch, n, width, generator=generator, dtype=torch.float64)
    labels = torch.randint(classes, (batch, n), generator=generator)
    real = torch.arange(n) < torch.arange(n, n - batch, -1).unsqueeze(-1)
    weights = real / real.sum(-1, keepdim=True).to(torch.float64)
    return SoftmaxLoss(with_bias(features) * real.unsqueeze(-1), torch.where(real, labels, -1), weights, classes, ridge)


def random_predictors(loss: SoftmaxLoss, seed: int = 1) -> Tensor:
    B, _, D = loss.rows.shape
    return torch.randn(B, loss.num_classes, D, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


def relative(a: Tensor, b: Tensor) -> float:
    return float((a.double() - b.double()).norm() / b.double().norm())


def arguments(batch: Batch, ids: list[int] | None = None) -> tuple[Tensor, Tensor, Tensor]:
    """Features, labels and environments, as a criterion takes them; the environments by these ids."""
    environments = batch.index if ids is None else torch.tensor(ids)[batch.index]
    return batch.features, batch.labels, environments
