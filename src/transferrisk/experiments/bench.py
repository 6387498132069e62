"""Cost of a training step of each algorithm on the paper's workloads, as a ratio to ERM in the same run.

A step is forward pass, backward pass and optimiser on one batch on the device; reading data is not measured. Labels are
random, which is the hardest case for the solvers of the head.
"""

from __future__ import annotations

import gc
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from operator import truediv
from typing import Any

import torch
from torch import Generator

from ..algorithms import Batch, create, get_algorithm
from ..algorithms import available as available_algorithms
from ..criterion import TransferRisk
from ..data import EnvironmentSet
from ..errors import InputError, choices
from ..models import Classifier, available, build_model, features_of
from ..training import Engine, Precision, TrainConfig, setting_of
from ..training.captured import make_step, on_stream
from ..training.state import TrainState, start_state

WARM_UP = {"cuda": 10, "cpu": 2}
STEPS = {"cuda": 60, "cpu": 12}
OnProgress = Callable[[str, int, int], None]
"""(what, done, total)"""
BRIEF = 0.3  # seconds of steps from which the duration of a whole training is estimated


@dataclass(frozen=True)
class Workload:
    """Sizes of a step."""

    environments: int
    batch_size: int  # samples of each environment
    shape: tuple[int, ...]
    backbone: str
    classes: int


@dataclass(frozen=True)
class Cost:
    """A number of steps of an algorithm.

    evaluated  approximate number of samples in all evaluations
    """

    workload: Workload
    algorithm: str
    settings: Mapping[str, Any]
    precision: Precision | None
    steps: int
    evaluated: int = 0


SETTINGS = {
    "cmnist": Workload(2, 128, (3, 28, 28), "cnn", 10),
    "scenecoco": Workload(2, 128, (3, 64, 64), "wrn-16-2", 10),
    "pacs": Workload(3, 32, (3, 224, 224), "resnet18", 7),
    "officehome": Workload(3, 32, (3, 224, 224), "resnet18", 65),
}


@dataclass(frozen=True)
class Measurement:
    setting: str
    algorithm: str
    device: str
    precision: str
    ms: float  # median of a step
    ratio: float  # median over steps of the ratio to ERM's step of the same turn
    peak_mib: float | None  # peak of the device's memory; None on a CPU


def measure_all(
    setting: str,
    algorithms: str,
    device: str = "auto",
    precision: str | None = None,
    captured: bool = True,
    compiled: bool | None = None,
    progress: OnProgress | None = None,
) -> list[Measurement]:
    """Measure a workload, or "all" of them, with algorithms separated by commas; "" stands for all algorithms."""
    if setting != "all" and setting not in SETTINGS:
        raise InputError(f"unknown setting {setting!r}{choices(setting, [*SETTINGS, 'all'])}")
    names = [name.strip() for name in algorithms.split(",") if name.strip()] or available_algorithms()
    for name in names:
        get_algorithm(name)
    chosen = list(SETTINGS) if setting == "all" else [setting]
    return [one for name in chosen for one in measure(name, names, device, precision, captured, compiled, progress)]


def measure(
    setting: str,
    algorithms: Sequence[str],
    device: str = "auto",
    precision: str | None = None,
    captured: bool = True,
    compiled: bool | None = None,
    progress: OnProgress | None = None,
) -> list[Measurement]:
    """Measure a step of each algorithm on a workload, with ERM first in any case.

    On a CPU the algorithms take steps in turns, so that slow moments affect all of them; on a GPU they run one after
    the other, so that each has the memory to itself. Networks are compiled where steps are captured, unless `compiled`
    says otherwise.
    """
    if setting not in SETTINGS:
        raise InputError(f"unknown setting {setting!r}{choices(setting, SETTINGS)}")
    names = list(dict.fromkeys(["erm", *algorithms]))
    compiles = captured if compiled is None else compiled
    engine = Engine.of(device, precision=precision, captured=captured, compiled=compiles)
    kind = engine.device.type
    warm_up, rounds = WARM_UP[kind], WARM_UP[kind] + STEPS[kind]
    times: dict[str, list[float]] = {name: [] for name in names}
    peaks: dict[str, float | None] = dict.fromkeys(names)
    done = 0
    with engine.arithmetic():
        for together in [[name] for name in names] if engine.on_gpu else [names]:
            gc.collect()
            if engine.on_gpu:
                torch.cuda.empty_cache()
                torch.cuda.reset_peak_memory_stats(engine.device)
            before = torch.cuda.memory_allocated(engine.device) if engine.on_gpu else 0
            with ExitStack() as stack:
                steps = {name: stack.enter_context(_step(SETTINGS[setting], name, engine)) for name in together}
                for i in range(rounds):
                    first = i % len(together)  # each comes first in turn
                    for name in (*together[first:], *together[:first]):
                        taken = _timed(steps[name], engine)
                        if i >= warm_up:
                            times[name].append(taken)
                        done += 1
                        if progress is not None:
                            progress(f"{setting}, {name}", done, len(names) * rounds)
                if engine.on_gpu:
                    peaks[together[0]] = (torch.cuda.max_memory_allocated(engine.device) - before) / 2**20
            del steps
    found = []
    for name, values in times.items():
        ratios = map(truediv, values, times["erm"])
        ms, ratio = 1e3 * statistics.median(values), statistics.median(ratios)
        found.append(Measurement(setting, name, kind, engine.precision, ms, ratio, peaks[name]))
    return found


def step_seconds(
    workload: Workload, algorithm: str, precision: Precision | None, *, settings: Mapping[str, Any], device: str
) -> float:
    """Return the median seconds of the steps within `BRIEF` seconds, without the first if there are several."""
    engine = Engine.of(device, precision=precision, compiled=False)
    with engine.arithmetic(), _step(workload, algorithm, engine, settings) as step:
        return _median(step, engine)


def forward_seconds(workload: Workload, precision: Precision | None, *, device: str) -> float:
    """Return the median seconds of a forward pass on the samples of a step, as in an evaluation."""
    engine = Engine.of(device, precision=precision, compiled=False)
    with engine.arithmetic():
        state, data = _start(workload, "erm", engine, {})
        placed = data.to(engine.device)
        return _median(lambda: features_of(state.model, placed.batch, len(placed)), engine)


def _median(act: Callable[[], object], engine: Engine) -> float:
    times = [_timed(act, engine)]
    while sum(times) < BRIEF and len(times) < STEPS[engine.device.type]:
        times.append(_timed(act, engine))
    return statistics.median(times[1:] or times)


def _start(
    workload: Workload, algorithm: str, engine: Engine, settings: Mapping[str, Any]
) -> tuple[TrainState, EnvironmentSet]:
    generator = Generator().manual_seed(0)
    n = workload.environments * workload.batch_size
    if len(workload.shape) == 3:
        inputs = torch.randint(256, (n, *workload.shape), generator=generator, dtype=torch.uint8)
    else:
        inputs = torch.randn(n, *workload.shape, generator=generator)
    data = EnvironmentSet(
        inputs,
        torch.randint(workload.classes, (n,), generator=generator),
        torch.arange(workload.environments).repeat_interleave(workload.batch_size),
        tuple(f"environment {e}" for e in range(workload.environments)),
        tuple(map(str, range(workload.classes))),
    )

    def model() -> Classifier:
        ours = workload.backbone.partition(":")[0] in available()  # others start from ImageNet, batch norm frozen
        return build_model(
            workload.backbone,
            workload.classes,
            workload.shape,
            weights="none",
            batch_norm="train" if ours else "frozen",
        )

    config = TrainConfig(epochs=10_000, batch_size=workload.batch_size, lr=0.01)
    return start_state(model, data, create(algorithm, setting_of(data), **settings), config, 0, engine), data


@contextmanager
def _step(
    workload: Workload, algorithm: str, engine: Engine, settings: Mapping[str, Any] | None = None
) -> Iterator[Callable[[], object]]:
    """Yield a function that takes a step, on the same batch each time and with penalties."""
    state, data = _start(workload, algorithm, engine, settings or {})
    state.step = 100 * state.sampler.steps_per_epoch
    state.model.train()
    placed = data.to(engine.device)
    inputs = placed.batch()
    if engine.on_gpu and inputs.dim() == 4:
        inputs = inputs.contiguous(memory_format=torch.channels_last)
    batch = Batch(inputs, placed.labels, placed.environments, workload.batch_size)
    with state.compiled():
        yield partial(make_step(state, engine.captured), batch)


def _timed(act: Callable[[], object], engine: Engine) -> float:
    """Return the seconds until the device has finished."""
    engine.wait()
    began = time.perf_counter()
    act()
    engine.wait()
    return time.perf_counter() - began


def _captured(once: Callable[[], None]) -> Callable[[], None]:
    with on_stream(torch.cuda.Stream()):
        for _ in range(3):
            once()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        once()

    def replay(kept: Callable[[], None] = once) -> None:
        """Replay the graph; `kept` keeps the tensors alive whose addresses it recorded."""
        graph.replay()

    return replay


@dataclass(frozen=True)
class HeadCost:
    """Milliseconds of the transfer risk and its gradient."""

    environments: int
    samples: int  # of each environment
    features: int
    classes: int
    ms: float


def head_costs(device: str = "auto", progress: OnProgress | None = None) -> list[HeadCost]:
    """Measure how the cost of the head grows with each size, with the other sizes as in 10C-CMNIST."""
    engine = Engine.of(device, precision="fp32")
    base = {"environments": 2, "samples": 128, "features": 128, "classes": 10}
    varied: dict[str, tuple[int, ...]] = {
        "environments": (2, 3, 5, 8),
        "samples": (32, 64, 128),
        "features": (64, 128, 512, 2048),
        "classes": (2, 10, 32),
    }
    cases = [base | {name: value} for name, values in varied.items() for value in values]
    found = []
    with engine.arithmetic():
        for i, case in enumerate(cases):
            found.append(HeadCost(**case, ms=_head(engine, **case)))
            if progress is not None:
                progress("head", i + 1, len(cases))
    return found


def _head(engine: Engine, environments: int, samples: int, features: int, classes: int) -> float:
    torch.manual_seed(0)
    n, device = environments * samples, engine.device
    centres = torch.randn(classes, features, device=device)
    labels = torch.randint(classes, (n,), device=device)
    rows = (torch.randn(n, features, device=device) + centres[labels]).div(features**0.5).mul(5).requires_grad_()
    index = torch.arange(environments, device=device).repeat_interleave(samples)
    criterion = TransferRisk(num_classes=classes, environments=environments).to(device)
    if engine.on_gpu:
        criterion.capture(samples, blocks=True)

    def once() -> None:
        rows.grad = None
        criterion(rows, labels, index).risk.backward()

    if engine.on_gpu:
        once = _captured(once)
    times = []
    for i in range(3 + STEPS[device.type]):
        taken = _timed(once, engine)
        if i >= 3:
            times.append(taken)
    return 1e3 * statistics.median(times)
