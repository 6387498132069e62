"""Execution of one run, from its settings to its records, and provenance: commit, versions and hardware."""

from __future__ import annotations

import os
import platform
import subprocess
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Literal

import torch

from .. import __version__
from ..errors import FullMemoryError, InputError, TransferRiskError, full_memory
from ..files import write_atomically
from ..models.saved import versions
from ..results import Record
from ..results.records import DONE, FAILED, RECORDS, records_bytes
from ..settings import dumps
from ..training import Stopped
from .executors import Slot
from .store import RUN, Store, digest_of, model_was_kept
from .tasks import GivenUp, Place, PlannedRun, get_task

Judge = Callable[[Sequence[Record]], bool]


@dataclass(frozen=True)
class Outcome:
    """The end of a run.

    state    busy: another process works on it; pruned: its judge has given it up
    seconds  seconds that it took here, 0 if another process had done it
    error    why it failed or was pruned, in one line
    records  records of a run that was pruned
    """

    name: str
    state: Literal["done", "failed", "busy", "pruned"]
    seconds: float = 0.0
    error: str | None = None
    records: Sequence[Record] = ()


@dataclass(frozen=True)
class RunJob:
    """A run as a job for an executor.

    module     module that registers its task
    data_root  folder of the data sets. Default: the usual folder
    judge, compiled
               see `Place`
    """

    run: PlannedRun
    module: str
    store: Store
    data_root: Path | None = None
    judge: Judge | None = None
    compiled: bool | None = None

    def __call__(self, slot: Slot) -> Outcome:
        try:
            import_module(self.module)
        except ImportError as error:
            raise InputError(
                f"the module {self.module}, which registers a task, cannot be imported by a worker ({error}): install "
                "it, or add its folder to PYTHONPATH"
            ) from None
        return execute_run(self.run, self.store, slot, self.data_root, self.judge, self.compiled)


def execute_run(
    run: PlannedRun,
    store: Store,
    slot: Slot,
    data_root: Path | None = None,
    judge: Judge | None = None,
    compiled: bool | None = None,
) -> Outcome:
    """Do a run that is not finished, or continue it; an error that may stay with a GPU's process makes it broken.

    An error of its task makes it a failed run; only a request to stop (`Stopped`, KeyboardInterrupt) is raised.
    """
    began = time.monotonic()
    commit()  # noted now, since it may change during the run
    try:
        with store.claim(run.name) as folder:
            if folder is None:
                return Outcome(run.name, "busy")
            if store.done(run.name, run.keep):
                return Outcome(run.name, "done")
            place = Place(folder, slot.device, data_root, run.keep, slot.on_step, store.folder, compiled, judge)
            try:
                _complete(run, store, place, began, slot)
            except Stopped:
                raise
            except GivenUp as pruned:
                return Outcome(run.name, "pruned", time.monotonic() - began, str(pruned), pruned.records)
            except Exception as error:
                message = in_a_line(error)
                harmless = isinstance(error, TransferRiskError) and not isinstance(error, FullMemoryError)
                slot.broken = torch.cuda.is_initialized() and not harmless
                store.fail(run.name, message, traceback.format_exc())
                return Outcome(run.name, "failed", time.monotonic() - began, message)
    except Stopped:
        raise
    except (OSError, TransferRiskError) as error:  # of the folder itself
        return Outcome(run.name, "failed", time.monotonic() - began, in_a_line(error))
    return Outcome(run.name, "done", time.monotonic() - began)


def _complete(run: PlannedRun, store: Store, place: Place, began: float, slot: Slot) -> None:
    """Do the task, write records and done.json, and publish; the task tidies up once the records are written."""
    if not _is_done_here(place):
        task = get_task(run.task)
        _write(place, RUN, dumps({"task": run.task, "settings": run.settings}, indent=2) + "\n")
        content = records_bytes(task.run(task.read(run.settings), place))
        _write(place, RECORDS, content)
        task.tidy(place)
        about = {
            "seconds": round(time.monotonic() - began, 3),  # since the run was last taken up
            "at_once": slot.at_once,  # runs that shared these seconds
            "records": digest_of(content),
            "date": datetime.now(UTC).isoformat(timespec="seconds"),
            "keep": place.keep,
            "device": place.device,
            "threads": torch.get_num_threads(),
            "hardware": hardware(place.device),
            "versions": versions(),
            "commit": commit(),
        }
        _write(place, DONE, dumps(about, indent=2) + "\n")
    (place.folder / FAILED).unlink(missing_ok=True)
    store.publish(run.name, run.keep)


def _is_done_here(place: Place) -> bool:
    """Return True if the run is finished in the folder, and only the upload to the store is left."""
    path = place.folder / DONE
    return path.exists() and (place.folder / RECORDS).exists() and (not place.keep or model_was_kept(path.read_bytes()))


def _write(place: Place, name: str, content: bytes | str) -> None:
    try:
        write_atomically(place.folder / name, content)
    except OSError as error:
        raise TransferRiskError(
            f"{place.folder / name} cannot be written ({error.strerror or error}): correct that and try again"
        ) from None


def in_a_line(error: BaseException) -> str:
    """Return the error's message in a line, with the error's type unless it is one of ours."""
    if full := full_memory(error):
        return f"{full}: use fewer workers, or a smaller batch"
    text = " ".join(str(error).split())
    if isinstance(error, TransferRiskError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def provenance(device: str = "cpu") -> dict[str, str]:
    """Return the origin of a result: version, commit, version of PyTorch, hardware."""
    found = {"Version": f"transferrisk {__version__}", "PyTorch": torch.__version__, "Hardware": hardware(device)}
    return found | ({"Commit": revision} if (revision := commit()) else {})


@cache
def commit() -> str | None:
    """Return the commit of the source tree that runs, None without one or without git.

    It ends in "-dirty" if the tree has further changes. The first answer is kept: long runs outlive commits, and ask as
    they begin.
    """
    root = Path(__file__).parents[3]
    if not (root / ".git").exists() or not (root / "src" / "transferrisk").is_dir():
        return None
    command = ["git", "-C", str(root), "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        head = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return head.stdout.strip() if head.returncode == 0 else None


def hardware(device: str = "cpu") -> str:
    """Return a description of the device; "auto" is a GPU if there is one."""
    if device != "cpu" and torch.cuda.is_available():
        return torch.cuda.get_device_name(None if device == "auto" else device)
    return f"{os.cpu_count()} CPU cores, {_processor()}, {platform.system()}"


@cache
def _processor() -> str:
    """Return the model of the processor, or its architecture if the system does not name the model."""
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            name, _, model = line.partition(":")
            if name.strip() == "model name" and model.strip():
                return " ".join(model.split())
    return platform.processor() or platform.machine()
