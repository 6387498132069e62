"""Executors: they do independent jobs in this process or in worker processes of this machine.

`ray_executor` and `submitit_executor` have the executors of clusters.

Runs of hours need more than Python's own pools, which break as a whole when a worker is killed, and end workers
without letting them save. Here each worker is a process with a pipe: a job goes in; steps and the result come out. A
worker that dies is replaced, and its job is tried again. SIGTERM asks a worker to finish its step, save and end.
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
PER_WORKER = 8  # jobs at once in a worker on a GPU
_THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")


@dataclass
class Slot:
    """Where a job runs.

    broken   set by a job after which its worker must be replaced, since an error of a GPU may stay with the process
    at_once  largest number of jobs in the process while this one ran
    """

    device: str
    threads: int
    on_step: OnStep = ignore_steps
    broken: bool = False
    at_once: int = 1


Job = Callable[[Slot], T]
"""A function that works, reports steps to the slot, and returns a result. It is pickled for another process."""


@dataclass(frozen=True)
class Message:
    """A message of an executor about a job.

    position  position of the job among all jobs
    content   step: (done, total); done: the result; retried and lost: why, such as that its worker process was killed
    """

    position: int
    kind: Literal["step", "done", "retried", "lost"]
    content: Any


Messages = Generator[Message, None, None]
EXECUTORS = {
    "local": ("--workers", "--device", "--runs-per-gpu"),
    "ray": ("--address", "--gpus-per-run", "--cpus-per-run"),
    "submitit": ("--workers", "--gpus-per-run", "--cpus-per-run", "--slurm"),
}
"""Executor -> its options, without those that all executors have."""
OnJobStep = Callable[[int, int, int], None]
"""(position of the job, steps done, steps in all)"""


class Executor(Protocol):
    def map(self, jobs: Sequence[Job[Any]], on_step: OnJobStep) -> Messages:
        """Yield messages about the jobs as they arrive; an error that a job raises is raised here.

        Closing the iterator lets running jobs save and end. Steps of a job in this process go to `on_step`, since the
        iterator cannot yield while it works.
        """

    def close(self) -> None:
        """End what was started for several calls of `map`."""


def count_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@dataclass(frozen=True)
class LocalExecutor(Settings):
    """Executor in processes of this machine.

    Parameters
    ----------
    workers
        Number of processes, which a script must start below `if __name__ == "__main__":`. 0 does all jobs in this
        process. None: one for each GPU, or for each core.
    devices
        Devices that the workers take in turn. None: all GPUs, or the CPU.
    threads
        Number of threads of each worker. None: the cores divided by the workers.
    retries
        Number of times a job is tried again after its worker died, or after it failed beside others.
    runs_per_gpu
        Number of jobs at once in a worker on a GPU, in threads that take turns. None: up to 8, as memory allows.

    Examples
    --------
    >>> from transferrisk.experiments import LocalExecutor
    >>> executor = LocalExecutor(workers=0, devices=("cpu",), threads=1)
    >>> [message.content for message in executor.map([lambda slot: slot.device, lambda slot: slot.threads])]
    ['cpu', 1]
    """

    workers: Annotated[int, Bound(least=0)] | None = None
    devices: tuple[str, ...] | None = None
    threads: Count | None = None
    retries: Annotated[int, Bound(least=0)] = 2
    runs_per_gpu: Count | None = None

    def seats(self) -> tuple[tuple[str, ...], int]:
        """Return where the workers run.

        Returns
        -------
        devices : tuple of str
            Device of each worker, or of this process.
        threads : int
            Number of threads of each.
        """
        devices, workers = self.devices, self.workers
        if devices is None:
            devices = tuple(map("cuda:{}".format, range(torch.cuda.device_count()))) or ("cpu",)
        if workers is None:
            workers = count_cores() if devices == ("cpu",) else len(devices)
        seats = tuple(itertools.islice(itertools.cycle(devices), max(1, workers)))
        return seats, self.threads or max(1, count_cores() // len(seats))

    def map(self, jobs: Sequence[Job[Any]], on_step: OnJobStep = lambda position, done, total: None) -> Messages:
        """Do jobs, and yield messages about them as they arrive.

        An error that a job raises is raised here. Closing the iterator lets running jobs save and end.

        Parameters
        ----------
        jobs
            Functions of a `Slot`, which has the device and the threads of the worker. They are pickled for other
            processes.
        on_step
            Function of a job's position, its steps done and all its steps. It is called for jobs in this process,
            since the iterator cannot yield while they work.

        Yields
        ------
        Message
            A message with the position of the job, its kind (step, done, retried or lost) and its content, such as the
            result of a job that is done.
        """
        seats, threads = self.seats()
        if self.workers == 0:
            return _here(jobs, seats[0], threads, on_step)
        rooms = [(device, 1 if device == "cpu" else self.runs_per_gpu or PER_WORKER) for device in seats]
        return in_processes(jobs, rooms, threads, self.retries)

    def close(self) -> None:
        """Do nothing, since nothing outlives `map`."""


def run_jobs(jobs: Sequence[Job[T]], workers: int, on_step: OnJobStep) -> Iterator[tuple[int, T]]:
    """Yield (position, result) of each job as it finishes on the CPU; a single worker is this process.

    A job has one thread wherever it runs: small networks gain little from more, spinning threads block each other on
    shared cores, and so the numbers do not depend on the number of processes.
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
                raise TransferRiskError(f"a job was lost, since {message.content}: use fewer workers")


def _here(jobs: Sequence[Job[Any]], device: str, threads: int, on_step: OnJobStep) -> Messages:
    for position, job in enumerate(jobs):
        with threads_set(threads):
            result = job(Slot(device, threads, partial(on_step, position)))
        yield Message(position, "done", result)


def in_processes(jobs: Sequence[Job[Any]], rooms: Sequence[tuple[str, int]], threads: int, retries: int) -> Messages:
    """Do jobs in worker processes: one for each of `rooms`, a device and the number of jobs at once on it.

    A worker gets a job whenever it asks for one. Its messages are (kind, position, content):

    free    it can begin a job
    begun   it has begun the job
    step    content: (done, total)
    done    content: the result
    last    the same, of a worker that begins no other job, since the job has left it broken
    again   the same, of a job that ran beside others, which may be the reason that it failed
    raised  content: the error
    """
    waiting, failures = deque(range(len(jobs))), Counter[int]()
    team: list[_Worker] = []
    asked = False

    def employ() -> None:
        """Give jobs to the workers that have asked; one that has failed before is alone in its worker."""
        for worker in team:
            if not worker.free or worker.ending or any(failures[position] for position in worker.begun):
                continue
            chosen = next((position for position in waiting if not (failures[position] and worker.begun)), None)
            if chosen is not None:
                waiting.remove(chosen)
                worker.begun[chosen], worker.free = False, False
                with suppress(OSError):  # it has just died, which is noticed while waiting for its answer
                    worker.connection.send((chosen, jobs[chosen]))

    def put_back(worker: _Worker) -> None:
        """Take back the jobs that a worker will not begin."""
        for position in [position for position, begun in worker.begun.items() if not begun]:
            del worker.begun[position]
            waiting.appendleft(position)

    def replace(worker: _Worker) -> str:
        """Return how a worker ended that is about to; another takes its place if there are jobs."""
        how = worker.join()
        team.remove(worker)
        if waiting:
            team.append(_Worker(worker.device, worker.room, threads))
        return how

    def try_again(position: int) -> bool:
        failures[position] += 1
        if failures[position] <= retries:
            waiting.appendleft(position)
        return failures[position] <= retries

    try:
        team.extend(_Worker(device, room, threads) for device, room in rooms[: len(jobs)])
        while waiting or any(worker.begun for worker in team):
            by_connection: dict[Any, _Worker] = {worker.connection: worker for worker in team}
            for connection in wait(list(by_connection)):
                worker = by_connection[connection]
                try:
                    kind, position, content = worker.connection.recv()
                except (EOFError, OSError):
                    if not asked:
                        raise TransferRiskError(
                            f"a worker process {worker.join()} before it could work: use fewer workers, and in a "
                            'script of your own start them below `if __name__ == "__main__":`'
                        ) from None
                    if any(worker.begun.values()):
                        put_back(worker)
                    elif not worker.begun and waiting:  # it died before it asked for a job
                        worker.begun[waiting.popleft()] = False
                    again = {one: try_again(one) for one in reversed(worker.begun)}
                    how = f"its worker process {replace(worker)}"
                    for one, tried in again.items():
                        attempts = f", at each of {retries + 1} attempts" if retries and not tried else ""
                        yield Message(one, "retried" if tried else "lost", how + attempts)
                    continue
                if kind == "free":
                    asked = worker.free = True
                elif kind == "begun":
                    worker.begun[position] = True
                elif kind == "step":
                    yield Message(position, "step", content)
                elif kind == "raised":
                    raise content
                else:
                    del worker.begun[position]
                    if kind != "done":
                        worker.ending = True
                        put_back(worker)
                    retried = kind == "again" and try_again(position)
                    if worker.ending and not worker.begun:
                        replace(worker)
                    message = Message(position, "retried", "it failed beside others") if retried else None
                    yield message or Message(position, "done", content)
            employ()
    finally:
        _end(team)


class _Worker:
    """A process that does jobs.

    begun   position of each of its jobs -> whether it has begun
    free    it has asked for a job
    ending  it takes no more jobs, and ends when it has done those that it has
    """

    def __init__(self, device: str, room: int, threads: int) -> None:
        """Start the process, which inherits a block on signals: only this process handles Ctrl-C."""
        self.device, self.room, self.free, self.ending = device, room, False, False
        self.begun: dict[int, bool] = {}
        context = get_context("spawn")
        resource_tracker.ensure_running()  # if it started with the first worker, it would lift the block
        with _inherited(threads):
            self.connection, theirs = context.Pipe()
            self.process: BaseProcess = context.Process(target=_work, args=(theirs, device, threads, room))
            self.process.start()
            theirs.close()

    def join(self) -> str:
        """Wait for its end, and return how it ended."""
        self.process.join()
        self.connection.close()
        return how_it_ended(self.process.exitcode or 0)


def _end(team: Sequence[_Worker]) -> None:
    """Ask the workers to finish their step and save, and wait for them; a second interruption kills them."""
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
    """Let a process that starts in this block inherit a block on SIGINT and SIGTERM, and the number of threads.

    Libraries read the number when they are loaded. Signals of this process arrive at the end of the block, if the
    system can hold them back.
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


def _work(connection: Connection, device: str, threads: int, room: int) -> None:
    """Main function of a worker: receive jobs and send results until the other end of the connection is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})
    torch.set_num_threads(threads)
    if room > 1:
        from .beside import SideBySide

        SideBySide(connection, device, threads, room).work()
        return
    abandoned, position = False, -1

    def on_step(done: int, total: int) -> None:
        nonlocal abandoned
        try:
            connection.send(("step", position, (done, total)))
        except OSError:  # the parent process is gone: stop as it would have asked
            if not abandoned:
                abandoned = True
                os.kill(os.getpid(), signal.SIGTERM)

    try:
        kind = "done"
        while kind == "done":
            connection.send(("free", -1, None))
            position, job = connection.recv()
            connection.send(("begun", position, None))
            kind, content = work_on(job, Slot(device, threads, on_step))
            connection.send((kind, position, content))
    except (EOFError, ConnectionError, Stopped):
        return


def work_on(job: Job[Any], slot: Slot) -> tuple[str, Any]:
    """Do a job in a worker; return (done, result), (last, result) if the worker is broken, or (raised, error)."""
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
    runs_per_gpu: int | None = None, address: str | None = None, gpus_per_run: float | None = None,
    cpus_per_run: float | None = None,
    slurm: Sequence[str] = (), folder: str = "results",
) -> Executor:  # fmt: skip
    """Return the executor of this name: local, ray or submitit. An option that it does not have is an error.

    device  auto, cpu, cuda, or several devices such as cuda:0,cuda:1
    slurm   options of sbatch, NAME=VALUE
    folder  folder of the results
    """
    if name not in EXECUTORS:
        raise InputError(f"unknown executor {name!r}{choices(name, EXECUTORS)}")
    given = {
        "--workers": workers, "--device": None if device == "auto" else device, "--runs-per-gpu": runs_per_gpu,
        "--address": address, "--gpus-per-run": gpus_per_run, "--cpus-per-run": cpus_per_run, "--slurm": slurm or None,
    }  # fmt: skip
    for option, value in given.items():
        if value is not None and option not in EXECUTORS[name]:
            those = " and ".join(other for other, options in EXECUTORS.items() if option in options)
            raise InputError(f"{option} must be left out with --executor {name}: it is an option of {those}")
    if name == "local":
        devices = None if device == "auto" else tuple(map(str.strip, device.split(",")))
        for one in devices or ():
            device_of(one)  # raises an error if it is missing
        return LocalExecutor(workers, devices, threads, retries, runs_per_gpu)
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
    cluster: Any = options.pop("cluster", "slurm")  # checked by the executor
    return SubmititExecutor(
        Path(folder).absolute(), workers, gpus_per_run, cpus, threads, retries, options, cluster=cluster
    )


def usual_precision(device: str) -> str:
    """Return the precision of runs that set none: bf16 on a GPU, else fp32."""
    return "fp32" if device == "cpu" or not torch.cuda.is_available() else "bf16"
