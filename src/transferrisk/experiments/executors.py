"""Carrying out independent jobs: in processes of this machine (`local_executor`), or on a cluster (`ray_executor`)."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal, Protocol, TypeVar

import torch

from ..errors import InputError, choices
from ..training import OnStep
from ..training.engine import device_of
from .tasks import ignore_steps

T = TypeVar("T")


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
    """What an executor tells about a job.

    position  the job's place among all jobs
    content   step: (done, total); done: the result; retried, lost: why its worker died
    """

    position: int
    kind: Literal["step", "done", "retried", "lost"]
    content: Any


Messages = Generator[Message, None, None]
OnJobStep = Callable[[int, int, int], None]
"""(position of the job, steps done, steps in all)"""


class Executor(Protocol):
    def map(self, jobs: Sequence[Job[Any]], on_step: OnJobStep) -> Messages:
        """Tell what becomes of the jobs, as it comes; an error that a job raises is raised here.

        When the iterator is closed, jobs that can be saved have been saved and have ended. Steps of a job that runs in
        this process go to `on_step`, since an iterator cannot tell anything while it works.
        """

    def close(self) -> None:
        """End whatever was started for several calls of `map`."""


def count_cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


@contextmanager
def threads_set(count: int) -> Iterator[None]:
    """Let torch use this many threads meanwhile."""
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def make_executor(
    name: str, *, device: str = "auto", workers: int | None = None, threads: int | None = None, retries: int = 2,
    address: str | None = None, gpus_per_run: float | None = None, cpus_per_run: float | None = None,
) -> Executor:  # fmt: skip
    """The executor of this name, local or ray; an option that it does not have is refused.

    device  auto, cpu, cuda, or several such as cuda:0,cuda:1
    """
    of_ray = {"--address": address, "--gpus-per-run": gpus_per_run, "--cpus-per-run": cpus_per_run}
    of_local = {"--workers": workers, "--device": None if device == "auto" else device}
    if name not in ("local", "ray"):
        raise InputError(f"unknown executor {name!r}{choices(name, ['local', 'ray'])}")
    other, options = ("ray", of_ray) if name == "local" else ("local", of_local)
    for option, value in options.items():
        if value is not None:
            raise InputError(f"{option} is an option of --executor {other}, got --executor {name}: leave it out")
    if name == "local":
        from .local_executor import LocalExecutor

        return LocalExecutor(workers, named_devices(device), threads, retries)
    from .ray_executor import RayExecutor

    return RayExecutor(address, gpus_per_run, 1.0 if cpus_per_run is None else cpus_per_run, threads, retries)


def named_devices(device: str) -> tuple[str, ...] | None:
    """The devices of a list such as cuda:0,cuda:1; None for auto. One that is not there is an error."""
    if device == "auto":
        return None
    devices = tuple(part.strip() for part in device.split(","))
    for one in devices:
        device_of(one)
    return devices


def usual_precision(device: str) -> str:
    """The precision of runs that do not say theirs: bf16 where they run on a GPU."""
    return "fp32" if device == "cpu" or not torch.cuda.is_available() else "bf16"
