"""From a table, embeddings or images to a model: compare, choose, train on everything."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..algorithms import get, parse_settings, setting_names
from ..data import Options
from ..data.checks import listed
from ..errors import InputError
from ..experiments.executors import cores
from ..models import is_registered
from ..training.digests import of_inputs
from .choice import Choice, beside_a_guess, choose
from .compare import Comparison, Trial, compare, final
from .defaults import backbone_for
from .model import Model, Origin
from .source import Source, read
from .trial import Outcome, Recipe

ALGORITHMS = ("erm", "groupdro", "trm")
HELD_OUT = 10  # environments that are held out at most
SMALL = 2000  # rows below which starting processes costs more than it brings

OnProgress = Callable[[str, int, int], None]
"""(what, done, total), in steps of all trainings"""


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

    def __post_init__(self) -> None:
        for name in (*self.algorithms, *((self.algorithm,) if self.algorithm else ())):
            get(name)
        if not self.algorithms or len(set(self.algorithms)) < len(self.algorithms):
            raise InputError(f"algorithms {listed(self.algorithms) or '(none)'}: name each of them once")
        for name in ("repeats", "held_out"):
            if getattr(self, name) < 1:
                raise InputError(f"{name}={getattr(self, name)} is too few: use 1 or more")


@dataclass(frozen=True)
class Fitted:
    """A model, and how it came to be. `comparison` is None where there was none."""

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
    recipe = recipe_for(source, plan)
    candidates = plan.algorithms if plan.compared else (plan.algorithm or "trm",)
    if plan.algorithm is not None and plan.algorithm not in candidates:
        candidates = (*candidates, plan.algorithm)
    given = settings_by_algorithm(candidates, plan.settings)
    comparison = None
    if plan.compared:
        seeds = range(plan.seed, plan.seed + plan.repeats)
        what = f"comparing {', '.join(candidates)}"
        workers = plan.workers or usual_workers(source, recipe)
        comparison = compare(
            source, recipe, given, seeds, plan.held_out, workers, lambda done, total: on_progress(what, done, total)
        )
    choice = _choice(plan, comparison, candidates[0])
    trial = Trial(source, recipe, choice.algorithm, given[choice.algorithm], None, plan.seed)
    outcome = final(trial, lambda _, done, total: on_progress(f"{choice.algorithm} on all rows", done, total))
    names = {name: value for name in ("features", "path") if (value := getattr(options, name))}
    digest = of_inputs(source.take(outcome.encoder, torch.arange(len(source.samples))))
    origin = Origin(
        source.name, source.kind, source.label, source.environment, names, choice.algorithm, recipe.backbone, digest
    )
    model = Model(outcome.encoder, outcome.model, source.samples.class_names, origin)
    return Fitted(model, source, plan, recipe, comparison, choice, outcome)


def recipe_for(source: Source, plan: Plan) -> Recipe:
    backbone = plan.backbone or backbone_for(source.samples)
    pretrained = not is_registered(backbone) and plan.weights != "none"
    return Recipe(backbone, plan.weights, plan.epochs, pretrained and source.kind == "images", plan.device)


def usual_workers(source: Source, recipe: Recipe) -> int:
    on_gpu = recipe.device.startswith("cuda") or (recipe.device == "auto" and torch.cuda.is_available())
    return 1 if on_gpu or source.kind == "images" or len(source.samples) < SMALL else cores()


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
