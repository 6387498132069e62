"""Fine-tuning on a few labelled samples of the test environment (the paper's "Transferability of models").

The paper trains on k samples of the target environment and reports the accuracy on it. Here the accuracy is over the
samples whose sources were not drawn, so that nothing that was learnt from is tested on.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from torch import Generator, Tensor

from ..data import EnvironmentSet
from ..errors import InputError
from .defaults import TrainConfig

LEAST_STEPS = 100
"""Fewest steps of a fine-tuning. The paper does not state the number; ten are too few to fit a hundred samples."""


def few_samples(test: EnvironmentSet, count: int, seed: int) -> tuple[EnvironmentSet, EnvironmentSet]:
    """Return `count` samples of a test environment to train on, and the samples of other sources to test on."""
    drawn = balanced_draw(test, count, seed)
    sources = torch.arange(len(test)) if test.sources is None else test.sources.cpu()
    rest = ~torch.isin(sources, sources[drawn])
    if not rest.any():
        raise InputError(
            f"finetune_samples must leave samples of other sources to test on, got {count} of {len(test)}: use fewer"
        )
    return test.select(drawn), test.select(rest.nonzero().flatten())


def balanced_draw(data: EnvironmentSet, count: int, seed: int) -> Tensor:
    """Return the positions of `count` random samples, (count,), equally many of each class where there are enough."""
    if not 2 <= count < len(data):
        raise InputError(f"finetune_samples must be 2 to {len(data) - 1}, of {len(data)} samples, got {count}")
    generator = Generator().manual_seed(50_000 + seed)
    order = torch.randperm(len(data), generator=generator)
    labels = data.labels.cpu()[order]
    member = torch.nn.functional.one_hot(labels, len(data.class_names))
    turn = member.cumsum(0).gather(1, labels.unsqueeze(1)).flatten()  # a sample's place among those of its class
    return order[turn.argsort(stable=True)[:count]]


def finetuning(config: TrainConfig, count: int, given: Mapping[str, Any] = MappingProxyType({})) -> TrainConfig:
    """Return the settings of a fine-tuning on `count` samples, after a training with `config`.

    The rate is the last of the training, and constant. Batches are no larger than the samples. An epoch of few samples
    is one step, so that epochs are as many as make `LEAST_STEPS`. The settings in `given` replace these.
    """
    rate = config.lr * config.decay_factor ** len(config.decays)
    batch_size = None if config.batch_size is None else min(config.batch_size, count)
    tuned = replace(config, **{"lr": rate, "decay_at": 1.0, "batch_size": batch_size, "steps": None, **given})
    steps_per_epoch = 1 if tuned.batch_size is None else max(1, count // tuned.batch_size)
    if given.keys() & {"epochs", "steps"}:
        return tuned
    return replace(tuned, epochs=max(tuned.epochs, math.ceil(LEAST_STEPS / steps_per_epoch)))
