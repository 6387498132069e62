"""A fitted classifier in a folder: one file of tensors, with the rest as JSON in its header, nothing pickled.

    classifier.safetensors    as `models.saved` writes and checks it

It is written beside its target and renamed, so there is an old one or a new one, never half of one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from ..data.standardise import Standardise
from ..errors import InputError
from ..files import prepare_folder, write_atomically
from ..models import MLP, Classifier
from ..models.saved import encode_tensors, read_tensors

if TYPE_CHECKING:
    from .classifier import TransferRiskClassifier

FILE = "classifier.safetensors"
KIND, VERSION = "TransferRiskClassifier", 1
PLAIN = ("algorithm_", "n_iter_", "n_features_in_", "loss_curve_", "validation_scores_")
ARRAYS = ("classes_", "environments_", "validation_environments_", "feature_names_in_")
KINDS = "biufUO"  # of arrays that JSON can hold; objects must be strings, numbers or bools

C = TypeVar("C", bound="TransferRiskClassifier")


def save_classifier(classifier: TransferRiskClassifier, folder: Path) -> None:
    values = {
        "params": {name: _plain(name, value) for name, value in classifier.get_params(deep=False).items()},
        "plain": {name: getattr(classifier, name) for name in PLAIN},
        "arrays": {name: _from_array(name, getattr(classifier, name, None)) for name in ARRAYS},
    }
    header = {"values": values, "kind": KIND, "version": VERSION}
    content = encode_tensors(classifier.model_.state_dict(), header)
    _refuse_foreign(folder)
    prepare_folder(folder, FILE)
    write_atomically(folder / FILE, content)


def _refuse_foreign(folder: Path) -> None:
    """A folder with other things than a classifier, and what a killed `save` left of one."""
    if not folder.is_dir():
        return
    others = sorted(
        path.name for path in folder.iterdir() if path.name != FILE and not path.name.startswith(f".{FILE}.")
    )
    if others:
        raise InputError(f"{folder} holds other things than a classifier, such as {others[0]}: choose another folder")


def load_classifier(cls: type[C], folder: Path) -> C:
    path = folder / FILE
    if not path.is_file():
        raise InputError(f"{folder} holds no classifier ({FILE} is not there): name a folder that `save` wrote")
    part, made = read_tensors(path)
    if made.get("kind") != KIND:
        raise InputError(f"{path} is no {KIND}: name a folder that `save` wrote")
    if made.get("version") != VERSION:
        raise InputError(
            f"{path} is of version {made.get('version')}, written by transferrisk "
            f"{made['versions'].get('transferrisk')}, and this one reads {VERSION}: use that release, or fit anew"
        )
    try:
        values = made["values"]
        classifier = cls(**values["params"])
        for name in PLAIN:
            setattr(classifier, name, values["plain"][name])
        for name in ARRAYS:
            array = _to_array(values["arrays"][name])
            if array is not None or name != "feature_names_in_":
                setattr(classifier, name, array)
        weight = next(v for k, v in part.items() if k.startswith("featuriser.1") and v.dim() == 2)
        width, d = weight.shape
        layer = nn.Linear(d, width) if classifier.representation == "linear" else MLP(d, width)
        model = Classifier(layer, width, len(classifier.classes_)).to(weight.dtype)
        model.featuriser = nn.Sequential(Standardise.identity(d, weight.dtype), layer)
    except (KeyError, TypeError, ValueError, AttributeError, StopIteration) as error:
        cause = " ".join(str(error).split()) or type(error).__name__
        raise InputError(f"{path} is damaged or foreign ({cause}): save the classifier again") from None
    try:
        model.load_state_dict(part)
    except RuntimeError as error:
        first = str(error).splitlines()[0]
        raise InputError(f"{path} is damaged or foreign ({first}): save the classifier again") from None
    classifier.model_ = model.eval()
    return classifier


def _plain(name: str, value: Any) -> Any:
    """As JSON has it. A generator is what later fits would draw from, and is not kept: they draw afresh."""
    if isinstance(value, np.random.RandomState | np.random.Generator):
        return None
    if isinstance(value, np.ndarray | np.generic):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {str(key): _plain(f"{name}[{key!r}]", held) for key, held in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(name, held) for held in value]
    try:
        json.dumps(value)
    except TypeError:
        raise InputError(
            f"{name}={value!r} cannot be written as JSON: use a name or a number, or pickle the classifier"
        ) from None
    return value


def _from_array(name: str, array: NDArray[Any] | None) -> dict[str, Any] | None:
    if array is None:
        return None
    values = array.tolist()
    if array.dtype.kind not in KINDS or not all(isinstance(v, str | int | float) for v in values):
        raise InputError(f"{name} of type {array.dtype} cannot be written as JSON: use strings, numbers or bools")
    return {"dtype": array.dtype.str, "values": values}


def _to_array(held: Mapping[str, Any] | None) -> NDArray[Any] | None:
    return None if held is None else np.array(held["values"], dtype=held["dtype"])
