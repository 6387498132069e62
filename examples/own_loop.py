"""The transfer risk in a training loop of one's own: three lines beside the usual ones.

Two sites where a spurious measurement agrees with the label always and mostly, and a third where it does not.

    python examples/own_loop.py
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from transferrisk import TransferRisk


def site(n: int, agreement: float, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """n samples (n, 6) whose first measurement says much about the label, and whose second does for a share of them."""
    labels = torch.randint(2, (n,), generator=generator)
    sign = 2.0 * labels - 1
    agrees = torch.where(torch.rand(n, generator=generator) < agreement, 1.0, -1.0)
    inputs = torch.randn(n, 6, generator=generator)
    inputs[:, 0] += sign
    inputs[:, 1] = 3 * sign * agrees + 0.3 * inputs[:, 1]
    return inputs, labels


def train(weight: float, steps: int = 200, seed: int = 0) -> float:
    """Accuracy at the unseen site of a model trained with this weight on the transfer risk; 0 is plain training."""
    generator = torch.Generator().manual_seed(seed)
    torch.manual_seed(seed)
    parts = [site(500, agreement, generator) for agreement in (1.0, 0.8)]
    inputs, labels = (torch.cat(both) for both in zip(*parts, strict=True))
    sites = torch.arange(2).repeat_interleave(500)
    features, head = nn.Linear(6, 1), nn.Linear(1, 2)
    criterion = TransferRisk(ridge=1e-3)  # 1
    optimiser = torch.optim.Adam([*features.parameters(), *head.parameters()], lr=1e-2)
    for _ in range(steps):
        z = features(inputs)
        loss = cross_entropy(head(z), labels)
        loss = loss + weight * criterion(z, labels, sites).risk  # 2: its gradient is the exact total derivative
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    unseen, truth = site(5000, 0.1, generator)
    return float((head(features(unseen)).argmax(1) == truth).float().mean())


if __name__ == "__main__":
    print(f"accuracy where the measurement misleads: plain {train(0.0):.3f}, with the transfer risk {train(1.0):.3f}")
