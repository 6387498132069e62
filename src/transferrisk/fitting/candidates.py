"""Candidates of a fit, as scikit-learn estimators: an encoder for tables and a network for images.

    table     TableEncoder, then a baseline of `sklearn.baselines` or TransferRiskClassifier
    vectors   the same without an encoder; also for the features of a frozen backbone
    images    ImageClassifier, if the whole network is trained

Rows of a table and images are given by their numbers, (n, 1), so that scikit-learn splits and sends nothing else to
other processes. The table is in a file that each process reads once.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Self

import joblib
import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, TransformerMixin

from ..algorithms import ALGORITHMS, available, parse_settings, setting_names
from ..auditing.columns import column_effects, unstable
from ..auditing.samples import column_groups, settle_indicators
from ..data import EnvironmentSet, filled
from ..data.infer import Declared, infer_schema
from ..data.schema import Encoded, Form, Schema
from ..errors import InputError, choices
from ..models import build_model, is_registered
from ..models.blend import BLEND
from ..sklearn import (
    BoostingClassifier,
    LeafTransferClassifier,
    LinearClassifier,
    MajorityClassifier,
    TransferRiskClassifier,
)
from ..sklearn.boosting import SMALL_TREES
from ..sklearn.classifier import fit_network
from ..sklearn.splitter import encode_environments
from ..training import LossCurve, TrainConfig, Watch
from ..training.defaults import image_config, settings_for
from .model import class_probabilities

if TYPE_CHECKING:
    import pandas as pd

    from .plan import Plan
    from .source import Source

Integers = NDArray[np.integer[Any]]
UNSTABLE = "its relation to the label differs between environments"  # why a schema leaves a column out
RECENT = (
    7  # results in memory: the table, and schemas and encoded rows of a fold, to train and to test on, in two forms
)


@dataclass(frozen=True)
class Candidate:
    """A candidate that is not a network: its estimator for a seed, and the form of its rows of a table."""

    make: Callable[[int], Any]
    form: Form = "features"


BASELINES = {
    "majority": Candidate(lambda seed: MajorityClassifier()),
    "linear": Candidate(lambda seed: LinearClassifier()),
    "boosting": Candidate(lambda seed: BoostingClassifier(random_state=seed), "columns"),
    "lightgbm": Candidate(lambda seed: BoostingClassifier("lightgbm", random_state=seed), "columns"),
    "boosting-weighted": Candidate(
        lambda seed: BoostingClassifier(params=SMALL_TREES, environments_lr=0.5, random_state=seed), "columns"
    ),
    "trm-leaves": Candidate(lambda seed: LeafTransferClassifier(random_state=seed), "columns"),
}
NAMES = {
    "majority": "Majority class",
    "linear": "Linear model",
    "boosting-weighted": "Weighted boosting",
    "trm-leaves": "TRM on boosted leaves",
    "boosting": "Gradient boosting",
    "lightgbm": "LightGBM boosting",
    "erm": "ERM network",
    "reweight": "Reweighted network",
    "groupdro": "GroupDRO network",
    "vrex": "V-REx network",
    "irm": "IRM network",
    "fish": "Fish network",
    "mldg": "MLDG network",
    "trm-direct": "TRM network without gradient matching",
    "trm": "TRM network",
    BLEND: "Weighted average",
}
"""Candidate -> its name in tables and sentences"""
NETWORKS = ("erm", "groupdro", "trm")


def simplicity(name: str) -> int:
    """Rank a candidate by what it deploys: 0 a constant, 1 a linear model, 2 trees, 3 a network, 4 an average."""
    if name in BASELINES:
        return 2 if form_of(name) == "columns" else [*BASELINES].index(name)
    return 4 if name == BLEND else 3


def named(name: str) -> str:
    """Return the name of a candidate in tables and sentences."""
    return NAMES.get(name, name)


def default_candidates(kind: str, trained_images: bool = False) -> tuple[str, ...]:
    """Return the candidates to compare by default: trees for tables only, networks alone for trained images."""
    if trained_images:
        return NETWORKS
    trees = [name for name in BASELINES if form_of(name) == "columns" and (name != "lightgbm" or find_spec("lightgbm"))]
    return ("majority", "linear", *(trees if kind == "table" else ()), *NETWORKS, BLEND)


def check_candidate(name: str) -> None:
    """Refuse a name that is not a baseline, an algorithm or the average."""
    if name not in (*BASELINES, BLEND) and name not in ALGORITHMS:
        raise InputError(f"unknown algorithm {name!r}{choices(name, [*BASELINES, *available(), BLEND])}")


def form_of(name: str) -> Form:
    """Return the form in which a candidate takes the rows of a table."""
    return BASELINES[name].form if name in BASELINES else "features"


def make_candidates(source: Source, plan: Plan, algorithms: Sequence[str]) -> dict[str, Any]:
    """Build the estimators to compare, by name; those of a table take encoded rows. The average is not among them."""
    networks = [name for name in algorithms if name not in BASELINES and name != BLEND]
    settings = settings_by_algorithm(networks, plan.settings)
    trained_images = source.kind == "images" and not plan.frozen
    candidates: dict[str, Any] = {}
    for name in algorithms:
        common: Any = {"algorithm_params": settings.get(name), "random_state": plan.seed, "device": plan.device}
        if trained_images and name not in settings:
            raise InputError(
                f"algorithm {name!r} takes the features of a frozen backbone: add --frozen, or leave it out"
            )
        if trained_images:
            candidates[name] = ImageClassifier(
                source.samples,
                name,
                backbone=str(plan.backbone),
                weights=plan.weights,
                epochs=plan.epochs,
                augment=not is_registered(str(plan.backbone)) and plan.weights != "none",
                **common,
            )
        elif name in BASELINES:
            candidates[name] = BASELINES[name].make(plan.seed)
        elif name != BLEND:
            candidates[name] = TransferRiskClassifier(
                name,
                representation=str(plan.on_top or plan.backbone),
                max_epochs=plan.epochs or "auto",
                standardise=source.kind != "table",
                **common,
            )
    return candidates


def settings_by_algorithm(algorithms: Sequence[str], pairs: Sequence[str]) -> dict[str, dict[str, Any]]:
    """Give each "key=value" to the algorithms that have the key, and "name.key=value" to that algorithm."""
    if pairs and not algorithms:
        raise InputError(f"settings (--set) are for networks, and none is compared, got {pairs[0]!r}: leave them out")
    mine: dict[str, list[str]] = {name: [] for name in algorithms}
    for pair in pairs:
        owner, dot, rest = pair.partition(".")
        if dot and owner in mine:
            mine[owner].append(rest)
            continue
        key = pair.partition("=")[0]
        owners = [name for name in algorithms if key in setting_names(name)]
        for name in owners or algorithms[-1:]:  # if none has it, the error of the last one lists its settings
            mine[name].append(pair)
    return {name: parse_settings(name, own) for name, own in mine.items()}


RESULTS: OrderedDict[str, Any] = OrderedDict()
"""Results of `recent`, which is to forget them when the table that they come from is gone."""


def recent(compute: Callable[..., Any], *key: Any) -> Any:
    """Return `compute()`, or its last result for the same key: candidates take the same rows one after another."""
    digest = joblib.hash(key)
    if digest not in RESULTS:
        RESULTS[digest] = compute()
        while len(RESULTS) > RECENT:
            RESULTS.popitem(last=False)
    RESULTS.move_to_end(digest)
    return RESULTS[digest]


class TableEncoder(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Encode rows of a stored table, given by number (n, 1), as features (n, d).

    The schema and its statistics are inferred from the rows of `fit` alone.

    Parameters
    ----------
    table : Path
        File that joblib wrote.
    label, environment : str
        Columns that are not features.
    form : {"features", "columns"}, default="features"
        An array, or a DataFrame with categorical columns.
    drop_unstable : bool, default=False
        Whether to leave out columns whose effect on the label differs between the environments of these rows.
    declared : Declared or None, default=None
        Kinds of columns that the user declared.

    Attributes
    ----------
    schema_ : Schema
        Encoding of the rows.
    """

    __metadata_request__fit: ClassVar[Mapping[str, bool]] = {"environments": True}

    def __init__(
        self,
        table: Path,
        label: str,
        environment: str,
        form: Form = "features",
        drop_unstable: bool = False,
        declared: Declared | None = None,
    ) -> None:
        self.table = table
        self.label = label
        self.environment = environment
        self.form = form
        self.drop_unstable = drop_unstable
        self.declared = declared

    def fit(self, X: Integers, y: Any = None, environments: Any = None) -> Self:
        self.schema_ = recent(partial(self._schema, X, y, environments), self.get_params(), X, y, environments)
        return self

    def transform(self, X: Integers) -> Any:
        return recent(partial(self._encoded, X), self.table, self.form, self.schema_, X)

    def _encoded(self, X: Integers) -> Any:
        return rows_of(self.schema_.encode(self._rows(X), self.form))

    def _rows(self, X: Integers) -> pd.DataFrame:
        """Return rows of the table, whose numbers stay on the disk until they are used."""
        table: pd.DataFrame = recent(partial(joblib.load, self.table, mmap_mode="r"), self.table)
        return table.iloc[X[:, 0]]

    def _schema(self, X: Integers, y: Any, environments: Any) -> Schema:
        rows, declared = self._rows(X), self.declared or Declared()
        schema = infer_schema(rows, self.label, self.environment, declared)
        if self.form == "features" or self.drop_unstable:  # trees see missing values without indicators
            schema = settle_indicators(schema, declared, rows, y, environments)
        if self.drop_unstable:
            schema = stable_schema(schema, schema.encode(rows).features, y, environments)
        return schema


def stable_schema(schema: Schema, features: Any, labels: Any, environments: Any) -> Schema:
    """Return the schema without the columns whose relation to the label differs between environments."""
    report = column_effects(features, column_groups(schema)[0], labels, environments, refit=False)
    gone = dict.fromkeys(unstable(report), UNSTABLE)
    kept = tuple(column for column in schema.columns if column.name not in gone)
    return replace(schema, columns=kept, dropped={**schema.dropped, **gone})


def rows_of(encoded: Encoded) -> Any:
    """Return encoded rows as an array or a DataFrame, see `TableEncoder`."""
    if not encoded.categorical:
        return encoded.features.numpy()
    import pandas as pd

    frame = pd.DataFrame(encoded.features.numpy(), columns=list(map(str, range(len(encoded.names)))))
    for place in encoded.categorical:
        values = frame.iloc[:, place].to_numpy()
        known = ~np.isnan(values)
        codes = np.where(known, values, -1).astype(int)
        frame[str(place)] = pd.Categorical.from_codes(codes, categories=range(int(codes.max(initial=0)) + 1))
    return frame


class ImageClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Train a network on images, given by their numbers in a set, (n, 1).

    Parameters
    ----------
    images : EnvironmentSet
        The images; its labels and environments are not used.
    algorithm, algorithm_params, device, watch
        See `TransferRiskClassifier`.
    backbone, weights
        See `transferrisk.models.build_model`.
    epochs : int or None, default=None
        Number of passes over the images. None: see `training.defaults.image_config`.
    augment : bool, default=False
        Whether to vary the images.
    random_state : int, default=0
        Random seed.

    Attributes
    ----------
    classes_, model_, loss_curve_, loss_steps_, config_, settings_
        See `TransferRiskClassifier`.
    """

    __metadata_request__fit: ClassVar[Mapping[str, bool]] = {"environments": True}

    def __init__(
        self,
        images: EnvironmentSet,
        algorithm: str = "trm",
        *,
        algorithm_params: Mapping[str, Any] | None = None,
        backbone: str = "resnet18",
        weights: str | None = None,
        epochs: int | None = None,
        augment: bool = False,
        random_state: int = 0,
        device: str = "cpu",
        watch: Sequence[Watch] = (),
    ) -> None:
        self.images = images
        self.algorithm = algorithm
        self.algorithm_params = algorithm_params
        self.backbone = backbone
        self.weights = weights
        self.epochs = epochs
        self.augment = augment
        self.random_state = random_state
        self.device = device
        self.watch = watch

    def __sklearn_clone__(self) -> Self:
        """Return a copy that shares the images, which scikit-learn would copy."""
        return type(self)(**self.get_params(deep=False))

    def fit(self, X: Integers, y: Any, environments: Any) -> Self:
        self.classes_, labels = np.unique(y, return_inverse=True)
        names, index = encode_environments(environments)
        data = replace(
            self._chosen(X),
            labels=torch.from_numpy(labels),
            environments=torch.from_numpy(index),
            environment_names=tuple(map(str, names)),
            class_names=tuple(map(str, self.classes_)),
        )
        self.config_: TrainConfig = image_config(data, self.epochs, self.augment)
        given = self.algorithm_params or {}
        self.settings_ = settings_for(self.algorithm, given, self.config_, len(names), vectors=False)
        shape = tuple(data.inputs[:1].shape[1:])
        curve = LossCurve()
        trained = fit_network(
            lambda: build_model(self.backbone, len(self.classes_), shape, self.weights),
            filled(data, self.config_.batch_size or len(data)),
            self.algorithm,
            self.settings_,
            self.config_,
            seed=self.random_state,
            device=self.device,
            watch=(curve, *self.watch),
        )
        self.model_ = trained.model
        self.loss_steps_, self.loss_curve_ = curve.steps, curve.losses
        return self

    def predict_proba(self, X: Integers) -> NDArray[np.float64]:
        images = self._chosen(X)
        return class_probabilities(self.model_, images.batch, len(images))

    def predict(self, X: Integers) -> NDArray[Any]:
        found: NDArray[Any] = self.classes_[self.predict_proba(X).argmax(1)]
        return found

    def _chosen(self, X: Integers) -> EnvironmentSet:
        return self.images.select(torch.from_numpy(X[:, 0]))
