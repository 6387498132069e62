"""The state of a training: all that changes from step to step.

Invariant: what is not in `TrainState` is not needed to go on. A training that is restored from a snapshot takes the
same steps as one that was never interrupted, bit for bit on a CPU.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from inspect import unwrap
from itertools import chain
from typing import Any

import torch
from torch import Generator, Tensor
from torch.optim import Optimizer

from ..algorithms import Algorithm, Batch, Logs, Setting
from ..algorithms.base import HeldOut
from ..data import BalancedSampler, EnvironmentSet, WholeSampler
from ..data.splits import hold_out
from ..errors import InputError
from ..models import Classifier, features_of
from .averaging import Averaging, averaged_tensors, averaging_of, decode, encode
from .compiled import PAYS_FROM, run_compiled
from .defaults import TrainConfig
from .engine import Engine
from .evaluate import alternate_sources

WRAP = "write Classifier(featuriser, num_features, num_classes), where the featuriser returns features (n, d)"


class EagerSGD(torch.optim.SGD):
    """SGD without the wrappers that torch puts around its methods for `torch.compile`: they take a second to import."""

    step = torch.no_grad()(unwrap(torch.optim.SGD.step))
    zero_grad = unwrap(Optimizer.zero_grad)
    add_param_group = unwrap(Optimizer.add_param_group)
    state_dict = unwrap(Optimizer.state_dict)
    load_state_dict = unwrap(Optimizer.load_state_dict)


@dataclass(frozen=True)
class Snapshot:
    """Copy of a state at one moment.

    Attributes
    ----------
    tensors
        Tensors by name, such as "model.head.weight", on the CPU.
    values
        Everything else, in the types of JSON.
    """

    tensors: Mapping[str, Tensor]
    values: Mapping[str, Any]

    def part(self, name: str) -> dict[str, Tensor]:
        """Return the tensors whose names begin with this one and a dot, without these."""
        return {key[len(name) + 1 :]: value for key, value in self.tensors.items() if key.startswith(f"{name}.")}


@dataclass
class TrainState:
    """Everything that a training changes, besides torch's own generators.

    Attributes
    ----------
    model, optimiser, algorithm
        The model that trains, the optimiser of its weights, and the algorithm with its buffers.
    sampler
        Draws the samples of each batch.
    augmentation
        Generator of the random variations of images, on the device.
    step
        Number of steps taken.
    seconds
        Time spent on steps; evaluations are not counted.
    averaging
        Average of the weights over steps; None: there is none.
    twin
        Copy of the model that is evaluated in its place: with averaged weights, or finished by the algorithm
        (`Algorithm.finish`), as of the last `refresh`. None: the model itself is evaluated.
    kept, held
        Positions of the training samples that steps draw, and of those that the algorithm holds out. None: steps draw
        all of them.
    compiles
        Whether networks are compiled, while `compiled` says so.
    """

    model: Classifier
    optimiser: Optimizer
    algorithm: Algorithm[Any]
    sampler: BalancedSampler | WholeSampler
    augmentation: Generator
    step: int = 0
    seconds: float = 0.0
    averaging: Averaging | None = None
    twin: Classifier | None = None
    kept: Tensor | None = None
    held: Tensor | None = None
    compiles: bool = False
    _rate: float | None = None  # learning rate that `set_rate` set last

    @property
    def evaluated(self) -> Classifier:
        """Model that is evaluated and saved: the `twin` if there is one, else the one that trains."""
        return self.model if self.twin is None else self.twin

    @contextmanager
    def compiled(self) -> Iterator[None]:
        """Compile the networks for the block, where `compiles` is true; a function that the user has set stays."""
        networks = [] if not self.compiles else [self.model] if self.twin is None else [self.model, self.twin]
        ours = []
        for network in networks:
            if "apply_featuriser" not in vars(network):
                ours.append(network)
                network.apply_featuriser = run_compiled
        try:
            yield
        finally:
            for network in ours:
                del network.apply_featuriser

    def take(self, batch: Batch) -> Logs:
        """Update the model, the optimiser and the algorithm by one step, operation by operation."""
        return self.algorithm.step(self.model, batch, self.optimiser, self.epoch)

    def refresh(self, data: EnvironmentSet) -> None:
        """Bring `twin` up to date with the model; `data` is the whole training set, samples held out included."""
        if self.twin is None:
            return
        self.twin.load_state_dict(self.model.state_dict())
        if self.averaging is not None:
            averages = self.averaging.result()
            for name, tensor in averaged_tensors(self.twin).items():
                tensor.copy_(averages.get(name, tensor))
        if self.held is not None:
            held = data.select(self.held.to(data.labels.device))
            features = features_of(self.twin, held.batch, len(held))
            parts = held.labels, held.environments, alternate_sources(held), held.weights
            moved = (None if part is None else part.to(features.device) for part in parts)
            self.algorithm.finish(self.twin, HeldOut(features, *moved))  # type: ignore[arg-type]

    @property
    def epoch(self) -> float:
        """Number of epochs taken, with fractions."""
        return self.step / self.sampler.steps_per_epoch

    @property
    def finite(self) -> bool:
        """Whether all weights, running statistics and buffers of the algorithm are finite numbers."""
        model, algorithm = self.model, self.algorithm
        kept = chain(model.parameters(), model.buffers(), algorithm.parameters(), algorithm.buffers())
        with torch.no_grad():
            numbers = torch.cat(list(map(torch.flatten, filter(Tensor.is_floating_point, kept))))
        return bool(numbers.isfinite().all())

    def seed_augmentation(self, seed: int, rank: int) -> None:
        """Seed the augmentations of the next step by the seed, the step and the process alone, so that resuming repeats
        them.
        """
        self.augmentation.manual_seed(((seed * 1_000_003 + rank) * 10_000_019 + self.step) % 2**63)

    def set_rate(self, rate: float) -> None:
        """Set the learning rate of the optimiser, in place where it is a tensor that captured steps read."""
        for group in self.optimiser.param_groups:
            if isinstance(group["lr"], Tensor):
                if rate != self._rate:
                    group["lr"].fill_(rate)
            else:
                group["lr"] = rate
        self._rate = rate

    def snapshot(self) -> Snapshot:
        """Return a copy of the state, which later steps do not change."""
        device = self.model.head.weight.device
        random = {"cpu": torch.get_rng_state(), "augmentation": self.augmentation.get_state()}
        if device.type == "cuda":
            random["cuda"] = torch.cuda.get_rng_state(device)
        optimiser = self.optimiser.state_dict()
        moving: dict[str, Tensor] = {}  # named as "0.momentum_buffer", by the number of the parameter
        fixed: dict[str, Any] = {}
        for number, held in optimiser["state"].items():
            for name, value in held.items():
                (moving if isinstance(value, Tensor) else fixed)[f"{number}.{name}"] = value
        for group in optimiser["param_groups"]:
            del group["params"]
            group["lr"] = float(group["lr"])  # a tensor if steps are captured
        averages, averaging = ({}, {}) if self.averaging is None else encode(self.averaging)
        kept = {
            "averages": averages,
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
        groups = {"state": fixed, "groups": optimiser["param_groups"]}
        values = {"optimiser": groups, "averaging": averaging, "step": self.step, "seconds": self.seconds}
        return Snapshot(tensors, values)

    def restore(self, saved: Snapshot) -> None:
        """Bring the state back to a snapshot, in place, so that captured steps go on with the same tensors."""
        device = self.model.head.weight.device
        self.model.load_state_dict(saved.part("model"))
        try:
            self.algorithm.load_state_dict(saved.part("algorithm"))
        except RuntimeError as error:
            called, cause = type(self.algorithm).__name__, " ".join(str(error).split()[:40])
            raise InputError(
                f"the saved state of {called} must fit the algorithm, got a mismatch ({cause}): create all modules and "
                f"parameters of {called} in its constructor; only buffers may be created by its first step"
            ) from None
        self.algorithm.to(device)  # buffers of its first step have just been created
        self.sampler.load_state_dict(saved.part("sampler"))
        _restore_optimiser(self.optimiser, saved.part("optimiser"), saved.values["optimiser"])
        if self.averaging is not None:
            decode(self.averaging, saved.part("averages"), saved.values["averaging"])
        self.step, self.seconds, self._rate = saved.values["step"], saved.values["seconds"], None
        random = saved.part("random")
        torch.set_rng_state(random["cpu"])
        if device.type == "cuda" and "cuda" in random:
            torch.cuda.set_rng_state(random["cuda"], device)
        if len(random["augmentation"]) == len(self.augmentation.get_state()):  # else the run moved to another device
            self.augmentation.set_state(random["augmentation"])


def setting_of(data: EnvironmentSet, num_features: int | None = None) -> Setting:
    """Return the facts about a training set that an algorithm needs.

    Group priors are those of batches that hold equally many samples of each environment: n_ec / (E n_e), (E, C), for
    n_ec samples of class c among the n_e of environment e.

    Parameters
    ----------
    data
        The training set.
    num_features
        Number d of features of the model. None: it is read from the first batch.

    Returns
    -------
    Setting
        Number of environments, classes and features, and the group priors.

    Examples
    --------
    >>> from transferrisk.data import load_splits
    >>> from transferrisk.training import setting_of
    >>> setting_of(load_splits("gaussian").train).num_environments
    3
    """
    counts = data.group_counts().float()
    priors = counts / counts.sum(1, keepdim=True) / len(counts)
    return Setting(len(data.environment_names), len(data.class_names), priors, num_features)


def start_state(
    model: Classifier | Callable[[], Classifier],
    data: EnvironmentSet,
    algorithm: Algorithm[Any] | Callable[[Setting], Algorithm[Any]],
    config: TrainConfig,
    seed: int,
    engine: Engine,
) -> TrainState:
    """Return the state before the first step.

    Torch's generator is seeded first. Model and algorithm are built after that where functions are given to build them,
    and training draws on from the same generator, so that the seed decides every number.
    """
    if engine.team.size > 1:
        engine.team.check(config.batch_size)
    torch.manual_seed(seed)
    built = model if isinstance(model, Classifier) else model()
    check_classes(built, data, "data")
    built.autocast = torch.bfloat16 if engine.precision == "bf16" else None
    if engine.on_gpu and engine.team.size > 1:
        built = torch.nn.SyncBatchNorm.convert_sync_batchnorm(built)
    built.to(engine.device)
    if engine.on_gpu and data.inputs[:1].dim() == 4:  # images: convolutions are faster with channels last
        built.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # torch's types lack it
    built.dropout = config.dropout
    optimiser = _optimiser(built, config, engine)
    if not isinstance(algorithm, Algorithm):
        algorithm = algorithm(setting_of(data, built.head.in_features))
    algorithm.to(engine.device)
    algorithm.team = engine.team
    kept, held = hold_out(data, algorithm.held_out, seed) if algorithm.held_out else (None, None)
    steps_of = data if kept is None else data.select(kept.to(data.labels.device))
    size = config.batch_size
    sampler = WholeSampler(steps_of) if size is None else BalancedSampler(steps_of, size, seed)
    pays = config.total(sampler.steps_per_epoch) >= PAYS_FROM if engine.compiled is None else engine.compiled
    images_on_one_gpu = engine.on_gpu and engine.team.size == 1 and data.inputs[:1].dim() == 4
    compiles = pays and images_on_one_gpu and not algorithm.twice_differentiated
    averaging = None if config.average is None else averaging_of(built, config)
    twin = None if averaging is None and held is None else copy.deepcopy(built)
    augmentation = Generator(engine.device).manual_seed(40_000 + seed + 1_000_003 * engine.team.rank)
    return TrainState(
        built, optimiser, algorithm, sampler, augmentation, averaging=averaging, twin=twin, kept=kept, held=held,
        compiles=compiles,
    )  # fmt: skip


def check_classes(model: object, data: EnvironmentSet, name: str) -> None:
    """Refuse a model that is not a Classifier, or that has fewer outputs than the data has classes."""
    if not isinstance(model, Classifier):
        raise InputError(
            f"model must be a function that builds a Classifier, got one of {type(model).__name__}: {WRAP}"
        )
    outputs, classes = model.head.weight.shape[0], len(data.class_names)
    if outputs < classes:
        raise InputError(
            f"model must have an output for each of the {classes} classes of {name}, got {outputs}: build it with "
            f"num_classes={classes}"
        )


def _optimiser(model: Classifier, config: TrainConfig, engine: Engine) -> Optimizer:
    """Return the optimiser of a training; on a GPU, one whose steps a CUDA graph can hold."""
    # Captured steps read the rate from the device, so that it can change between them.
    lr = torch.tensor(config.lr, device=engine.device) if engine.on_gpu else config.lr
    fused = True if engine.on_gpu else None
    decay = config.weight_decay
    if config.optimiser == "sgd":
        sgd = torch.optim.SGD if engine.on_gpu else EagerSGD
        return sgd(model.parameters(), lr, momentum=config.momentum, weight_decay=decay, fused=fused)
    kind = torch.optim.Adam if config.optimiser == "adam" else torch.optim.AdamW
    betas = (config.momentum, 0.999)
    # A capturable Adam counts its steps, by which it corrects its averages, on the device.
    return kind(model.parameters(), lr, betas, weight_decay=decay, fused=fused, capturable=engine.on_gpu)


def _restore_optimiser(optimiser: Optimizer, tensors: Mapping[str, Tensor], values: Mapping[str, Any]) -> None:
    """Restore the state of an optimiser; tensors that exist are filled in place, as captured steps need."""
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
            elif name not in ("fused", "foreach", "capturable", "differentiable"):  # these depend on the device
                group[name] = value
