"""Lists of the data sets, and summaries of one: counts of its samples, and a few of them to look at."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator

from ..errors import InputError
from .catalogue import DATA_SETS, Options, available, available_sources, load_data
from .environments import EnvironmentSet
from .facts import Facts
from .fetch import FileState, needed_facts, verify
from .splits import SPLITS, Splits


@dataclass(frozen=True)
class Listing:
    """One data set or source in a list.

    usage       its name, with the placeholder of its argument
    built_from  names of its sources
    to_fetch    bytes to fetch for all that it needs; None: some of it is got by hand, or the user's files decide
    there       "yes", "no" or "in part"; "" where the user's files decide
    """

    usage: str
    facts: Facts
    built_from: tuple[str, ...]
    to_fetch: int | None
    there: str
    files: tuple[FileState, ...]


def list_sets(root: Path | str | None = None) -> list[Listing]:
    """Return all data sets, and whether the files they need are below the data root."""
    return [
        _listing(one.usage, one.facts, tuple(source.name for source in one.sources_of()), root)
        for one in available().values()
    ]


def list_sources(root: Path | str | None = None) -> list[Listing]:
    """Return all sources, from which sets are built."""
    return [_listing(name, facts, (), root) for name, facts in available_sources().items()]


def _listing(usage: str, facts: Facts, built_from: tuple[str, ...], root: Path | str | None) -> Listing:
    if not facts.environments and facts.name in DATA_SETS:  # the user's files
        return Listing(usage, facts, built_from, None, "", ())
    needed = needed_facts(facts.name)
    by_hand = any(not one.files for one in needed)
    files = tuple(verify(facts.name, root, digests=False))
    states = {file.state for file in files}
    there = "yes" if states <= {"there"} else "no" if states == {"missing"} else "in part"
    return Listing(usage, facts, built_from, None if by_hand else sum(one.bytes for one in needed), there, files)


def check_data(name: str, options: Options) -> tuple[list[FileState], EnvironmentSet | Splits | None]:
    """Read all of a set and compare its files with the published ones; a source is only compared.

    Returns the files, and the set; None for a source.
    """
    files = verify(name, options.root, options.progress)
    is_source = name.partition(":")[0] not in DATA_SETS
    for file in files:
        if file.state == "wrong" or (is_source and file.state == "missing"):
            raise InputError(f"{file}: get it again with trm data fetch {name}")
    return files, None if is_source else load_data(name, replace(options, verify=True))


def sets_by_title(data: EnvironmentSet | Splits) -> dict[str, EnvironmentSet]:
    """Return the four sets of Splits by title; any other set has no title."""
    if isinstance(data, EnvironmentSet):
        return {"": data}
    return {title: getattr(data, name) for name, title in SPLITS.items()}


def count_by_class(data: EnvironmentSet) -> dict[str, dict[str, int]]:
    """Return the number of samples as environment -> class -> count."""
    rows = data.group_counts().tolist()
    return {
        where: dict(zip(data.class_names, map(int, row), strict=True))
        for where, row in zip(data.environment_names, rows, strict=True)
    }


def count_distinct(data: EnvironmentSet | Splits) -> int:
    """Return the number of samples; one in both kinds of validation, such as a digit painted twice, counts once."""
    if isinstance(data, EnvironmentSet):
        return len(data)
    total = sum(map(len, sets_by_title(data).values()))
    one, other = data.training_domain, data.test_domain
    if one.inputs is other.inputs:
        return total - len(other)
    if one.sources is None or other.sources is None:
        return total
    return total - int(torch.isin(other.sources, one.sources).sum())


def environments_of(data: EnvironmentSet | Splits) -> Iterator[tuple[str, EnvironmentSet]]:
    """Return each environment by name: those to train on, then those to test on."""
    if isinstance(data, EnvironmentSet):
        for name in data.environment_names:
            yield name, data.environment(name)
        return
    for part, what in ((data.train, "train"), (data.test, "test")):
        for name, members in environments_of(part):
            yield f"{what}: {name}", members


def pictures_by_class(data: EnvironmentSet, per_class: int, seed: int = 0) -> NDArray[np.uint8]:
    """Draw pictures by the seed, (C, per_class, h, w, 3); white where a class has too few."""
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
    """Name -> (m, 3) for sets of vectors: two principal components of all environments together, and the label.

    Features are divided by the largest meanwhile, so that nothing overflows.
    """
    generator = Generator().manual_seed(seed)
    drawn = {}
    for name, members in environments.items():
        chosen = torch.randperm(len(members), generator=generator)[:most]
        drawn[name] = (members.batch(chosen).double().cpu(), members.labels[chosen].cpu())
    largest = max(float(features.abs().max()) for features, _ in drawn.values() if features.numel()) or 1.0
    every = torch.cat([features for features, _ in drawn.values()]) / largest
    centre = every.mean(0)
    _, _, basis = torch.linalg.svd(every - centre, full_matrices=False)
    directions = torch.nn.functional.pad(basis[:2], (0, 0, 0, max(0, 2 - len(basis))))
    return {
        name: torch.cat([largest * ((features / largest - centre) @ directions.T), labels.unsqueeze(1)], 1).numpy()
        for name, (features, labels) in drawn.items()
    }
