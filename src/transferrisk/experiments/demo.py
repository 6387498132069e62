"""The demo: ERM, IRM, GroupDRO and TRM on the embedded coloured digits.

Its methods and their settings are the recipe `demo`: the paper's protocol for 10C-CMNIST on a CNN of a quarter of the
paper's width, each method at the learning rate and settings that `trm experiment demo-tuning` chose by validation data
of the training environments. Nothing was chosen by looking at the test environment.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..algorithms import describe_algorithm
from ..data import Options, Splits, load_splits
from ..files import write_atomically
from ..results import Record
from ..results.records import RECORDS, records_bytes
from ..training import Steps, TrainConfig, TrainSpec, run_spec
from .executors import Slot, run_jobs
from .plan import make_plan
from .recipe import load_recipe

RECIPE = "demo"
TUNING = "trm experiment demo-tuning"
UNFINISHED = "records.unfinished.jsonl"
REPORT = "report.html"
SAMPLES = "samples.npz"

Run = tuple[dict[str, Any], list[Record]]
"""Algorithm and seed of a run, and its records."""
OnRunStep = Callable[[str, int, int, int], None]
"""(algorithm, seed, steps done, all steps)"""


@dataclass(frozen=True)
class DemoRun:
    """A training of the demo, as a job of an executor."""

    spec: TrainSpec

    def __call__(self, slot: Slot) -> Run:
        trained = run_spec(self.spec, device="cpu", watch=[Steps(slot.on_step)])
        return {"algorithm": self.spec.algorithm, "seed": self.spec.seed}, trained.history


@dataclass(frozen=True)
class Demo:
    """Every algorithm on every seed. The number of processes does not change the results.

    algorithms  some of the recipe's algorithms. Default: all
    seeds       seeds, with a run of each algorithm for each
    backbone    network. Default: the recipe's
    training    fields of `TrainConfig` that differ from the recipe
    workers     number of processes that train at once; a single one is this process
    """

    algorithms: Sequence[str] = ()
    seeds: Sequence[int] = (0, 1, 2)
    backbone: str | None = None
    training: Mapping[str, Any] = field(default_factory=dict)
    workers: int = 1

    @property
    def runs(self) -> list[DemoRun]:
        specs = {}
        for cell in make_plan(load_recipe(RECIPE), seeds=1).cells:
            spec = TrainSpec(**cell.run.settings)
            specs[spec.algorithm] = replace(
                spec, backbone=self.backbone or spec.backbone, training={**spec.training, **self.training}
            )
        chosen = self.algorithms or list(specs)
        return [DemoRun(replace(specs[name], seed=seed)) for seed in self.seeds for name in chosen]

    def describe(self) -> dict[str, str | list[str]]:
        """Return the settings, for the report."""
        specs = [run.spec for run in self.runs[: len(self.runs) // len(self.seeds)]]
        t = TrainConfig(**specs[0].training)
        return {
            "Data": f"{specs[0].data}, bias 100 % / 90 %, unbiased test",
            "Model": str(specs[0].backbone),
            "Training": f"{t.epochs} epoch{'s' * (t.epochs != 1)}, {t.batch_size} samples of each environment a step; "
            f"SGD with momentum {t.momentum:g}, weight decay {t.weight_decay:g}, {t.decay_words}",
            "Algorithms": [
                f"{describe_algorithm(spec.algorithm, **spec.settings)}; rate {spec.training['lr']:g}" for spec in specs
            ],
            "Chosen by": f"accuracy on held-out data of the training environments, on other seeds: {TUNING}",
            "Seeds" if len(self.seeds) > 1 else "Seed": ", ".join(map(str, self.seeds)),
        }

    def run(self, output: Path, on_step: OnRunStep = lambda algorithm, seed, done, total: None) -> list[Run]:
        """Train all runs, and write records and sample pictures.

        Until all runs are finished, their records are in `records.unfinished.jsonl`, so that records of an earlier
        comparison stay complete; an earlier report is removed together with its records.
        """
        runs = self.runs

        def report(position: int, done: int, total: int) -> None:
            on_step(runs[position].spec.algorithm, runs[position].spec.seed, done, total)

        splits = load_splits(runs[0].spec.data, Options(seed=self.seeds[0]))
        write_atomically(output / SAMPLES, sample_pictures(splits))
        finished: dict[int, Run] = {}
        for position, result in run_jobs(runs, self.workers, report):
            finished[position] = result
            done = [run for _, run in sorted(finished.items())]
            lines = [{**about, **record} for about, records in done for record in records]
            write_atomically(output / UNFINISHED, records_bytes(lines))
        (output / REPORT).unlink(missing_ok=True)
        os.replace(output / UNFINISHED, output / RECORDS)
        return done


def sample_pictures(splits: Splits, per_class: int = 2) -> bytes:
    """Return an NPZ file with images of each class in each environment: name -> (classes, per_class, h, w, 3) uint8."""
    pictures = {}
    for data in (splits.train, splits.test):
        for name in data.environment_names:
            part = data.environment(name)
            rows = [part.inputs[part.labels == c][::29][:per_class] for c in range(len(part.class_names))]
            pictures[name] = np.stack([row.permute(0, 2, 3, 1).numpy() for row in rows])
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **pictures)  # type: ignore[arg-type]  # numpy types its keywords as arrays only
    return buffer.getvalue()


def read_pictures(output: Path) -> dict[str, NDArray[np.uint8]]:
    """Return the sample pictures that `Demo.run` wrote to its folder."""
    with np.load(output / SAMPLES, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}
