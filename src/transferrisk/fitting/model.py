"""A fitted model: what it takes, what it tells apart, how likely each class is, and the folder it is kept in.

    model.safetensors, model.json    the network and how inputs are encoded, see `models.saved`
    comparison.json, card.md, report.html    what was compared, for programs and for people

The folder is written whole or not at all.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data import EnvironmentSet
from ..data.schema import Schema
from ..errors import DataWarning, InputError, warn
from ..files import check_target, keep_apart, new_folders
from ..models import Classifier, evaluation_mode, features_of
from ..models.saved import DESCRIPTION, WEIGHTS, SavedModel, describe_folder, load_model_folder, save_model
from ..settings import Settings, as_json, from_mapping
from ..sklearn.saving import build_saved, describe_top

if TYPE_CHECKING:
    import pandas as pd

    from .source import Source

CARD, COMPARISON, REPORT = "card.md", "comparison.json", "report.html"
FILES = (WEIGHTS, DESCRIPTION, CARD, COMPARISON, REPORT)


@dataclass(frozen=True)
class Origin(Settings):
    """What a model was fitted to.

    data     the data set, as in `trm data list`
    kind     table, vectors or images
    names    what else in the file had a name: the array or columns of features, the column of paths
    columns  of a file of vectors: the columns or the array that hold them
    digest   of the samples it was trained on, by which they are recognised under another name; "": not kept
    """

    data: str = ""
    kind: str = "vectors"
    label: str = "label"
    environment: str = "environment"
    names: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    algorithm: str = ""
    digest: str = ""


@dataclass(frozen=True)
class Model:
    """
    saved   the network, on the CPU, and its classes
    schema  from rows of a table to the network's inputs; None: it takes vectors or images
    """

    saved: SavedModel
    origin: Origin
    schema: Schema | None = None

    @property
    def network(self) -> Classifier:
        return self.saved.network

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the columns that `predict_proba` gives."""
        return self.saved.classes

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input of the network."""
        return self.saved.input_shape

    @property
    def kind(self) -> str:
        return self.origin.kind

    def predict_proba(self, samples: pd.DataFrame | NDArray[Any] | Tensor) -> NDArray[np.float64]:
        """Probability of each class, (n, C): of a table's rows, vectors (n, d), or images (n, 3, h, w) in 0..255.

        What the schema had not seen is a warning.
        """
        if self.schema is not None:
            if not hasattr(samples, "columns"):
                raise InputError(
                    f"samples must be a pandas.DataFrame with the columns of the table, got {type(samples).__name__}"
                )
            encoded = self.schema.encode(samples)
            for note in encoded.notes:
                warn(str(note), DataWarning)
            return self.probabilities(encoded.features)
        if hasattr(samples, "columns"):
            raise InputError(f"samples must be an array, since this model takes {self.kind}, got a table")
        return self.probabilities(torch.as_tensor(samples))

    def predict(self, samples: pd.DataFrame | NDArray[Any] | Tensor) -> NDArray[np.str_]:
        """The most likely class of each sample by name, (n,)."""
        chosen: NDArray[np.str_] = np.array(self.class_names)[self.predict_proba(samples).argmax(1)]
        return chosen

    def encode(self, source: Source) -> EnvironmentSet:
        """The samples of a source as the network takes them."""
        if self.schema is None or source.frame is None:
            return source.samples
        return replace(source.samples, inputs=self.schema.encode(source.frame).features)

    def probabilities(self, inputs: Tensor) -> NDArray[np.float64]:
        """Probabilities (n, C) of inputs as the network takes them (n, ...), images as bytes."""
        if inputs.shape[1:] != self.shape:
            raise InputError(
                f"inputs must have shape (n, {', '.join(map(str, self.shape))}), got {tuple(inputs.shape)}: use "
                "samples like those the model was fitted to"
            )
        nothing = torch.zeros(len(inputs), dtype=torch.int64)
        data = EnvironmentSet(inputs, nothing, nothing, (self.origin.environment,), self.class_names)
        return class_probabilities(self.network, data).numpy()


def class_probabilities(network: Classifier, data: EnvironmentSet) -> Tensor:
    """Probabilities of the classes, (n, C) float64; a sample too large for the network's arithmetic is refused."""
    features = features_of(network, data.batch, len(data))
    with evaluation_mode(network):
        found: Tensor = network.head(features).double().softmax(1)
    finite = found.isfinite().all(1)
    if not finite.all():
        raise InputError(
            f"row {int(finite.int().argmin()) + 1} has no probabilities, since a value is missing or lies too far from "
            "those of the rows that were trained on: correct or remove it"
        )
    return found


def describe_model(network: Classifier, on_top: str, origin: Origin, schema: Schema | None) -> dict[str, Any]:
    """What `SavedModel.about` says of a fitted model."""
    return {
        **describe_top(network, on_top),
        "origin": as_json(origin),
        "schema": None if schema is None else schema.to_dict(),
    }


def load_model(folder: Path | str) -> Model:
    """The model in a folder that `trm fit`, `trm train` or `TransferRiskClassifier.save` wrote."""
    saved = load_model_folder(folder, build_saved(describe_folder(folder)))
    kind = "images" if len(saved.input_shape) == 3 else "vectors"
    try:
        origin = from_mapping(Origin, {"kind": kind, **saved.about.get("origin", {})})
        content = saved.about.get("schema")
        return Model(saved, origin, None if content is None else Schema.from_dict(content))
    except (InputError, TypeError, ValueError) as error:
        raise InputError(f"{Path(folder) / WEIGHTS} cannot be understood ({error}): fit the model again") from None


def keep_model(output: Path, folder: Path) -> None:
    """Refuse to write over a file of the model that is read."""
    keep_apart(output, *(folder / name for name in FILES))


def check_output(folder: Path, force: bool) -> None:
    """Refuse a folder that could not become a model's, before hours of work and without creating anything."""
    check_target(folder / WEIGHTS)
    if not folder.exists():
        return
    others = sorted(path.name for path in folder.iterdir() if path.name not in FILES)
    there = [name for name in FILES if (folder / name).exists()]
    if others:
        raise InputError(f"{folder} must hold a model or nothing, got {others[0]}: choose another output")
    if there and not force:
        raise InputError(f"{folder} holds a model already: choose another output, or replace it with force (--force)")


def write_folder(folder: Path, saved: SavedModel, write_rest: Callable[[Path], None], force: bool = False) -> None:
    """Write a model's folder: its files get hidden names first, and take their place when all of them are there."""
    check_output(folder, force)
    place = Path(os.path.realpath(folder))
    there = place.exists()
    with new_folders(place.parent):
        hidden = Path(tempfile.mkdtemp(dir=place if there else place.parent, prefix=f".{place.name[:100]}."))
        try:
            save_model(hidden, saved)
            write_rest(hidden)
            if there:
                _move_in(hidden, place)
            else:
                os.chmod(hidden, 0o755)
                hidden.rename(place)
        finally:
            shutil.rmtree(hidden, ignore_errors=True)


def _move_in(new: Path, place: Path) -> None:
    """Move the files to a folder that stays, since one that is a mount or the user's own cannot be replaced.

    The weights, without which a folder is not a model, go first and come last. A failure brings the old files back.
    """
    old = new / "old"
    old.mkdir()
    others = [name for name in FILES if name != WEIGHTS]
    try:
        for name in (WEIGHTS, *others):
            if (place / name).exists():
                (place / name).rename(old / name)
        for name in (*others, WEIGHTS):
            (new / name).rename(place / name)
    except BaseException:
        for name in (*others, WEIGHTS):
            if not (new / name).exists():
                (place / name).unlink(missing_ok=True)
            if (old / name).exists():
                (old / name).rename(place / name)
        raise
