"""Cost of a whole training in a sweep: one after the other, and several at once that take turns.

A training is that of 10C-CMNIST, on random images: 1250 steps on 2 x 128 samples, ten evaluations with the transfer
matrix, and a folder with checkpoints. Reading data, starting processes and compiling are not measured.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
from torch import Generator

from ..algorithms import create, get_algorithm
from ..data import EnvironmentSet
from ..errors import InputError
from ..models import build_model
from ..training import Engine, RunFolder, Steps, TrainConfig, train
from ..training.run_folder import pass_signal
from .bench import OnProgress
from .executors import PER_WORKER
from .turns import Turns

SIZES = {"train": (2, 16000), "training_domain": (2, 6000), "test_domain": (1, 12000), "test": (1, 16000)}
"""Part of 10C-CMNIST -> number of its environments, and of samples of each."""
CLASSES = 10
CONFIG = TrainConfig()
BRIEF = TrainConfig(steps=8, evaluations=1)  # compiles and allocates


@dataclass(frozen=True)
class SweepMeasurement:
    """Seconds of a training in a sweep.

    together  number of trainings at once
    seconds   time of the sweep over the number of trainings
    ratio     to that of one at a time
    """

    algorithm: str
    device: str
    precision: str
    together: int
    compiled: bool
    seconds: float
    ratio: float


def measure_sweep(
    algorithms: Sequence[str],
    device: str = "auto",
    precision: str | None = None,
    progress: OnProgress | None = None,
    trainings: int = 2 * PER_WORKER,
    config: TrainConfig = CONFIG,
) -> list[SweepMeasurement]:
    """Measure sweeps of each algorithm on a GPU: one training at a time, and as many at once as an executor runs.

    Both are measured with the network as it is, and compiled. `trainings` are taken at once, a quarter one by one.
    """
    for name in algorithms:
        get_algorithm(name)
    engine = Engine.of(device, precision=precision)
    if not engine.on_gpu:
        raise InputError(f"--device must be a GPU for --sweep, got {device!r}, which is the CPU here")
    sets = {part: _random(*size, engine.device) for part, size in SIZES.items()}
    found: list[SweepMeasurement] = []
    modes = [(compiled, together) for compiled in (False, True) for together in (1, PER_WORKER)]
    for name in algorithms:
        first = 0.0
        for number, (compiled, together) in enumerate(modes):
            count = trainings if together > 1 else max(1, trainings // 4)
            taken = sweep_seconds(name, sets, replace(engine, compiled=compiled), together, count, config)
            first = first or taken
            found.append(SweepMeasurement(name, "cuda", engine.precision, together, compiled, taken, taken / first))
            if progress is not None:
                progress(f"sweep, {name}", number + 1, len(modes))
    return found


def sweep_seconds(
    algorithm: str,
    sets: dict[str, EnvironmentSet],
    engine: Engine,
    together: int,
    trainings: int,
    config: TrainConfig = CONFIG,
) -> float:
    """Return the seconds of a sweep over the number of its trainings, without the first use of everything."""
    data = sets["train"]
    turns = Turns(str(engine.device))

    def training(seed: int, config: TrainConfig, folder: Path) -> None:
        with turns.taking_part():
            train(
                partial(build_model, "cnn", CLASSES, tuple(data.inputs[:1].shape[1:])),
                data,
                partial(create, algorithm),
                config,
                evaluate=sets,
                watch=[RunFolder(folder / str(seed), say=None), Steps(turns.after_step)],
                seed=seed,
                engine=engine,
            )

    with TemporaryDirectory() as scratch, ThreadPoolExecutor(together) as pool:
        training(0, BRIEF, Path(scratch) / "brief")
        began = time.perf_counter()
        try:
            for done in [pool.submit(training, seed, config, Path(scratch)) for seed in range(trainings)]:
                done.result()
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            pass_signal(signal.SIGTERM)  # those that run end after their step
            raise
        torch.cuda.synchronize(engine.device)
        return (time.perf_counter() - began) / trainings


def _random(environments: int, samples: int, device: torch.device) -> EnvironmentSet:
    generator = Generator().manual_seed(environments + samples)
    n = environments * samples
    return EnvironmentSet(
        torch.randint(256, (n, 3, 28, 28), generator=generator, dtype=torch.uint8).to(device),
        torch.randint(CLASSES, (n,), generator=generator).to(device),
        torch.arange(environments, device=device).repeat_interleave(samples),
        tuple(f"environment {e}" for e in range(environments)),
        tuple(map(str, range(CLASSES))),
    )
