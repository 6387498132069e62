"""Runs in several processes of this machine, sharing its GPUs and its cores."""

from __future__ import annotations

import sys
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

import torch

from ..errors import InputError, TransferRiskError
from ..training import OnStep
from .execute import Event, OnEvent, Outcome, execute
from .executors import cores
from .processes import Last, in_processes
from .store import Store
from .tasks import PlannedRun, get


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
        return _in_processes(runs, store, jobs, threads, self.retries, on_event)

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
    """What a worker does: runs, each given with the module that registers its task."""

    store: Store
    device: str
    threads: int
    data_root: Path | None

    def __call__(self, item: tuple[PlannedRun, str], on_step: OnStep) -> Outcome | Last:
        run, module = item
        known_task(module)
        outcome = execute(run, self.store, self.device, self.threads, self.data_root, on_step)
        broken = outcome.state == "failed" and torch.cuda.is_initialized()  # a GPU's error may stay with the process
        return Last(outcome) if broken else outcome


def _in_processes(
    runs: Sequence[PlannedRun], store: Store, jobs: Sequence[_Job], threads: int, retries: int, on_event: OnEvent
) -> Iterator[Outcome]:
    left, deaths = deque((run, type(get(run.task)).__module__) for run in runs), Counter[str]()
    with closing(in_processes(left, jobs, threads)) as all_told:
        for told in all_told:
            run, _ = told.item
            if told.what == "step":
                on_event(Event(run.name, "step", *told.content))
            elif told.what == "done":
                yield told.content
            else:
                deaths[run.name] += 1
                how = f"its worker process {told.content}"
                if deaths[run.name] <= retries:
                    on_event(Event(run.name, "died", message=f"{how}; it is tried again"))
                    left.appendleft(told.item)
                else:
                    yield _given_up(run, store, f"{how}, at each of {retries + 1} attempts" if retries else how)


def _given_up(run: PlannedRun, store: Store, error: str) -> Outcome:
    with suppress(TransferRiskError), store.claim(run.name) as folder:
        if folder is not None and not store.done(run.name):
            store.fail(run.name, error)
    return Outcome(run.name, "failed", error=error)


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
