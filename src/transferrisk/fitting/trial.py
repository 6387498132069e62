"""One training on some of a source's rows, and the test of it on others."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..data import EnvironmentSet, Splits, TestDomainValidation, TrainingDomainValidation, filled
from ..data.environments import retyped
from ..errors import InputError
from ..models import Classifier, build_model
from ..training import OnStep, Run, TrainingConfig, train
from ..training.evaluate import evaluation_mode
from .defaults import batch_of, config_for, settings_for
from .encoders import Encoder
from .source import Source

POINTS = 100  # of a training curve
AT_A_TIME = 2**22  # numbers sent through a network that is not trained, whose layers make many times as many of them


@dataclass(frozen=True)
class Recipe:
    """What is the same for all trainings of a fit.

    epochs   passes over all rows; None: by their number
    weights  of the backbone, as `models.build` takes them
    """

    backbone: str
    weights: str | None = None
    epochs: int | None = None
    augment: bool = False
    device: str = "auto"


@dataclass(frozen=True)
class Outcome:
    """`curve` is (steps, losses) of the training, a point for each part of it."""

    encoder: Encoder
    model: Classifier
    curve: tuple[tuple[int, ...], tuple[float, ...]]
    config: TrainingConfig
    settings: Mapping[str, Any] = field(default_factory=dict)


def fit_rows(
    source: Source,
    algorithm: str,
    given: Mapping[str, Any],
    rows: Tensor,
    recipe: Recipe,
    seed: int,
    on_step: OnStep | None = None,
) -> Outcome:
    """Train on `rows`, whose statistics alone the encoding knows."""
    try:
        encoder = source.learn(rows)
    except InputError as error:
        raise InputError(f"{source.name}, {len(rows)} of its rows: {error}") from None
    data = _present(source.take(encoder, rows))
    config = config_for(data, recipe.epochs, recipe.augment)
    settings = settings_for(algorithm, given, config, len(data.environment_names))
    kept = _Kept(lambda: build_model(recipe.backbone, len(data.class_names), encoder.shape, recipe.weights))
    losses = _Losses()
    run = Run(algorithm, kept, _splits(data, batch_of(config)), config, seed, settings, device=recipe.device)
    train(run, on_step, on_loss=losses)
    model = kept.model.cpu()
    model.autocast = None
    model.eval()
    return Outcome(encoder, model, losses.curve(), config, settings)


def correct(outcome: Outcome, source: Source, rows: Tensor) -> Tensor:
    """Whether each of these rows is classified rightly (m,)."""
    wanted = source.take(outcome.encoder, rows)
    return probabilities(outcome.model, wanted).argmax(1) == wanted.labels


def at_a_time(data: EnvironmentSet, most: int = 4096) -> int:
    """How many samples a network is given together where it is not trained."""
    return max(1, min(most, AT_A_TIME // max(1, data.batch(slice(0, 1)).numel())))


def probabilities(model: Classifier, data: EnvironmentSet) -> Tensor:
    """Of each class, (n, C) float64, on the CPU; what is too large for the network's arithmetic is refused."""
    size = at_a_time(data)
    parts = [torch.empty(0, len(data.class_names), dtype=torch.float64)]
    with evaluation_mode(model):
        starts = range(0, len(data), size)
        parts += [model(data.batch(slice(start, start + size))).double().softmax(1) for start in starts]
    found = torch.cat(parts)
    whole = found.isfinite().all(1)
    if not whole.all():
        raise InputError(
            f"row {int(whole.int().argmin()) + 1} has no probabilities, since it lies too far from the rows that were "
            "trained on: correct or remove it"
        )
    return found


class _Kept:
    """Builds a model and holds on to it: `train` gives records alone."""

    def __init__(self, make: Callable[[], Classifier]) -> None:
        self.make = make
        self.model: Classifier

    def __call__(self) -> Classifier:
        self.model = self.make()
        return self.model


class _Losses:
    """Losses of a training, averaged over as many parts of it as a curve shows."""

    def __init__(self) -> None:
        self.steps: list[int] = []
        self.values: list[float] = []

    def __call__(self, step: int, value: float) -> None:
        self.steps.append(step)
        self.values.append(value)

    def curve(self) -> tuple[tuple[int, ...], tuple[float, ...]]:
        parts = torch.tensor(self.values).tensor_split(min(POINTS, len(self.values)))
        ends = torch.tensor([len(part) for part in parts]).cumsum(0)
        return tuple(self.steps[end - 1] for end in ends.tolist()), tuple(float(part.mean()) for part in parts)


def _present(data: EnvironmentSet) -> EnvironmentSet:
    """Without the environments that have no sample, which are numbered anew."""
    counts = data.group_counts().sum(1).tolist()
    return data.only([name for name, count in zip(data.environment_names, counts, strict=True) if count])


def _splits(data: EnvironmentSet, batch: int) -> Splits:
    """All samples are trained on. Nothing is selected by validation, so one sample stands for each part of it."""
    one = data.select(torch.tensor([0]))
    return Splits(filled(data, batch), retyped(one, TrainingDomainValidation), retyped(one, TestDomainValidation), one)
