"""A training that takes a fraction of a second and still uses everything a long one does."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from transferrisk.data import EnvironmentSet, Splits, TestDomainValidation, TrainingDomainValidation
from transferrisk.models import Classifier
from transferrisk.training import Run, TrainingConfig

CONFIG = TrainingConfig(epochs=3, batch_size=8, lr=0.05, evaluations=3, record=("irm", "transfer"))
STEPS = 9  # 30 samples an environment, three epochs of three batches


def vectors(kind, seed, names, n=60):
    generator = torch.Generator().manual_seed(seed)
    index = torch.arange(n) % len(names)
    labels = torch.randint(3, (n,), generator=generator)
    inputs = torch.randn(n, 4, generator=generator) + 2 * F.one_hot(labels, 4)
    return kind(inputs, labels, index, names, ("a", "b", "c"))


def splits():
    names = ("north", "south")
    return Splits(
        vectors(EnvironmentSet, 0, names),
        vectors(TrainingDomainValidation, 1, names),
        vectors(TestDomainValidation, 2, ("east",)),
        vectors(EnvironmentSet, 3, ("east",)),
    )


def model():
    """Draws from torch's generator in each step, and has running statistics."""
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.BatchNorm1d(6), nn.Dropout(0.2))
    return Classifier(net, 6, 3)


def small_run(algorithm="erm", seed=0, settings=None, **config):
    settings = dict(settings or {})
    if algorithm in ("irm", "vrex", "trm", "trm-direct"):
        settings.setdefault("start_epoch", 0.5)
    return Run(algorithm, model, splits(), replace(CONFIG, **config), seed, settings)


def without_time(records):
    return [replace(record, seconds=0.0) for record in records]


class Killed(BaseException):
    """As SIGKILL: nothing after it runs."""


def kill_at(step):
    """For `train` to call after each step."""

    def kill(done, total):
        if done == step:
            raise Killed

    return kill
