"""Carrying out independent jobs: in processes of this machine, or in this one.

`ray_executor` and `submitit_executor` have those of a cluster.

Python's own pools cannot do what runs of hours need: they break as a whole when one worker is killed, and end workers
without letting them save. So each worker here is a process with a pipe: a job goes in; steps and the result come out. A
worker that dies is replaced and its job tried again. SIGTERM asks a worker to finish its step, save and end.
"""

from __future__ import annotations

import itertools
import os
import signal
import traceback
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context, resource_tracker
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Annotated, Any, Literal, Protocol, TypeVar

import torch

from ..errors import InputError, TransferRiskError, choices
from ..settings import Bound, Count, Settings
from ..solvers import threads_set
from ..training import OnStep, Stopped
from ..training.engine import device_of
from ..training.processes import how_it_ended
from .tasks import ignore_steps

T = TypeVar("T")
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass
class Slot:
    """Where a job runs.

    broken  set by a job after which its worker makes room for a new one, since a GPU's error may stay with the process
    """

    device: str
    threads: int
    on_step: OnStep = ignore_steps
    broken: bool = False


Job = Callable[[Slot], T]
"""Does its work, reports steps to the slot now and then, and returns the result. Pickled for another process."""


@dataclass(frozen=True)
class Message:
    """A message of an executor about a job.

    position  the job's place among all jobs
    content   step: (done, total); done: the result; retried, lost: why its worker died
    """

    position: int
    kind: Literal["step", "done", "retried", "lost"]
    content: Any


Messages = Generator[Message, None, None]
EXECUTORS = {
    "local": ("--workers", "--device"),
    "ray": ("--address", "--gpus-per-run", "--cpus-per-run"),
    "submitit": ("--workers", "--gpus-per-run", "--cpus-per-run", "--slurm"),
}
"""Executor -> the options that it has, besides those that all have."""
OnJobStep = Callable[[int, int, int], None]
"""(position of the job, steps done, steps in all)"""


class Executor(Protocol):
    def map(self, jobs: Sequence[Job[Any]], on_step: OnJobStep) -> Messages:
        """Yield messages about the jobs as they come; an error that a job raises is raised here.

        When the iterator is closed, jobs that can be saved have been saved and have ended. Steps of a job that runs in
        this process go to `on_step`, since an iterator cannot yield anything while it works.
        """

    def close(self) -> None:
        """End everything that was started for several calls of `map`."""


def count_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class LocalExecutor(Settings):
    """
    workers  processes, started afresh: a script that asks for them needs the `if __name__ == "__main__"` guard. None:
             one for each device, or for each core if the device is the CPU. 0: all is done in this process, which ends
             with the first job that kills it
    devices  workers take them in turn; None: all GPUs, or the CPU
    threads  threads of each worker; None: the cores, divided among the workers
    retries  how often a job is tried again after its worker died
    """

    workers: Annotated[int, Bound(least=0)] | None = None
    devices: tuple[str, ...] | None = None
    threads: Count | None = None
    retries: Annotated[int, Bound(least=0)] = 2

    def seats(self) -> tuple[tuple[str, ...], int]:
        """The device of each worker, or of this process, and the threads of each."""
        devices, workers = self.devices, self.workers
        if devices is None:
            devices = tuple(map("cuda:{}".format, range(torch.cuda.device_count()))) or ("cpu",)
        if workers is None:
            workers = count_cores() if devices == ("cpu",) else len(devices)
        seats = tuple(itertools.islice(itertools.cycle(devices), max(1, workers)))
        return seats, self.threads or max(1, count_cores() // len(seats))

    def map(self, jobs: Sequence[Job[Any]], on_step: OnJobStep = lambda position, done, total: None) -> Messages:
        seats, threads = self.seats()
        if self.workers == 0:
            return _here(jobs, seats[0], threads, on_step)
        return _in_processes(jobs, seats, threads, self.retries)

    def close(self) -> None:
        """Nothing outlives `map`."""


def run_jobs(jobs: Sequence[Job[T]], workers: int, on_step: OnJobStep) -> Iterator[tuple[int, T]]:
    """(position, result) of each job as it finishes, on the CPU; one worker is this process.

    A job gets one thread wherever it runs: small networks gain little from more, threads that wait by spinning stop
    each other where cores are shared, and so the numbers do not depend on how many processes there are.
    """
    if workers < 1:
        raise InputError(f"workers must be an integer >= 1, got {workers}")
    executor = LocalExecutor(0 if min(workers, len(jobs)) == 1 else workers, ("cpu",), threads=1, retries=0)
    with closing(executor.map(jobs, on_step)) as messages:
        for message in messages:
            if message.kind == "step":
                on_step(message.position, *message.content)
            elif message.kind == "done":
                yield message.position, message.content
            else:
                raise TransferRiskError(f"a worker process {message.content}: use fewer workers")


def _here(jobs: Sequence[Job[Any]], device: str, threads: int, on_step: OnJobStep) -> Messages:
    for position, job in enumerate(jobs):
        with threads_set(threads):
            result = job(Slot(device, threads, partial(on_step, position)))
        yield Message(position, "done", result)


def _in_processes(jobs: Sequence[Job[Any]], seats: Sequence[str], threads: int, retries: int) -> Messages:
    waiting, deaths = deque(range(len(jobs))), Counter[int]()
    team: list[_Worker] = []
    busy: dict[Any, _Worker] = {}  # by their connections
    begun = False

    def employ(worker: _Worker) -> None:
        """Give a worker the next job, if there is one."""
        if waiting:
            worker.position = waiting.popleft()
            busy[worker.connection] = worker
            with suppress(OSError):  # it has just died, which is noticed when its answer is waited for
                worker.connection.send(jobs[worker.position])

    def start(device: str) -> None:
        team.append(_Worker(device, threads))
        employ(team[-1])

    try:
        for device in seats[: len(jobs)]:
            start(device)
        while busy:
            for connection in wait(list(busy)):
                worker = busy[connection]
                position, how = worker.position, ""
                try:
                    kind, content = worker.connection.recv()
                except (EOFError, OSError):
                    kind, content = "died", None
                if kind == "step":
                    yield Message(position, "step", content)
                    continue
                if kind == "begun":
                    begun = True
                    continue
                if kind == "raised":
                    raise content
                del busy[connection]
                if kind != "done":  # it has ended, or is about to
                    how = worker.join()
                    team.remove(worker)
                if kind == "died":
                    if not begun:
                        raise TransferRiskError(
                            f"a worker process {how} before it could work: use fewer workers, and in a script of your "
                            'own start them below `if __name__ == "__main__":`'
                        )
                    deaths[position] += 1
                    if deaths[position] <= retries:
                        waiting.appendleft(position)
                if kind == "done":
                    employ(worker)
                elif waiting:
                    start(worker.device)
                if kind != "died":
                    yield Message(position, "done", content)
                elif deaths[position] <= retries:
                    yield Message(position, "retried", how)
                else:
                    attempts = f", at each of {retries + 1} attempts" if retries else ""
                    yield Message(position, "lost", how + attempts)
    finally:
        _end(team)


class _Worker:
    """A process that does jobs; `position` is that of the job it has, or had."""

    def __init__(self, device: str, threads: int) -> None:
        """Start it. It inherits a block on signals: what Ctrl-C means is decided in this process alone."""
        self.device, self.position = device, -1
        context = get_context("spawn")
        resource_tracker.ensure_running()  # when it starts with the first worker, it lifts the block
        with _inherited(threads):
            self.connection, theirs = context.Pipe()
            self.process: BaseProcess = context.Process(target=_work, args=(theirs, device, threads))
            self.process.start()
            theirs.close()

    def join(self) -> str:
        """Wait for its end, and say how it ended."""
        self.process.join()
        self.connection.close()
        return how_it_ended(self.process.exitcode or 0)


def _end(team: Sequence[_Worker]) -> None:
    """Ask the workers to finish their step and save, and wait for that; a second interruption kills them."""
    try:
        for worker in team:
            worker.process.terminate()
        for worker in team:
            worker.process.join()
    finally:
        for worker in team:
            worker.process.kill()
        for worker in team:
            worker.process.join()


@contextmanager
def _inherited(threads: int) -> Iterator[None]:
    """Let a process that starts now inherit a block on SIGINT and SIGTERM, and the number of threads.

    Libraries read the number as they are loaded. Signals that come meanwhile arrive at the end, where the system can
    hold them back.
    """
    before = os.environ.copy()
    can_block = hasattr(signal, "pthread_sigmask")
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT, signal.SIGTERM)) if can_block else ()
    os.environ.update(dict.fromkeys(_THREADS, str(threads)))
    try:
        yield
    finally:
        for name in _THREADS:
            os.environ.pop(name)
        os.environ.update(before)
        if can_block:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)


def _work(connection: Connection, device: str, threads: int) -> None:
    """Run by a worker: receive jobs and send results through the connection, until its other end is closed."""
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
        kind = "done"
        while kind == "done":
            kind, content = work_on(connection.recv(), Slot(device, threads, on_step))
            connection.send((kind, content))
    except (EOFError, ConnectionError, Stopped):
        return


def work_on(job: Job[Any], slot: Slot) -> tuple[str, Any]:
    """What came of a job in a worker: (done, result), (last, result) where the worker is broken, or (raised, error)."""
    try:
        result = job(slot)
    except Stopped:
        raise
    except Exception as error:
        error.add_note(f"In a worker process:\n{traceback.format_exc()}")
        return "raised", error
    return "last" if slot.broken else "done", result


def make_executor(
    name: str, *, device: str = "auto", workers: int | None = None, threads: int | None = None, retries: int = 2,
    address: str | None = None, gpus_per_run: float | None = None, cpus_per_run: float | None = None,
    slurm: Sequence[str] = (), folder: str = "results",
) -> Executor:  # fmt: skip
    """The executor of this name, local, ray or submitit; an option that it does not have is refused.

    device  auto, cpu, cuda, or several such as cuda:0,cuda:1
    slurm   options of sbatch, NAME=VALUE
    folder  where the results go
    """
    if name not in EXECUTORS:
        raise InputError(f"unknown executor {name!r}{choices(name, EXECUTORS)}")
    given = {
        "--workers": workers, "--device": None if device == "auto" else device, "--address": address,
        "--gpus-per-run": gpus_per_run, "--cpus-per-run": cpus_per_run, "--slurm": slurm or None,
    }  # fmt: skip
    for option, value in given.items():
        if value is not None and option not in EXECUTORS[name]:
            those = " and ".join(other for other, options in EXECUTORS.items() if option in options)
            raise InputError(f"{option} is an option of --executor {those}, got --executor {name}: leave it out")
    if name == "local":
        devices = None if device == "auto" else tuple(map(str.strip, device.split(",")))
        for one in devices or ():
            device_of(one)  # one that is not there is an error
        return LocalExecutor(workers, devices, threads, retries)
    cpus = 1.0 if cpus_per_run is None else cpus_per_run
    if name == "ray":
        from .ray_executor import RayExecutor

        return RayExecutor(address, gpus_per_run, cpus, threads, retries)
    from .submitit_executor import SubmititExecutor

    folder = folder.removeprefix("file://")
    if "://" in folder:
        raise InputError(f"with --executor submitit, --output must be a folder that all machines share, got {folder}")
    for pair in slurm:
        if "=" not in pair:
            raise InputError(f"--slurm must be NAME=VALUE, such as partition=gpu, got {pair!r}")
    options = {key.strip(): value.strip() for key, _, value in (pair.partition("=") for pair in slurm)}
    cluster: Any = options.pop("cluster", "slurm")  # checked there
    return SubmititExecutor(
        Path(folder).absolute(), workers, gpus_per_run, cpus, threads, retries, options, cluster=cluster
    )


def usual_precision(device: str) -> str:
    """The precision of runs that do not say theirs: bf16 where they run on a GPU."""
    return "fp32" if device == "cpu" or not torch.cuda.is_available() else "bf16"
