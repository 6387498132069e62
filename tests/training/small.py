"""A training that takes a fraction of a second and still uses everything a long one does."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from transferrisk.algorithms import create
from transferrisk.data import EnvironmentSet
from transferrisk.models import Classifier
from transferrisk.training import Engine, Steps, TrainConfig, setting_of, train
from transferrisk.training.state import start_state

CONFIG = TrainConfig(epochs=3, batch_size=8, lr=0.05, evaluations=3, record=("irm", "transfer"))
STEPS = 9  # 30 samples an environment, three epochs of three batches


def vectors(seed, names, n=60):
    generator = torch.Generator().manual_seed(seed)
    index = torch.arange(n) % len(names)
    labels = torch.randint(3, (n,), generator=generator)
    inputs = torch.randn(n, 4, generator=generator) + 2 * F.one_hot(labels, 4)
    return EnvironmentSet(inputs, labels, index, names, ("a", "b", "c"))


def sets():
    names = ("north", "south")
    return {
        "train": vectors(0, names),
        "training_domain": vectors(1, names),
        "test_domain": vectors(2, ("east",)),
        "test": vectors(3, ("east",)),
    }


def model():
    """Draws from torch's generator in each step, and has running statistics."""
    net = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.BatchNorm1d(6), nn.Dropout(0.2))
    return Classifier(net, 6, 3)


@dataclass(frozen=True)
class SmallRun:
    """Arguments of `train`, to be changed by `replace`."""

    algorithm: Any
    seed: int = 0
    settings: dict = field(default_factory=dict)
    config: TrainConfig = CONFIG
    sets: dict = field(default_factory=sets)
    build: Any = model
    engine: dict = field(default_factory=dict)
    about: dict | None = None

    @property
    def parts(self):
        """The first arguments of `train`: model, data, algorithm, config."""
        data, algorithm = self.sets["train"], self.algorithm
        if isinstance(algorithm, str):
            algorithm = create(algorithm, setting_of(data), **self.settings)
        else:
            algorithm = algorithm(setting_of(data))
        return self.build, data, algorithm, self.config

    def train(self, *watch):
        engine = Engine.of(**self.engine)
        return train(
            *self.parts, evaluate=self.sets, watch=watch, seed=self.seed, engine=engine, about=self.about
        )  # fmt: skip

    def start(self, engine=None):
        return start_state(*self.parts, self.seed, engine or Engine.of(**self.engine))


def small_run(algorithm="erm", seed=0, settings=None, **config):
    settings = dict(settings or {})
    if algorithm in ("irm", "vrex", "trm", "trm-direct"):
        settings.setdefault("start_epoch", 0.5)
    return SmallRun(algorithm, seed, settings, replace(CONFIG, **config))


def without_time(records):
    return [{**record, "seconds": 0.0} for record in records]


def steps_of(records):
    return list(dict.fromkeys(record["step"] for record in records))


def at(records, step, part):
    """Environment -> record, of one part at one step."""
    return {r.get("environment"): r for r in records if r["step"] == step and r["part"] == part}


class Killed(BaseException):
    """As SIGKILL: nothing after it runs."""


def kill_at(step):
    def kill(done, total):
        if done == step:
            raise Killed

    return Steps(kill)
