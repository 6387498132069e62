"""Baselines as scikit-learn classifiers: the shares of the classes and a linear model.

Each has `model_`, a `transferrisk.models.Classifier`, so that one folder format, `trm predict` and ONNX serve
all candidates of `trm fit` alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_is_fitted, validate_data

from ..data.values import Standardise
from ..errors import InputError
from ..functional import SoftmaxLoss
from ..functional.linear_loss import logits_of, one_hot, row_losses
from ..models import Classifier, OnFrozen, build_model
from ..settings import Length, Positive, convert
from ..solvers import LBFGS
from .splitter import encode_training_environments

Array = NDArray[Any]
RIDGES = (1e-1, 3e-2, 1e-2, 3e-3, 1e-3, 3e-4, 1e-4, 1e-5)
PATIENCE = 2  # ridges in a row without a better loss, after which weaker ones are not tried
MOST_FOLDS = 5  # groups of environments that are held out to choose a ridge


class Baseline(ClassifierMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Base of classifiers that keep a fitted network as `model_`."""

    __metadata_request__fit: ClassVar[Mapping[str, bool]] = {"environments": True}
    _takes_gaps: ClassVar[bool] = False  # whether nan and columns of a frame with a categorical type are allowed
    model_: Classifier

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = self._takes_gaps
        return tags

    def fit(self, X: Any, y: Any, environments: Any = None) -> Self:
        """Fit to rows, their labels and their environments.

        Parameters
        ----------
        X
            Rows, (n, k).
        y
            Label of each row, (n,).
        environments
            Environment of each row, (n,): strings or integers. None: all rows are of one.

        Returns
        -------
        self
            The fitted classifier.
        """
        self._categories = _categories_of(X) if self._takes_gaps else {}
        X, y = self._validated(X, y=y)
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            raise InputError(f"y must hold two or more classes, got one class only, {self.classes_.tolist()[0]!r}")
        _, index = encode_training_environments(environments, len(X))
        self.model_ = self._fitted(X, labels, index)
        return self

    def _validated(self, X: Any, **more: Any) -> Any:
        """Return rows as float64 or float32, and labels if they are given, checked by scikit-learn.

        Rows keep float64: columns may be large and vary little, such as seconds since 1970.
        """
        X = _with_codes(X, self._categories) if self._takes_gaps else X
        finite = "allow-nan" if self._takes_gaps else True
        with np.errstate(invalid="ignore"):  # sums of large numbers, by which scikit-learn looks for infinite ones
            found = validate_data(self, X, **more, dtype=(np.float64, np.float32), ensure_all_finite=finite)
        rows, *labels = found if "y" in more else (found,)
        rows = np.require(rows, requirements=["C", "W"])  # for torch
        return (rows, *labels) if labels else rows

    def _fitted(self, X: Array, labels: Array, environments: Array) -> Classifier:
        raise NotImplementedError

    def predict_proba(self, X: Any) -> NDArray[np.float64]:
        """Return the probability of each class.

        Parameters
        ----------
        X
            Rows, (n, k).

        Returns
        -------
        ndarray
            Probabilities, (n, C), in the order of `classes_`.
        """
        check_is_fitted(self)
        rows = torch.from_numpy(self._validated(X, reset=False))
        with torch.no_grad():
            return torch.cat([self.model_(chunk).double().softmax(1) for chunk in rows.split(1 << 11)]).numpy()

    def predict(self, X: Any) -> Array:
        """Return the most likely label of each row.

        Parameters
        ----------
        X
            Rows, (n, k).

        Returns
        -------
        ndarray
            Labels, (n,).
        """
        likeliest = self.predict_proba(X).argmax(1)
        return np.asarray(self.classes_[likeliest])


def _categories_of(X: Any) -> dict[int, Any]:
    """Return the categories of each column of a frame with a categorical type, by the column's place."""
    X, found = X.to_pandas() if hasattr(X, "to_pandas") else X, {}  # of polars
    for i, dtype in enumerate(getattr(X, "dtypes", ())):
        if str(dtype) == "category":
            found[i] = X.iloc[:, i].cat.categories
    return found


def _with_codes(X: Any, categories: Mapping[int, Any]) -> Any:
    """Replace values by their place among the categories of their column; nan if missing or not among them.

    Columns with `categories` may have any type; others must not be categorical.
    """
    import pandas as pd

    X = X.to_pandas() if hasattr(X, "to_pandas") else X
    numeric = _categories_of(X).keys() - categories.keys()
    if numeric:
        raise InputError(f"column {X.columns[min(numeric)]!r} must hold numbers, as in fit, got categories")
    if not categories:
        return X
    X = X.copy() if isinstance(X, pd.DataFrame) else np.array(X, dtype=object)
    if X.ndim != 2 or X.shape[1] <= max(categories):
        return X  # refused by its shape
    for i, seen in categories.items():
        codes = seen.get_indexer(pd.Index(X.iloc[:, i] if isinstance(X, pd.DataFrame) else X[:, i]))
        codes = np.where(codes < 0, np.nan, codes)
        if isinstance(X, pd.DataFrame):
            X.isetitem(i, codes)
        else:
            X[:, i] = codes
    return X


def _linear_network(columns: int, W: torch.Tensor, standardise: Standardise) -> Classifier:
    """Build a network from W (C, d + 1), the bias last, on standardised columns."""
    top = build_model("linear", len(W), (columns,), "none").double()
    top.requires_grad_(False)
    top.head.weight.copy_(W[:, :-1])
    top.head.bias.copy_(W[:, -1])
    return OnFrozen(build_model("linear", len(W), (columns,), "none"), top, standardise).eval()


class MajorityClassifier(Baseline):
    """Predict the shares of the classes in the training rows, whatever the row.

    Examples
    --------
    >>> from transferrisk.sklearn import MajorityClassifier
    >>> MajorityClassifier().fit([[0], [1], [2], [3]], ["a", "a", "a", "b"]).predict_proba([[9]])
    array([[0.75, 0.25]])
    """

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.poor_score = True
        return tags

    def _fitted(self, X: Array, labels: Array, environments: Array) -> Classifier:
        shares = np.bincount(labels) / len(labels)
        W = torch.zeros(len(shares), X.shape[1] + 1, dtype=torch.float64)
        W[:, -1] = torch.from_numpy(np.log(shares))
        whole = Standardise(torch.zeros(X.shape[1]), torch.ones(X.shape[1]), torch.float64)
        return _linear_network(X.shape[1], W, whole)


class LinearClassifier(Baseline):
    """Multinomial logistic regression on standardised columns; the ridge has the least loss in held-out environments.

    Each environment is held out once, by itself or, if there are more than five, together with others, and each counts
    the same in the choice. With one environment, a fifth of the rows is held out at a time. The ridge of the intercept
    is a thousandth of the others'.

    Parameters
    ----------
    ridges : sequence of float
        Ridges to choose from, strongest first.

    Attributes
    ----------
    classes_ : ndarray of shape (C,)
        Labels.
    ridge_ : float
        Ridge that was chosen.
    model_ : transferrisk.models.Classifier
        Fitted network.

    Examples
    --------
    >>> import numpy as np
    >>> from transferrisk.sklearn import LinearClassifier
    >>> rng = np.random.default_rng(0)
    >>> y, site = rng.integers(2, size=150), np.repeat(["A", "B", "C"], 50)
    >>> X = rng.normal(size=(150, 3)) + 2 * y[:, None]
    >>> LinearClassifier().fit(X, y, environments=site).predict_proba(X).shape
    (150, 2)
    """

    def __init__(self, ridges: Sequence[float] = RIDGES) -> None:
        self.ridges = ridges

    def _fitted(self, X: Array, labels: Array, environments: Array) -> Classifier:
        given = self.ridges.tolist() if isinstance(self.ridges, np.ndarray) else self.ridges
        ridges = convert("ridges", given, Annotated[tuple[Positive, ...], Length(1)])
        standardise = Standardise.fit(X, dtype=torch.float64)
        scaled, bias = standardise(torch.from_numpy(X)), 1000**0.5
        rows = torch.cat([scaled, scaled.new_full((len(X), 1), bias)], 1)  # (n, d + 1)
        y, C = torch.from_numpy(labels), len(self.classes_)
        groups = torch.from_numpy(environments if environments.max() > 0 else np.arange(len(X)) % MOST_FOLDS)
        held, counts = groups % MOST_FOLDS, groups.bincount()
        K = int(held.max()) + 1
        weights = rows.new_ones(K + 1, len(X))  # the last one is of all rows
        weights[:K] = held != torch.arange(K).unsqueeze(1)
        weights /= weights.sum(1, keepdim=True).clamp(min=1)
        gram = (rows.mT @ rows / len(rows)).unsqueeze(0)
        start, best, since = rows.new_zeros(K + 1, C, rows.shape[1]), np.inf, 0
        targets = one_hot(y, C, rows.dtype)
        for ridge in ridges:
            loss = SoftmaxLoss(rows, y, weights, C, ridge, True, gram)
            start = LBFGS(1e-8).minimise(loss, start).value
            losses = rows.new_empty(len(rows))
            for k in range(K):
                losses[held == k] = row_losses(logits_of(start[k], rows[held == k]), targets[held == k])
            tested = float((groups.bincount(losses) / counts).mean())
            if tested < best:
                best, chosen, self.ridge_, since = tested, start[-1].clone(), ridge, 0
            elif (since := since + 1) == PATIENCE:
                break
        chosen[:, -1] *= bias
        return _linear_network(X.shape[1], chosen, standardise)
