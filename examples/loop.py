"""A PyTorch loop with the transfer risk.

A spurious measurement agrees with the label always at the first site, mostly at the second, and seldom at a third,
which is not trained on. Three lines are added to a usual loop. Weight 0 gives plain training.
"""

from __future__ import annotations

import sys

import matplotlib.pyplot as plt
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from transferrisk import TransferRisk


def site(n: int, agreement: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Samples (n, 6): the first measurement predicts the label, the second agrees with it in this share of them."""
    labels = torch.randint(2, (n,), generator=generator)
    sign = 2.0 * labels - 1
    agrees = torch.where(torch.rand(n, generator=generator) < agreement, 1.0, -1.0)
    inputs = torch.randn(n, 6, generator=generator)
    inputs[:, 0] += sign
    inputs[:, 1] = 3 * sign * agrees + 0.3 * inputs[:, 1]
    return inputs, labels


def train(weight: float, steps: int = 200, seed: int = 0) -> list[float]:
    """Accuracy at the unseen site after every tenth step, with this weight on the transfer risk."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    sites = [site(500, agreement, generator) for agreement in (1.0, 0.8)]
    inputs, labels = (torch.cat(both) for both in zip(*sites, strict=True))
    environments = torch.arange(2).repeat_interleave(500)
    unseen, truth = site(5000, 0.1, generator)

    features, head = nn.Linear(6, 1), nn.Linear(1, 2)
    criterion = TransferRisk(ridge=1e-3)  # 1
    optimiser = torch.optim.Adam([*features.parameters(), *head.parameters()], lr=1e-2)
    accuracies = []
    for step in range(steps):
        z = features(inputs)
        loss = cross_entropy(head(z), labels)
        risk = criterion(z, labels, environments).risk  # 2
        loss = loss + weight * risk  # 3: its gradient is the exact total derivative
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 10 == 9:
            accuracies.append(float((head(features(unseen)).argmax(1) == truth).float().mean()))
    return accuracies


def main(picture: str | None = None) -> None:
    curves = {"plain": train(0.0), "with the transfer risk": train(1.0)}
    for name, accuracies in curves.items():
        print(f"{name}: {accuracies[-1]:.3f} right at the site where the measurement misleads")
    if picture:
        for name, accuracies in curves.items():
            plt.plot(range(10, 201, 10), accuracies, label=name)
        plt.xlabel("step")
        plt.ylabel("accuracy at the unseen site")
        plt.legend()
        plt.savefig(picture)


if __name__ == "__main__":
    main(*sys.argv[1:])
