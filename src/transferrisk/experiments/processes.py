"""Worker processes of this machine: items of work go to them, and what becomes of each is told as it comes."""

from __future__ import annotations

import os
import signal
import traceback
from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any, Generic, Literal, TypeVar

import torch

from ..errors import TransferRiskError
from ..training import OnStep, Stopped

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")

Item = TypeVar("Item")
Work = Callable[[Item, OnStep], Any]
"""What a worker does with an item: it reports `on_step(done, total)` now and then, and returns the result. Pickled."""


@dataclass(frozen=True)
class Last:
    """A result after which its worker makes room for a new one, because something in it may be broken."""

    result: Any


@dataclass(frozen=True)
class Told(Generic[Item]):
    """
    content  step: (done, total); done: the result; died: how the worker ended, before the item was done
    """

    item: Item
    what: Literal["step", "done", "died"]
    content: Any


def in_processes(
    items: deque[Item], works: Sequence[Work[Item]], threads: int, daemon: bool = False
) -> Generator[Told[Item], None, None]:
    """Give each item to a worker that is free; close the iterator, and the workers have ended.

    Workers are started afresh, so a script that asks for them needs the `if __name__ == "__main__"` guard. One that
    died is replaced; its item is done again if the caller puts it back. What work raises is raised here.

    works    one for each worker
    threads  of each worker
    daemon   workers have no processes of their own, such as loaders, and end with this one even if nothing is closed
    """
    team, begun = _Team(threads, daemon), False
    busy: dict[Any, tuple[_Worker, Item]] = {}

    def give(worker: _Worker, item: Item) -> None:
        busy[worker.connection] = worker, item
        with suppress(OSError):  # it has just died, which is noticed when its answer is waited for
            worker.connection.send(item)

    try:
        for worker in [team.add(work) for work in works[: len(items)]]:
            give(worker, items.popleft())
        while busy:
            for connection in wait(list(busy)):
                worker, item = busy[connection]
                try:
                    what, content = worker.connection.recv()
                except (EOFError, OSError):
                    what, content = "died", _ended(team.remove(worker))
                if what == "begun":
                    begun = True
                elif what == "step":
                    yield Told(item, what, content)
                elif what == "raised":
                    raise content
                elif what == "died":
                    if not begun:
                        raise TransferRiskError(
                            f"a worker process {content} before it could work: use fewer workers, and in a script of "
                            'your own start them below `if __name__ == "__main__":`'
                        )
                    del busy[connection]
                    yield Told(item, what, content)
                    if items:
                        give(team.add(worker.work), items.popleft())
                else:
                    del busy[connection]
                    if what == "last":
                        team.remove(worker)
                    if items:
                        give(team.add(worker.work) if what == "last" else worker, items.popleft())
                    yield Told(item, "done", content)
    finally:
        team.end()


@dataclass(frozen=True)
class _Worker:
    work: Work[Any]
    process: BaseProcess
    connection: Connection


@dataclass
class _Team:
    threads: int
    daemon: bool
    members: list[_Worker] = field(default_factory=list)

    def add(self, work: Work[Any]) -> _Worker:
        """Start a worker. It inherits a block on signals: what Ctrl-C means is decided in this process alone."""
        context = get_context("spawn")
        resource_tracker.ensure_running()  # when it starts with the first worker, it lifts the block
        with _signals_blocked(signal.SIGINT, signal.SIGTERM), _environment(self.threads):
            ours, theirs = context.Pipe()
            process = context.Process(target=_live, args=(theirs, work, self.threads), daemon=self.daemon)
            process.start()
            theirs.close()
            self.members.append(_Worker(work, process, ours))
        return self.members[-1]

    def remove(self, worker: _Worker) -> int:
        """Of one that has ended or is about to; its exit code."""
        worker.process.join()
        worker.connection.close()
        self.members.remove(worker)
        return worker.process.exitcode or 0

    def end(self) -> None:
        """Trainings that are saved finish their step and are; whoever cannot wait for that interrupts again."""
        processes = [worker.process for worker in self.members]
        try:
            for process in processes:
                process.terminate()
            for process in processes:
                process.join()
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.join()


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was ended by {name}{', perhaps because memory ran out' * (code == -9)}"


@contextmanager
def _signals_blocked(*numbers: signal.Signals) -> Iterator[None]:
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
def _environment(threads: int) -> Iterator[None]:
    """What libraries of a worker read as they are loaded."""
    before = {name: os.environ.get(name) for name in _THREADS}
    os.environ.update(dict.fromkeys(_THREADS, str(threads)))
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def _live(connection: Connection, work: Work[Any], threads: int) -> None:
    """A worker's life: items come and results go through the connection, until its other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    torch.set_num_threads(threads)
    abandoned = False

    def on_step(done: int, total: int) -> None:
        nonlocal abandoned
        try:
            connection.send(("step", (done, total)))
        except OSError:  # the process that started us is gone: stop as it would have asked us to
            if not abandoned:
                abandoned = True
                os.kill(os.getpid(), signal.SIGTERM)

    try:
        connection.send(("begun", None))
        what = "done"
        while what == "done":
            what, content = _answer(work, connection.recv(), on_step)
            connection.send((what, content))
    except (EOFError, ConnectionError, Stopped):
        return


def _answer(work: Work[Any], item: Any, on_step: OnStep) -> tuple[str, Any]:
    try:
        result = work(item, on_step)
    except Stopped:
        raise
    except Exception as error:
        error.add_note(f"In a worker process:\n{traceback.format_exc()}")
        return "raised", error
    return ("last", result.result) if isinstance(result, Last) else ("done", result)
