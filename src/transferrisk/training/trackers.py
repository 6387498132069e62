"""Watches that report to experiment trackers: TensorBoard, MLflow, and Weights & Biases."""

from __future__ import annotations

import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, Stopped, TransferRiskError
from ..extras import require
from ..files import write_atomically
from ..results import Record, mean_score
from ..results.records import BATCH
from .run_folder import flattened
from .watches import Watch

if TYPE_CHECKING:
    from .loop import Run

LOSS_EVERY = 50  # steps between two losses that are reported


def scalars(records: Sequence[Record]) -> dict[str, float]:
    """Return all numbers of an evaluation by name, such as "test/east/accuracy"."""
    found: dict[str, float] = {}
    for record in records:
        part, environment = record["part"], record.get("environment")
        if part == BATCH:
            found |= {f"step/{name}": value for name, value in record.items() if name not in _WHEN}
            continue
        for name in ("accuracy", "loss", "worst_group"):
            found[f"{part}/{environment}/{name}"] = record[name]
        if "irm" in record:
            found[f"irm/{environment}"] = record["irm"]
    if any(record.get("transfer_risk") is not None for record in records if record["part"] != BATCH):
        found["transfer_risk"] = mean_score(records, "training_domain", "transfer_risk")
    return {name: value for name, value in found.items() if value is not None}


_WHEN = ("step", "epoch", "seconds", "part")


class TensorBoard(Watch):
    """Write event files into `tensorboard` in a folder; those of steps that a resumed run repeats are hidden."""

    def __init__(self, folder: Path) -> None:
        require("tensorboard", "tracking")
        self.folder = folder

    def begin(self, run: Run) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer: Any = SummaryWriter(str(self.folder / "tensorboard"), purge_step=run.state.step + 1)

    def after_step(self, step: int, total: int, loss: float | None) -> None:
        if loss is not None and step % LOSS_EVERY == 0:
            self.writer.add_scalar("loss", loss, step)

    def after_evaluation(self, records: Sequence[Record]) -> None:
        for name, value in scalars(records).items():
            self.writer.add_scalar(name, value, records[0]["step"])
        self.writer.flush()

    def end(self, error: BaseException | None) -> None:
        self.writer.close()


class MLflow(Watch):
    """Report to a run of MLflow, at $MLFLOW_TRACKING_URI or in `mlruns` in a folder; a resumed run goes on with it."""

    def __init__(self, folder: Path) -> None:
        self.mlflow: Any = require("mlflow", "tracking")
        self.folder, self.run_file = folder, folder / "mlflow.txt"
        self.own_store = "MLFLOW_TRACKING_URI" not in os.environ

    def begin(self, run: Run) -> None:
        if self.own_store:
            os.environ.setdefault("MLFLOW_ALLOW_FILE_STORE", "true")  # mlflow-skinny has no database
            self.mlflow.set_tracking_uri((self.folder / "mlruns").resolve().as_uri())
        try:
            with self._mlflow_errors():
                self._start(run)
        except BaseException as error:
            with suppress(TransferRiskError):
                self.end(error)
            raise

    def _start(self, run: Run) -> None:
        if self.run_file.exists():
            self.mlflow.start_run(run_id=self.run_file.read_text().strip())
            return
        started = self.mlflow.start_run(run_name=self.folder.name)
        write_atomically(self.run_file, f"{started.info.run_id}\n")
        self.mlflow.log_params(flattened(run.description))

    def after_step(self, step: int, total: int, loss: float | None) -> None:
        if loss is not None and step % LOSS_EVERY == 0:
            with self._mlflow_errors():
                self.mlflow.log_metric("loss", loss, step=step)

    def after_evaluation(self, records: Sequence[Record]) -> None:
        allowed = {re.sub(r"[^\w\-. /]", "_", name): value for name, value in scalars(records).items()}
        with self._mlflow_errors():
            self.mlflow.log_metrics(allowed, step=records[0]["step"])

    def end(self, error: BaseException | None) -> None:
        stopped = isinstance(error, Stopped | KeyboardInterrupt)
        try:
            with self._mlflow_errors():
                self.mlflow.end_run("FINISHED" if error is None else "KILLED" if stopped else "FAILED")
        except TransferRiskError:
            if error is None:  # otherwise the error that ended the run is reported
                raise
        finally:
            if self.own_store:
                self.mlflow.set_tracking_uri(None)
                os.environ.pop("MLFLOW_TRACKING_URI", None)  # set by MLflow; the next run would use it

    @contextmanager
    def _mlflow_errors(self) -> Iterator[None]:
        try:
            yield
        except self.mlflow.MlflowException as error:
            cause = " ".join(str(error).split())
            raise TransferRiskError(
                f"MLflow refused a value ({cause}): correct that, or train without --tracker mlflow"
            ) from None


class WeightsAndBiases(Watch):
    """Report to a run of Weights & Biases, with the user's settings of wandb; a resumed run goes on with it.

    Without an account, WANDB_MODE=offline writes files into `wandb` in the folder, which `wandb sync` uploads later.
    """

    def __init__(self, folder: Path) -> None:
        self.wandb: Any = require("wandb", "tracking")
        self.folder, self.run_file = folder, folder / "wandb.txt"

    def begin(self, run: Run) -> None:
        if not self.run_file.exists():
            write_atomically(self.run_file, f"{secrets.token_hex(4)}\n")
        with self._wandb_errors():
            self.run: Any = self.wandb.init(
                project=os.environ.get("WANDB_PROJECT", "transferrisk"),
                id=self.run_file.read_text().strip(),
                resume="allow",
                name=self.folder.name,
                dir=str(self.folder),
                config=flattened(run.description),
                settings=self.wandb.Settings(console="off", silent=True),
            )

    def after_step(self, step: int, total: int, loss: float | None) -> None:
        if loss is not None and step % LOSS_EVERY == 0:
            with self._wandb_errors():
                self.run.log({"loss": loss}, step=step)

    def after_evaluation(self, records: Sequence[Record]) -> None:
        with self._wandb_errors():
            self.run.log(scalars(records), step=records[0]["step"])

    def end(self, error: BaseException | None) -> None:
        try:
            with self._wandb_errors():
                self.run.finish(exit_code=0 if error is None else getattr(error, "exit_code", 1))
        except TransferRiskError:
            if error is None:  # otherwise the error that ended the run is reported
                raise

    @contextmanager
    def _wandb_errors(self) -> Iterator[None]:
        try:
            yield
        except self.wandb.Error as error:
            cause = " ".join(str(error).split())
            raise TransferRiskError(
                f"Weights & Biases refused ({cause}): correct that, set WANDB_MODE=offline, or train without "
                "--tracker wandb"
            ) from None


TRACKERS: dict[str, Callable[[Path], Watch]] = {
    "tensorboard": TensorBoard,
    "mlflow": MLflow,
    "wandb": WeightsAndBiases,
}


def make_trackers(names: Sequence[str], folder: Path) -> list[Watch]:
    """Return the trackers of these names, which write files into the folder."""
    for name in names:
        if name not in TRACKERS:
            raise InputError(f"tracker must be one of {', '.join(TRACKERS)}, got {name!r}")
    return [TRACKERS[name](folder) for name in names]
