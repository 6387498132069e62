"""Running independent jobs, in this process or in several.

A job gets one thread wherever it runs: small networks gain little from more, threads that wait by spinning bring each
other to a halt where cores are shared, and so the numbers do not depend on how many processes there are.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial
from typing import TypeVar

import torch

from ..errors import InputError, TransferRiskError
from ..training import OnStep
from .processes import in_processes

T = TypeVar("T")
Job = Callable[[OnStep], T]
"""Does its work, reports `on_step(done, total)` now and then, and returns the result. Pickled for another process."""


def cores() -> int:
    """How many this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def run_jobs(jobs: Sequence[Job[T]], workers: int, on_step: Callable[[int, int, int], None]) -> Iterator[tuple[int, T]]:
    """(position, result) of each job as it finishes; `on_step(position, done, total)` on the way.

    One worker is this process. More are processes of their own (`in_processes`), which end with the iteration, however
    it ends.
    """
    if workers < 1:
        raise InputError(f"workers={workers} is no number of processes: use 1 or more")
    workers = min(workers, len(jobs))
    return _in_processes(jobs, workers, on_step) if workers > 1 else _in_turn(jobs, on_step)


def _in_turn(jobs: Sequence[Job[T]], on_step: Callable[[int, int, int], None]) -> Iterator[tuple[int, T]]:
    for position, job in enumerate(jobs):
        with threads_set(1):
            result = job(partial(on_step, position))
        yield position, result


def _in_processes(
    jobs: Sequence[Job[T]], workers: int, on_step: Callable[[int, int, int], None]
) -> Iterator[tuple[int, T]]:
    with closing(in_processes(deque(enumerate(jobs)), [_do] * workers, threads=1, daemon=True)) as all_told:
        for told in all_told:
            position, _ = told.item
            if told.what == "step":
                on_step(position, *told.content)
            elif told.what == "done":
                yield position, told.content
            else:
                raise TransferRiskError(
                    "a worker process ended before its work did, perhaps because memory ran out: use fewer workers"
                )


def _do(numbered: tuple[int, Job[T]], on_step: OnStep) -> T:
    return numbered[1](on_step)


@contextmanager
def threads_set(count: int | None) -> Iterator[None]:
    """How many torch uses meanwhile; None: as many as now."""
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
