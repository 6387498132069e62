"""Saving of a fitted `TransferRiskClassifier` to the folder format of all models, see `models.saved`."""

from __future__ import annotations

import json
from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..files import prepare_folder
from ..models.saved import DESCRIPTION, WEIGHTS, SavedModel, load_model_folder, save_model
from ..settings import as_json, checked_fields
from ..training import TrainConfig

if TYPE_CHECKING:
    from .classifier import TransferRiskClassifier

KIND = "TransferRiskClassifier"
VALUES = (
    "algorithm_",
    "representation_",
    "n_iter_",
    "n_features_in_",
    "loss_curve_",
    "loss_steps_",
    "validation_scores_",
    "settings_",
)
ENVIRONMENTS = ("environments_", "validation_environments_")
ARRAYS = ("classes_", *ENVIRONMENTS, "feature_names_in_")
TYPES = "biufUO"  # kinds of arrays that JSON can hold; objects must be strings, numbers or bools

C = TypeVar("C", bound="TransferRiskClassifier")


def save_classifier(classifier: TransferRiskClassifier, folder: Path) -> None:
    """Write a fitted classifier to a folder that holds a classifier or nothing."""
    parameters = classifier.get_params(deep=False) | {"watch": ()}
    about = {
        "kind": KIND,
        "on_top": classifier.representation_,
        "dtype": str(classifier.model_.head.weight.dtype).removeprefix("torch."),
        "params": {name: _to_json(name, value) for name, value in parameters.items()},
        "values": {name: _to_json(name, getattr(classifier, name)) for name in VALUES},
        "arrays": {name: _from_array(name, getattr(classifier, name, None)) for name in ARRAYS},
        "config": as_json(classifier.config_),
    }
    others = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    unfinished = tuple(f".{name}." for name in (WEIGHTS, DESCRIPTION))  # of a process that was killed
    others = [name for name in others if name not in (WEIGHTS, DESCRIPTION) and not name.startswith(unfinished)]
    if others:
        raise InputError(f"{folder} must hold a classifier or nothing, got {others[0]}: choose another folder")
    prepare_folder(folder, WEIGHTS, DESCRIPTION)
    environments = () if classifier.environments_ is None else tuple(map(str, classifier.environments_))
    classes = tuple(map(str, classifier.classes_))
    shape = (classifier.n_features_in_,)
    save_model(folder, SavedModel(classifier.model_, "linear", shape, classes, environments, about))


def load_classifier(cls: type[C], folder: Path) -> C:
    """Read a classifier that `save_classifier` wrote."""
    saved = load_model_folder(folder)
    about = saved.about
    if about.get("kind") != KIND:
        raise InputError(f"{folder} must hold a {KIND}, got another model: name a folder that `save` wrote")
    try:
        classifier = cls(**about["params"] | {"watch": ()})
        for name in VALUES:
            setattr(classifier, name, about["values"][name])
        for name in ARRAYS:
            array = _to_array(about["arrays"][name])
            if array is not None or name != "feature_names_in_":
                setattr(classifier, name, array)
            if array is not None and array.ndim != 1:
                raise InputError(f"{name} must be a list, got shape {array.shape}")
        with checked_fields(TrainConfig, about["config"]):
            classifier.config_ = TrainConfig(**about["config"])
        for name, own, kept in (
            ("classes_", tuple(map(str, classifier.classes_)), saved.classes),
            ("n_features_in_", (classifier.n_features_in_,), saved.input_shape),
        ):
            if own != kept:
                raise InputError(f"{name} must be those of the network, {kept}, got {own}")
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        cause = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{folder} is damaged or foreign ({cause}): save the classifier again") from None
    classifier.model_ = saved.network
    return classifier


def _to_json(name: str, value: Any) -> Any:
    """Return the value in the types of JSON. A random generator is not kept: later fits draw from a new one."""
    if isinstance(value, np.random.RandomState | np.random.Generator):
        return None
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _to_json(f"{name}[{key!r}]", held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_to_json(name, held) for held in value]
    try:
        json.dumps(value)
    except TypeError:
        raise InputError(f"{name} must be a name or a number to be saved as JSON, got {value!r}") from None
    return value


def _from_array(name: str, array: NDArray[Any] | None) -> dict[str, Any] | None:
    if array is None:
        return None
    values = array.tolist()
    if array.dtype.kind == "M":
        return {"dtype": array.dtype.str, "values": np.datetime_as_string(array).tolist()}
    if name in ENVIRONMENTS and array.dtype.kind == "O":  # predictions do not need them: dates may become text
        values = [v.isoformat() if isinstance(v, date) else v for v in values]
    if array.dtype.kind not in TYPES or not all(isinstance(v, str | int | float) for v in values):
        raise InputError(f"{name} must hold strings, numbers or bools to be saved as JSON, got {array.dtype}")
    return {"dtype": array.dtype.str, "values": values}


def _to_array(held: Mapping[str, Any] | None) -> NDArray[Any] | None:
    return None if held is None else np.array(held["values"], dtype=held["dtype"])
