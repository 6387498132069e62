"""`TransferRiskClassifier`: a table, its labels and the environments of its rows in, a classifier out."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_consistent_length
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from ..algorithms import get_algorithm
from ..errors import EnvironmentWarning, InputError, warn
from .parameters import check_algorithm, check_options, choose_held_out
from .saving import load_classifier, save_classifier
from .splitter import encode_environments
from .table import Table, as_tensor
from .training import Plan, fit

_CHUNK = 2**16  # rows that are classified at a time

Array = NDArray[Any]


class TransferRiskClassifier(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]  # scikit-learn has no types, here and below
    TransformerMixin,  # type: ignore[misc]
    ClassifierMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """A classifier for places it has not been trained for, from a table with rows of several environments.

    It learns a representation of the rows and a linear predictor on it. Each environment (a site, a year, a device)
    counts the same, however many rows it has. Without `environments`, or with one only, there is nothing to transfer
    between: it then minimises the empirical risk, `algorithm_` is "erm", and an `EnvironmentWarning` says so unless
    that was asked for.

    >>> TransferRiskClassifier(random_state=0).fit(X, y, environments=site).predict(X_new)

    Parameters
    ----------
    algorithm : str, default="trm"
        Any of `transferrisk.algorithms.available()`.
    algorithm_params : dict or None, default=None
        Settings of the algorithm, such as {"ridge": 1e-2}. Where they are not given: `start_epoch` is a tenth of the
        epochs and, for TRM, `ridge` is 1e-2 and `weights` is "worst" where a step sees all rows.
    representation : {"linear", "mlp"}, default="linear"
        What is learnt of a row x: A x + b, with a linear predictor on top, so that decisions stay linear in x and the
        algorithm decides which directions they may use; or relu(A x + b).
    width : int, default=16
        Length of the representation.
    max_epochs : int or "auto", default="auto"
        Passes over as many rows as there are. "auto": 100 where a step sees all rows; otherwise as many as make 1000
        steps, at least 2.
    batch_size : int, "auto" or None, default="auto"
        Rows of each environment in a step; None: all rows. "auto": all up to 2000 rows, otherwise 128 of each
        environment, fewer, down to 16, where there are more than 16 of those.
    learning_rate : float, default=0.1
        Of SGD with momentum 0.9; a tenth of it for the last fifth of the steps.
    weight_decay : float, default=1e-4
    early_stopping : bool, default=False
        Hold environments out, look at the accuracy there 50 times, stop when it has not improved for
        `n_iter_no_change` looks, counted from a while after `start_epoch`, and keep the weights of the best. Needs
        three environments; with fewer it trains to the end on all of them, and warns.
    validation_environments : int, float or list, default=1
        Which are held out: so many or this share of them, drawn at random, or those listed.
    n_iter_no_change : int, default=10
    standardise : bool, default=True
        Subtract the mean of each column and divide by its standard deviation; both are kept with the model.
    random_state : int, RandomState, Generator or None, default=None
    device : str, default="cpu"
        Where to train: "cpu", "cuda", "cuda:1", or "auto", a GPU where there is one. The fitted model is on the CPU.
    verbose : int, default=0

    Attributes
    ----------
    classes_ : (C,) the labels
    environments_ : (E,) the environments, sorted; None where none were given
    validation_environments_ : those that were held out; None: none
    algorithm_ : the algorithm that was used
    model_ : the fitted `transferrisk.models.Classifier`; takes float tensors of rows
    n_iter_ : epochs that were trained
    loss_curve_ : the loss of each step; on a GPU of every fiftieth
    validation_scores_ : accuracy in the held-out environments at each look; None: none were held out
    n_features_in_, feature_names_in_ : as everywhere in scikit-learn

    Metadata routing: `fit` requests `environments` by itself, so Pipeline, GridSearchCV and cross_validate pass it on.
    """

    __metadata_request__fit: ClassVar[Mapping[str, bool]] = {"environments": True}

    def __init__(
        self,
        algorithm: str = "trm",
        *,
        algorithm_params: Mapping[str, Any] | None = None,
        representation: str = "linear",
        width: int = 16,
        max_epochs: int | str = "auto",
        batch_size: int | str | None = "auto",
        learning_rate: float = 0.1,
        weight_decay: float = 1e-4,
        early_stopping: bool = False,
        validation_environments: Any = 1,
        n_iter_no_change: int = 10,
        standardise: bool = True,
        random_state: Any = None,
        device: str = "cpu",
        verbose: int = 0,
    ) -> None:
        self.algorithm = algorithm
        self.algorithm_params = algorithm_params
        self.representation = representation
        self.width = width
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.validation_environments = validation_environments
        self.n_iter_no_change = n_iter_no_change
        self.standardise = standardise
        self.random_state = random_state
        self.device = device
        self.verbose = verbose

    def fit(self, X: Any, y: Any, environments: Any = None, sample_weight: Any = None) -> Self:
        """Fit to rows X (n, d), labels y (n,) and the environment (n,) of each row: strings or integers.

        `sample_weight` (n,) says how much a row counts within its environment; 0 is as if it were not there.
        """
        algorithm = check_algorithm(self.algorithm)
        X, y = validate_data(self, X, y, dtype=(np.float64, np.float32), order="C")
        check_classification_targets(y)
        classes, labels = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise InputError(f"y holds one class only, {classes[:1].tolist()[0]!r}: a classifier needs two or more")
        names, index = encode_environments(["all"] * len(X) if environments is None else environments)
        check_consistent_length(X, index)
        weights = None
        if sample_weight is not None:
            if not get_algorithm(algorithm).weighted:
                raise InputError(f"algorithm {algorithm!r} does not heed sample_weight: leave it out")
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            kept = weights > 0
            if not kept.any():
                raise InputError("sample_weight is zero everywhere: give some row a weight")
            X, labels, index, weights = X[kept], labels[kept], index[kept], weights[kept]
        present, index = np.unique(index, return_inverse=True)  # those without weight are gone
        names = names[present]
        if len(names) < 2 and algorithm != "erm":
            said = (
                "no environments were given"
                if environments is None
                else f"{names[:1].tolist()[0]!r} is the only environment"
            )
            warn(
                f"{said}: {algorithm} needs two or more, so the empirical risk is minimised; give environments, or "
                'ask for algorithm="erm"',
                EnvironmentWarning,
            )
            algorithm = "erm"
        options = check_options(self.get_params(deep=False), algorithm)
        table = Table(X, labels.astype(np.int64), index.astype(np.int64), weights, _told(names), len(classes))
        chosen = self._held_out(names, options.seed)
        held_out = None
        if chosen is not None:
            held_out = table.only(chosen)
            table = table.only(np.setdiff1d(np.arange(len(names)), chosen))
        found = fit(table, held_out, Plan.of(table, self.batch_size, self.max_epochs), options)
        self.classes_ = classes
        self.environments_ = None if environments is None else names
        self.validation_environments_ = None if chosen is None else names[chosen]
        self.algorithm_ = algorithm
        self.model_ = found.model
        self.n_iter_ = max(1, round(found.epochs))
        self.loss_curve_ = found.loss_curve
        self.validation_scores_ = None if chosen is None else found.scores
        return self

    def decision_function(self, X: Any) -> Array:
        """Logits, (n, C); of two classes, how much the second one's is larger, (n,)."""
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict_proba(self, X: Any) -> Array:
        """(n, C), in the order of `classes_`."""
        return np.asarray(softmax(self._logits(X), axis=1))

    def predict_log_proba(self, X: Any) -> Array:
        """(n, C)"""
        return np.asarray(log_softmax(self._logits(X), axis=1))

    def predict(self, X: Any) -> Array:
        """The likeliest label, (n,)."""
        best = self._logits(X).argmax(1)
        return np.asarray(self.classes_[best])

    def transform(self, X: Any) -> Array:
        """The representation, (n, width)."""
        return self._featurise(X).numpy()

    def save(self, folder: Path | str) -> None:
        """Write the fitted classifier to a folder that holds nothing else, without pickle; `load` reads it."""
        check_is_fitted(self)
        save_classifier(self, Path(folder))

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """A classifier that `save` wrote; it classifies as that one did, to the bit."""
        return load_classifier(cls, Path(folder))

    @property
    def _n_features_out(self) -> int:
        return self.model_.head.in_features

    def _held_out(self, names: Array, seed: int) -> Any:
        if not self.early_stopping:
            return None
        if len(names) < 3:
            warn(
                f"early stopping holds environments out and needs three or more, not {len(names)}: trained to the end",
                EnvironmentWarning,
            )
            return None
        return choose_held_out(self.validation_environments, names, seed)

    def _featurise(self, X: Any) -> torch.Tensor:
        """(n, width), in float64."""
        check_is_fitted(self)
        rows = as_tensor(validate_data(self, X, reset=False, dtype=(np.float64, np.float32), order="C"))
        with torch.inference_mode():
            return torch.cat([self.model_.featurise(part) for part in rows.split(_CHUNK)]).double()

    def _logits(self, X: Any) -> Array:
        features = self._featurise(X)
        with torch.inference_mode():
            logits = self.model_.head(features.to(self.model_.head.weight.dtype))
        return np.asarray(logits.double().numpy())


def _told(names: Array) -> tuple[str, ...]:
    """Of each environment a name of its own."""
    told = tuple(map(str, names.tolist()))
    return told if len(set(told)) == len(told) else tuple(f"{name} ({i})" for i, name in enumerate(told))
