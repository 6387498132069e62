"""`DropUnstable`: a transformer that drops columns whose effect on the label differs between environments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from ..auditing.columns import LEVEL, MATERIAL, column_effects, unstable


class DropUnstable(TransformerMixin, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """Drop columns whose effect on the label differs between the environments of the rows in `fit`.

    In a pipeline with metadata routing, it is fitted within each fold.

    Parameters
    ----------
    groups : mapping or None, default=None
        Column -> indices of its features, which are dropped together. None: each feature is a column.
    level, material : float
        See `auditing.columns.unstable`.

    Attributes
    ----------
    dropped_ : tuple of str
        Names of the dropped columns, least stable first.
    kept_ : ndarray of shape (k,)
        Indices of the features that stay.
    report_ : ColumnReport
        Effects of the columns.

    Examples
    --------
    >>> import numpy as np
    >>> from transferrisk.fitting import DropUnstable
    >>> rng = np.random.default_rng(0)
    >>> y, site = rng.integers(2, size=600), np.repeat(["A", "B", "C"], 200)
    >>> turned = np.where(site == "C", -1, 1)
    >>> X = np.c_[y + rng.normal(size=600), turned * (2 * y - 1) + rng.normal(size=600)]
    >>> DropUnstable().fit(X, y, site).dropped_
    ('1',)
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
