"""What is fixed before the first step of a training."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from numbers import Integral, Real
from typing import Any, Literal, get_args

from ..algorithms import configure
from ..data import SPLITS, Splits
from ..errors import InputError
from ..models import Classifier
from .digests import of_splits

Precision = Literal["fp32", "tf32", "bf16"]
Extra = Literal["irm", "transfer"]


@dataclass(frozen=True)
class TrainingConfig:
    """The paper's protocol for 10C-CMNIST (appendix B.3.2).

    record  what each evaluation measures besides accuracies and losses, on training-domain validation data: "irm" the
            IRMv1 penalty of each environment, "transfer" the exact transfer matrix
    """

    epochs: int = 10
    batch_size: int | None = 128  # of each environment; None: every step sees all samples, however many each has
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    decay_at: float = 0.4  # share of the steps after which the rate is multiplied by decay_factor; 1: never
    decay_factor: float = 0.1
    evaluations: int = 10
    transfer_ridge: float = 1e-3  # of the predictors in the recorded transfer matrix
    augment: bool = False
    record: tuple[Extra, ...] = ("transfer",)

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "evaluations"):
            value = getattr(self, name)
            if name == "batch_size" and value is None:
                continue
            if not isinstance(value, Integral) or value < 1:
                raise InputError(f"{name}={value} is no number to train with: use a whole one, 1 or more")
        for name in ("lr", "momentum", "weight_decay", "decay_at", "decay_factor", "transfer_ridge"):
            value, most = getattr(self, name), 1.0 if name in ("momentum", "decay_at") else math.inf
            if not isinstance(value, Real) or not 0 <= float(value) <= most or math.isinf(value):
                wanted = "0 to 1" if most == 1.0 else "a finite number, 0 or more"
                raise InputError(f"{name}={value} is no number to train with: use {wanted}")
        for extra in self.record:
            if extra not in get_args(Extra):
                raise InputError(f"record {extra!r} is not known: choose from {', '.join(get_args(Extra))}")

    def rate(self, step: int, total: int) -> float:
        return self.lr * (self.decay_factor if step >= self.decay_at * total else 1.0)

    def evaluated(self, total: int) -> frozenset[int]:
        """The steps after which the model is evaluated, the last one among them."""
        return frozenset(max(1, round(total * (i + 1) / self.evaluations)) for i in range(self.evaluations))


@dataclass(frozen=True)
class Run:
    """One training: what is fixed before its first step.

    algorithm   its name in the registry
    settings    of the algorithm, where they are not its defaults
    held_out    the training environment that this run leaves out and tests on instead, to select settings by
    origin      what `build_model` and `splits` were made from (data, backbone, ...), for the record and for resuming:
                a checkpoint goes on only where all of this is the same
    device      "auto", "cpu", "cuda" or "cuda:1"
    devices     how many share a batch; torchrun's number where that has started this process
    precision   of the featuriser; None: bf16 on a GPU, fp32 elsewhere. The head is in float32 in any case
    captured    steps are CUDA graphs, on a GPU, where that is possible
    workers     processes that read data ahead where it does not fit the device's memory

    Where nothing is said, a run is on the CPU, where it can be repeated bit for bit; a `Request`, like the command,
    takes a GPU where there is one.
    """

    algorithm: str
    build_model: Callable[[], Classifier]
    splits: Splits
    config: TrainingConfig = TrainingConfig()
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)
    held_out: str | None = None
    origin: Mapping[str, Any] = field(default_factory=dict)
    device: str = "cpu"
    devices: int = 1
    precision: Precision | None = None
    captured: bool = True
    workers: int = 0

    def describe(self) -> dict[str, Any]:
        """All that decides the numbers but the precision, as JSON has it; a run may go on on another device.

        Of the data, this is its size and digests of its content.
        """
        sizes = {f"samples.{name}": len(getattr(self.splits, name)) for name in SPLITS}
        settings = {f"settings.{k}": v for k, v in asdict(configure(self.algorithm, **self.settings)).items()}
        config = asdict(self.config) | {"record": list(self.config.record)}
        own = {"algorithm": self.algorithm, "seed": self.seed, "held_out": self.held_out}
        return {**self.origin, **own, **settings, **config, **sizes, **self._digests}

    @cached_property
    def _digests(self) -> dict[str, str]:
        return of_splits(self.splits)
