"""The batches of a training.

Invariant: the k-th batch holds the samples of the sampler's k-th draw, wherever the data lies and however many
processes read ahead. The sampler in the state is moved when a batch is handed out; what reads ahead draws from a copy
of it, so a state saved between two steps says exactly which samples come next.
"""

from __future__ import annotations

import copy
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
from ..errors import TransferRiskError
from .engine import is_decoded

AHEAD = 2  # batches that each process prepares


class Feed:
    """
    data          the training set; where its inputs are not on the device, they are sent there batch by batch
    sampler       the state's own
    augmentation  generator that images are augmented with; None: they are not
    loaders       processes that read ahead, where inputs must be decoded or do not fit the GPU's memory
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
        self.loaders = loaders if streamed(data, device) else 0
        self._ahead: Iterator[Tensor | TransferRiskError] | None = None
        self._end: Callable[[], Any] = lambda: None

    def next(self) -> Batch:
        if self.loaders and self._ahead is None:
            self._ahead = self._read_ahead()
        drawn = draw(self.sampler, self.team)
        index = drawn.to(self.device, non_blocking=True)
        if self._ahead is not None:
            stored = _receive(self._ahead)
        else:
            stored = self.data.inputs[index if self.data.labels.device == self.device else drawn]
        block = None if self.sampler.batch_size is None else self.sampler.batch_size // self.team.size
        weights = None if self.weights is None else self.weights[index]
        return Batch(self._inputs(stored), self.labels[index], self.environments[index], block, weights)

    def close(self) -> None:
        """End the processes that read ahead; at the latest this happens when the feed or the program ends."""
        self._ahead = None
        self._end()

    def _inputs(self, stored: Tensor) -> Tensor:
        """Inputs in the form that a network takes: images as floats in 0..1, with channels last on a GPU."""
        stored = stored.to(self.device, non_blocking=True)
        inputs = stored.float() / 255 if stored.dtype == torch.uint8 else stored
        if inputs.dim() != 4:
            return inputs
        if self.augmentation is not None:
            inputs = augment(inputs, self.augmentation)
        return inputs.contiguous(memory_format=torch.channels_last) if self.device.type == "cuda" else inputs

    def _read_ahead(self) -> Iterator[Tensor | TransferRiskError]:
        sampler, team = copy.deepcopy(self.sampler), self.team

        def draws() -> Iterator[Tensor]:
            while True:
                yield draw(sampler, team)

        with warnings.catch_warnings():
            # The user has chosen how many, and the loader's advice cannot know what the files wait for.
            warnings.filterwarnings("ignore", message="This DataLoader will create")
            loader: DataLoader[Tensor | TransferRiskError] = DataLoader(
                _Stored(self.data),
                batch_size=None,
                sampler=_Endless(draws()),
                num_workers=self.loaders,
                prefetch_factor=AHEAD,
                pin_memory=self.device.type == "cuda",
                worker_init_fn=_leave_signals_to_the_parent,
                generator=Generator(),  # else the loader draws from torch's own, and the run would depend on the loader
            )
            ahead = iter(loader)
        # They ignore signals, so nothing else ends them while an error's traceback, say, keeps the iterator alive.
        self._end = weakref.finalize(self, ahead._shutdown_workers)  # type: ignore[attr-defined]  # of its kind with workers
        return ahead


def draw(sampler: BalancedSampler | WholeSampler, team: Team) -> Tensor:
    """Positions of this process's part of the next batch, (n,)."""
    return team.share(sampler.next(), sampler.batch_size)


def streamed(data: EnvironmentSet, device: torch.device) -> bool:
    """Whether a batch must be decoded or sent to the device, rather than gathered in its memory."""
    return not is_decoded(data) or data.labels.device.type != device.type


def _receive(ahead: Iterator[Tensor | TransferRiskError]) -> Tensor:
    try:
        stored = next(ahead)
    except RuntimeError as error:
        raise TransferRiskError(
            f"a process that reads data ended ({' '.join(str(error).split())}): use fewer loaders, or 0"
        ) from None
    if isinstance(stored, TransferRiskError):
        raise stored
    return stored


class _Stored(Dataset[Tensor | TransferRiskError]):
    """Stored inputs by positions, (n,) to (n, ...); an error that a user can mend comes back as a value."""

    def __init__(self, data: EnvironmentSet) -> None:
        self.data = data

    def __getitem__(self, index: Tensor) -> Tensor | TransferRiskError:
        try:
            return self.data.inputs[index]
        except TransferRiskError as error:
            return error


class _Endless:
    """Draws in the form that the loader takes: an iterable without a length."""

    def __init__(self, draws: Iterator[Tensor]) -> None:
        self.draws = draws

    def __iter__(self) -> Iterator[Tensor]:
        return self.draws


def _leave_signals_to_the_parent(_: int) -> None:
    """A Ctrl-C reaches all processes of a terminal; what it means is decided in one."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
