"""Small tasks, plans of them, and a sweep as a command of its own; workers import this module."""

from __future__ import annotations

import errno
import json
import os
import signal
import sys
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from fsspec.implementations.local import LocalFileSystem

from transferrisk.algorithms import create
from transferrisk.data import Options, load_splits
from transferrisk.errors import InputError
from transferrisk.experiments.executors import LocalExecutor
from transferrisk.experiments.plan import Plan
from transferrisk.experiments.recipe import Recipe
from transferrisk.experiments.store import Store
from transferrisk.experiments.studies import Cell
from transferrisk.experiments.sweep import Interrupted, run_experiment
from transferrisk.experiments.tasks import PlannedRun, Task, get_task, register
from transferrisk.models import Classifier, SmallCNN
from transferrisk.settings import NonNegative, Settings
from transferrisk.training import Engine, RunFolder, Steps, TrainConfig, setting_of, train

STARTS, MODEL = "starts", "model.json"
HURRY = "hurry"  # a file in a run's folder: no more pauses


@dataclass(frozen=True)
class WalkSettings(Settings):
    seed: int = 0
    steps: int = 3
    pause: NonNegative = 0.0
    trouble: str = ""


@register("test-walk")
class Walk(Task[WalkSettings]):
    """Some matrix products, with as many pauses; each start leaves its process in a file."""

    settings_type = WalkSettings

    def run(self, settings, place):
        note_start(place.folder)
        self.suffer(settings.trouble, first=len(starts(place.folder)) == 1)
        generator = torch.Generator().manual_seed(settings.seed)
        value, rows = torch.randn(64, 64, generator=generator), []
        for step in range(settings.steps):
            pause(place.folder, settings.pause)
            value = torch.tanh(value @ value / 8)
            rows.append({"step": step, "value": float(value.mean()), "threads": torch.get_num_threads()})
            place.on_step(step + 1, settings.steps)
        if place.keep:
            (place.folder / MODEL).write_text(json.dumps(rows[-1]["value"]))
        return rows

    def suffer(self, trouble: str, first: bool) -> None:
        if trouble == "error":
            raise InputError("the reason\nin two lines")
        if trouble == "mistake":
            raise KeyError("nothing here")
        if trouble == "full":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "checkpoint")
        if trouble == "death" or (trouble == "one death" and first):
            os.kill(os.getpid(), signal.SIGKILL)
        if trouble == "one error" and first:
            raise InputError("only the first time")


@dataclass(frozen=True)
class SumSettings(Settings):
    seeds: tuple[int, ...] = ()
    seed: int = 0
    trouble: str = ""


@register("test-sum")
class Sum(Task[SumSettings]):
    """Of what other runs have kept."""

    settings_type = SumSettings

    def needs(self, settings):
        return [walk(seed=seed, trouble=settings.trouble, keep=True) for seed in settings.seeds]

    def run(self, settings, place):
        kept = [json.loads((place.other(run.name) / MODEL).read_text()) for run in self.needs(settings)]
        return [{"sum": sum(kept)}]


@dataclass(frozen=True)
class TrainingSettings(Settings):
    seed: int = 0
    epochs: int = 2
    pause: float = 0.0
    last: bool = False


@register("test-training")
class Training(Task[TrainingSettings]):
    """A small one, with a pause after each step; each start that comes to its third step leaves its process.

    last  only the last step has that
    """

    settings_type = TrainingSettings

    def run(self, settings, place):
        def model():
            cnn = SmallCNN(width=4)
            return Classifier(cnn, cnn.num_features, 10)

        config = TrainConfig(epochs=settings.epochs, evaluations=1)
        splits = load_splits("10c-digits", Options(seed=settings.seed))
        noted = False

        def on_step(done, total):
            nonlocal noted
            place.on_step(done, total)
            if settings.last and done < total:
                return
            if done >= 3 and not noted:
                note_start(place.folder)
                noted = True
            pause(place.folder, settings.pause)

        trained = train(
            model,
            splits.train,
            create("erm", setting_of(splits.train)),
            config,
            evaluate={"training_domain": splits.training_domain},
            watch=[RunFolder(place.folder / "training", resume=True, say=lambda text: None), Steps(on_step)],
            seed=settings.seed,
            engine=Engine.of(place.device),
        )
        return [
            {"loss": r["loss"], "part": r["environment"]} for r in trained.history if r["part"] == "training_domain"
        ]


class Shelf(LocalFileSystem):
    """Files of this machine as storage that knows no locks, which all of its processes see."""

    protocol = "shelf"


def pause(folder: Path, seconds: float) -> None:
    time.sleep(0 if (folder / HURRY).exists() else seconds)


def hurry(folder: Path) -> None:
    """A run that has this folder, or will have, pauses no more."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / HURRY).touch()


def note_start(folder: Path) -> None:
    with (folder / STARTS).open("a") as file:
        file.write(f"{os.getpid()}\n")


def starts(folder: Path) -> list[int]:
    return [int(line) for line in (folder / STARTS).read_text().split()] if (folder / STARTS).exists() else []


def walk(keep: bool = False, **settings: Any) -> PlannedRun:
    return PlannedRun("test-walk", get_task("test-walk").resolve(settings), keep)


def plan(*runs: PlannedRun, name: str = "trial") -> Plan:
    cells = (Cell(run, {"method": run.task, "position": i}) for i, run in enumerate(runs))
    return Plan(Recipe(name), tuple(cells))


def main(root: str, workers: str, runs: str) -> int:
    """A sweep; the runs are [[task, settings], ...] as JSON."""
    planned: list[tuple[str, Mapping[str, Any]]] = json.loads(runs)
    of_runs = plan(*(PlannedRun(task, get_task(task).resolve(settings)) for task, settings in planned))
    try:
        summary = run_experiment(of_runs, Store(root), LocalExecutor(int(workers), threads=1))
    except Interrupted as interrupted:
        print(interrupted)
        return interrupted.exit_code
    print(json.dumps(asdict(summary)))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
