"""Executor of SLURM, to which submitit sends jobs as arrays.

A job that SLURM ends, because of preemption or of its time limit, gets a signal beforehand: a training saves, is queued
again by submitit's protocol, and continues from the folder of its run.
"""

from __future__ import annotations

import math
import re
import signal
import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Annotated, Any, Literal, NoReturn

import torch

from ..errors import InputError, TransferRiskError, cause_of
from ..extras import require
from ..files import hidden_folder
from ..settings import Bound, Count, NonNegative, Settings
from ..solvers import threads_set
from ..training import Stopped
from .executors import Job, Message, Messages, OnJobStep, Slot, count_cores, work_on

MINUTES = 240  # time limit of a job without the option `time`
WARNING = 120  # seconds before its time limit at which a job gets the signal to save
ARRAY = 1000  # largest number of jobs of an array; SLURM's default is 1001
TIMES = 10_000  # largest number of times a job is queued again
LOOK_EVERY = 1.0  # seconds between two looks at the jobs
GRACE = 60.0  # seconds that trainings have to finish their step and save when they are asked to stop
OURS = {
    "array": "--workers", "cpus-per-task": "--cpus-per-run", "gpus-per-node": "--gpus-per-run", "output": "--output",
    "job-name": None, "error": None, "signal": None, "requeue": None, "nodes": None, "ntasks-per-node": None,
}  # fmt: skip
"""Options of sbatch that this module sets -> the option of trm that decides them."""


class _Asked(BaseException):
    """A request to stop that arrived while nothing trained. Like KeyboardInterrupt, it is not an error of the job."""


@dataclass(frozen=True)
class QueuedJob:
    """A job as submitit pickles it, to be called in its own process on a machine that SLURM chooses.

    device   cuda or cpu. Default: a GPU if SLURM has assigned one
    """

    job: Job[Any]
    device: str | None
    threads: int

    def checkpoint(self) -> Any:
        """Return what submitit queues again: the same job, which continues from the folder of its run."""
        return require("submitit", "slurm").helpers.DelayedSubmission(self)

    def __call__(self) -> tuple[str, Any]:
        """Do the job; return (done, result), (last, result), (raised, error) or (stopped, reason)."""
        submitit = require("submitit", "slurm")
        before_the_end = signal.Signals[f"SIG{submitit.JobEnvironment.USR_SIG}"]
        queue_again: Any = signal.getsignal(
            before_the_end
        )  # submitit's handler: it queues what `checkpoint` returns, and ends
        goes_on = False

        def stop(signum: int, frame: FrameType | None) -> NoReturn:
            signal.signal(signal.SIGTERM, lambda *_: None)  # several come
            raise _Asked

        def save_and_queue(signum: int, frame: FrameType | None) -> None:
            nonlocal goes_on
            goes_on = True
            signal.raise_signal(signal.SIGTERM)  # a training handles it, and finishes its step

        signal.signal(signal.SIGTERM, stop)
        for number in {before_the_end, signal.SIGUSR1, signal.SIGUSR2}:
            signal.signal(number, save_and_queue)
        device = self.device or ("cuda" if torch.cuda.is_available() else "cpu")
        try:
            with threads_set(self.threads):
                return work_on(self.job, Slot(device, self.threads))
        except (Stopped, _Asked) as stopped:
            for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2):
                signal.signal(number, signal.SIG_IGN)
            if goes_on and isinstance(stopped, Stopped):
                queue_again(before_the_end, None)
            return "stopped", "was asked to stop"


@dataclass(frozen=True)
class SubmititExecutor(Settings):
    """Executor of SLURM, which reports the ends of jobs but not their steps.

    It needs the extra `slurm`, and on every machine this package, the data and a store that all machines reach.

    folder        folder that all machines share; jobs are sent through it
    workers       number of jobs at once. Default: as many as SLURM allows
    gpus_per_run  number of GPUs of a job, a whole number. Default: none are requested, and one is used if there is one
    cpus_per_run  number of cores of a job, a whole number
    threads       number of threads of a job. Default: cpus_per_run
    retries       number of times a job is tried again that died, or was asked to stop and not queued again
    options       options of sbatch, such as {"partition": "gpu", "time": "600"}; the time is in minutes
    cluster       "local" uses processes of this machine, for trials; they also get signals to save, and continue
    patience      seconds within which a shared folder shows what another machine wrote
    """

    folder: Path
    workers: Count | None = None
    gpus_per_run: NonNegative | None = None
    cpus_per_run: NonNegative = 1.0
    threads: Count | None = None
    retries: Annotated[int, Bound(least=0)] = 2
    options: Mapping[str, str] = field(default_factory=dict)
    cluster: Literal["slurm", "local"] = "slurm"
    patience: NonNegative = 15.0

    def __post_init__(self) -> None:
        super().__post_init__()
        for name, value in (("gpus_per_run", self.gpus_per_run or 0.0), ("cpus_per_run", self.cpus_per_run)):
            if value != int(value) or (name == "cpus_per_run" and not value):
                raise InputError(
                    f"{name} must be a whole number with SLURM, got {value:g}: runs that share a GPU need "
                    "--executor ray, inside a job"
                )
        for name in self.options:
            if name in OURS:
                instead = f"use {OURS[name]}" if OURS[name] else "leave it out"
                raise InputError(f"--slurm must not set {name}, which trm decides: {instead}")
            if not re.fullmatch("[a-z][a-z-]+", name):
                raise InputError(f"an option of sbatch must be its long name, such as partition, got {name!r}")
        self._minutes()
        require("submitit", "slurm")

    def _minutes(self) -> float:
        text = self.options.get("time", str(MINUTES))
        try:
            minutes = float(text)
        except ValueError:
            minutes = 0.0
        if not 0 < minutes < math.inf or (self.cluster == "slurm" and minutes != int(minutes)):
            raise InputError(f"time must be a whole number of minutes, got {text!r}: write 240 for four hours")
        return minutes

    def map(self, jobs: Sequence[Job[Any]], on_step: OnJobStep = lambda position, done, total: None) -> Messages:
        device = None if self.gpus_per_run is None else "cuda" if self.gpus_per_run else "cpu"
        threads = self.threads or int(self.cpus_per_run)
        queued = [QueuedJob(job, device, threads) for job in jobs]
        most = ARRAY if self.cluster == "slurm" else self.workers or count_cores()
        waiting, deaths, unseen = deque(range(len(jobs))), Counter[int](), dict[int, float]()
        running: dict[int, Any] = {}
        self.folder.mkdir(parents=True, exist_ok=True)
        with hidden_folder(self.folder, "submitit") as shared:
            queue = self._queue(shared)
            try:
                while waiting or running:
                    if not running:
                        batch = [waiting.popleft() for _ in range(min(most, len(waiting)))]
                        running |= zip(batch, _submit(queue, [queued[position] for position in batch]), strict=True)
                    for position, job in list(running.items()):
                        if not job.done():
                            continue
                        if job.paths.result_pickle.exists():
                            kind, content = _result(job)
                        elif time.monotonic() - unseen.setdefault(position, time.monotonic()) < self.patience:
                            continue
                        else:
                            kind, content = "died", f"ended without a result, in state {job.state}{_last_words(job)}"
                        del running[position]
                        unseen.pop(position, None)
                        if kind == "raised":
                            raise content
                        if kind not in ("died", "stopped"):
                            yield Message(position, "done", content)
                            continue
                        deaths[position] += 1
                        if deaths[position] <= self.retries:
                            running[position] = _submit(queue, [queued[position]])[0]
                            yield Message(position, "retried", f"its worker process {content}")
                        else:
                            attempts = f", at each of {self.retries + 1} attempts" if self.retries else ""
                            yield Message(position, "lost", f"its worker process {content}{attempts}")
                    time.sleep(LOOK_EVERY if running else 0)
            finally:
                _cancel(shared, running.values())

    def close(self) -> None:
        """Nothing outlives `map`."""

    def _queue(self, shared: Path) -> Any:
        """Return submitit's executor with all requests to the cluster."""
        submitit = require("submitit", "slurm")
        minutes, gpus, cpus = self._minutes(), int(self.gpus_per_run or 0), int(self.cpus_per_run)
        if self.cluster == "local":
            queue = submitit.LocalExecutor(shared, max_num_timeout=TIMES)
            delay = min(WARNING, 30 * minutes)
            queue.update_parameters(timeout_min=minutes, signal_delay_s=delay, gpus_per_node=gpus)
            return queue
        try:
            queue = submitit.SlurmExecutor(shared, max_num_timeout=TIMES)
        except RuntimeError:
            raise InputError(
                "SLURM is missing on this machine (there is no srun): use a machine from which jobs are submitted, or "
                "try it here with --slurm cluster=local"
            ) from None
        others = {name: value for name, value in self.options.items() if name != "time"}
        queue.update_parameters(
            job_name="trm",
            time=int(minutes),
            cpus_per_task=cpus,
            signal_delay_s=WARNING,
            additional_parameters={"requeue": True, **others},
            **({"gpus_per_node": gpus} if gpus else {}),
            **({"array_parallelism": self.workers} if self.workers else {}),
        )
        return queue


def _submit(queue: Any, jobs: Sequence[QueuedJob]) -> list[Any]:
    try:
        submitted: list[Any] = queue.submit_array(jobs)
    except (RuntimeError, OSError) as error:
        raise TransferRiskError(f"SLURM did not take the jobs ({cause_of(error)}): correct that") from None
    return submitted


def _result(job: Any) -> tuple[str, Any]:
    """Return what `QueuedJob` returned."""
    try:
        found: tuple[str, Any] = job.result()
    except RuntimeError:  # the process could not read the job
        raise TransferRiskError(
            f"a machine of the cluster cannot do runs{_last_words(job)}: install the same version of this package there"
        ) from None
    return found


def _last_words(job: Any) -> str:
    """Return the last line of the job's error log, such as SLURM's on memory."""
    lines = (job.stderr() or "").strip().splitlines()
    return f" ({' '.join(lines[-1].split())[:200]})" if lines else ""


def _cancel(shared: Path, jobs: Iterable[Any]) -> None:
    """Cancel jobs that have not started, and let the others finish their step and save."""
    left = list(jobs)
    whole = {}
    for job in left:
        array, _, index = job.job_id.partition("_")
        whole[array] = type(job)(shared, array) if index else job
    for job in whole.values():
        job.cancel(check=False)
    end = time.monotonic() + GRACE
    while left and time.monotonic() < end:
        left = [job for place, job in enumerate(left) if not job.done(force_check=place == 0)]
        time.sleep(LOOK_EVERY if left else 0)
