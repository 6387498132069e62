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

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..errors import DamagedRunError, InputError, OtherRunError, TransferRiskError
from ..files import check_target, new_folders, write_atomically
from .checkpoint import Checkpoint, difference, encode, load, versions
from .lock import claim
from .plain import dumps
from .records import Record, append_record, keep_records
from .state import TrainState

RUN, RECORDS, LAST, BEST = "run.json", "records.jsonl", "last.safetensors", "best.safetensors"


@dataclass
class _Open:
    """What is known of a run while it is written.

    writes         False: another process of the same run does, and this one only reads what to go on from
    configuration  of the run, for its checkpoints
    lock           a handle that keeps other runs out; None: there is none
    step, time     of the last checkpoint, the latter of `time.monotonic`
    """

    writes: bool
    configuration: Mapping[str, Any]
    lock: int | None = None
    step: int | None = None
    time: float = field(default_factory=time.monotonic)


@dataclass
class Output:
    """
    folder   made when there is something to write
    resume   go on from what is there; without it, a folder that holds a run is refused
    every    steps between two checkpoints, besides those at evaluations; None: none besides
    seconds  and no longer than this between two of them
    say      told in a few words where the run stands when it begins
    again    how to go on, in the words of whoever asked for the run
    """

    folder: Path
    resume: bool = False
    every: int | None = None
    seconds: float = 300.0
    say: Callable[[str], None] = print
    again: str = "use --resume"
    _now: _Open = field(default_factory=lambda: _Open(False, {}), init=False, repr=False)

    def __post_init__(self) -> None:
        self.folder = Path(self.folder)
        for name in (RUN, RECORDS, LAST, BEST):
            check_target(self.folder / name)
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

    def open(
        self, state: TrainState, configuration: Mapping[str, Any], total: int, writes: bool = True
    ) -> list[Record]:
        """Bring the state to where the run stopped, and return its records; at the beginning, write down what it is."""
        self._now = _Open(writes, configuration)
        if not writes:
            if (self.folder / LAST).exists():
                state.restore(self._load())
            return []
        with new_folders(self.folder):
            self._now.lock = claim(self.folder)
            try:
                return self._go_on(state, configuration, total)
            except BaseException as error:
                self.close()
                if isinstance(error, InputError) and not isinstance(error, OtherRunError):
                    raise DamagedRunError(str(error)) from None
                raise

    def _go_on(self, state: TrainState, configuration: Mapping[str, Any], total: int) -> list[Record]:
        for name in (RUN, RECORDS, LAST, BEST):
            for unfinished in self.folder.glob(f".{name}.*"):  # of a process that was killed while it wrote
                unfinished.unlink()
        if not (self.folder / LAST).exists():
            return self._begin(configuration)
        checkpoint = self._load()
        different = difference(checkpoint.configuration, configuration)
        if different:
            raise OtherRunError(f"{self.folder} was started otherwise ({different}): use the same, or another folder")
        records = keep_records(self.folder / RECORDS, checkpoint.values["records"])
        if checkpoint.values["best_step"] == checkpoint.values["step"] > 0:
            self._write(BEST, (self.folder / LAST).read_bytes())
        elif checkpoint.values["best_step"] > 0:
            self._check_best(checkpoint)
        if not (self.folder / RUN).exists():
            self._write_about(checkpoint.configuration, checkpoint.versions)
        state.restore(checkpoint)
        self._now.step = state.step
        here = f"step {state.step} of {total}"
        self.say(f"{self.folder} is finished: {here}" if state.step == total else f"going on from {here}")
        return records

    def _begin(self, configuration: Mapping[str, Any]) -> list[Record]:
        if self._lost():
            raise InputError(
                f"{self.folder} holds {' and '.join(self._held())} but no {LAST} to go on from: bring it back, "
                "or choose another folder"
            )
        if self.resume:
            self.say(f"there is no checkpoint in {self.folder} yet: starting afresh")
        keep_records(self.folder / RECORDS, 0)
        self._write_about(configuration, versions())
        return []

    def _check_best(self, last: Checkpoint) -> None:
        """The selected model cannot be made again, so one that is lost is not passed over."""
        try:
            load(self.folder / BEST)
        except InputError:
            how = "is damaged" if (self.folder / BEST).exists() else "is gone"
            raise InputError(
                f"{self.folder / BEST} {how}, which held step {last.values['best_step']}: bring it back, or copy "
                f"{LAST} over it to take step {last.values['step']} in its place"
            ) from None

    def _write_about(self, configuration: Mapping[str, Any], made_with: Mapping[str, str]) -> None:
        self._write(RUN, dumps({"configuration": configuration, "versions": made_with}, indent=2) + "\n")

    def close(self) -> None:
        """Let other processes use the folder."""
        if self._now.lock is not None:
            os.close(self._now.lock)
            self._now.lock = None

    def append(self, record: Record) -> None:
        if not self._now.writes:
            return
        with self._disk_errors(RECORDS):
            append_record(self.folder / RECORDS, record)

    def due(self, step: int) -> bool:
        """Whether a checkpoint is, besides those at evaluations."""
        by_steps = self.every is not None and step % self.every == 0
        return by_steps or time.monotonic() - self._now.time >= self.seconds

    def save(self, state: TrainState) -> None:
        if self._now.writes:
            content = encode(state.snapshot(), self._now.configuration)
            self._write(LAST, content)
        self._now.step, self._now.time = state.step, time.monotonic()
        if self._now.writes and state.best_step == state.step > 0:
            self._write(BEST, content)

    @property
    def saved_step(self) -> int | None:
        """The step of the last checkpoint; None: there is none yet."""
        return self._now.step

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
                f"{self.folder / name} cannot be written ({error.strerror or error}): mend that, then {self.again}; "
                f"{self.standing}"
            ) from None


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
