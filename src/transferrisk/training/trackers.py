"""Experiment trackers that follow a run besides its own records: TensorBoard and MLflow."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal, Protocol

from ..data import SPLITS
from ..errors import InputError, TransferRiskError
from ..extras import require
from ..files import write_atomically
from .records import Record
from .signals import Stopped

LOSS_EVERY = 50  # steps between two losses that trackers are told


class Watch(Protocol):
    """Follows a run: its loss whenever that is looked at, and its evaluations."""

    def loss(self, step: int, value: float) -> None: ...

    def record(self, record: Record) -> None: ...


Outcome = Literal["finished", "failed", "killed"]


class Tracker(Watch, Protocol):
    def close(self, outcome: Outcome) -> None: ...


def scalars(record: Record) -> dict[str, float]:
    """All numbers of a record by name, such as "test/east/accuracy"."""
    found = {}
    for split in SPLITS:
        for environment, scores in getattr(record, split).items():
            for name in ("accuracy", "loss", "worst_group"):
                if getattr(scores, name) is not None:
                    found[f"{split}/{environment}/{name}"] = getattr(scores, name)
    found |= {f"irm/{environment}": value for environment, value in record.irm.items()}
    found |= {f"step/{name}": value for name, value in record.logs.items()}
    if len(record.transfer_matrix) > 1:
        found["transfer_risk"] = record.transfer_risk
    return found


class TensorBoard:
    """Event files in `tensorboard` of the run's folder; what an interrupted run had written ahead is hidden."""

    def __init__(self, folder: Path, configuration: Mapping[str, Any]) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.open: Callable[..., Any] = lambda step: SummaryWriter(str(folder / "tensorboard"), purge_step=step)
        self.writer: Any = None

    def loss(self, step: int, value: float) -> None:
        self.writer = self.writer or self.open(step)
        self.writer.add_scalar("loss", value, step)

    def record(self, record: Record) -> None:
        self.writer = self.writer or self.open(record.step)
        for name, value in scalars(record).items():
            self.writer.add_scalar(name, value, record.step)
        self.writer.flush()

    def close(self, outcome: Outcome) -> None:
        if self.writer is not None:
            self.writer.close()


class MLflow:
    """A run of MLflow, at $MLFLOW_TRACKING_URI or in `mlruns` of the folder.

    Resuming goes on with the same one, from the first number on: a training that is refused leaves it as it was.
    """

    def __init__(self, folder: Path, configuration: Mapping[str, Any]) -> None:
        self.mlflow: Any = require("mlflow", "tracking")
        self.known = folder / "mlflow.txt"
        self.started = False
        self.own_store = "MLFLOW_TRACKING_URI" not in os.environ
        if self.own_store:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # the small client has no database of its own
            self.mlflow.set_tracking_uri((folder / "mlruns").resolve().as_uri())
        if self.known.exists():
            return
        try:
            with self._told():
                run = self.mlflow.start_run(run_name=folder.name)
                self.started = True
                write_atomically(self.known, f"{run.info.run_id}\n")
                self.mlflow.log_params(dict(configuration))
        except BaseException:
            with suppress(TransferRiskError):
                self.close("failed")
            raise

    def loss(self, step: int, value: float) -> None:
        with self._told():
            self._resume()
            self.mlflow.log_metric("loss", value, step=step)

    def record(self, record: Record) -> None:
        allowed = {re.sub(r"[^\w\-. /]", "_", name): value for name, value in scalars(record).items()}
        with self._told():
            self._resume()
            self.mlflow.log_metrics(allowed, step=record.step)

    def close(self, outcome: Outcome) -> None:
        try:
            if self.started:
                with self._told():
                    self.mlflow.end_run(outcome.upper())
        finally:
            if self.own_store:
                self.mlflow.set_tracking_uri(None)
                os.environ.pop("MLFLOW_TRACKING_URI", None)  # MLflow had set it, and the next run would go there

    def _resume(self) -> None:
        if not self.started:
            self.mlflow.start_run(run_id=self.known.read_text().strip())
            self.started = True

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except self.mlflow.MlflowException as error:
            cause = " ".join(str(error).split())
            raise TransferRiskError(
                f"MLflow did not take what it was given ({cause}): mend that, or leave it out"
            ) from None


TRACKERS: dict[str, type[TensorBoard] | type[MLflow]] = {"tensorboard": TensorBoard, "mlflow": MLflow}


def check_trackers(names: Sequence[str]) -> None:
    """They are known, and what they need is installed."""
    for name in names:
        if name not in TRACKERS:
            raise InputError(f"tracker {name!r} is not known: choose from {', '.join(TRACKERS)}")
        require(name, "tracking")


@dataclass(frozen=True)
class Together:
    """Several that follow a run as one. Trackers hear of a loss now and then only: each time is a line in a store."""

    watch: Watch
    trackers: Sequence[Tracker] = ()

    def loss(self, step: int, value: float) -> None:
        self.watch.loss(step, value)
        if step % LOSS_EVERY == 0:
            for tracker in self.trackers:
                tracker.loss(step, value)

    def record(self, record: Record) -> None:
        for follower in (self.watch, *self.trackers):
            follower.record(record)


@contextmanager
def followed(watch: Watch, names: Sequence[str], folder: Path, configuration: Mapping[str, Any]) -> Iterator[Together]:
    """The watch and trackers of these names; the trackers are closed at the end, and told how it came."""
    with ExitStack() as stack:
        trackers: list[Tracker] = []
        for name in names:
            trackers.append(TRACKERS[name](folder, configuration))
            stack.push(partial(_close, trackers[-1]))
        yield Together(watch, trackers)


def _close(tracker: Tracker, kind: object, error: BaseException | None, trace: object) -> None:
    if error is None:
        return tracker.close("finished")
    with suppress(TransferRiskError):  # what ended the run is the one to tell
        tracker.close("killed" if isinstance(error, Stopped | KeyboardInterrupt) else "failed")
    return None
