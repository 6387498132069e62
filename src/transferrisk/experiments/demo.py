"""The demo: ERM, IRM, GroupDRO and TRM on the embedded coloured digits.

All settings are the library's defaults and the paper's protocol for 10C-CMNIST, on a CNN of a quarter of the
paper's width; nothing was chosen by looking at the test environment.
"""

from __future__ import annotations

import io
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..algorithms import create, describe_algorithm
from ..data import SPLITS, Options, Splits, load_splits
from ..files import write_atomically
from ..models import Classifier, SmallCNN
from ..results import Record
from ..results.records import RECORDS, records_bytes
from ..training import Steps, TrainConfig, setting_of, train
from .executors import Slot
from .local_executor import run_jobs

UNFINISHED = "records.unfinished.jsonl"
REPORT = "report.html"
SAMPLES = "samples.npz"

Run = tuple[dict[str, Any], list[Record]]
"""What a run is, by algorithm and seed, and its records."""
OnRunStep = Callable[[str, int, int, int], None]
"""(algorithm, seed, steps done, steps in all)"""


@dataclass(frozen=True)
class Demo:
    """Every algorithm on every seed, one run each; how many processes share the work does not change a number."""

    algorithms: Sequence[str] = ("erm", "irm", "groupdro", "trm")
    seeds: Sequence[int] = (0, 1, 2)
    width: int = 16
    training: TrainConfig = TrainConfig(evaluations=2)  # noqa: RUF009  # frozen
    workers: int = 1  # processes; see `executors.run_jobs`

    def describe(self) -> dict[str, str | list[str]]:
        """The settings, for the report."""
        t = self.training
        return {
            "Model": f"CNN of width {self.width}, {2 * self.width} features",
            "Training": f"{t.epochs} epoch{'s' * (t.epochs != 1)}, {t.batch_size} samples of each environment a step; "
            f"SGD with momentum {t.momentum:g}, weight decay {t.weight_decay:g}, rate {t.lr:g}, "
            f"times {t.decay_factor:g} after {t.decay_at:.0%}",
            "Algorithms": [describe_algorithm(name) for name in self.algorithms],
            "Seeds" if len(self.seeds) > 1 else "Seed": ", ".join(map(str, self.seeds)),
        }

    def model(self) -> Classifier:
        cnn = SmallCNN(width=self.width)
        return Classifier(cnn, cnn.num_features, 10)

    def run(self, output: Path, on_step: OnRunStep | None = None) -> list[Run]:
        """Train everything and write records and sample pictures; `on_step(algorithm, seed, done, total)`.

        Records of a comparison that is not finished yet are in `records.unfinished.jsonl`, so that what an earlier one
        left in the folder stays whole until then; its report goes when its records do.
        """
        runs = [(seed, algorithm) for seed in self.seeds for algorithm in self.algorithms]

        def report(position: int, done: int, total: int) -> None:
            if on_step is not None:
                seed, algorithm = runs[position]
                on_step(algorithm, seed, done, total)

        write_atomically(output / SAMPLES, sample_pictures(load_splits("10c-digits", Options(seed=self.seeds[0]))))
        finished: dict[int, Run] = {}
        for position, result in run_jobs([DemoRun(self, *run) for run in runs], self.workers, report):
            finished[position] = result
            done = [run for _, run in sorted(finished.items())]
            lines = ({**about, **record} for about, records in done for record in records)
            write_atomically(output / UNFINISHED, records_bytes(lines))
        (output / REPORT).unlink(missing_ok=True)
        os.replace(output / UNFINISHED, output / RECORDS)
        return done


@dataclass(frozen=True)
class DemoRun:
    """One training of the demo, as a job for any process."""

    demo: Demo
    seed: int
    algorithm: str

    def __call__(self, slot: Slot) -> Run:
        splits = load_splits("10c-digits", Options(seed=self.seed))
        trained = train(
            self.demo.model,
            splits.train,
            create(self.algorithm, setting_of(splits.train)),
            self.demo.training,
            evaluate={part: getattr(splits, part) for part in SPLITS},
            watch=[Steps(slot.on_step)],
            seed=self.seed,
        )
        return {"algorithm": self.algorithm, "seed": self.seed}, trained.history


def sample_pictures(splits: Splits, per_class: int = 2) -> bytes:
    """A few images of each class in each environment as an NPZ: name -> (classes, per_class, h, w, 3) uint8."""
    pictures = {}
    for data in (splits.train, splits.test):
        for name in data.environment_names:
            part = data.environment(name)
            rows = [part.inputs[part.labels == c][::29][:per_class] for c in range(len(part.class_names))]
            pictures[name] = np.stack([row.permute(0, 2, 3, 1).numpy() for row in rows])
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **pictures)  # type: ignore[arg-type]  # numpy types its keywords as arrays only
    return buffer.getvalue()
