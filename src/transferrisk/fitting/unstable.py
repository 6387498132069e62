"""`DropUnstable`: leaves out the columns whose effect on the label differs between the training environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from ..auditing.columns import LEVEL, MATERIAL, column_effects, unstable


class DropUnstable(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Leave out columns whose effect differs between environments, by the rows it is fitted to and no others.

    In a pipeline it is fitted within each fold. With metadata routing:

    >>> sklearn.set_config(enable_metadata_routing=True)
    >>> drop = DropUnstable().set_fit_request(environments=True)
    >>> make_pipeline(drop, LogisticRegression()).fit(X, y, environments=sites)

    Parameters
    ----------
    groups : column -> indices of its features, which are dropped together; None: each feature is a column
    level, material : as `auditing.columns.unstable` takes them

    Attributes
    ----------
    dropped_ : names of the columns left out, least stable first
    kept_ : (k,) indices of the features that stay
    report_ : the `ColumnReport`
    """

    def __init__(
        self, groups: Mapping[Any, Sequence[int]] | None = None, level: float = LEVEL, material: float = MATERIAL
    ) -> None:
        self.groups = groups
        self.level = level
        self.material = material

    def fit(self, X: Any, y: Any, environments: Any) -> Self:
        X = validate_data(self, X, dtype="numeric")
        names = getattr(self, "feature_names_in_", np.arange(X.shape[1]))
        groups = self.groups or {str(name): [i] for i, name in enumerate(names)}
        self.report_ = column_effects(X, groups, y, environments, refit=False)
        self.dropped_ = unstable(self.report_, self.level, self.material)
        gone = {int(i) for name in self.dropped_ for i in groups[name]}
        self.kept_ = np.array([i for i in range(X.shape[1]) if i not in gone], dtype=np.int64)
        return self

    def transform(self, X: Any) -> NDArray[Any]:
        check_is_fitted(self)
        found: NDArray[Any] = validate_data(self, X, dtype="numeric", reset=False)[:, self.kept_]
        return found

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        check_is_fitted(self)
        names = getattr(self, "feature_names_in_", input_features)
        names = [f"x{i}" for i in range(self.n_features_in_)] if names is None else names
        return np.asarray(names, dtype=object)[self.kept_]
