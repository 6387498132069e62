"""A few samples of each class of each environment, to look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator

from .environments import EnvironmentSet, Splits


def environments_of(data: EnvironmentSet | Splits) -> Iterator[tuple[str, EnvironmentSet]]:
    """Each environment by name: those to train on, then those to test on."""
    if isinstance(data, EnvironmentSet):
        for name in data.environment_names:
            yield name, data.environment(name)
        return
    for part, what in ((data.train, "train"), (data.test, "test")):
        for name, members in environments_of(part):
            yield f"{what}: {name}", members


def pictures_by_class(data: EnvironmentSet, per_class: int, seed: int = 0) -> NDArray[np.uint8]:
    """(C, per_class, h, w, 3) drawn by the seed; white where a class has too few."""
    generator = Generator().manual_seed(seed)
    shape = data.inputs[:1].shape[1:]
    pictures = torch.full((len(data.class_names), per_class, *shape), 255, dtype=torch.uint8)
    for c in range(len(data.class_names)):
        members = (data.labels.cpu() == c).nonzero().flatten()
        chosen = members[torch.randperm(len(members), generator=generator)[:per_class]]
        pictures[c, : len(chosen)] = data.inputs[chosen.to(data.labels.device)].cpu()
    return pictures.movedim(2, -1).contiguous().numpy()


def principal_components(
    environments: Mapping[str, EnvironmentSet], most: int = 2000, seed: int = 0
) -> dict[str, NDArray[np.float64]]:
    """Of sets of vectors: name -> (m, 3), two principal components of all environments together, and the label.

    Features are divided by the largest meanwhile, so that nothing overflows.
    """
    generator = Generator().manual_seed(seed)
    parts = {}
    for name, members in environments.items():
        chosen = torch.randperm(len(members), generator=generator)[:most]
        parts[name] = (members.batch(chosen).double().cpu(), members.labels[chosen].cpu())
    largest = max(float(features.abs().max()) for features, _ in parts.values() if features.numel()) or 1.0
    parts = {name: (features / largest, labels) for name, (features, labels) in parts.items()}
    features = torch.cat([features for features, _ in parts.values()])
    centre = features.mean(0)
    _, _, basis = torch.linalg.svd(features - centre, full_matrices=False)
    directions = torch.nn.functional.pad(basis[:2], (0, 0, 0, max(0, 2 - len(basis))))
    return {
        name: torch.cat([largest * ((features - centre) @ directions.T), labels.unsqueeze(1)], 1).numpy()
        for name, (features, labels) in parts.items()
    }
