"""Running independent jobs, in this process or in several.

A job gets one thread wherever it runs: small networks gain little from more, threads that wait by spinning bring each
other to a halt where cores are shared, and so the numbers do not depend on how many processes there are.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

import torch

from ..errors import InputError, TransferRiskError
from ..training import OnStep

T = TypeVar("T")
Job = Callable[[OnStep], T]
"""Does its work, reports `on_step(done, total)` now and then, and returns the result. Pickled for another process."""


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_jobs(jobs: Sequence[Job[T]], workers: int, on_step: Callable[[int, int, int], None]) -> Iterator[tuple[int, T]]:
    """(position, result) of each job as it finishes; `on_step(position, done, total)` on the way.

    One worker is this process. More are processes of their own, started afresh, so a script that asks for them needs
    the `if __name__ == "__main__"` guard. They end with the iteration, however it ends.
    """
    if workers < 1:
        raise InputError(f"workers={workers} is no number of processes: use 1 or more")
    workers = min(workers, len(jobs))
    return _in_processes(jobs, workers, on_step) if workers > 1 else _in_turn(jobs, on_step)


def _in_turn(jobs: Sequence[Job[T]], on_step: Callable[[int, int, int], None]) -> Iterator[tuple[int, T]]:
    for position, job in enumerate(jobs):
        with threads_set(1):
            result = job(lambda done, total, position=position: on_step(position, done, total))  # type: ignore[misc]
        yield position, result


def _in_processes(
    jobs: Sequence[Job[T]], workers: int, on_step: Callable[[int, int, int], None]
) -> Iterator[tuple[int, T]]:
    left = deque(enumerate(jobs))
    with _team(workers) as team:
        busy: dict[Connection, int] = {}

        def occupy(connection: Connection) -> None:
            if left:
                busy[connection], job = left.popleft()
                connection.send(job)

        for connection in team:
            occupy(connection)
        while busy:
            ready: list[Any] = wait(list(busy))
            for connection in ready:
                kind, content = _receive(connection)
                if kind == "step":
                    on_step(busy[connection], *content)
                elif kind == "failed":
                    raise content
                else:
                    position = busy.pop(connection)
                    occupy(connection)
                    yield position, content


def _receive(connection: Connection) -> tuple[str, Any]:
    try:
        message: tuple[str, Any] = connection.recv()
    except (EOFError, ConnectionError):
        raise TransferRiskError(
            "a worker process ended before its work did, perhaps because memory ran out: use fewer workers"
        ) from None
    return message


@contextmanager
def _team(workers: int) -> Iterator[list[Connection]]:
    """Connections to this many worker processes, which are gone at the end."""
    context = multiprocessing.get_context("spawn")
    resource_tracker.ensure_running()  # when it starts with the first worker, it lifts the block on interrupts
    processes: list[BaseProcess] = []
    connections: list[Connection] = []
    try:
        with signals_blocked(signal.SIGINT):  # workers inherit the block: what Ctrl-C means is decided here alone
            for _ in range(workers):
                ours, theirs = context.Pipe()
                process = context.Process(target=_work, args=(theirs,), daemon=True)
                process.start()
                theirs.close()
                processes.append(process)
                connections.append(ours)
        yield connections
    finally:
        for started in processes:
            started.terminate()
        for started in processes:
            started.join()


def _work(connection: Connection) -> None:
    """A worker's life: jobs come and results go through the connection, until its other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    try:
        while True:
            job: Job[Any] = connection.recv()
            try:
                message = ("done", job(lambda done, total: connection.send(("step", (done, total)))))
            except ConnectionError:
                raise
            except Exception as error:
                error.add_note(f"In a worker process:\n{traceback.format_exc()}")
                message = ("failed", error)
            connection.send(message)
    except (EOFError, ConnectionError):
        return


@contextmanager
def signals_blocked(*numbers: signal.Signals) -> Iterator[None]:
    """Such a signal arrives at the end; where the system cannot hold it back, it does not."""
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    before = signal.pthread_sigmask(signal.SIG_BLOCK, numbers)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


@contextmanager
def threads_set(count: int | None) -> Iterator[None]:
    """How many torch uses meanwhile; None: as many as now."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
