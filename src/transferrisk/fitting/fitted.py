"""From a table, embeddings or images to a model: compare, choose, train on everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from ..algorithms import get_algorithm, parse_settings, setting_names
from ..data import Options
from ..errors import InputError, WeightsWarning, listed, warn
from ..experiments.executors import count_cores
from ..models import Classifier, backbone_at_hand, build_model, is_registered
from ..training.digests import inputs_digest
from ..training.engine import device_of
from .choice import Choice, beside_a_guess, choose
from .compare import Comparison, Trial, compare, final
from .defaults import ON_VECTORS, backbone_for
from .frozen import featurised, whole
from .model import Model, Origin
from .source import Source, read
from .trial import Outcome, Recipe

ALGORITHMS = ("erm", "groupdro", "trm")
HELD_OUT = 10  # environments that are held out at most
SMALL = 2000  # rows below which starting processes costs more than it brings

OnProgress = Callable[[str, int, int], None]
"""(what, done, total), in images or in steps of all trainings"""


@dataclass(frozen=True)
class Plan:
    """How to fit.

    algorithms  those compared, in this order
    algorithm   the one to take, whatever a comparison says; None: chosen
    compared    whether there is a comparison at all
    settings    "key=value" for each algorithm that has it, or "trm.ridge=1e-2" for one
    repeats     seeds of the comparison, from `seed` on
    held_out    environments that are held out at most; more are drawn from by the seed
    workers     processes that train at the same time; None: as many as cores, for vectors on a CPU
    frozen      a pretrained backbone stays as it is, and a network on its features is trained; None: on a CPU
    on_top      that network; None: the one for vectors
    """

    algorithms: tuple[str, ...] = ALGORITHMS
    algorithm: str | None = None
    compared: bool = True
    settings: tuple[str, ...] = ()
    backbone: str | None = None
    weights: str | None = None
    epochs: int | None = None
    seed: int = 0
    repeats: int = 1
    held_out: int = HELD_OUT
    device: str = "auto"
    workers: int | None = None
    drop_small: bool = False
    frozen: bool | None = None
    on_top: str | None = None

    def __post_init__(self) -> None:
        for name in (*self.algorithms, *((self.algorithm,) if self.algorithm else ())):
            get_algorithm(name)
        if not self.algorithms or len(set(self.algorithms)) < len(self.algorithms):
            raise InputError(f"algorithms {listed(self.algorithms) or '(none)'}: name each of them once")
        for name in ("repeats", "held_out"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)} is too few: use 1 or more")


@dataclass(frozen=True)
class Fitted:
    """A model, and how it came to be.

    plan        with nothing left open
    recipe      of what was trained
    comparison  None where there was none
    """

    model: Model
    source: Source
    plan: Plan
    recipe: Recipe
    comparison: Comparison | None
    choice: Choice
    outcome: Outcome


def fit(
    data: str | Path,
    options: Options | None = None,
    plan: Plan | None = None,
    on_progress: OnProgress | None = None,
) -> Fitted:
    """Fit a model to a file, a folder of images or a data set by name.

    >>> fitted = fit("visits.csv", Options(label="outcome", environment="hospital"))
    >>> save(fitted, Path("model"))
    """
    options, plan = options or Options(), plan or Plan()
    return fit_source(read(str(data), options, plan.drop_small), plan, options, on_progress)


def fit_source(
    source: Source, plan: Plan, options: Options | None = None, on_progress: OnProgress | None = None
) -> Fitted:
    options, on_progress = options or Options(), on_progress or (lambda what, done, total: None)
    plan = settled(source, plan)
    candidates = plan.algorithms if plan.compared else (plan.algorithm or "trm",)
    if plan.algorithm is not None and plan.algorithm not in candidates:
        candidates = (*candidates, plan.algorithm)
    given = settings_by_algorithm(candidates, plan.settings)
    trained, backbone = source, None
    if plan.frozen:
        backbone = _backbone(source, plan)
        what_for = f"features by {plan.backbone}"
        trained = featurised(source, backbone, plan.device, lambda done, total: on_progress(what_for, done, total))
    recipe = recipe_for(trained, plan)
    comparison = None
    if plan.compared:
        seeds = range(plan.seed, plan.seed + plan.repeats)
        what = f"comparing {', '.join(candidates)}"
        workers = plan.workers or usual_workers(trained, recipe)
        comparison = compare(
            trained, recipe, given, seeds, plan.held_out, workers, lambda done, total: on_progress(what, done, total)
        )
    choice = _choice(plan, comparison, candidates[0])
    trial = Trial(trained, recipe, choice.algorithm, given[choice.algorithm], None, plan.seed)
    outcome = final(trial, lambda _, done, total: on_progress(f"{choice.algorithm} on all rows", done, total))
    names = {name: value for name in ("features", "path") if (value := getattr(options, name))}
    everything = torch.arange(len(source.samples))
    encoder, network = outcome.encoder, outcome.model
    if backbone is not None:
        encoder, network = source.learn(everything), whole(backbone, outcome)
    origin = Origin(
        source.name,
        source.kind,
        source.label,
        source.environment,
        names,
        choice.algorithm,
        str(plan.backbone),
        inputs_digest(source.take(encoder, everything)),
        plan.on_top or "",
    )
    model = Model(encoder, network, source.samples.class_names, origin)
    return Fitted(model, source, plan, recipe, comparison, choice, outcome)


def settled(source: Source, plan: Plan) -> Plan:
    """The plan with what it leaves open about the network decided by the data, the device and the weights there are.

    A CPU is too slow to train all of a pretrained network, so there it is frozen.
    """
    backbone, weights = plan.backbone or backbone_for(source.samples), plan.weights
    if not is_registered(backbone):
        if plan.backbone is None and weights is None:
            backbone = _with_weights(backbone)
        weights = weights or "imagenet"
    pretrained = source.kind == "images" and weights not in (None, "none")
    if plan.frozen and not pretrained:
        if source.kind != "images":
            raise InputError(
                f"frozen=True (--frozen) is for the backbone of images, and {source.name} has none: leave it out"
            )
        raise InputError(
            f"frozen=True (--frozen): {backbone!r} has no weights yet, and only a pretrained backbone can stay as it "
            "is: name one with --backbone, or a file with --weights"
        )
    frozen = plan.frozen if plan.frozen is not None else pretrained and device_of(plan.device).type == "cpu"
    if plan.on_top is not None and not frozen:
        raise InputError(
            f"on_top={plan.on_top!r} (--on-top) stands on a frozen backbone, and there is none: add --frozen, or "
            "leave it out"
        )
    on_top = (plan.on_top or ON_VECTORS) if frozen else None
    return replace(plan, backbone=backbone, weights=weights, frozen=frozen, on_top=on_top)


def _with_weights(usual: str) -> str:
    backbone = backbone_at_hand(usual)
    if backbone != usual:
        warn(
            f"the ImageNet weights of {usual} cannot be fetched: {backbone} is taken, whose weights pip has installed; "
            "to choose yourself, name one with --backbone",
            WeightsWarning,
        )
    return backbone


def _backbone(source: Source, plan: Plan) -> Classifier:
    """The one to be frozen; that what stands on top fits is seen before features are computed, which takes longer."""
    classes = len(source.samples.class_names)
    backbone = build_model(str(plan.backbone), classes, tuple(source.samples.inputs[:1].shape[1:]), plan.weights)
    build_model(str(plan.on_top), classes, (backbone.head.in_features,))
    return backbone


def recipe_for(source: Source, plan: Plan) -> Recipe:
    """Of what a settled plan trains; `source` holds features where the backbone is frozen."""
    if plan.on_top is not None:
        return Recipe(plan.on_top, None, plan.epochs, False, plan.device)
    backbone = str(plan.backbone)
    varied = source.kind == "images" and not is_registered(backbone) and plan.weights != "none"
    return Recipe(backbone, plan.weights, plan.epochs, varied, plan.device)


def usual_workers(source: Source, recipe: Recipe) -> int:
    on_gpu = device_of(recipe.device).type == "cuda"
    return 1 if on_gpu or source.kind == "images" or len(source.samples) < SMALL else count_cores()


def settings_by_algorithm(algorithms: Sequence[str], pairs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Each "key=value" goes to the algorithms that have the key, and "name.key=value" to that one."""
    mine: dict[str, list[str]] = {name: [] for name in algorithms}
    for pair in pairs:
        owner, dot, rest = pair.partition(".")
        if dot and owner in mine:
            mine[owner].append(rest)
            continue
        key = pair.partition("=")[0]
        knowing = [name for name in algorithms if key in setting_names(name)]
        for name in knowing or algorithms[-1:]:  # where none has it, the error of the last one says what there is
            mine[name].append(pair)
    return {name: parse_settings(name, own) for name, own in mine.items()}


def _choice(plan: Plan, comparison: Comparison | None, first: str) -> Choice:
    if plan.algorithm is not None:
        return Choice(plan.algorithm, "asked for" + (beside_a_guess(comparison, plan.algorithm) if comparison else ""))
    return Choice(first, "the default; nothing was compared") if comparison is None else choose(comparison)
