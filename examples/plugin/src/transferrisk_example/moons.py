"""rotated-moons: two half circles, turned by another angle in each environment."""

from __future__ import annotations

import math

import torch
from torch import Generator, Tensor

from transferrisk.data import DataSet, EnvironmentSet, Facts, Options

ANGLES = (0, 20, 40, 60)  # degrees
SAMPLES = 400
NOISE = 0.1


def load(argument: str, options: Options) -> EnvironmentSet:
    generator = Generator().manual_seed(options.seed)
    environments = torch.arange(len(ANGLES)).repeat_interleave(SAMPLES)
    labels = torch.randint(2, environments.shape, generator=generator)
    moons = _moons(labels, generator)  # (n, 2)
    angles = torch.tensor(ANGLES)[environments] * math.pi / 180
    inputs = torch.stack(
        [
            angles.cos() * moons[:, 0] - angles.sin() * moons[:, 1],
            angles.sin() * moons[:, 0] + angles.cos() * moons[:, 1],
        ],
        1,
    )
    return EnvironmentSet(inputs, labels, environments, tuple(map(str, ANGLES)), ("upper", "lower"))


def _moons(labels: Tensor, generator: Generator) -> Tensor:
    """Points on the upper half circle, or on the lower one beside it, with noise, (n, 2)."""
    along = math.pi * torch.rand(labels.shape, generator=generator)
    upper = torch.stack([along.cos() - 0.5, along.sin() - 0.25], 1)
    points = torch.where(labels[:, None] == 0, upper, -upper)
    return points + NOISE * torch.randn(points.shape, generator=generator)


MOONS = DataSet(
    Facts(
        name="rotated-moons",
        title="Two half circles, turned by another angle in each environment: needs no download",
        licence="none needed: drawn at random",
        citation="the example package of transferrisk",
        environments={str(angle): SAMPLES for angle in ANGLES},
        classes=("upper", "lower"),
        shape=(2,),
    ),
    load,
)
