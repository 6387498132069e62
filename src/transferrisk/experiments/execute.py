"""One run, from its settings to its rows."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal

import torch

from ..errors import TransferRiskError
from ..files import write_atomically
from ..training import OnStep, Stopped
from ..training.checkpoint import versions
from ..training.plain import dumps
from ..training.troubles import full_memory
from .executors import threads_set
from .provenance import commit, hardware
from .store import DONE, FAILED, ROWS, RUN, Store, digest_of, kept
from .tasks import Place, PlannedRun, get


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    state    busy: another process has it
    seconds  it took here; 0 where another process had done it
    error    why it failed, in one line
    """

    name: str
    state: Literal["done", "failed", "busy"]
    seconds: float = 0.0
    error: str | None = None


@dataclass(frozen=True)
class Event:
    """What happens to a run on the way.

    kind  step: `step` of `total`; died: its worker did, and it is tried again; lost: it was done, and its files cannot
          be read; changed: the experiment of this name was of another recipe; else how it ended
    """

    name: str
    kind: Literal["step", "died", "lost", "changed", "done", "failed", "busy"]
    step: int = 0
    total: int = 0
    seconds: float = 0.0
    message: str = ""


OnEvent = Callable[[Event], None]


def execute(
    run: PlannedRun,
    store: Store,
    device: str = "auto",
    threads: int | None = None,
    data_root: Path | None = None,
    on_step: OnStep = lambda done, total: None,
) -> Outcome:
    """Do a run that is not done yet, or go on with it.

    Whatever its task raises is a failed run; only a request to stop (`Stopped`, KeyboardInterrupt) goes further.
    """
    began = time.monotonic()
    commit()  # as it is now, and not when the run is done
    try:
        with store.claim(run.name) as folder:
            if folder is None:
                return Outcome(run.name, "busy")
            if store.done(run.name, run.keep):
                return Outcome(run.name, "done")
            place = Place(folder, device, data_root, run.keep, on_step, store.folder)
            try:
                with threads_set(threads):
                    _complete(run, store, place, began)
            except Stopped:
                raise
            except Exception as error:
                message = in_a_line(error)
                store.fail(run.name, message, traceback.format_exc())
                return Outcome(run.name, "failed", time.monotonic() - began, message)
    except Stopped:
        raise
    except (OSError, TransferRiskError) as error:  # of the folder itself
        return Outcome(run.name, "failed", time.monotonic() - began, in_a_line(error))
    return Outcome(run.name, "done", time.monotonic() - began)


def _complete(run: PlannedRun, store: Store, place: Place, began: float) -> None:
    """Task, rows, done.json; the task's own leftovers go when the rows are safe, before an upload would take them."""
    if not _done_here(place):
        task = get(run.task)
        if not _rows_are_all(place):
            _write(place, RUN, dumps({"task": run.task, "settings": run.settings}, indent=2) + "\n")
            rows = task.run(task.read(run.settings), place)
            _write(place, ROWS, "".join(dumps(row) + "\n" for row in rows))
        task.tidy(place)
        _write(place, DONE, dumps(_about(place, time.monotonic() - began), indent=2) + "\n")
    (place.folder / FAILED).unlink(missing_ok=True)
    store.publish(run.name, run.keep)


def _done_here(place: Place) -> bool:
    """Done in the folder, while the store does not say so: only the upload is left."""
    path = place.folder / DONE
    return path.exists() and (place.folder / ROWS).exists() and (not place.keep or kept(path.read_bytes()))


def _rows_are_all(place: Place) -> bool:
    """Cut off between the last two files: only the end is left to do, unless the model is needed too."""
    return (place.folder / ROWS).exists() and not (place.folder / DONE).exists() and not place.keep


def _write(place: Place, name: str, content: str) -> None:
    try:
        write_atomically(place.folder / name, content)
    except OSError as error:
        raise TransferRiskError(
            f"{place.folder / name} cannot be written ({error.strerror or error}): mend that, and run the same again"
        ) from None


def _about(place: Place, seconds: float) -> dict[str, object]:
    """`seconds` are those since the run was last taken up."""
    return {
        "seconds": round(seconds, 3),
        "rows": digest_of((place.folder / ROWS).read_bytes()),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "keep": place.keep,
        "device": place.device,
        "threads": torch.get_num_threads(),
        "hardware": hardware(place.device),
        "versions": versions(),
        "commit": commit(),
    }


def in_a_line(error: BaseException) -> str:
    """What went wrong; the kind of error is named where the message is not ours."""
    if full := full_memory(error):
        return f"{full}: use fewer workers, or a smaller batch"
    text = " ".join(str(error).split())
    if isinstance(error, TransferRiskError):
        return text
    return f"{type(error).__name__}: {text}" if text else type(error).__name__
