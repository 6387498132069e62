"""The processes that share a training: how they start, and how they end together.

The first process, rank 0, starts the others on its machine, unless torchrun has started them all. Variables that a
scheduler or a shell has left (RANK, SLURM_NTASKS, ...) start no process, and do not give this one a rank.

A process that is killed leaves the others waiting for it. Gloo notices a closed connection at once, NCCL may not. So
the first process watches those that it started, and they watch the first: one of them reports the loss, and all end.
"""

from __future__ import annotations

import atexit
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
from datetime import timedelta
from functools import cache
from typing import NoReturn

import torch.distributed as dist

from ..errors import DivergedError, ProcessLost, Stopped, TransferRiskError

PATIENCE = 10.0  # seconds that a process has to end by itself after another one has ended
CLOSING = 2.0  # longest time between the end of a connection and that of its process, seconds
FOLLOWED = 75  # exit code of a process that ends because another one was lost
LEADER = "TRANSFERRISK_LEADER"  # variable with the id of the process that started the others, which inherit it
_TORCHRUN = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
_STRAY = (*_TORCHRUN, "NODE_RANK", "GROUP_RANK", "MASTER_ADDR", "MASTER_PORT")
_started: list[subprocess.Popen[bytes]] = []  # by the first process: ranks 1, 2, ...
_stores: list[object] = []  # kept by the first process, since a store serves as long as it exists


class Followed(TransferRiskError):
    """Raised where the first process has failed, which reports the error itself."""


def started_by_torchrun() -> bool:
    """Return whether torchrun has started this process."""
    return "TORCHELASTIC_RUN_ID" in os.environ and all(os.environ.get(name, "").isdecimal() for name in _TORCHRUN)


def start_processes(count: int) -> None:
    """Start the other processes of a training on this machine, by the command of this one; they start none."""
    if LEADER not in os.environ:
        for name in _STRAY:
            os.environ.pop(name, None)
        port = _serve_on_loopback()
        os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(count), "LOCAL_RANK": "0"}
        # All processes are clients of the store that is there, as under torchrun; torch's own would listen to all.
        os.environ |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "TORCHELASTIC_RESTART_COUNT": "0"}
        os.environ[LEADER] = str(os.getpid())
        module = sys.modules["__main__"].__spec__
        program = [os.path.abspath(sys.argv[0])] if module is None else ["-m", module.name]
        for rank in range(1, count):
            command = [sys.executable, *program, *sys.argv[1:]]
            _started.append(subprocess.Popen(command, env=os.environ | {"LOCAL_RANK": str(rank)}))
    _watch_the_others()


def _serve_on_loopback() -> str:
    """Start the store by which the processes find each other, which listens on this machine only; return its port."""
    listening = socket.create_server(("127.0.0.1", 0))
    port: int = listening.getsockname()[1]
    patience = timedelta(minutes=5)
    store = dist.TCPStore(  # type: ignore[attr-defined]  # which torch does not declare public
        "127.0.0.1", port, None, True, patience, wait_for_workers=False, master_listen_fd=listening.detach()
    )
    _stores.append(store)
    atexit.register(_stores.clear)  # its thread ends before the interpreter does
    return str(port)


@contextmanager
def first_process_speaks() -> Iterator[bool]:
    """Yield whether this process is the first; the others end silently if the first fails with the same error."""
    name = "RANK" if started_by_torchrun() else "LOCAL_RANK" if LEADER in os.environ else ""
    rank = os.environ.get(name, "")
    first = not rank.isdecimal() or int(rank) == 0
    if not first:
        warnings.simplefilter("ignore")
    try:
        yield first
    except TransferRiskError as error:
        # Before the processes are connected, all fail alike; afterwards they do in errors that concern all of them.
        told = not dist.is_initialized() or isinstance(error, (Followed, Stopped, DivergedError))
        if not first and told:
            if isinstance(error, Stopped) and LEADER not in os.environ:
                os._exit(error.exit_code)  # torchrun has received the signal too, and waits for all processes
            _end_after_the_first(error.exit_code)
        if isinstance(error, ProcessLost):
            if not _speaks(error.lost):
                os._exit(FOLLOWED)  # at once, so that the first process notices the closed connection
            _end_the_others()
        _leave_group()
        raise
    if dist.is_initialized():
        _leave_group()  # not after other errors: leaving takes all processes, and some may wait for another message


def raise_lost(saved: str) -> NoReturn:
    """Raise `ProcessLost` where another process does not answer.

    saved  words about the last checkpoint; "" if nothing is saved
    """
    end = time.monotonic() + CLOSING * (LEADER in os.environ)
    while (lost := _lost()) is None and time.monotonic() < end:
        time.sleep(0.02)
    raise ProcessLost(lost, f"go on with --resume; {saved}" if saved else "train again")


def how_it_ended(code: int) -> str:
    """Return in words how a process ended, from its exit code in subprocess and multiprocessing."""
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was ended by {name}{', perhaps because memory ran out' * (code == -9)}"


def _is_first() -> bool:
    return os.environ[LEADER] == str(os.getpid())


def _speaks(lost: str | None) -> bool:
    """Return whether this process reports the loss: the first does, or the second if the first is lost.

    Of torchrun's processes all report, because none of them watches the others.
    """
    return LEADER not in os.environ or _is_first() or (lost is not None and os.environ["LOCAL_RANK"] == "1")


def _lost() -> str | None:
    """Return which process has ended too early, and how; None: none of those that this one watches."""
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
    """Wait for the loss of another process, and end this one if it does not end by itself."""
    while (lost := _lost()) is None:
        time.sleep(0.2)
    time.sleep(PATIENCE)
    if _speaks(lost):
        print(f"trm: {ProcessLost(lost, 'go on with --resume, or train again')}", file=sys.stderr, flush=True)
    _end_the_others()
    os._exit(ProcessLost.exit_code)


def _end_the_others() -> None:
    """End the processes that this one started; only the first writes files, so that none is cut off."""
    for process in _started:
        process.kill()


def _leave_group() -> None:
    """Leave the group of processes, whose threads may abort the process at the interpreter's end."""
    if dist.is_initialized():
        dist.destroy_process_group()


def _end_after_the_first(code: int) -> NoReturn:
    """End this process silently after the first one, which would report it as lost if it ended before."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(code))  # torchrun sends it when the first one has ended
    parent, end = int(os.environ.get(LEADER, os.getppid())), time.monotonic() + PATIENCE
    while os.getppid() == parent and time.monotonic() < end:
        time.sleep(0.02)
    os._exit(code)
