"""Runs in several processes of this machine, sharing its GPUs and its cores."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib import import_module
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import torch

from ..errors import InputError, TransferRiskError
from ..training import Stopped
from .execute import Event, OnEvent, Outcome, execute
from .executors import cores, signals_blocked
from .store import Store
from .tasks import PlannedRun, get

_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass(frozen=True)
class LocalExecutor:
    """
    workers    processes, started afresh: a script that asks for them needs the `if __name__ == "__main__"` guard. None:
               one for each device, or for each core where that is the CPU. 0: none, all is done in this process, whose
               death or broken GPU is then the end of it
    devices    workers take them in turn; None: all GPUs, or the CPU
    threads    of each worker; None: cores, divided among the workers
    retries    how often a run is tried again after its worker died
    data_root  where data sets are; None: the usual place
    """

    workers: int | None = None
    devices: Sequence[str] | None = None
    threads: int | None = None
    retries: int = 2
    data_root: Path | None = None

    def __post_init__(self) -> None:
        if self.workers is not None and self.workers < 0:
            raise InputError(f"workers={self.workers} is no number of processes: use 1 or more, or 0 for this process")
        if self.threads is not None and self.threads < 1:
            raise InputError(f"threads={self.threads} is no number of threads: use 1 or more")
        if self.retries < 0:
            raise InputError(f"retries={self.retries} is no number of attempts: use 0 or more")

    def map(self, runs: Sequence[PlannedRun], store: Store, on_event: OnEvent) -> Iterator[Outcome]:
        """Outcomes as they come. However the iteration ends, workers have saved what they had when it has."""
        devices, workers, threads = shared_out(self.devices, self.workers, self.threads)
        if workers == 0:
            return _here(runs, store, devices[0], threads, self.data_root, on_event)
        jobs = [_Job(store, devices[i % len(devices)], threads, self.data_root) for i in range(workers)]
        return _in_processes(runs, store, jobs[: len(runs)], self.retries, on_event)

    def close(self) -> None:
        """Nothing outlives `map`."""


def shared_out(
    devices: Sequence[str] | None = None, workers: int | None = None, threads: int | None = None
) -> tuple[Sequence[str], int, int]:
    """Devices, workers and threads of each, where None was given as `LocalExecutor` says."""
    devices = devices or _devices()
    if workers is None:
        workers = cores() if list(devices) == ["cpu"] else len(devices)
    return devices, workers, threads or max(1, cores() // max(1, workers))


def _devices() -> list[str]:
    there = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return [f"cuda:{i}" for i in range(there)] or ["cpu"]


def _here(
    runs: Sequence[PlannedRun], store: Store, device: str, threads: int, data_root: Path | None, on_event: OnEvent
) -> Iterator[Outcome]:
    for run in runs:

        def on_step(done: int, total: int, name: str = run.name) -> None:
            on_event(Event(name, "step", done, total))

        yield execute(run, store, device, threads, data_root, on_step)


@dataclass(frozen=True)
class _Job:
    """What all runs of a worker have in common."""

    store: Store
    device: str
    threads: int
    data_root: Path | None


@dataclass(eq=False)
class _Worker:
    """
    run    that it has been given; None: it has nothing to do
    ready  it has begun to work, so that its kind can
    """

    job: _Job
    process: BaseProcess
    connection: Connection
    run: PlannedRun | None = None
    ready: bool = False

    def give(self, run: PlannedRun) -> None:
        self.run = run
        with suppress(OSError):  # it has just died, which is noticed when its answer is waited for
            self.connection.send((run, type(get(run.task)).__module__))


@dataclass
class _Team:
    members: list[_Worker] = field(default_factory=list)

    def add(self, job: _Job) -> _Worker:
        """Start a worker. It inherits a block on signals: what Ctrl-C means is decided in this process alone."""
        context = get_context("spawn")
        resource_tracker.ensure_running()  # when it starts with the first worker, it lifts the block
        with signals_blocked(signal.SIGINT, signal.SIGTERM), _environment(job.threads):
            ours, theirs = context.Pipe()
            process = context.Process(target=_work, args=(theirs, job))  # no daemon: it may have loaders of its own
            process.start()
            theirs.close()
            self.members.append(_Worker(job, process, ours))
        return self.members[-1]

    def remove(self, worker: _Worker) -> int:
        """Of one that has ended or is about to; its exit code."""
        worker.process.join()
        worker.connection.close()
        self.members.remove(worker)
        return worker.process.exitcode or 0

    def end(self) -> None:
        """Trainings finish their step and save; whoever cannot wait for that interrupts again."""
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


@contextmanager
def _team() -> Iterator[_Team]:
    team = _Team()
    try:
        yield team
    finally:
        team.end()


def _in_processes(
    runs: Sequence[PlannedRun], store: Store, jobs: Sequence[_Job], retries: int, on_event: OnEvent
) -> Iterator[Outcome]:
    left, deaths, proven = deque(runs), Counter[str](), False
    with _team() as team:
        for job in jobs:
            team.add(job).give(left.popleft())
        while busy := {worker.connection: worker for worker in team.members if worker.run is not None}:
            for connection in wait(list(busy)):
                worker = busy[connection]  # type: ignore[index]  # wait says less of what it returns
                assert worker.run is not None
                outcome, leaves = None, False
                try:
                    kind, content = worker.connection.recv()
                except (EOFError, OSError):
                    code, leaves = team.remove(worker), True
                    if not proven and not worker.ready:
                        raise TransferRiskError(
                            f"a worker process {_ended(code)} before it could work: use fewer workers, and in a script "
                            'of your own start them below `if __name__ == "__main__":`'
                        ) from None
                    outcome = _after_death(worker.run, code, store, deaths, retries, on_event)
                    if outcome is None:
                        left.appendleft(worker.run)
                else:
                    if kind == "ready":
                        worker.ready = proven = True
                        continue
                    if kind == "step":
                        on_event(Event(worker.run.name, "step", *content))
                        continue
                    if kind == "raised":
                        raise content
                    outcome, leaves = content
                    if leaves:
                        team.remove(worker)
                worker.run = None
                if left:
                    (team.add(worker.job) if leaves else worker).give(left.popleft())
                if outcome is not None:
                    yield outcome


def _after_death(
    run: PlannedRun, code: int, store: Store, deaths: Counter[str], retries: int, on_event: OnEvent
) -> Outcome | None:
    """None: the run is tried again."""
    deaths[run.name] += 1
    how = f"its worker process {_ended(code)}"
    if deaths[run.name] <= retries:
        on_event(Event(run.name, "died", message=f"{how}; it is tried again"))
        return None
    error = f"{how}, at each of {deaths[run.name]} attempts" if retries else how
    with suppress(TransferRiskError), store.claim(run.name) as folder:
        if folder is not None and not store.done(run.name):
            store.fail(run.name, error)
    return Outcome(run.name, "failed", error=error)


def _ended(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    name = signal.Signals(-code).name if -code in set(signal.Signals) else f"signal {-code}"
    return f"was ended by {name}{', perhaps because memory ran out' * (code == -9)}"


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


def _work(connection: Connection, job: _Job) -> None:
    """A worker's life: runs come and outcomes go through the connection, until its other end is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    try:
        connection.send(("ready", None))
        while True:
            run, module = connection.recv()
            message = _answer(connection, job, run, module)
            connection.send(message)
            if message[0] == "raised" or message[1][1]:
                return
    except (EOFError, ConnectionError, Stopped):
        return


def _answer(connection: Connection, job: _Job, run: PlannedRun, module: str) -> tuple[str, Any]:
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
        known_task(module)
        outcome = execute(run, job.store, job.device, job.threads, job.data_root, on_step)
    except Stopped:
        raise
    except Exception as error:
        return "raised", error
    broken = outcome.state == "failed" and torch.cuda.is_initialized()  # a GPU's error may stay with the process
    return "outcome", (outcome, broken)


def known_task(module: str) -> None:
    """Import the module that registers a run's task."""
    if module not in sys.modules:
        try:
            import_module(module)
        except ImportError as error:
            raise InputError(
                f"the module {module}, which registers a task, cannot be imported by a worker ({error}): install it, "
                "or add its folder to PYTHONPATH"
            ) from None
