"""One training on some of a source's rows, and the test of it on others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..algorithms import create
from ..data import EnvironmentSet, filled
from ..errors import InputError
from ..models import Classifier, build_model, evaluation_mode
from ..training import Engine, LossCurve, OnStep, Steps, TrainConfig, setting_of, train
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
    config: TrainConfig
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
    losses = LossCurve()
    rows_trained_on = filled(data, batch_of(config))
    model = train(
        lambda: build_model(recipe.backbone, len(data.class_names), encoder.shape, recipe.weights),
        rows_trained_on,
        create(algorithm, setting_of(rows_trained_on), **settings),
        config,
        watch=[losses, Steps(on_step)] if on_step is not None else [losses],
        seed=seed,
        engine=Engine.of(recipe.device),
    ).model.cpu()
    model.autocast = None
    model.eval()
    return Outcome(encoder, model, _curve(losses), config, settings)


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


def _curve(losses: LossCurve) -> tuple[tuple[int, ...], tuple[float, ...]]:
    """Losses of a training, averaged over as many parts of it as a curve shows."""
    parts = torch.tensor(losses.losses).tensor_split(min(POINTS, len(losses.losses)))
    ends = torch.tensor([len(part) for part in parts]).cumsum(0)
    return tuple(losses.steps[end - 1] for end in ends.tolist()), tuple(float(part.mean()) for part in parts)


def _present(data: EnvironmentSet) -> EnvironmentSet:
    """Without the environments that have no sample, which are numbered anew."""
    counts = data.group_counts().sum(1).tolist()
    return data.only([name for name, count in zip(data.environment_names, counts, strict=True) if count])
