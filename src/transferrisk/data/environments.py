"""Samples with a label and an environment, checks of them, and which of them a batch holds.

Rows in messages are counted from 1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import compress
from pathlib import Path
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Generator, Tensor

from ..errors import DataWarning, InputError, choices, counted, listed, warn
from ..settings import Count, convert


class Inputs(Protocol):
    """The inputs of a set: a tensor, in memory or mapped from a file, or images that are not decoded yet."""

    def __len__(self) -> int: ...

    def __getitem__(self, index: Tensor | slice, /) -> Tensor: ...


@dataclass(frozen=True)
class Rows:
    """Selected inputs, by position: selections of a set share its memory."""

    stored: Inputs
    positions: Tensor  # (n,)

    def __len__(self) -> int:
        return len(self.positions)

    def __getitem__(self, index: Tensor | slice, /) -> Tensor:
        return self.stored[self.positions[index]]

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle only these rows of a tensor, not all of it."""
        if isinstance(self.stored, Tensor):
            return Rows, (self[:], torch.arange(len(self), device=self.positions.device))
        return Rows, (self.stored, self.positions)


class Sample(NamedTuple):
    inputs: Tensor  # in the form a network takes
    label: int
    environment: int


@dataclass(frozen=True, eq=False)
class EnvironmentSet:
    """Samples with a label and an environment. Images stay uint8, on disk or undecoded, until a batch is asked for.

    Parameters
    ----------
    inputs
        (n, ...) uint8 images or float vectors.
    labels, environments
        (n,) places in `class_names` and in `environment_names`.
    environment_names, class_names
        The names, by number.
    sources
        (n,) number of the thing that each sample shows, since samples of one thing stay on one side of a division.
        Default: each sample its own.
    weights
        (n,) weight of each sample, about 1 on average. Default: the same for all.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.data import EnvironmentSet
    >>> sites = torch.tensor([0, 0, 1, 1])
    >>> data = EnvironmentSet(torch.randn(4, 3), torch.tensor([0, 1, 0, 1]), sites, ("north", "south"), ("no", "yes"))
    >>> len(data), data.environment("south").batch().shape
    (4, torch.Size([2, 3]))
    """

    inputs: Inputs
    labels: Tensor
    environments: Tensor
    environment_names: tuple[str, ...]
    class_names: tuple[str, ...]
    sources: Tensor | None = None
    weights: Tensor | None = None

    def __post_init__(self) -> None:
        sizes = {len(self.inputs), len(self.labels), len(self.environments)}
        if len(sizes) > 1:
            raise InputError(
                f"inputs, labels and environments must be as many, got {len(self.inputs)}, {len(self.labels)} and "
                f"{len(self.environments)}: give each sample one of each"
            )
        for name, values in (("sources", self.sources), ("weights", self.weights)):
            if values is not None and len(values) != len(self.labels):
                raise InputError(
                    f"{name} must be one for each of {len(self.labels)} samples, got {len(values)}: give all, or none"
                )
        named = (("label", self.labels, self.class_names), ("environment", self.environments, self.environment_names))
        for what, numbers, names in named:
            if len(set(names)) < len(names):
                raise InputError(f"{what} {_first_repeated(names)!r} is named twice: give each a name of its own")
            if numbers.device.type == "cpu" and len(numbers):  # on a GPU, to look would be to wait
                low, high = torch.stack(torch.aminmax(numbers)).tolist()
                if low < 0 or high >= len(names):
                    number = f"number them from 0 to {len(names) - 1}"
                    raise InputError(
                        f"{what}s must be below {len(names)}, the number of names, got {low} to {high}: {number}"
                    )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, position: int) -> Sample:
        if not -len(self) <= position < len(self):
            raise IndexError(f"sample {position} of {len(self)}")
        index = torch.tensor([position % len(self)], device=self.labels.device)
        return Sample(self.batch(index)[0], int(self.labels[position]), int(self.environments[position]))

    def select(self, index: Tensor | slice) -> Self:
        """Return some of the samples. Inputs are shared, not copied.

        Parameters
        ----------
        index
            Positions (k,), a slice, or a mask (n,) bool.

        Returns
        -------
        EnvironmentSet
            The samples.
        """
        positions = torch.arange(len(self), device=self.labels.device)[index]
        stored = self.inputs
        if isinstance(stored, Rows):
            positions = stored.positions[positions]
            stored = stored.stored
        return replace(
            self,
            inputs=Rows(stored, positions),
            labels=self.labels[index],
            environments=self.environments[index],
            sources=None if self.sources is None else self.sources[index],
            weights=None if self.weights is None else self.weights[index],
        )

    def environment(self, name: str) -> Self:
        """Return the samples of one environment; the names stay, so that it keeps its number.

        Parameters
        ----------
        name
            Name of the environment.

        Returns
        -------
        EnvironmentSet
            The samples.
        """
        return self.select(self.environments == self._number(name))

    def _number(self, name: str) -> int:
        if name not in self.environment_names:
            raise InputError(f"unknown environment {name!r}{choices(name, self.environment_names)}")
        return self.environment_names.index(name)

    def only(self, names: Sequence[str]) -> Self:
        """Return the samples of some environments, numbered anew in the order given.

        Parameters
        ----------
        names
            Names of environments.

        Returns
        -------
        EnvironmentSet
            The samples.
        """
        if len(set(names)) < len(names):
            raise InputError(f"environment {_first_repeated(names)!r} is named twice: name each once")
        number = torch.full((len(self.environment_names),), -1, device=self.labels.device)
        for i, name in enumerate(names):
            number[self._number(name)] = i
        members = (number[self.environments] >= 0).nonzero().flatten()
        chosen = self.select(members)
        return replace(chosen, environments=number[chosen.environments], environment_names=tuple(names))

    def by_group(self) -> Self:
        """Return the set in which every (environment, class) is an environment, as groups of GroupDRO are."""
        names = tuple(f"{e}, {c}" for e in self.environment_names for c in self.class_names)
        groups = self.environments * len(self.class_names) + self.labels
        return replace(self, environments=groups, environment_names=names)

    def batch(self, index: Tensor | slice = slice(None)) -> Tensor:
        """Return inputs in the form that a network takes: images as floats in 0..1.

        Parameters
        ----------
        index
            Positions (k,), a slice, or a mask (n,) bool. Default: all samples.

        Returns
        -------
        Tensor
            Inputs, (k, ...).
        """
        inputs = self.inputs[index]
        return inputs.float() / 255 if inputs.dtype == torch.uint8 else inputs

    def to(self, device: torch.device | str) -> Self:
        """Return the set with all its samples in the memory of a device.

        Parameters
        ----------
        device
            Device, such as "cuda".

        Returns
        -------
        EnvironmentSet
            The set on that device.
        """
        return replace(
            self,
            inputs=self.inputs[:].to(device),
            labels=self.labels.to(device),
            environments=self.environments.to(device),
            sources=None if self.sources is None else self.sources.to(device),
            weights=None if self.weights is None else self.weights.to(device),
        )

    def group_counts(self) -> Tensor:
        """Return the number of samples of each environment and class, or the sum of their weights if given, (E, C)."""
        E, C = len(self.environment_names), len(self.class_names)
        return torch.bincount(self.environments * C + self.labels, self.weights, E * C).reshape(E, C)


def _first_repeated(names: Sequence[str]) -> str:
    return next(name for i, name in enumerate(names) if name in names[:i])


S = TypeVar("S", bound=EnvironmentSet)
BLOCK = 1 << 22  # numbers worked on at once
FEWEST = 10  # rows of an environment that can be trained or tested on


def concatenate(sets: Sequence[S]) -> S:
    """Join sets of one kind that have the same names."""
    first = sets[0]
    sources = [one.sources for one in sets if one.sources is not None]
    weights = [one.weights for one in sets if one.weights is not None]
    if weights and len(weights) < len(sets):
        raise InputError("some of the sets have weights and others do not: give weights to all of them, or to none")
    return replace(
        first,
        inputs=torch.cat([one.inputs[:] for one in sets]),
        labels=torch.cat([one.labels for one in sets]),
        environments=torch.cat([one.environments for one in sets]),
        sources=torch.cat(sources) if len(sources) == len(sets) else None,
        weights=torch.cat(weights) if weights else None,
    )


def large_environments(sizes: Mapping[str, int], where: Path | str, drop_small: bool) -> list[str]:
    """Return the environments with `FEWEST` rows or more; others are refused or, with `drop_small`, left out."""
    small = [name for name, size in sizes.items() if size < FEWEST]
    large = [name for name in sizes if name not in small]
    if not small:
        return large
    told = listed(f"{name!r} ({counted(sizes[name], 'row')})" for name in small)
    line = f"{where}: environments must have {FEWEST} rows or more, got {told}"
    if not drop_small:
        raise InputError(
            f"{line}: merge them with others, or go on without them with --drop-small (drop_small=True in Python)"
        )
    if len(large) < 2:
        raise InputError(f"{line}; without them {len(large)} would be left, and two are needed: merge some")
    warn(f"{line}; they are left out", DataWarning)
    return large


def review(data: S, where: Path | str = "the data") -> S:
    """Return the set if two environments and two classes have samples; warn if an environment lacks a class."""
    counts = data.group_counts().cpu().numpy()
    seen = list(compress(data.environment_names, counts.sum(1)))
    if len(seen) < 2:
        raise InputError(
            f"{where} has {counted(len(seen), 'environment')} with samples ({listed(map(repr, seen)) or 'none'}): "
            "transfer needs at least two"
        )
    classes = list(compress(data.class_names, counts.sum(0)))
    if len(classes) < 2:
        raise InputError(
            f"{where} has only the label {classes[0]!r}: there is nothing to predict; check that you mean this label"
        )
    if not counts.all():
        absent = [f"{data.class_names[c]!r} in {data.environment_names[e]!r}" for e, c in np.argwhere(counts == 0)]
        warn(f"{where}: no samples of class {listed(absent, 5)}", DataWarning)
    return data


def review_vectors(data: S, where: Path | str, rows: NDArray[np.int64] | None = None) -> S:
    """Review a set of vectors, and warn if environments share samples; `rows` are their positions in the file."""
    review(data, where)
    shared = twins(data.inputs[:], data.labels, data.environments)
    if len(shared):
        first, second = (int(i if rows is None else rows[i]) + 1 for i in shared[0].tolist())
        warn(
            f"{where}: {counted(len(shared), 'row')} with the features and label of a row in another environment, such "
            f"as row {second} and row {first}",
            DataWarning,
        )
    return data


def twins(features: Tensor, labels: Tensor, environments: Tensor) -> NDArray[np.int64]:
    """Return pairs (m, 2): the first row of its kind, and a later row like it that lies in another environment.

    Rows are alike if features and label are equal. A hash proposes the pairs, and the features decide. Equal rows have
    equal hashes: sum_j mix(bits_j) r_j + label r modulo 2^64, r odd.
    """
    values, kinds, places = features.cpu().numpy(), labels.cpu().numpy(), environments.cpu().numpy()
    n, d = values.shape
    factors = np.random.default_rng(0).integers(1 << 63, size=d, dtype=np.uint64) * 2 + 1
    hashes = kinds.astype(np.uint64) * np.uint64(0xD1342543DE82EF95)
    step = max(BLOCK // d, 1)
    for start in range(0, n, step):
        part = values[start : start + step].astype(np.float32) + np.float32(0)  # -0 becomes 0
        bits = part.view(np.uint32).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
        hashes[start : start + step] += ((bits ^ (bits >> np.uint64(32))) * factors).sum(1, dtype=np.uint64)
    order = np.argsort(hashes, kind="stable")
    starts = np.r_[True, hashes[order[1:]] != hashes[order[:-1]]]
    first = order[np.maximum.accumulate(np.where(starts, np.arange(n), 0))]
    apart = (places[first] != places[order]) & (kinds[first] == kinds[order])
    pairs = np.stack([first[apart], order[apart]], 1)
    pairs = pairs[np.argsort(pairs[:, 1])]
    alike = np.empty(len(pairs), bool)
    for start in range(0, len(pairs), step):
        one, other = pairs[start : start + step].T
        alike[start : start + step] = (values[one] == values[other]).all(1)
    return pairs[alike]


def filled(data: EnvironmentSet, size: int) -> EnvironmentSet:
    """Repeat all samples of each environment that has fewer than `size`, until there are that many.

    Parameters
    ----------
    data
        The set.
    size
        Smallest number of samples of each environment.

    Returns
    -------
    EnvironmentSet
        The set, with repeated samples.

    Examples
    --------
    >>> from transferrisk.data import filled, load_splits
    >>> len(filled(load_splits("gaussian").test, 5000)) >= 5000
    True
    """
    counts = torch.bincount(data.environments, minlength=len(data.environment_names)).clamp(min=1)
    times = ((size + counts - 1) // counts).clamp(min=1)  # (E,)
    if bool((times == 1).all()):
        return data
    every = torch.arange(len(data), device=data.environments.device)
    return data.select(every.repeat_interleave(times[data.environments]))


# ---- batches


class WholeSampler:
    """Draw the whole set in every batch, environment after environment, however many samples each has.

    Parameters
    ----------
    data
        The training set.

    Examples
    --------
    >>> from transferrisk.data import WholeSampler, load_splits
    >>> train = load_splits("gaussian").train
    >>> len(WholeSampler(train).next()) == len(train)
    True
    """

    batch_size = None  # environments may have different numbers of samples
    steps_per_epoch = 1

    def __init__(self, data: EnvironmentSet) -> None:
        self.order = data.environments.cpu().argsort(stable=True)

    def next(self) -> Tensor:
        """Return the positions of all samples, (n,)."""
        return self.order

    def state_dict(self) -> dict[str, Tensor]:
        """Return an empty state, since nothing changes between batches.

        Returns
        -------
        dict
            {}.
        """
        return {}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Do nothing, since there is no state.

        Parameters
        ----------
        state
            State that `state_dict` returned.
        """


class BalancedSampler:
    """Draw the same number of samples of each environment, each shuffled anew when it runs out.

    An epoch is one pass over the smallest environment: floor(smallest / batch_size) batches.

    Parameters
    ----------
    data
        The training set.
    batch_size
        Samples of each environment in a batch.
    seed
        Random seed of the order.

    Examples
    --------
    >>> from transferrisk.data import BalancedSampler, load_splits
    >>> train = load_splits("gaussian").train
    >>> batch = BalancedSampler(train, batch_size=8, seed=0).next()
    >>> train.environments[batch].bincount()
    tensor([8, 8, 8])
    """

    def __init__(self, data: EnvironmentSet, batch_size: int, seed: int) -> None:
        names = data.environment_names
        self.batch_size = convert("batch_size", batch_size, Count)
        environments = data.environments.cpu()
        sizes = torch.bincount(environments, minlength=len(names)).tolist()
        self.members = environments.argsort(stable=True).split(sizes)
        if min(sizes) < batch_size:
            raise InputError(
                f"environment {names[sizes.index(min(sizes))]!r} has {min(sizes)} training samples, fewer than "
                f"batch_size={batch_size}: lower the batch size"
            )
        self.steps_per_epoch = min(sizes) // batch_size
        self.generator = Generator().manual_seed(20_000 + seed)  # not the stream that drew the data
        self.orders = list(self.members)
        self.positions = sizes  # all have run out, so that the first batch shuffles them

    def next(self) -> Tensor:
        """Return the positions of the next batch's samples, environment after environment, (E batch_size,)."""
        drawn = []
        for e, members in enumerate(self.members):
            if self.positions[e] + self.batch_size > len(members):
                order = torch.randperm(len(members), generator=self.generator)
                self.orders[e], self.positions[e] = members[order], 0
            start = self.positions[e]
            drawn.append(self.orders[e][start : start + self.batch_size])
            self.positions[e] += self.batch_size
        return torch.cat(drawn)

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state from which the same batches follow.

        Returns
        -------
        dict of Tensor
            Orders of the samples, position in each of them, and state of the random generator.
        """
        positions = torch.tensor(self.positions)
        return {"orders": torch.cat(self.orders), "positions": positions, "generator": self.generator.get_state()}

    def load_state_dict(self, state: Mapping[str, Tensor]) -> None:
        """Continue from a state, with the same data and batch size.

        Parameters
        ----------
        state
            State that `state_dict` returned.
        """
        self.orders = list(state["orders"].split(list(map(len, self.members))))
        self.positions = state["positions"].tolist()
        self.generator.set_state(state["generator"])
