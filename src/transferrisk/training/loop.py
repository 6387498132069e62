"""The training loop, the same for all algorithms."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..algorithms import Batch, Setting, create
from ..data import BalancedSampler, EnvironmentSet, Splits
from ..models import Classifier
from .evaluate import evaluate, held_out_transfer_matrix
from .records import Record
from .state import TrainState

OnStep = Callable[[int, int], None]
"""(steps done, steps in all)"""


@dataclass(frozen=True)
class TrainingConfig:
    """The paper's protocol for 10C-CMNIST (appendix B.3.2)."""

    epochs: int = 10
    batch_size: int = 128  # of each environment
    lr: float = 0.1
    momentum: float = 0.9
    weight_decay: float = 1e-4
    decay_at: float = 0.4  # share of the steps after which the rate is multiplied by decay_factor
    decay_factor: float = 0.1
    evaluations: int = 10
    transfer_ridge: float = 1e-3  # of the predictors in the recorded transfer matrix

    def rate(self, step: int, total: int) -> float:
        return self.lr * (self.decay_factor if step >= self.decay_at * total else 1.0)


def group_priors(data: EnvironmentSet) -> Tensor:
    """Share of each (environment, class) among samples drawn evenly from the environments, (E, C)."""
    counts = data.group_counts().float()
    return counts / counts.sum(1, keepdim=True) / len(counts)


@dataclass(frozen=True)
class Run:
    """One training: what is fixed before its first step."""

    algorithm: str  # its name in the registry
    build_model: Callable[[], Classifier]
    splits: Splits
    config: TrainingConfig = TrainingConfig()
    seed: int = 0
    settings: Mapping[str, Any] = field(default_factory=dict)  # of the algorithm, where they are not its defaults


def start(run: Run) -> TrainState:
    """The state before the first step; everything random in it comes from the seed."""
    torch.manual_seed(run.seed)
    model = run.build_model()
    config, train = run.config, run.splits.train
    setting = Setting(len(train.environment_names), len(train.class_names), group_priors(train))
    optimiser = torch.optim.SGD(
        model.parameters(), lr=config.lr, momentum=config.momentum, weight_decay=config.weight_decay
    )
    sampler = BalancedSampler(train, config.batch_size, run.seed)
    return TrainState(model, optimiser, create(run.algorithm, setting, **run.settings), sampler)


def train(run: Run, on_step: OnStep | None = None) -> list[Record]:
    """Train one model and evaluate it `config.evaluations` times; `on_step(done, total)` is called after each step."""
    config, splits = run.config, run.splits
    state = start(run)
    total = config.epochs * state.sampler.steps_per_epoch
    due = {round(total * (i + 1) / config.evaluations) for i in range(config.evaluations)}
    records, seconds = [], 0.0
    state.model.train()
    while state.step < total:
        began = time.perf_counter()
        for group in state.optimiser.param_groups:
            group["lr"] = config.rate(state.step, total)
        index = state.sampler.next()
        data = splits.train
        batch = Batch(data.batch(index), data.labels[index], data.environments[index])
        logs = state.algorithm.step(state.model, batch, state.optimiser, state.epoch)
        state.step += 1
        seconds += time.perf_counter() - began
        if state.step in due:
            records.append(
                Record(
                    algorithm=run.algorithm,
                    seed=run.seed,
                    step=state.step,
                    epoch=state.epoch,
                    seconds=seconds,
                    train=evaluate(state.model, data),
                    training_domain=evaluate(state.model, splits.training_domain),
                    test_domain=evaluate(state.model, splits.test_domain),
                    test=evaluate(state.model, splits.test),
                    transfer_matrix=held_out_transfer_matrix(
                        state.model, splits.training_domain, config.transfer_ridge
                    ).tolist(),
                    logs={name: float(value) for name, value in logs.items()},
                )
            )
        if on_step is not None:
            on_step(state.step, total)
    return records
