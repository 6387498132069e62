"""All that changes while training: a run goes on from a saved state as if it had never stopped."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Generator, Tensor
from torch.optim import Optimizer

from ..algorithms import Algorithm, Setting
from ..data import BalancedSampler, EnvironmentSet, WholeSampler
from ..models import Classifier
from .defaults import TrainConfig
from .engine import Engine

COUNTERS = ("step", "seconds")


@dataclass(frozen=True)
class Snapshot:
    """A state at one moment: tensors by name, on the CPU and copied, and the rest as JSON has it."""

    tensors: Mapping[str, Tensor]
    values: Mapping[str, Any]

    def part(self, name: str) -> dict[str, Tensor]:
        """The tensors below a name, without it."""
        return {key[len(name) + 1 :]: value for key, value in self.tensors.items() if key.startswith(f"{name}.")}


@dataclass
class TrainState:
    """
    augmentation  the generator images are augmented with, on the device
    seconds       of training so far, evaluations left out
    """

    model: Classifier
    optimiser: Optimizer
    algorithm: Algorithm[Any]
    sampler: BalancedSampler | WholeSampler
    augmentation: Generator
    step: int = 0
    seconds: float = 0.0

    @property
    def epoch(self) -> float:
        return self.step / self.sampler.steps_per_epoch

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    @property
    def finite(self) -> bool:
        """Whether all weights, running statistics and buffers of the algorithm are finite numbers."""
        kept = (
            *self.model.parameters(),
            *self.model.buffers(),
            *self.algorithm.parameters(),
            *self.algorithm.buffers(),
        )
        return bool(torch.stack([t.detach().isfinite().all() for t in kept]).all())

    def seed_augmentation(self, seed: int, rank: int) -> None:
        """A step's augmentations depend on the seed, the step and the process alone: resuming finds them again."""
        self.augmentation.manual_seed(((seed * 1_000_003 + rank) * 10_000_019 + self.step) % 2**63)

    def set_rate(self, rate: float) -> None:
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                group["lr"].fill_(rate)
            else:
                group["lr"] = rate

    def snapshot(self) -> Snapshot:
        random = {"cpu": torch.get_rng_state(), "augmentation": self.augmentation.get_state()}
        if self.device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(self.device)
        moving, fixed = _optimiser_state(self.optimiser)
        kept = {
            "model": self.model.state_dict(),
            "optimiser": moving,
            "algorithm": self.algorithm.state_dict(),
            "sampler": self.sampler.state_dict(),
            "random": random,
        }
        tensors: dict[str, Tensor] = {}
        for part, held in kept.items():
            for name, value in held.items():
                copied = value.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
                tensors[f"{part}.{name}"] = copied
        return Snapshot(tensors, {"optimiser": fixed} | {name: getattr(self, name) for name in COUNTERS})

    def restore(self, saved: Snapshot) -> None:
        self.model.load_state_dict(saved.part("model"))
        self.algorithm.load_state_dict(saved.part("algorithm"))
        self.sampler.load_state_dict(saved.part("sampler"))
        _restore_optimiser(self.optimiser, saved.part("optimiser"), saved.values["optimiser"])
        for name in COUNTERS:
            setattr(self, name, saved.values[name])
        random = saved.part("random")
        torch.set_rng_state(random["cpu"])
        if self.device.type == "cuda" and "cuda" in random:
            torch.cuda.set_rng_state(random["cuda"], self.device)
        if len(random["augmentation"]) == len(self.augmentation.get_state()):  # else it went on on another device
            self.augmentation.set_state(random["augmentation"])


def group_priors(data: EnvironmentSet) -> Tensor:
    """Share of each (environment, class) among samples drawn evenly from the environments, (E, C)."""
    counts = data.group_counts().float()
    return counts / counts.sum(1, keepdim=True) / len(counts)


def setting_of(data: EnvironmentSet) -> Setting:
    """The `Setting` of an algorithm for this training data."""
    return Setting(len(data.environment_names), len(data.class_names), group_priors(data))


def start_state(
    model: Classifier | Callable[[], Classifier],
    data: EnvironmentSet,
    algorithm: Algorithm[Any],
    config: TrainConfig,
    seed: int,
    engine: Engine,
) -> TrainState:
    """The state before the first step.

    Torch's generator is seeded before the model is built, where a function is given to build it, and draws on from
    there while training: the seed decides everything.
    """
    engine.team.check(config.batch_size)
    torch.manual_seed(seed)
    size = config.batch_size
    sampler = WholeSampler(data) if size is None else BalancedSampler(data, size, seed)
    built = model if isinstance(model, Classifier) else model()
    built = engine.prepare(built, images=data.inputs[:1].dim() == 4)
    optimiser = torch.optim.SGD(
        built.parameters(),
        # A rate that steps captured in a graph can read anew.
        lr=torch.tensor(config.lr, device=engine.device) if engine.on_gpu else config.lr,
        momentum=config.momentum,
        weight_decay=config.weight_decay,
        fused=True if engine.on_gpu else None,
    )
    algorithm.to(engine.device)
    algorithm.team = engine.team
    augmentation = Generator(engine.device).manual_seed(40_000 + seed + 1_000_003 * engine.team.rank)
    return TrainState(built, optimiser, algorithm, sampler, augmentation)


def _optimiser_state(optimiser: Optimizer) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Tensors as "0.momentum_buffer", by the number of the parameter, and the other values."""
    held = optimiser.state_dict()
    tensors: dict[str, Tensor] = {}
    values: dict[str, Any] = {}
    for number, state in held["state"].items():
        for name, value in state.items():
            (tensors if isinstance(value, Tensor) else values)[f"{number}.{name}"] = value
    for group in held["param_groups"]:
        del group["params"]
        group["lr"] = float(group["lr"])  # a tensor where steps are captured
    return tensors, {"state": values, "groups": held["param_groups"]}


def _restore_optimiser(optimiser: Optimizer, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Restore in place where there is a tensor already, so that a captured step goes on with the same ones."""
    parameters = [parameter for group in optimiser.param_groups for parameter in group["params"]]
    for key, value in {**tensors, **values["state"]}.items():
        number, _, name = key.partition(".")
        state = optimiser.state[parameters[int(number)]]
        if isinstance(value, Tensor) and not isinstance(state.get(name), Tensor):
            like = parameters[int(number)]
            state[name] = torch.empty_like(like, dtype=value.dtype) if value.shape == like.shape else value.to(like)
        if isinstance(value, Tensor):
            state[name].copy_(value)
        else:
            state[name] = value
    for group, saved in zip(optimiser.param_groups, values["groups"], strict=True):
        for name, value in saved.items():
            if isinstance(group[name], Tensor):
                group[name].fill_(value)
            elif name not in ("fused", "foreach", "capturable", "differentiable"):  # how it computes, on this device
                group[name] = value
