"""The folder of a run: checkpoints to go on from, records, and the selected model.

    run.json                        settings, digests of the data, versions
    records.jsonl                   records of the evaluations; see `results.records`
    last.safetensors                state to go on from
    model.safetensors, model.json   model at the selected evaluation so far; see `models.saved`

Invariant: `last` is never ahead of the records, and the model never ahead of `last`. Records are written before the
checkpoint that counts them, and a model before any later checkpoint, so that a resumed run recognises and repairs what
an interruption cut off.
"""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

from ..errors import DamagedRunError, InputError, OtherRunError, Stopped, TransferRiskError, cause_of
from ..files import check_target, locked, new_folders, write_atomically
from ..models.saved import DESCRIPTION, WEIGHTS, SavedModel, encode_tensors, read_tensors, save_model, versions
from ..results import Record, append_records, keep_records, select
from ..results.records import RECORDS
from ..settings import Bound, NonNegative, as_json, convert, dumps
from .engine import LOOK_EVERY
from .state import Snapshot
from .watches import Watch

if TYPE_CHECKING:
    from .loop import Run

RUN, LAST, LOCK = "run.json", "last.safetensors", ".lock"
STOPS = (signal.SIGINT, signal.SIGTERM, *(getattr(signal, n) for n in ("SIGUSR1", "SIGUSR2") if hasattr(signal, n)))
FILES = (RUN, RECORDS, LAST, WEIGHTS, DESCRIPTION)
Index = Annotated[int, Bound(least=0)]


@dataclass(frozen=True)
class Checkpoint(Snapshot):
    """A saved state, with the description of its run and the number of its records.

    Attributes
    ----------
    description
        Description of the run: its settings, and the sizes and digests of its data.
    records
        Number of records that had been written.
    tensors, values
        State of model, optimiser, algorithm and generators.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> from transferrisk.training import RunFolder, TrainSpec, load_checkpoint, run_spec
    >>> folder = mkdtemp()
    >>> spec = TrainSpec(data="gaussian", algorithm="erm", training={"steps": 2, "evaluations": 1})
    >>> trained = run_spec(spec, device="cpu", watch=[RunFolder(folder, say=None)])
    >>> load_checkpoint(f"{folder}/last.safetensors").description["spec"]["data"]
    'gaussian'
    """

    description: Mapping[str, Any]
    records: int


def load_checkpoint(path: Path | str) -> Checkpoint:
    """Read the state in a file such as last.safetensors; a damaged or other file raises InputError.

    Parameters
    ----------
    path
        Path of the file.

    Returns
    -------
    Checkpoint
        Saved state.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> from transferrisk.training import RunFolder, TrainSpec, load_checkpoint, run_spec
    >>> folder = mkdtemp()
    >>> spec = TrainSpec(data="gaussian", algorithm="erm", training={"steps": 2, "evaluations": 1})
    >>> trained = run_spec(spec, device="cpu", watch=[RunFolder(folder, say=None)])
    >>> load_checkpoint(f"{folder}/last.safetensors").records > 0
    True
    """
    tensors, header = read_tensors(path)
    kinds = {"values": Mapping[str, Any], "description": Mapping[str, Any], "records": Index}
    values = {"step": Index, "seconds": NonNegative, "optimiser": Mapping[str, Any]}
    try:
        found = {name: convert(name, header.get(name), kind) for name, kind in kinds.items()}
        for name, kind in values.items():
            found["values"][name] = convert(name, found["values"].get(name), kind)
    except InputError as error:
        raise InputError(f"{path} is not a checkpoint of a training ({error}): use last.safetensors of a run") from None
    return Checkpoint(tensors, **found)


class RunFolder(Watch):
    """Save a training in a folder, and go on with it after an interruption, bit for bit on a CPU.

    On SIGINT, SIGTERM, SIGUSR1 and SIGUSR2 the step is finished and saved, and `Stopped` is raised. Weights that are
    not finite are never saved.

    The saved model is that of the evaluation which training-domain validation selects if there is any, else test-domain
    validation, else the last evaluation.

    Parameters
    ----------
    folder
        Folder of the run, created with the first file.
    resume
        Whether to go on with the run in the folder. If not, a folder that holds a run is refused.
    every
        Number of steps between two checkpoints. None: at evaluations and after `seconds` only.
    seconds
        Longest time between two checkpoints.
    say
        Function to call with a line about the run when it begins. None: nothing is said.
    again
        Command that goes on with the run, for messages.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> from transferrisk.training import RunFolder, TrainSpec, run_spec
    >>> folder = Path(mkdtemp())
    >>> spec = TrainSpec(data="gaussian", algorithm="erm", training={"steps": 2, "evaluations": 1})
    >>> trained = run_spec(spec, device="cpu", watch=[RunFolder(folder, say=None)])
    >>> (folder / "model.safetensors").exists()
    True
    """

    in_every_process = True

    def __init__(
        self,
        folder: Path | str,
        *,
        resume: bool = False,
        every: int | None = None,
        seconds: float = 300.0,
        say: Callable[[str], object] | None = print,
        again: str = "train with resume=True",
    ) -> None:
        self.folder, self.resume, self.every, self.seconds = Path(folder), resume, every, seconds
        self.say, self.again = say, again
        self.saved_step: int | None = None  # step of the last checkpoint; None: there is none yet
        self._saved_at = time.monotonic()
        self._held = ExitStack()  # the lock of the folder, and the signals
        self._signals: list[int] = []
        for name in FILES:
            check_target(self.folder / name)
        if not resume and (there := self._present()):
            raise InputError(
                f"{self.folder} holds a run already ({', '.join(there)}): continue it with --resume, or choose another "
                "folder"
            )

    # ---- methods of a watch

    def begin(self, run: Run) -> None:
        """Restore the state and the history of the run in the folder, or write the description of a new one.

        Parameters
        ----------
        run
            The training.
        """
        self._run, self._writes = run, run.engine.team.rank == 0
        run.saved = "there is no checkpoint yet"
        with run.engine.together(first_alone=True):
            if self._writes:
                self._open()
            elif (self.folder / LAST).exists():
                self._restore(load_checkpoint(self.folder / LAST))
        self._signals = self._held.enter_context(noted_signals())

    def after_evaluation(self, records: Sequence[Record]) -> None:
        """Save the records, the state and, if this evaluation is selected, the model, in this order.

        Parameters
        ----------
        records
            Records of the evaluation, one for each part of the data and environment.
        """
        if self._writes:
            with self._disk_errors(RECORDS):
                append_records(self.folder / RECORDS, records)
        self._save()
        if self._writes:
            self._keep_selected()

    def after_step(self, step: int, total: int, loss: float | None) -> None:
        """Save the state if it is due; raise `Stopped` after a signal.

        Parameters
        ----------
        step
            Number of steps done.
        total
            Number of steps in all.
        loss
            Loss of the step, None if it has not been read from the device.
        """
        engine, asked = self._run.engine, self._signals[-1] if self._signals else None
        if engine.team.size > 1:
            looks = not engine.on_gpu or step % LOOK_EVERY == 0
            asked = engine.agreed_signal(asked) if looks else None
        stops = asked is not None and step < total
        due = (self.every and step % self.every == 0) or time.monotonic() - self._saved_at >= self.seconds
        if (due or stops) and step != self.saved_step:
            self._run.check()
            self._save()
        if asked is not None and stops:
            self._signals.clear()
            raise Stopped(asked, step, total, self.again)

    def end(self, error: BaseException | None) -> None:
        """Release the folder, and raise a signal again that came too late to stop the training.

        Parameters
        ----------
        error
            Error that ended the training, None without one.
        """
        self._held.close()
        if error is None and self._signals and threading.current_thread() is threading.main_thread():
            signal.raise_signal(self._signals[-1])

    # ---- going on

    def _open(self) -> None:
        """Lock the folder, and go on with the run in it or begin one."""
        with new_folders(self.folder), ExitStack() as held:
            busy = f"another process is training in {self.folder}: wait for it, or choose another folder"
            held.enter_context(locked(self.folder / LOCK, busy))
            for name in FILES:
                for unfinished in self.folder.glob(f".{name}.*"):  # left by a process that was killed
                    unfinished.unlink()
            begun, records = (self.folder / LAST).exists(), self.folder / RECORDS
            try:
                if begun:
                    self._go_on(load_checkpoint(self.folder / LAST))
                # Records of one evaluation may exist before the first checkpoint.
                elif (self.folder / WEIGHTS).exists() or (records.exists() and len(_evaluations(records)) > 1):
                    raise InputError(
                        f"{self.folder} holds {' and '.join(self._present())} but no {LAST} to go on from: restore it, "
                        "or choose another folder"
                    )
                else:
                    if self.resume and self.say:
                        self.say(f"there is no checkpoint in {self.folder} yet: starting afresh")
                    if records.exists():
                        keep_records(records, 0)
            except OtherRunError:
                raise
            except InputError as error:
                raise DamagedRunError(str(error)) from None
            if not begun or not (self.folder / RUN).exists():
                with self._disk_errors(RUN):
                    described = dumps({**self._run.description, "versions": versions()}, indent=2)
                    write_atomically(self.folder / RUN, described + "\n")
            self._held = held.pop_all()

    def _go_on(self, checkpoint: Checkpoint) -> None:
        run = self._run
        if different := difference(checkpoint.description, run.description):
            raise OtherRunError(
                f"{self.folder} holds a run with other settings ({different}): use the same, or choose another folder"
            )
        run.history[:] = keep_records(self.folder / RECORDS, checkpoint.records)
        self._restore(checkpoint)
        self._keep_selected(resumed=True)
        if self.say:
            here = f"step {run.state.step} of {run.total}"
            finished = run.state.step == run.total
            self.say(f"{self.folder} is finished: {here}" if finished else f"going on from {here}")

    def _restore(self, checkpoint: Checkpoint) -> None:
        try:
            self._run.state.restore(checkpoint)
        except (RuntimeError, LookupError, TypeError, ValueError, AttributeError) as error:
            raise InputError(
                f"{self.folder / LAST} does not fit this training ({cause_of(error)}): restore it, or choose another "
                "folder"
            ) from None
        self._note_saved()

    def _present(self) -> list[str]:
        """Return the files that a new run would replace; run.json alone is from a run without a checkpoint."""
        found = filter(Path.exists, map(self.folder.joinpath, (RECORDS, LAST, WEIGHTS)))
        return list(map(attrgetter("name"), filter(os.path.getsize, found)))

    # ---- saving

    def _save(self) -> None:
        if self._writes:
            snapshot = self._run.state.snapshot()
            counted = {"records": len(self._run.history), "description": self._run.description}
            encoded = encode_tensors(snapshot.tensors, {"values": snapshot.values, **counted})
            with self._disk_errors(LAST):
                write_atomically(self.folder / LAST, encoded)
        self._note_saved()

    def _note_saved(self) -> None:
        self.saved_step, self._saved_at = self._run.state.step, time.monotonic()
        self._run.saved = f"{self.folder / LAST} holds step {self.saved_step}"

    def _keep_selected(self, resumed: bool = False) -> None:
        """Save the model if it is selected; when a run is resumed, an earlier selected one must exist."""
        run = self._run
        chosen = select(run.history, run.rule)
        if chosen and chosen[0]["step"] == run.state.step:
            if resumed:
                run.state.refresh(run.data)
            saved = SavedModel(
                network=run.state.evaluated,
                backbone=str(run.about.get("backbone") or ""),
                input_shape=tuple(run.data.inputs[:1].shape[1:]),
                classes=run.data.class_names,
                environments=run.data.environment_names,
                about={"step": run.state.step, **run.description},
            )
            with self._disk_errors(WEIGHTS):
                save_model(self.folder, saved)
        elif chosen and resumed:
            self._check_model(chosen[0]["step"])

    def _check_model(self, selected: int) -> None:
        """Refuse a folder without the selected model, which cannot be computed again."""
        path = self.folder / WEIGHTS
        try:
            about = read_tensors(path)[1].get("about")
        except InputError:
            about = None
        if not isinstance(about, Mapping) or about.get("step") != selected:
            how = "is missing" if not path.exists() else "is damaged or of another step"
            raise InputError(
                f"{path} {how}: it must hold step {selected}, which is selected; restore it, or train again "
                "in another folder"
            )

    @contextmanager
    def _disk_errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise TransferRiskError(
                f"{self.folder / name} cannot be written ({error.strerror or error}): correct that, then go on with: "
                f"{self.again}; {self._run.saved}"
            ) from None


@contextmanager
def noted_signals() -> Iterator[list[int]]:
    """Collect signals to stop in a list for the block: SIGINT, SIGTERM, and those that schedulers send.

    A second Ctrl-C acts at once, as without this block. A second SIGTERM does not, because schedulers send several.
    SIGUSR1 and SIGUSR2 are collected only if they would end the process, since a program may use them otherwise. Python
    gives signals to the main thread alone; in others the list gets what `pass_signal` is told.
    """
    noted: list[int] = []
    before: dict[signal.Signals, Any] = {}

    def note(signum: int, frame: FrameType | None) -> None:
        noted.append(signum)
        if signum == signal.SIGINT:
            signal.signal(signum, before[signal.SIGINT])

    in_main = threading.current_thread() is threading.main_thread()
    if not in_main:
        _OF_THREADS.append(noted)
    else:
        for number in STOPS:
            handler = signal.getsignal(number) or signal.SIG_DFL
            if handler is signal.SIG_DFL or (number in STOPS[:2] and handler is not signal.SIG_IGN):
                before[number] = handler
                signal.signal(number, note)
    try:
        yield noted
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        if not in_main:
            _OF_THREADS[:] = [other for other in _OF_THREADS if other is not noted]


_OF_THREADS: list[list[int]] = []
"""Signals to stop, of each training that runs in another thread than the main one."""


def pass_signal(signum: int) -> None:
    """Ask the trainings in other threads than the main one to save and stop, as the signal would in that one."""
    for noted in tuple(_OF_THREADS):  # others come and go
        noted.append(signum)


def trainings_in_threads() -> int:
    """Return the number of trainings that `pass_signal` would reach."""
    return len(_OF_THREADS)


def difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
    """Return the differences of two descriptions, as "training.lr: 0.1 there, 0.05 here"; "" if they are equal.

    A digest that differs is told as "train.labels: changed since".
    """
    old, new = flattened(as_json(there)), flattened(as_json(here))
    told = []
    for key in {**old, **new}:
        if old.get(key) == new.get(key):
            continue
        kind, _, name = key.partition(".")
        changed = kind == "digests"
        told.append(f"{name}: {'changed since' if changed else f'{old.get(key)} there, {new.get(key)} here'}")
    return "; ".join(told)


def flattened(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return a nested mapping as a flat one, with names joined by dots."""
    found: dict[str, Any] = {}
    for key, value in values.items():
        found |= flattened(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {f"{prefix}{key}": value}
    return found


def _evaluations(path: Path) -> set[Any]:
    """Return the steps of the records in a file; other lines are skipped."""
    found = set()
    for line in path.read_bytes().splitlines():
        try:
            found.add(json.loads(line).get("step"))
        except (ValueError, AttributeError, RecursionError):
            continue
    return found
