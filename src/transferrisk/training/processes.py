"""The processes that share a training: how they start, and how they end together.

The first process, rank 0, starts the others of its machine, or torchrun has started them all. Variables of the same
names that a scheduler or a shell has left (RANK, SLURM_NTASKS, ...) start no process of ours, and say nothing about
this one.

A process that is killed leaves the others waiting for it. Gloo notices a closed connection at once, NCCL may not. So
the first process watches those it started, and they watch the first: one of them says who was lost, and all end.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import NoReturn

import torch.distributed as dist

from ..errors import DivergedError, TransferRiskError

PATIENCE = 10.0  # seconds in which a process ends by itself after another one has ended
CLOSING = 2.0  # seconds at most between the end of a connection and that of the process behind it
FOLLOWED = 75  # exit code of a process that ends because another one was lost
LEADER = "TRANSFERRISK_LEADER"  # the process that started the others; they inherit it
_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_STRAY = (*_TORCHRUN, "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
_started: list[subprocess.Popen[bytes]] = []  # by the first process: ranks 1, 2, ...


class Followed(TransferRiskError):
    """The first process has failed, and says why."""


class ProcessLost(TransferRiskError):
    """Another process of the training has ended, so that this one cannot go on; `lost` says which, where it is seen."""

    exit_code = 1

    def __init__(self, lost: str | None, again: str) -> None:
        super().__init__(f"{lost or 'another process of this training has ended or cannot be reached'}: {again}")
        self.lost = lost


class Stopped(TransferRiskError):
    """A training was asked to stop by a signal, and has been saved; `again` says how to go on with it.

    Parameters
    ----------
    signum
        The signal.
    step, total
        Where the training was.
    again
        How to go on with it.

    Examples
    --------
    >>> from transferrisk.training import Stopped
    >>> print(Stopped(2, 30, 100))
    interrupted at step 30 of 100; go on with: train with resume=True
    """

    def __init__(self, signum: int, step: int, total: int, again: str = "train with resume=True") -> None:
        super().__init__(f"interrupted at step {step} of {total}; go on with: {again}")
        self.signum, self.step, self.total = signum, step, total
        self.exit_code = 128 + signum


def started_by_torchrun() -> bool:
    """Whether torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ and all(os.environ.get(name, "").isdecimal() for name in _TORCHRUN)


def start_processes(count: int) -> None:
    """Start the other processes of a training on this machine, with the command of this one. They start none."""
    if LEADER not in os.environ:
        for name in _STRAY:
            os.environ.pop(name, None)
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = str(free.getsockname()[1])
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count), "LOCAL_RANK": "0"}
        os.environ[LEADER] = str(os.getpid())
        module = sys.modules["__main__"].__spec__
        program = [os.path.abspath(sys.argv[0])] if module is None else ["-m", module.name]
        for rank in range(1, count):
            command = [sys.executable, *program, *sys.argv[1:]]
            _started.append(subprocess.Popen(command, env=os.environ | {"LOCAL_RANK": str(rank)}))
    _watch_the_others()


@contextmanager
def first_process_speaks() -> Iterator[bool]:
    """Yield whether this process is the first. Others end silently where the first fails with the same error."""
    name = "RANK" if started_by_torchrun() else "LOCAL_RANK" if LEADER in os.environ else ""
    rank = os.environ.get(name, "")
    first = not rank.isdecimal() or int(rank) == 0
    if not first:
        warnings.simplefilter("ignore")
    try:
        yield first
    except TransferRiskError as error:
        # Before the processes have met, all fail in the same; afterwards they do in what concerns them all.
        told = not dist.is_initialized() or isinstance(error, (Followed, Stopped, DivergedError))
        if not first and told:
            if isinstance(error, Stopped) and LEADER not in os.environ:
                os._exit(error.exit_code)  # torchrun has been asked to stop too, and waits for all
            _end_after_the_first(error.exit_code)
        if isinstance(error, ProcessLost):
            if not _speaks(error.lost):
                os._exit(FOLLOWED)  # at once: the closed connections tell the first process
            _end_the_others()
        _leave_group()
        raise
    _leave_group()  # not where anything else is raised: others may wait in it, and leaving is done together


def raise_lost(saved: str) -> NoReturn:
    """Raise what ends this process where another one does not answer.

    saved  where there is something to go on from; "" where nothing is saved
    """
    end = time.monotonic() + CLOSING * (LEADER in os.environ)
    while (lost := _lost()) is None and time.monotonic() < end:
        time.sleep(0.02)
    raise ProcessLost(lost, f"go on with --resume; {saved}" if saved else "train again")


def how_it_ended(code: int) -> str:
    """Say how a process ended, from its exit code as subprocess and multiprocessing give it."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was ended by {name}{', perhaps because memory ran out' * (code == -9)}"


def _is_first() -> bool:
    return os.environ[LEADER] == str(os.getpid())


def _speaks(lost: str | None) -> bool:
    """Whether this process is the one to say what was lost: the first, or the second where that is the first.

    Nobody sees torchrun's processes, so that all of them speak.
    """
    return LEADER not in os.environ or _is_first() or (lost is not None and os.environ["LOCAL_RANK"] == "1")


def _lost() -> str | None:
    """The process that has ended too early, and how; None where all that this one can see are there."""
    if LEADER in os.environ and not _is_first():
        ended = os.getppid() != int(os.environ[LEADER])
        return "the process of rank 0 has ended, perhaps because memory ran out" if ended else None
    for rank, process in enumerate(_started, 1):
        if process.poll() not in (None, 0, FOLLOWED):
            return f"the process of rank {rank} (of ranks 0 to {len(_started)}) {how_it_ended(process.returncode)}"
    return None


@cache
def _watch_the_others() -> None:
    threading.Thread(target=_end_when_one_is_lost, daemon=True).start()


def _end_when_one_is_lost() -> None:
    """Wait for the loss of another process. If this one does not notice, since it waits for it, it is ended."""
    while (lost := _lost()) is None:
        time.sleep(0.2)
    time.sleep(PATIENCE)
    if _speaks(lost):
        print(f"trm: {ProcessLost(lost, 'go on with --resume, or train again')}", file=sys.stderr, flush=True)
    _end_the_others()
    os._exit(ProcessLost.exit_code)


def _end_the_others() -> None:
    """End those that this process started. Only the first writes files, so nothing is cut off."""
    for process in _started:
        process.kill()


def _leave_group() -> None:
    """Leave the group of processes: its threads, if left to the interpreter's end, may abort the process."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _end_after_the_first(code: int) -> NoReturn:
    """End this process silently after the first one, which would take it for lost if it ended before."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(code))  # what torchrun sends when the first one has ended
    parent, end = int(os.environ.get(LEADER, os.getppid())), time.monotonic() + PATIENCE
    while os.getppid() == parent and time.monotonic() < end:
        time.sleep(0.02)
    os._exit(code)
