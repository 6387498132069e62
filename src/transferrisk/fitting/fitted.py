"""From a table, embeddings or images to a model: compare algorithms, choose one, train it on everything."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import torch
from sklearn.pipeline import make_pipeline

from ..algorithms import get_algorithm, parse_settings, setting_names
from ..data import Options
from ..errors import InputError, WeightsWarning, listed, warn
from ..models import Classifier, OnFrozen, backbone_at_hand, build_model, features_of, is_registered
from ..models.saved import SavedModel
from ..settings import Count, Seed, Settings
from ..sklearn import TransferRiskClassifier
from ..training import Engine, Steps, TrainConfig, Watch
from ..training.defaults import default_backbone
from ..training.engine import device_of
from ..training.feed import inputs_digest
from .compare import Choice, Comparison, Curve, beside_a_guess, choose, compare, curve_of
from .estimators import ImageClassifier, TableEncoder, numbered, stored_table
from .model import Model, Origin, describe_model
from .source import Source, read_source

ALGORITHMS = ("erm", "groupdro", "trm")
FOLDS = 10  # environments that are held out at most
SMALL = 2000  # rows below which starting processes costs more than it brings

OnProgress = Callable[[str, int, int], None]
"""(what, done, total), in images, trainings or steps"""


@dataclass(frozen=True)
class Plan(Settings):
    """How to fit.

    algorithms  those compared, in this order
    algorithm   the one to take, whatever a comparison says; None: chosen
    compared    whether there is a comparison at all
    settings    "key=value" for each algorithm that has the key, or "trm.ridge=1e-2" for one
    backbone    None: by the kind of input
    weights     of the backbone, as `models.build` takes them
    epochs      passes over all rows; None: by their number
    repeats     seeds of the comparison, from `seed` on
    folds       environments that are held out at most, drawn by the seed
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
    epochs: Count | None = None
    seed: Seed = 0
    repeats: Count = 1
    folds: Count = FOLDS
    device: str = "auto"
    workers: Count | None = None
    drop_small: bool = False
    frozen: bool | None = None
    on_top: str | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in (*self.algorithms, *((self.algorithm,) if self.algorithm else ())):
            get_algorithm(name)
        if not self.algorithms or len(set(self.algorithms)) < len(self.algorithms):
            raise InputError(f"algorithms must be names, each given once, got {listed(self.algorithms) or 'none'}")


@dataclass(frozen=True)
class Fitted:
    """A model, and how it came to be.

    plan        with nothing left open
    comparison  None where there was none
    curve       of the final training, with the config and the algorithm's settings it had
    """

    model: Model
    source: Source
    plan: Plan
    comparison: Comparison | None
    choice: Choice
    curve: Curve
    config: TrainConfig
    settings: Mapping[str, Any]


def fit(
    data: str | Path,
    options: Options | None = None,
    plan: Plan | None = None,
    on_progress: OnProgress | None = None,
) -> Fitted:
    """Fit a model to a file, a folder of images or a data set by name.

    >>> fitted = fit("visits.csv", Options(label="outcome", environment="hospital"))
    >>> save_fit(fitted, Path("model"))
    """
    options, plan = options or Options(), plan or Plan()
    return fit_source(read_source(str(data), options, plan.drop_small), plan, options, on_progress)


def fit_source(
    source: Source, plan: Plan, options: Options | None = None, on_progress: OnProgress | None = None
) -> Fitted:
    """Fit a model to data that has been read."""
    options, on_progress = options or Options(), on_progress or (lambda what, done, total: None)
    plan = settle(source, plan)
    candidates = plan.algorithms if plan.compared else (plan.algorithm or "trm",)
    if plan.algorithm is not None and plan.algorithm not in candidates:
        candidates = (*candidates, plan.algorithm)
    given = settings_by_algorithm(candidates, plan.settings)
    trained, backbone = source, None
    if plan.frozen:
        backbone = _frozen_backbone(source, plan)
        trained = featurised(source, backbone, plan, on_progress)
    comparison = _compare(trained, plan, given, on_progress) if plan.compared else None
    choice = _choice(plan, comparison, candidates[0])
    said = f"{choice.algorithm} on all rows"
    progress = Steps(partial(on_progress, said))
    final = _estimator(trained, plan, given, (progress,), choice.algorithm, plan.seed)
    samples = trained.samples
    names = np.array(samples.environment_names, dtype=object)[samples.environments.numpy()]
    final.fit(_rows(trained), samples.labels.numpy(), environments=names)
    origin = Origin(
        source.name,
        source.kind,
        source.label,
        source.environment,
        {name: value for name in ("features", "path") if (value := getattr(options, name))},
        source.columns,
        choice.algorithm,
        inputs_digest(source.samples),
    )
    model = _model(source, plan, final, backbone, origin)
    return Fitted(model, source, plan, comparison, choice, curve_of(final), final.config_, final.settings_)


def settle(source: Source, plan: Plan) -> Plan:
    """The plan with what it leaves open about the network decided by the data, the device and the weights there are.

    A CPU is too slow to train all of a pretrained network, so there it is frozen.
    """
    images = source.kind == "images"
    backbone, weights = plan.backbone or default_backbone(source.shape, len(source.samples)), plan.weights
    if not is_registered(backbone):
        if plan.backbone is None and weights is None:
            backbone = _with_weights(backbone)
        weights = weights or "imagenet"
    pretrained = images and weights not in (None, "none")
    if plan.frozen and not images:
        raise InputError(f"frozen (--frozen) is for the backbone of images, got {source.name}: leave it out")
    if plan.frozen and not pretrained:
        raise InputError(
            f"frozen (--frozen) needs a pretrained backbone, got {backbone!r} without weights: name one with "
            "--backbone, or a file with --weights"
        )
    frozen = plan.frozen if plan.frozen is not None else pretrained and device_of(plan.device).type == "cpu"
    if plan.on_top is not None and not frozen:
        raise InputError(f"on_top={plan.on_top!r} (--on-top) needs a frozen backbone: add --frozen, or leave it out")
    on_top = (plan.on_top or default_backbone((1,), len(source.samples))) if frozen else None
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


def settings_by_algorithm(algorithms: Sequence[str], pairs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Each "key=value" goes to the algorithms that have the key, and "name.key=value" to that one."""
    mine: dict[str, list[str]] = {name: [] for name in algorithms}
    for pair in pairs:
        owner, dot, rest = pair.partition(".")
        if dot and owner in mine:
            mine[owner].append(rest)
            continue
        key = pair.partition("=")[0]
        owners = [name for name in algorithms if key in setting_names(name)]
        for name in owners or algorithms[-1:]:  # where none has it, the error of the last one says what there is
            mine[name].append(pair)
    return {name: parse_settings(name, own) for name, own in mine.items()}


def _frozen_backbone(source: Source, plan: Plan) -> Classifier:
    """The network to be frozen; that the one on top fits is seen before features are computed, which takes longer."""
    classes = len(source.samples.class_names)
    backbone = build_model(str(plan.backbone), classes, source.shape, plan.weights)
    build_model(str(plan.on_top), classes, (backbone.head.in_features,))
    return backbone


def featurised(source: Source, backbone: Classifier, plan: Plan, on_progress: OnProgress) -> Source:
    """The source with the backbone's features (n, d) in place of its images, which are read once, in their order.

    They are computed in full precision on any device, since it is on a CPU that the model will predict.
    """
    samples = source.samples

    def batch(part: slice) -> torch.Tensor:
        images = samples.batch(part)
        on_progress(f"features by {plan.backbone}", part.start + len(images), len(samples))
        return images

    engine = Engine.of(plan.device, precision="fp32")
    with engine.arithmetic():
        features = features_of(backbone.to(engine.device), batch, len(samples)).cpu()
    backbone.cpu()
    wrong = ~features.isfinite().all(1)
    if wrong.any():
        raise InputError(
            f"{source.name}: the features of image {int(wrong.int().argmax()) + 1} must be finite: use other weights"
        )
    return replace(source, kind="vectors", samples=replace(samples, inputs=features), columns=("features",))


def _compare(source: Source, plan: Plan, given: Mapping[str, Mapping[str, Any]], on_progress: OnProgress) -> Comparison:
    said = f"comparing {', '.join(given)}"
    workers = plan.workers or _usual_workers(source, plan)
    with nullcontext() if source.frame is None else stored_table(source.frame) as folder:
        make = partial(_estimator, source, plan, given, ())
        try:
            return compare(
                _rows(source) if folder is None else numbered(len(source.samples)),
                source.samples,
                make
                if folder is None
                else lambda name, seed: make_pipeline(
                    TableEncoder(folder, source.label, source.environment),
                    make(name, seed),
                    memory=str(folder / "cache"),
                ),
                tuple(given),
                range(plan.seed, plan.seed + plan.repeats),
                plan.folds,
                workers,
                partial(on_progress, said),
            )
        except InputError as error:
            raise InputError(f"{source.name}, without the rows held out: {error}") from None


def _usual_workers(source: Source, plan: Plan) -> int:
    one = device_of(plan.device).type == "cuda" or source.kind == "images" or len(source.samples) < SMALL
    return 1 if one else int(joblib.cpu_count())


def _rows(source: Source) -> Any:
    """X of the estimators: vectors and encoded rows as they are, images by number."""
    if source.kind == "images":
        return numbered(len(source.samples))
    return source.samples.inputs[:].numpy()


def _estimator(
    source: Source,
    plan: Plan,
    given: Mapping[str, Mapping[str, Any]],
    watch: Sequence[Watch],
    algorithm: str,
    seed: int,
) -> Any:
    """The unfitted classifier of an algorithm."""
    settings = dict(given[algorithm])
    if source.kind == "images":
        backbone = str(plan.backbone)
        return ImageClassifier(
            source.samples,
            algorithm,
            algorithm_params=settings,
            backbone=backbone,
            weights=plan.weights,
            epochs=plan.epochs,
            augment=not is_registered(backbone) and plan.weights != "none",
            random_state=seed,
            device=plan.device,
            watch=watch,
        )
    return TransferRiskClassifier(
        algorithm,
        algorithm_params=settings,
        representation=str(plan.on_top or plan.backbone),
        max_epochs=plan.epochs or "auto",
        standardise=source.kind != "table",
        random_state=seed,
        device=plan.device,
        watch=watch,
    )


def _model(source: Source, plan: Plan, final: Any, backbone: Classifier | None, origin: Origin) -> Model:
    """The fitted estimator's network, behind the backbone whose features it takes where there is one."""
    samples = source.samples
    network, name, on_top = final.model_, str(plan.backbone), ""
    if isinstance(final, TransferRiskClassifier):
        on_top = final.representation_
        if backbone is None:
            name = "linear"
        else:
            top = Classifier(network.featuriser.top, network.head.in_features, network.head.out_features)
            top.head = network.head
            network = OnFrozen(backbone, top, network.featuriser.standardise).eval()
    classes = tuple(samples.class_names[c] for c in final.classes_)
    about = describe_model(network, on_top, origin, source.schema)
    saved = SavedModel(network, name, source.shape, classes, samples.environment_names, about)
    return Model(saved, origin, source.schema)


def _choice(plan: Plan, comparison: Comparison | None, first: str) -> Choice:
    if plan.algorithm is not None:
        return Choice(plan.algorithm, "asked for" + (beside_a_guess(comparison, plan.algorithm) if comparison else ""))
    return Choice(first, "the default; nothing was compared") if comparison is None else choose(comparison)
