"""Batches of a training set, and digests of its content.

Invariant: the k-th batch holds the samples of the sampler's k-th draw, wherever the data lies and however many
processes read ahead. The sampler of the state moves when a batch is handed out; processes that read ahead draw from a
copy of it, so that a state saved between two steps determines the samples that come next.

Digests are of all labels, environments and names, and of evenly spaced rows of the inputs, as many as make `SAMPLED`
bytes. So a large set costs no more than a small one, and a change to other rows is not noticed.
"""

from __future__ import annotations

import copy
import hashlib
import json
import math
import signal
import warnings
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Generator, Tensor
from torch.utils.data import DataLoader, Dataset

from ..algorithms import Batch, Team
from ..data import BalancedSampler, EnvironmentSet, WholeSampler
from ..data.augment import augment
from ..data.environments import Rows
from ..data.image_set import LazyImages
from ..errors import TransferRiskError
from .engine import is_decoded

AHEAD = 2  # batches that each process prepares
SAMPLED = 2**20  # bytes of the inputs in a digest
FILES = 32  # files in a digest of images that are not decoded


class Feed:
    """Batches of a training set on a device, in the order of a sampler.

    Parameters
    ----------
    data
        Training set. Inputs that are not on the device are sent there batch by batch.
    sampler
        Sampler of the training's state.
    device
        Device of the batches.
    augmentation
        Generator of random variations of images. None: images stay as they are.
    loaders
        Number of processes that read ahead if inputs must be decoded or do not fit the GPU's memory.
    team
        Processes that share each batch. None: this one alone.
    """

    def __init__(
        self,
        data: EnvironmentSet,
        sampler: BalancedSampler | WholeSampler,
        device: torch.device,
        augmentation: Generator | None = None,
        loaders: int = 0,
        team: Team | None = None,
    ) -> None:
        self.data, self.sampler, self.device = data, sampler, device
        self.augmentation, self.team = augmentation, team or Team()
        self.labels, self.environments = data.labels.to(device), data.environments.to(device)
        self.weights = None if data.weights is None else data.weights.to(device)
        streamed = loaders > 0 and not (is_decoded(data) and data.labels.device.type == device.type)
        self.loaders = loaders if streamed else 0
        self._ahead: Iterator[Tensor | TransferRiskError] | None = None
        self._end: Callable[[], Any] | None = None

    @property
    def resident(self) -> bool:
        """Whether the device holds the data, and `at` does the same with every batch."""
        there = self.data.labels.device == self.device and isinstance(self.data.inputs, Tensor)
        return there and self.augmentation is None

    def next(self) -> Batch:
        """Return the next batch as a network takes it: images as floats in 0..1, with channels last on a GPU."""
        if self.loaders and self._ahead is None:
            self._ahead = self._read_ahead()
        return self.at(self.draw())

    def draw(self) -> Tensor:
        """Return the positions of the next batch's samples, (n,), on the CPU."""
        drawn = self.sampler.next()
        return drawn if self.team.size == 1 else self.team.share(drawn, self.sampler.batch_size)

    def at(self, drawn: Tensor) -> Batch:
        """Return the batch of the samples at these positions."""
        index = drawn.to(self.device, non_blocking=True)
        if self._ahead is not None:
            stored = _receive(self._ahead)
        else:
            stored = self.data.inputs[index if self.data.labels.device == self.device else drawn]
        inputs = stored.to(self.device, non_blocking=True)
        if inputs.dtype == torch.uint8:
            inputs = inputs / 255
        if inputs.dim() == 4 and self.augmentation is not None:
            inputs = augment(inputs, self.augmentation)
        if inputs.dim() == 4 and self.device.type == "cuda":
            inputs = inputs.contiguous(memory_format=torch.channels_last)
        block = None if self.sampler.batch_size is None else self.sampler.batch_size // self.team.size
        weights = None if self.weights is None else self.weights[index]
        return Batch(inputs, self.labels[index], self.environments[index], block, weights)

    def close(self) -> None:
        """End the processes that read ahead; they end at the latest with the feed or the program."""
        self._ahead = None
        if self._end is not None:
            self._end()

    def _read_ahead(self) -> Iterator[Tensor | TransferRiskError]:
        sampler, team = copy.deepcopy(self.sampler), self.team

        def draws() -> Iterator[Tensor]:
            while True:
                yield team.share(sampler.next(), sampler.batch_size)

        with warnings.catch_warnings():
            # The user has chosen the number, and torch's advice on it does not know about waiting for files.
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            loader: DataLoader[Tensor | TransferRiskError] = DataLoader(
                _Stored(self.data),
                batch_size=None,
                sampler=_Endless(draws()),
                num_workers=self.loaders,
                prefetch_factor=AHEAD,
                pin_memory=self.device.type == "cuda",
                worker_init_fn=_leave_signals_to_the_parent,
                generator=Generator(),  # else the loader would draw from torch's own generator
            )
            ahead = iter(loader)
        # Loaders ignore signals, so that nothing else ends them while a traceback keeps the iterator alive.
        self._end = weakref.finalize(self, ahead._shutdown_workers)  # type: ignore[attr-defined]  # of its kind with workers
        return ahead


def _receive(ahead: Iterator[Tensor | TransferRiskError]) -> Tensor:
    try:
        stored = next(ahead)
    except RuntimeError as error:
        raise TransferRiskError(
            f"a process that reads data has ended ({' '.join(str(error).split())}): use fewer --loaders, or 0"
        ) from None
    if isinstance(stored, TransferRiskError):
        raise stored
    return stored


class _Stored(Dataset[Tensor | TransferRiskError]):
    """Stored inputs (n, ...) by positions (n,); an error in the user's data is returned as a value."""

    def __init__(self, data: EnvironmentSet) -> None:
        self.data = data

    def __getitem__(self, index: Tensor) -> Tensor | TransferRiskError:
        try:
            return self.data.inputs[index]
        except TransferRiskError as error:
            return error


class _Endless:
    """Draws as an iterable without a length, which the loader takes."""

    def __init__(self, draws: Iterator[Tensor]) -> None:
        self.draws = draws

    def __iter__(self) -> Iterator[Tensor]:
        return self.draws


def _leave_signals_to_the_parent(_: int) -> None:
    """Ignore Ctrl-C, which reaches all processes of a terminal: the first of them handles it."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)


def content_digests(data: EnvironmentSet) -> dict[str, str]:
    """Return digests of the inputs, labels, environments and names of a set."""
    return {
        "inputs": inputs_digest(data),
        "labels": _digest(data.labels, data.weights),
        "environments": _digest(data.environments, data.sources),
        "names": _digest(json.dumps([data.class_names, data.environment_names]).encode()),
    }


def inputs_digest(data: EnvironmentSet) -> str:
    """Return a digest of the inputs alone, which labels, environments and names do not change."""
    rows = data.inputs
    stored = rows.stored if isinstance(rows, Rows) else rows
    if isinstance(stored, LazyImages):
        where = rows.positions.tolist() if isinstance(rows, Rows) else range(len(stored))
        files = [stored.files[i] for i in where]
        names = json.dumps([stored.size, [(file.name, file.size) for file in files]])
        some = torch.linspace(0, len(files) - 1, min(FILES, len(files)), dtype=torch.float64)
        return _digest(names.encode(), *(files[i].read() for i in some.round().long().tolist()))
    one = rows[:1]
    count = max(1, SAMPLED // max(1, math.prod(one.shape[1:]) * one.element_size()))
    some = torch.linspace(0, len(rows) - 1, min(count, len(rows)), dtype=torch.float64)
    kind = f"{tuple(one.shape[1:])} {one.dtype}"
    return _digest(kind.encode(), rows[some.round().long().to(data.labels.device)])


def _digest(*pieces: Tensor | bytes | None) -> str:
    """Return twelve hexadecimal digits for all pieces and their lengths; None does not count."""
    digest = hashlib.blake2b(digest_size=6)
    for piece in pieces:
        if isinstance(piece, Tensor):
            piece = piece.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().tobytes()
        if piece is not None:
            digest.update(len(piece).to_bytes(8))
            digest.update(piece)
    return digest.hexdigest()
