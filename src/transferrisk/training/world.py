"""Which of several processes this one is: of those started for `devices`, or of torchrun's.

Variables of the same names that a scheduler or a shell has left (RANK, SLURM_NTASKS, ...) start no process of ours, and
say nothing about this one.
"""

from __future__ import annotations

import os
import signal
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import TYPE_CHECKING, NoReturn

import torch.distributed as dist

from ..errors import DivergedError, TransferRiskError
from .signals import Stopped

if TYPE_CHECKING:
    from lightning_fabric.plugins.environments.cluster_environment import ClusterEnvironment

LEADER = "TRANSFERRISK_LEADER"  # the process that started the others; they inherit it
_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_STRAY = (*_TORCHRUN, "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
PATIENCE = 10.0  # seconds a process waits for the first one to have ended


class Followed(TransferRiskError):
    """The first process has failed, and says why."""


def by_torchrun() -> bool:
    return "TORCHELASTIC_RUN_ID" in os.environ and all(os.environ.get(name, "").isdecimal() for name in _TORCHRUN)


def rank() -> int:
    """This process's number; 0 is the first one, or the only one."""
    if by_torchrun():
        return int(os.environ["RANK"])
    number = os.environ.get("LOCAL_RANK", "") if LEADER in os.environ else ""
    return int(number) if number.isdecimal() else 0


def environment(package: str, several: bool) -> ClusterEnvironment:
    """Fabric's word for who starts the processes: torchrun or itself, whatever else it would detect."""
    environments = import_module(f"{package}.plugins.environments")
    found: ClusterEnvironment
    if by_torchrun():
        found = environments.TorchElasticEnvironment()
        return found
    if several and LEADER not in os.environ:
        for name in _STRAY:
            os.environ.pop(name, None)
        os.environ[LEADER] = str(os.getpid())
    found = environments.LightningEnvironment()
    return found


@contextmanager
def one_speaks() -> Iterator[bool]:
    """Whether this process is the one that does. Others end silently where the first fails with the same."""
    if not rank():
        try:
            yield True
        except TransferRiskError:
            _part()
            raise
    else:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                yield False
        except TransferRiskError as error:
            if _told_by_the_first(error):
                leave(error.exit_code)
            raise
    _part()


def _part() -> None:
    """Leave the others: the group's threads, if left to the interpreter's end, may abort the process."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _told_by_the_first(error: TransferRiskError) -> bool:
    """Before the processes have met, all fail in the same; afterwards they do in what concerns them all."""
    return not dist.is_initialized() or isinstance(error, (Followed, Stopped, DivergedError))


def leave(code: int) -> NoReturn:
    """End this process silently after the first one, whose observer would kill it for a child that failed before."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(code))  # what torchrun sends when the first one has ended
    parent, end = os.getppid(), time.monotonic() + PATIENCE
    while os.getppid() == parent and time.monotonic() < end:
        time.sleep(0.02)
    os._exit(code)
