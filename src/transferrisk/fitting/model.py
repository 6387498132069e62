"""A fitted model: what it takes, what it tells apart, and how likely each class is.

It is kept in a folder:

    model.safetensors, model.json            the network and the encoding of its inputs, see `models.saved`
    schema.json                              how each column of a table is used, to be edited and given back
    comparison.json, card.md, report.html    the comparison of candidates, for programs and for people

`predict.predict_file` predicts whole files.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data.schema import Form, Schema, columns_by_name
from ..data.values import stands_for_missing
from ..errors import DataWarning, InputError, warn
from ..models import Classifier, evaluation_mode, features_of, from_hub
from ..models.saved import DESCRIPTION, WEIGHTS, SavedModel, load_model_folder
from ..settings import Settings, convert
from .decisions import Decision
from .metrics import decide

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["table", "vectors", "images"]
CARD, COMPARISON, REPORT, SCHEMA = "card.md", "comparison.json", "report.html", "schema.json"
FILES = (WEIGHTS, DESCRIPTION, SCHEMA, CARD, COMPARISON, REPORT)


@dataclass(frozen=True)
class Origin(Settings):
    """The data that a model was fitted to.

    data       name of the data set, as in `trm data list`
    kind       table, vectors or images
    names      names of other columns or arrays: `features`, `path`
    columns    for vectors, the columns or the array that hold them
    algorithm  candidate that was chosen, as in `trm fit`
    digest     hash of the training samples, which identifies them under another name; "": not stored
    """

    data: str = ""
    kind: Kind = "vectors"
    label: str = "label"
    environment: str = "environment"
    names: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    algorithm: str = ""
    digest: str = ""


@dataclass(frozen=True)
class Model(SavedModel):
    """A fitted network on the CPU, with the encoding of its inputs and the names of its classes.

    Attributes
    ----------
    origin
        The data that it was fitted to.
    schema
        Encoding of a table's rows as inputs; None for vectors and images.
    form
        Form in which rows of a table are encoded.
    decision
        Threshold, temperature and sets learned from predictions in held-out environments, if there was a comparison.
    network
        The classifier.
    backbone
        Name of the network, as `models.build_model` takes it.
    input_shape
        Shape of one input.
    classes, environments
        Names of the classes and of the training environments, by number.
    about
        Settings and history of the model, in the types of JSON.

    Examples
    --------
    >>> from transferrisk.fitting import Model
    >>> from transferrisk.models import build_model
    >>> model = Model(build_model("linear", 2, (3,)).eval(), "linear", (3,), ("no", "yes"), ("north", "south"))
    >>> import torch
    >>> model.predict_proba(torch.randn(4, 3)).shape
    (4, 2)
    """

    origin: Origin = field(default_factory=Origin)
    schema: Schema | None = None
    form: Form = "features"
    decision: Decision = field(default_factory=Decision)

    @classmethod
    def from_pretrained(cls, name: str | Path, revision: str | None = None) -> Model:
        """Load the model in a folder, or in a repository of the Hugging Face hub, as `models.push_to_hub` writes it.

        Parameters
        ----------
        name
            Folder or repository.
        revision
            Branch, tag or commit of the repository. None: its main branch.

        Returns
        -------
        Model
            The model.
        """
        return load_model(from_hub(name, revision))

    def predict_proba(self, samples: pd.DataFrame | NDArray[Any] | Tensor) -> NDArray[np.float64]:
        """Return the probability of each class.

        Images are bytes, 0 to 255. New categories and other differences from the training table are warnings.

        Parameters
        ----------
        samples
            Rows of a table with its columns (pandas.DataFrame), vectors (n, d), or images (n, 3, h, w).

        Returns
        -------
        ndarray
            Probabilities, (n, C), in the order of `classes`.
        """
        if self.schema is not None:
            import pandas as pd

            if not hasattr(samples, "columns"):
                raise InputError(
                    f"samples must be a pandas.DataFrame with the columns of the table, got {type(samples).__name__}"
                )
            rows = pd.DataFrame(columns_by_name(samples), samples.index, copy=False)  # type: ignore[union-attr]
            for name in self.schema.missing.keys() & {*rows}:
                rows[name] = rows[name].mask(stands_for_missing(rows[name], self.schema.missing[name]))
            encoded = self.schema.encode(rows, self.form)
            for note in encoded.notes:
                warn(str(note), DataWarning)
            return self.probabilities(encoded.features)
        if hasattr(samples, "columns"):
            raise InputError(f"samples must be an array, since this model takes {self.origin.kind}, got a table")
        return self.probabilities(torch.as_tensor(samples))

    def predict(self, samples: pd.DataFrame | NDArray[Any] | Tensor) -> NDArray[np.str_]:
        """Return the class of each sample by the model's threshold, or else the most likely one.

        Parameters
        ----------
        samples
            Rows of a table with its columns (pandas.DataFrame), vectors (n, d), or images (n, 3, h, w).

        Returns
        -------
        ndarray
            Names of classes, (n,).
        """
        places = decide(self.predict_proba(samples), self.decision.threshold)
        chosen: NDArray[np.str_] = np.array(self.classes)[places]
        return chosen

    def predict_sets(self, samples: pd.DataFrame | NDArray[Any] | Tensor, coverage: float = 0.9) -> NDArray[np.bool_]:
        """Return prediction sets, which hold the class of a sample with a given coverage; see `decisions.Conformal`.

        Parameters
        ----------
        samples
            Rows of a table with its columns (pandas.DataFrame), vectors (n, d), or images (n, 3, h, w).
        coverage
            Share of samples whose set is to hold their class.

        Returns
        -------
        ndarray
            Whether each class is in each sample's set, (n, C) bool.
        """
        return self.sets(self.predict_proba(samples), coverage)

    def sets(self, probabilities: NDArray[np.float64], coverage: float = 0.9) -> NDArray[np.bool_]:
        """Return prediction sets from probabilities.

        Parameters
        ----------
        probabilities
            Probabilities, (n, C), as returned by `predict_proba`.
        coverage
            Share of samples whose set is to hold their class.

        Returns
        -------
        ndarray
            Whether each class is in each sample's set, (n, C) bool.
        """
        conformal = self.decision.conformal
        if conformal is None:
            raise InputError(
                "sets (--sets) need predictions in held-out environments, and this model was fitted without a "
                "comparison: fit it again with one"
            )
        return conformal.sets(probabilities, coverage)

    def probabilities(self, inputs: Tensor) -> NDArray[np.float64]:
        """Return the probability of each class for encoded inputs.

        Parameters
        ----------
        inputs
            Inputs of the network, (n, ...); images are bytes.

        Returns
        -------
        ndarray
            Probabilities, (n, C).
        """
        if inputs.shape[1:] != self.input_shape:
            raise InputError(
                f"inputs must have shape (n, {', '.join(map(str, self.input_shape))}), got {tuple(inputs.shape)}: use "
                "samples like those the model was fitted to"
            )
        batch = (lambda part: inputs[part].float() / 255) if inputs.dtype == torch.uint8 else inputs.__getitem__
        return class_probabilities(self.network, batch, len(inputs))


def class_probabilities(network: Classifier, batch: Callable[[slice], Tensor], count: int) -> NDArray[np.float64]:
    """Return the probabilities of the classes, (count, C); samples for which they are not finite are an error."""
    features = features_of(network, batch, count)
    with evaluation_mode(network):
        found: Tensor = network.head(features).double().softmax(1)
    finite = found.isfinite().all(1)
    if not finite.all():
        raise InputError(
            f"row {int(finite.int().argmin()) + 1} has no finite probabilities, since a value is missing or too far "
            "from those of the training rows: correct or remove it"
        )
    return found.numpy()


def load_model(folder: Path | str) -> Model:
    """Read the model in a folder that `trm fit`, `trm train` or `TransferRiskClassifier.save` wrote.

    Parameters
    ----------
    folder
        Folder of the model.

    Returns
    -------
    Model
        The model, on the CPU.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> import numpy as np
    >>> from transferrisk.fitting import load_model
    >>> from transferrisk.sklearn import TransferRiskClassifier
    >>> X, y, site = np.random.rand(60, 3), np.arange(60) % 2, np.arange(60) % 3
    >>> folder = mkdtemp() + "/model"
    >>> TransferRiskClassifier(max_epochs=2, random_state=0).fit(X, y, environments=site).save(folder)
    >>> load_model(folder).classes
    ('0', '1')
    """
    saved = load_model_folder(folder)
    kind = "images" if len(saved.input_shape) == 3 else "vectors"
    about = saved.about
    try:
        origin = convert("origin", {"kind": kind} | convert("origin", about.get("origin", {}), dict), Origin)
        schema = None if about.get("schema") is None else Schema.from_dict(about["schema"])
        if (origin.kind == "images", origin.kind == "table") != (kind == "images", schema is not None):
            raise InputError(f"origin.kind must fit the inputs, got {origin.kind!r} for shape {saved.input_shape}")
        form = convert("form", about.get("form", "features"), Form)
        if schema is not None:
            import pandas as pd

            encoded = schema.encode(pd.DataFrame(), form).features.shape[1]
            if (encoded,) != saved.input_shape:
                raise InputError(f"schema must give {saved.input_shape[0]} features, got {encoded}")
        decision = convert("decision", about.get("decision", {}), Decision)
    except InputError as error:
        raise InputError(f"{Path(folder) / WEIGHTS} cannot be used ({error}): fit the model again") from None
    return Model(**vars(saved), origin=origin, schema=schema, form=form, decision=decision)
