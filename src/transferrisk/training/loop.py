"""The training loop, the same for all algorithms: `train` starts and ends a training, `_steps` is the loop itself."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any

import torch
import torch.distributed as dist
from torch.random import fork_rng

from ..algorithms import Algorithm, Logs, Setting
from ..data import EnvironmentSet
from ..errors import DivergedError, FullMemoryError, InputError, TransferRiskError, cause_of, choices, full_memory
from ..models import Classifier, features_of
from ..results import Record, select
from ..results.records import BATCH, PARTS
from ..settings import Seed, as_json, convert
from .captured import CapturedStep, make_step
from .defaults import TrainConfig
from .engine import LOOK_EVERY, Engine
from .evaluate import evaluate as scores_of
from .evaluate import held_out_transfer_matrix, irm_penalties
from .feed import Feed, content_digests
from .processes import raise_lost
from .state import WRAP, TrainState, check_classes, start_state
from .watches import Watch


@dataclass
class Run:
    """A training in progress, as watches see it.

    Attributes
    ----------
    about
        Everything that decides the numbers besides the data, in the types of JSON: the `TrainSpec`.
    name
        Name of the algorithm.
    rule
        Rule by which an evaluation is selected, as `results.select` takes it.
    config, data, evaluate, engine
        The arguments of `train`.
    state
        Model, optimiser, algorithm and generators after the current step.
    total
        Number of steps of the whole training.
    history
        Records of the evaluations so far.
    saved
        Words about the last checkpoint, for messages; "" where nothing is saved.

    Examples
    --------
    >>> from transferrisk.training import TrainSpec, Watch, run_spec
    >>> class Names(Watch):
    ...     def begin(self, run):
    ...         print(run.name, run.total)
    >>> spec = TrainSpec(data="gaussian", algorithm="erm", training={"steps": 2, "evaluations": 1})
    >>> trained = run_spec(spec, device="cpu", watch=[Names()])
    erm 2
    """

    about: Mapping[str, Any]
    name: str
    rule: str
    config: TrainConfig
    data: EnvironmentSet
    evaluate: Mapping[str, EnvironmentSet]
    engine: Engine
    state: TrainState
    total: int
    history: list[Record] = field(default_factory=list)
    saved: str = ""

    @cached_property
    def description(self) -> dict[str, Any]:
        """Everything that decides the numbers; data is described by its size and digests of its content."""
        parts, sets = ("train", *self.evaluate), (self.data, *self.evaluate.values())
        return {
            "spec": {**self.about, "precision": self.engine.precision},
            "samples": dict(zip(parts, map(len, sets), strict=True)),
            "digests": dict(zip(parts, map(content_digests, sets), strict=True)),
        }

    def check(self, logs: Logs | None = None, weights: bool = True) -> float:
        """Return the loss of a step; raise DivergedError unless it and the weights are finite.

        Parameters
        ----------
        logs
            Values that a step returned. None: the weights alone are checked.
        weights
            Whether to check the weights.

        Returns
        -------
        float
            Loss, 0 without `logs`.
        """
        if self.engine.on_gpu and (weights or logs is not None):
            began = time.perf_counter()
            self.engine.wait()
            self.state.seconds += time.perf_counter() - began
        loss = float(logs["loss"]) if logs is not None else 0.0
        if math.isfinite(loss) and (not weights or self.state.finite):
            return loss
        found = "weights are not finite" if math.isfinite(loss) else f"the loss is {loss}"
        raise DivergedError(
            f"{self.name} has diverged at lr={self.config.lr:g}: {found} after step {self.state.step}; use a lower "
            "learning rate"
            f"{'; ' * bool(self.saved)}{self.saved}"
        )


@dataclass(frozen=True)
class Trained:
    """Result of a training.

    Attributes
    ----------
    model
        The trained model, on the device that it was trained on and in training mode.
    history
        Records of the evaluations; see `results.records`.
    state
        Model, optimiser, algorithm and generators after the last step.
    rule
        Rule by which an evaluation is selected: "training_domain" or "test_domain" validation, the first that was
        evaluated, else "last".

    Examples
    --------
    >>> from transferrisk.results import mean_score
    >>> from transferrisk.training import TrainSpec, run_spec
    >>> spec = TrainSpec(data="gaussian", algorithm="erm", training={"steps": 2, "evaluations": 1})
    >>> trained = run_spec(spec, device="cpu")
    >>> 0 <= mean_score(trained.selected, "test") <= 1
    True
    """

    model: Classifier
    history: list[Record]
    state: TrainState
    rule: str = "last"

    @property
    def selected(self) -> list[Record]:
        """The records of the selected evaluation."""
        return select(self.history, self.rule)


def train(
    model: Classifier | Callable[[], Classifier],
    data: EnvironmentSet,
    algorithm: Algorithm[Any] | Callable[[Setting], Algorithm[Any]],
    config: TrainConfig = TrainConfig(),  # noqa: B008  # frozen
    *,
    evaluate: Mapping[str, EnvironmentSet] = MappingProxyType({}),
    watch: Sequence[Watch] = (),
    seed: int = 0,
    engine: Engine | None = None,
    about: Mapping[str, Any] | None = None,
) -> Trained:
    """Train a model with an algorithm.

    A loss or a weight that is not a finite number raises DivergedError. Torch's own settings and its global generators
    are restored at the end.

    Parameters
    ----------
    model
        The classifier, or a function that builds one; it is called after torch's generator has been seeded.
    data
        The training set.
    algorithm
        The algorithm, from `algorithms.create`; or a function that creates it for a `Setting`, which then also holds
        the number of features of the model.
    config
        Epochs, batch size, learning rate and the other settings.
    evaluate
        Sets to evaluate the model on, `config.evaluations` times, by part: train, training_domain, test_domain, test.
    watch
        Watches that follow the training, such as `EarlyStopping` or `RunFolder`.
    seed
        Random seed.
    engine
        Device, precision and processes. None: one process on a CPU.
    about
        Description of the training, for its records and for resuming. None: the algorithm, its settings, the seed and
        `config`.

    Returns
    -------
    Trained
        The model, the records of its evaluations, and its state.

    Examples
    --------
    >>> from torch import nn
    >>> from transferrisk.algorithms import create
    >>> from transferrisk.data import load_splits
    >>> from transferrisk.models import Classifier
    >>> from transferrisk.training import TrainConfig, setting_of, train
    >>> splits = load_splits("gaussian")
    >>> model = Classifier(nn.Linear(15, 8), num_features=8, num_classes=2)
    >>> algorithm, config = create("erm", setting_of(splits.train)), TrainConfig(steps=2, evaluations=1)
    >>> trained = train(model, splits.train, algorithm, config, evaluate={"test": splits.test})
    >>> len(trained.history) > 0
    True
    """
    _check_arguments(model, data, algorithm, config, evaluate, watch)
    seed = convert("seed", seed, Seed)
    engine = engine or Engine.of()
    rule = next(filter(evaluate.__contains__, ("training_domain", "test_domain")), "last")
    if config.average == "swad" and "training_domain" not in evaluate:
        raise InputError(
            "average must be None or 'ema' without training-domain validation data, got 'swad': evaluate such data too"
        )
    devices = range(torch.cuda.device_count()) if engine.on_gpu or torch.cuda.is_initialized() else []
    with engine.arithmetic(), fork_rng(devices), _one_line_errors(config) as begun, ExitStack() as ending:
        with engine.together():
            state = start_state(model, data, algorithm, config, seed, engine)
        for part, held in evaluate.items():
            check_classes(state.model, held, f"evaluate[{part!r}]")
        if about is None:
            name = getattr(state.algorithm, "name", type(state.algorithm).__name__)
            about = as_json({"algorithm": name, "settings": state.algorithm.config, "seed": seed, "training": config})
        total = config.total(state.sampler.steps_per_epoch)
        run = Run(about, str(about["algorithm"]), rule, config, data, evaluate, engine, state, total)
        begun.append(run)
        watches = watch if engine.team.rank == 0 else [one for one in watch if one.in_every_process]
        for one in watches:
            one.begin(run)
            ending.push(partial(_end, one))
        _steps(run, watches, seed)
    return Trained(state.evaluated, run.history, state, rule)


def _check_arguments(
    model: object, data: object, algorithm: object, config: object, evaluate: object, watch: object
) -> None:
    """Refuse arguments of `train` of a wrong kind, and parts of `evaluate` that records do not have."""

    def refuse(name: str, wanted: str, got: object, way_out: str) -> InputError:
        kind = got.__name__ if isinstance(got, type) else type(got).__name__
        return InputError(f"{name} must be {wanted}, got {repr(got) if isinstance(got, str) else kind}: {way_out}")

    sets = "load one by load_splits or load_data, or build an EnvironmentSet"
    if not isinstance(model, Classifier) and (isinstance(model, torch.nn.Module) or not callable(model)):
        raise refuse("model", "a Classifier or a function that builds one", model, WRAP)
    if not isinstance(data, EnvironmentSet):
        raise refuse("data", "an EnvironmentSet", data, sets)
    if not isinstance(algorithm, Algorithm) and (isinstance(algorithm, torch.nn.Module) or not callable(algorithm)):
        create = f"create({algorithm if isinstance(algorithm, str) else 'erm'!r}, setting_of(data))"
        raise refuse("algorithm", "an Algorithm or a function of a Setting", algorithm, f"write {create}")
    if not isinstance(config, TrainConfig):
        raise refuse("config", "a TrainConfig", config, "write TrainConfig(epochs=10), with settings by name")
    if not isinstance(evaluate, Mapping):
        raise refuse("evaluate", "a dict of sets by part", evaluate, 'write evaluate={"test": ...}')
    for part, held in evaluate.items():
        if part not in PARTS:
            raise InputError(f"evaluate must name parts of the data, got {part!r}{choices(str(part), PARTS)}")
        if not isinstance(held, EnvironmentSet):
            raise refuse(f"evaluate[{part!r}]", "an EnvironmentSet", held, sets)
    if not isinstance(watch, Sequence):
        raise refuse("watch", "a list of watches", watch, "write watch=[...]")
    for i, one in enumerate(watch):
        if not isinstance(one, Watch):
            raise refuse(f"watch[{i}]", "a Watch", one, "derive its class from Watch, and create one")


def _end(watch: Watch, kind: object, error: BaseException | None, trace: object) -> None:
    watch.end(error)


def _steps(run: Run, watches: Sequence[Watch], seed: int) -> None:
    """Take the steps from the state's own to the last one, and evaluate in between."""
    state, engine, config, total = run.state, run.engine, run.config, run.total
    whole, *others = engine.place([run.data, *run.evaluate.values()])
    data = whole if state.kept is None else whole.select(state.kept.to(whole.labels.device))
    evaluated = dict(zip(run.evaluate, others, strict=True))
    due = config.evaluated(total)
    augmentation = state.augmentation if config.augment else None
    stream = Feed(data, state.sampler, engine.device, augmentation, engine.loaders, engine.team)
    step = make_step(state, engine.captured) if engine.on_gpu else state.take
    state.model.train()
    refreshed = stopping = False
    with closing(stream) as feed, state.compiled():
        while state.step < total and not stopping:
            began = time.perf_counter()
            state.set_rate(config.rate(state.step, total))
            if config.augment:
                state.seed_augmentation(seed, engine.team.rank)
            try:
                logs = step.on_next(feed) if isinstance(step, CapturedStep) else step(feed.next())
            except TransferRiskError:
                run.check()  # weights that are not finite are the cause to report
                raise
            if state.averaging is not None:
                state.averaging.after_step()
            state.step += 1
            refreshed = False
            state.seconds += time.perf_counter() - began
            loss = None
            if state.step in due:
                loss = run.check(logs)
                if state.averaging is not None and state.averaging.needs_losses:
                    state.averaging.after_segment(_mean_loss(state.model, evaluated))
                state.refresh(whole)
                refreshed = True
                records = measure(state, evaluated, config, logs, whole)
                run.history += records
                for one in watches:
                    one.after_evaluation(records)
            elif not engine.on_gpu or state.step % LOOK_EVERY == 0:
                loss = run.check(logs, weights=False)
            for one in watches:
                one.after_step(state.step, total, loss)
                stopping = one.should_stop() or stopping
        if not refreshed:
            state.refresh(whole)


def _mean_loss(model: Classifier, sets: Mapping[str, EnvironmentSet]) -> float:
    """Return the loss on training-domain validation data, the mean over its environments."""
    losses = [float(scores["loss"]) for scores in scores_of(model, sets["training_domain"]).values()]
    return sum(losses) / len(losses)


def measure(
    state: TrainState, sets: Mapping[str, EnvironmentSet], config: TrainConfig, logs: Logs, trained_on: EnvironmentSet
) -> list[Record]:
    """Return the records of one evaluation: one for each part and environment, and one for the batch of the step.

    The extras in `config.record` are measured on training-domain validation data, if that is among the parts. See
    `results.records` for the form of a record.
    """
    model, when = state.evaluated, {"step": state.step, "epoch": state.epoch, "seconds": state.seconds}
    records: list[Record] = []
    for part, data in sets.items():
        features = features_of(model, data.batch, len(data))
        scores = scores_of(model, data, features, trained_on if part == "test" else None)
        extras = config.record if part == "training_domain" else ()
        if "irm" in extras:
            penalties = irm_penalties(model, data, features)
            for name, record in scores.items():
                record["irm"] = penalties[name]
        if "transfer" in extras:
            matrix = held_out_transfer_matrix(model, data, config.transfer_ridge, features)
            for q, fitted in enumerate(data.environment_names):
                if fitted in scores:
                    others = torch.cat([matrix[q, :q], matrix[q, q + 1 :]])
                    scores[fitted]["transfer"] = dict(zip(data.environment_names, matrix[q].tolist(), strict=True))
                    scores[fitted]["transfer_risk"] = float(others.max()) if len(others) else None  # nan if any is
        for name, values in scores.items():
            records.append({**when, "part": part, "environment": name, **values})
    records.append({**when, "part": BATCH, **dict(zip(logs, map(float, logs.values()), strict=True))})
    found: list[Record] = as_json(records)
    return found


_LOST = ("connection closed by peer", "connection reset by peer", "broken pipe", "gloo", "nccl")


@contextmanager
def _one_line_errors(config: TrainConfig) -> Iterator[list[Run]]:
    """Turn full memory and lost processes into a TransferRiskError; the block adds the run to the list it is given."""
    runs: list[Run] = []
    try:
        yield runs
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, TransferRiskError):
            raise
        saved = "".join(f"; {run.saved}" for run in runs if run.saved)
        if full := full_memory(error):
            now = "" if config.batch_size is None else f" (now {config.batch_size})"
            raise FullMemoryError(
                f"{full}: use a lower --batch-size{now}, a smaller --backbone or --lazy{saved}"
            ) from None
        if "without overflow" in str(error):
            raise TransferRiskError(
                f"settings must be within the range of float32 ({cause_of(error)}): use smaller ones{saved}"
            ) from None
        if dist.is_initialized() and any(word in str(error).lower() for word in _LOST):
            raise_lost(next((run.saved for run in runs), ""))
        raise
