"""A fitted model: what it takes, what it tells apart, and how likely each class is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data import EnvironmentSet
from ..errors import DataWarning, InputError, warn
from ..models import Classifier
from .encoders import Encoder, ImageEncoder, TableEncoder
from .trial import probabilities

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Origin:
    """Where a model comes from.

    data     the data set, as in `trm data list`
    kind     table, vectors or images
    names    what else in the file had a name: the array or columns of features, the column of paths
    on_top   the network on the features of the backbone, which is frozen then; "": the backbone itself was trained
    digest   of the samples it was trained on, by which they are known again under another name; "": not kept
    """

    data: str
    kind: str
    label: str
    environment: str
    names: Mapping[str, str] = field(default_factory=dict)
    algorithm: str = ""
    backbone: str = ""
    digest: str = ""
    on_top: str = ""


@dataclass(frozen=True)
class Model:
    """
    encoder      from what a file holds to the network's inputs
    network      on the CPU, in evaluation mode
    class_names  of the columns of what `predict_proba` gives
    """

    encoder: Encoder
    network: Classifier
    class_names: tuple[str, ...]
    origin: Origin

    def predict_proba(self, samples: pd.DataFrame | NDArray[Any] | Tensor) -> NDArray[np.float64]:
        """Probability of each class, (n, C): of a table's rows, vectors (n, d), or images (n, 3, h, w) in 0..255.

        What the schema had not seen is a warning.
        """
        if isinstance(self.encoder, TableEncoder):
            if not hasattr(samples, "columns"):
                raise InputError("this model takes tables: give a pandas.DataFrame with the columns it was fitted on")
            encoded = self.encoder.encode(samples)
            for note in encoded.notes:
                warn(str(note), DataWarning)
            return self.probabilities(encoded.features)
        if hasattr(samples, "columns"):
            raise InputError(f"this model takes {self.origin.kind}, not a table: give an array")
        values = torch.as_tensor(samples)
        return self.probabilities(values if isinstance(self.encoder, ImageEncoder) else self.encoder.encode(values))

    def predict(self, samples: pd.DataFrame | NDArray[Any] | Tensor) -> NDArray[np.str_]:
        """The most likely class of each sample by name, (n,)."""
        chosen: NDArray[np.str_] = np.array(self.class_names)[self.predict_proba(samples).argmax(1)]
        return chosen

    def probabilities(self, inputs: Tensor) -> NDArray[np.float64]:
        """Of inputs as the network takes them, images as bytes, (n, ...) to (n, C)."""
        if inputs.shape[1:] != self.encoder.shape:
            raise InputError(
                f"inputs of shape {tuple(inputs.shape[1:])}: the model takes {tuple(self.encoder.shape)} each"
            )
        nothing = torch.zeros(len(inputs), dtype=torch.int64)
        data = EnvironmentSet(inputs, nothing, nothing, (self.origin.environment,), self.class_names)
        return probabilities(self.network, data).numpy()
