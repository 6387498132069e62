"""The processes that share a training, and the signals that stop it.

The processes are those started for `devices`, or torchrun's. Variables of the same names that a scheduler or a shell
has left (RANK, SLURM_NTASKS, ...) start no process of ours, and say nothing about this one.
"""

from __future__ import annotations

import os
import signal
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from types import FrameType
from typing import TYPE_CHECKING, Any, NoReturn

import torch.distributed as dist

from ..errors import DivergedError, TransferRiskError

if TYPE_CHECKING:
    from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment

LEADER = "TRANSFERRISK_LEADER"  # the process that started the others; they inherit it
_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_STRAY = (*_TORCHRUN, "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
PATIENCE = 10.0  # seconds a process waits for the first one to have ended


class Followed(TransferRiskError):
    """The first process has failed, and says why."""


class Stopped(TransferRiskError):
    """A training was asked to stop by a signal, and has been saved; `again` says how to go on with it."""

    def __init__(self, signum: int, step: int, total: int, again: str = "train with resume=True") -> None:
        super().__init__(f"interrupted at step {step} of {total}; go on with: {again}")
        self.signum, self.step, self.total = signum, step, total
        self.exit_code = 128 + signum


class CaughtSignals:
    """Notes SIGINT and SIGTERM between `catch` and `release`; a second one acts at once, as if this were not here.

    In a thread other than the main one nothing is caught, because Python allows it there alone.
    """

    def __init__(self) -> None:
        self.signum: int | None = None
        self._before: dict[signal.Signals, Any] = {}

    def catch(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            handler = signal.getsignal(number) or signal.SIG_DFL
            if handler is not signal.SIG_IGN:
                self._before[number] = handler
                signal.signal(number, self._note)

    def release(self) -> None:
        """Restore the handlers of before."""
        while self._before:
            signal.signal(*self._before.popitem())

    def act(self) -> None:
        """Raise again a signal that nothing was done about."""
        if self.signum is not None:
            signal.raise_signal(self.signum)

    def _note(self, signum: int, frame: FrameType | None) -> None:
        self.signum = signum
        for number, handler in self._before.items():
            signal.signal(number, handler)


def started_by_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ and all(os.environ.get(name, "").isdecimal() for name in _TORCHRUN)


def process_rank() -> int:
    """This process's number; 0 is the first one, or the only one."""
    if started_by_torchrun():
        return int(os.environ["RANK"])
    number = os.environ.get("LOCAL_RANK", "") if LEADER in os.environ else ""
    return int(number) if number.isdecimal() else 0


def cluster_environment(package: str, several: bool) -> ClusterEnvironment:
    """Tell Fabric who starts the processes: torchrun or itself, whatever else it would detect."""
    environments = import_module(f"{package}.plugins.environments")
    found: ClusterEnvironment
    if started_by_torchrun():
        found = environments.TorchElasticEnvironment()
        return found
    if several and LEADER not in os.environ:
        for name in _STRAY:
            os.environ.pop(name, None)
        os.environ[LEADER] = str(os.getpid())
    found = environments.LightningEnvironment()
    return found


@contextmanager
def first_process_speaks() -> Iterator[bool]:
    """Yields whether this process is the first. Others end silently where the first fails with the same error."""
    if not process_rank():
        try:
            yield True
        except TransferRiskError:
            _leave_group()
            raise
    else:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield False
        except TransferRiskError as error:
            if _first_says_it(error):
                _leave(error.exit_code)
            raise
    _leave_group()


def _leave_group() -> None:
    """Leave the others: the group's threads, if left to the interpreter's end, may abort the process."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _first_says_it(error: TransferRiskError) -> bool:
    """Before the processes have met, all fail in the same; afterwards they do in what concerns them all."""
    return not dist.is_initialized() or isinstance(error, (Followed, Stopped, DivergedError))


def _leave(code: int) -> NoReturn:
    """End this process silently after the first one, whose observer would kill it for a child that failed before."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(code))  # what torchrun sends when the first one has ended
    parent, end = os.getppid(), time.monotonic() + PATIENCE
    while os.getppid() == parent and time.monotonic() < end:
        time.sleep(0.02)
    os._exit(code)
