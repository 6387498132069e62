"""Experiment trackers that follow a run besides its own records: TensorBoard and MLflow."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ..errors import InputError, TransferRiskError
from ..extras import require
from .records import Record

LOSS_EVERY = 50  # steps between two losses that trackers are told


class Watch(Protocol):
    """Follows a run: its loss whenever that is looked at, and its evaluations."""

    def loss(self, step: int, value: float) -> None: ...

    def record(self, record: Record) -> None: ...


class Tracker(Watch, Protocol):
    def close(self) -> None: ...


def scalars(record: Record) -> dict[str, float]:
    """All numbers of a record by name, such as "test/east/accuracy"."""
    found = {}
    for split in ("train", "training_domain", "test_domain", "test"):
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

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()


class MLflow:
    """A run of MLflow, at $MLFLOW_TRACKING_URI or in `mlruns` of the folder; resuming goes on with the same one."""

    def __init__(self, folder: Path, configuration: Mapping[str, Any]) -> None:
        self.mlflow: Any = require("mlflow", "tracking")
        if "MLFLOW_TRACKING_URI" not in os.environ:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # the small client has no database of its own
            self.mlflow.set_tracking_uri((folder / "mlruns").resolve().as_uri())
        known = folder / "mlflow.txt"
        with self._told():
            if known.exists():
                self.mlflow.start_run(run_id=known.read_text().strip())
            else:
                run = self.mlflow.start_run(run_name=folder.name)
                known.write_text(f"{run.info.run_id}\n")
                self.mlflow.log_params(dict(configuration))

    def loss(self, step: int, value: float) -> None:
        with self._told():
            self.mlflow.log_metric("loss", value, step=step)

    def record(self, record: Record) -> None:
        allowed = {re.sub(r"[^\w\-. /]", "_", name): value for name, value in scalars(record).items()}
        with self._told():
            self.mlflow.log_metrics(allowed, step=record.step)

    def close(self) -> None:
        self.mlflow.end_run()

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
    """The watch and trackers of these names; the trackers are closed at the end, however it comes."""
    with ExitStack() as stack:
        yield Together(watch, [stack.enter_context(closing(TRACKERS[n](folder, configuration))) for n in names])
