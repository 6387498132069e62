"""The folder of a run.

    run.json            its configuration, and with which versions it was made
    records.jsonl       one line an evaluation
    last.safetensors    the state to go on from
    best.safetensors    the state at the highest training-domain validation accuracy so far

Invariant: `last` is never ahead of the records, and `best` never ahead of `last`. A record is on the disk before the
checkpoint that counts it, and `best` is a copy of a `last`; so what an interruption cut off is seen, and mended, by
`open`.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError, TransferRiskError
from ..files import prepare_folder, write_atomically
from .checkpoint import Checkpoint, difference, encode, load, versions
from .records import Record, append_record, keep_records
from .state import TrainState

RUN, RECORDS, LAST, BEST = "run.json", "records.jsonl", "last.safetensors", "best.safetensors"


@dataclass
class Output:
    """
    resume   go on from what is there; without it, a folder that holds a run is refused
    every    steps between two checkpoints, besides those at evaluations; None: none besides
    seconds  and no longer than this between two of them
    say      told in a few words where the run stands when it begins
    writes   False: another process of the same run does, and this one only reads what to go on from
    """

    folder: Path
    resume: bool = False
    every: int | None = None
    seconds: float = 300.0
    say: Callable[[str], None] = print
    writes: bool = True
    saved_step: int | None = None
    _configuration: Mapping[str, Any] = field(default_factory=dict)
    _saved_at: float = 0.0
    _lock: int | None = None

    def __post_init__(self) -> None:
        prepare_folder(self.folder, RUN, RECORDS, LAST, BEST)
        held = self._held()
        if held and not self.resume:
            raise InputError(
                f"{self.folder} holds a run already ({', '.join(held)}): go on with it with --resume, or choose "
                "another folder"
            )

    def _held(self) -> list[str]:
        """What would be lost if a run began here; run.json alone is of one that never came to a checkpoint."""
        return [name for name in (RECORDS, LAST, BEST) if _size(self.folder / name)]

    def _lost(self) -> bool:
        """Whether there was a checkpoint; one record may be there before the first of them."""
        records = self.folder / RECORDS
        return bool(_size(self.folder / BEST)) or (records.exists() and records.read_bytes().count(b"\n") > 1)

    def open(self, state: TrainState, configuration: Mapping[str, Any], total: int) -> list[Record]:
        """Bring the state to where the run stopped, and return its records; at the beginning, write down what it is."""
        self._configuration, self._saved_at = configuration, time.monotonic()
        if not self.writes:
            if (self.folder / LAST).exists():
                state.restore(self._load())
            return []
        self._lock = claim(self.folder)
        try:
            return self._go_on(state, configuration, total)
        except BaseException:
            self.close()
            raise

    def _go_on(self, state: TrainState, configuration: Mapping[str, Any], total: int) -> list[Record]:
        for name in (RUN, RECORDS, LAST, BEST):
            for unfinished in self.folder.glob(f".{name}.*"):  # of a process that was killed while it wrote
                unfinished.unlink()
        records: list[Record] = []
        if (self.folder / LAST).exists():
            checkpoint = self._load()
            different = difference(checkpoint.configuration, configuration)
            if different:
                raise InputError(f"{self.folder} was started otherwise ({different}): use the same, or another folder")
            records = keep_records(self.folder / RECORDS, checkpoint.values["records"])
            if checkpoint.values["best_step"] == checkpoint.values["step"] > 0:
                self._write(BEST, (self.folder / LAST).read_bytes())
            state.restore(checkpoint)
            self.saved_step = state.step
            here = f"step {state.step} of {total}"
            self.say(f"{self.folder} is finished: {here}" if state.step == total else f"going on from {here}")
        else:
            if self._lost():
                raise InputError(
                    f"{self.folder} holds {' and '.join(self._held())} but no {LAST} to go on from: bring it back, "
                    "or choose another folder"
                )
            if self.resume:
                self.say(f"there is no checkpoint in {self.folder} yet: starting afresh")
            keep_records(self.folder / RECORDS, 0)
            about = {"configuration": configuration, "versions": versions()}
            self._write(RUN, json.dumps(about, indent=2) + "\n")
        return records

    def close(self) -> None:
        """Let other processes use the folder."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def append(self, record: Record) -> None:
        if not self.writes:
            return
        with self._disk_errors(RECORDS):
            append_record(self.folder / RECORDS, record)

    def due(self, step: int) -> bool:
        """Whether a checkpoint is, besides those at evaluations."""
        by_steps = self.every is not None and step % self.every == 0
        return by_steps or time.monotonic() - self._saved_at >= self.seconds

    def save(self, state: TrainState) -> None:
        if not self.writes:
            self.saved_step = state.step
            return
        content = encode(state.snapshot(), self._configuration)
        self._write(LAST, content)
        self.saved_step, self._saved_at = state.step, time.monotonic()
        if state.best_step == state.step > 0:
            self._write(BEST, content)

    @property
    def standing(self) -> str:
        """What there is to go on from, for a message."""
        if self.saved_step is None:
            return "there is no checkpoint yet"
        return f"{self.folder / LAST} holds step {self.saved_step}"

    def _load(self) -> Checkpoint:
        try:
            return load(self.folder / LAST)
        except InputError as error:
            try:
                step = load(self.folder / BEST).values["step"]
            except InputError:
                raise error from None
            raise InputError(
                f"{error}; or copy {self.folder / BEST}, which is whole, over it to go on from step {step}"
            ) from None

    def _write(self, name: str, content: bytes | str) -> None:
        with self._disk_errors(name):
            write_atomically(self.folder / name, content)

    @contextmanager
    def _disk_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TransferRiskError(
                f"{self.folder / name} cannot be written ({error.strerror or error}): mend that, then use --resume; "
                f"{self.standing}"
            ) from None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def claim(folder: Path) -> int | None:
    """A lock on the folder, which ends with this process or when the handle is closed; an error if it is taken."""
    try:
        import fcntl
    except ImportError:  # a platform without them: two processes are then not kept apart
        return None
    handle = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(handle)
        raise InputError(f"another process is training in {folder}: wait for it, or choose another folder") from None
    except OSError:  # a network file system may know no locks
        pass
    return handle
