"""Boosted trees as scikit-learn classifiers: with weighted environments, or with a head that transfers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any, ClassVar, Literal

import numpy as np
import torch
from torch import Tensor

from ..criterion import TransferRisk
from ..errors import InputError, choices
from ..extras import require
from ..functional import optimal_predictor
from ..models import Classifier
from ..models.trees import TreeEnsemble, empty_trees, from_lightgbm, from_scikit_learn, sizes_of
from ..settings import NonNegative, Positive, convert
from ..solvers import Newton
from ..solvers.minimisers import MINIMISERS
from ..training.defaults import SMALL_HEAD
from .baselines import Array, Baseline

SMALL_TREES = {"max_iter": 50, "max_leaf_nodes": 8, "l2_regularization": 5.0, "early_stopping": False}
"""Parameters of HistGradientBoostingClassifier. On twelve tables of 200 to 7200 rows, eleven of them real, the log
loss in held-out environments was 0.51 on average, and 0.61 with its defaults, which took 3.7 times as long."""
TREES_A_ROUND = 10  # grown between two looks at the environments' losses
FEWEST_TO_TRANSFER, MOST_TO_TRANSFER = 50, 2000  # rows of an environment, and of all, by which leaves are scaled
MOST_ENVIRONMENTS = 20  # environments used to learn the scales: the largest ones
MOST_CUTS = 254  # of a column, as scikit-learn's
MOST_CODE = (1 << 16) - 1  # the largest index of a category: each split by categories takes an array of all of them
COMPARED_ROWS, EXACT = (
    300,
    1e-6,
)  # rows and probabilities in which arrays must agree with the library that grew the trees
SCALE_STEPS, SCALE_LR = 10, 0.4  # of Adam on log s, to exp(-4) at the most: few, for speed; others were not compared


class BoostingClassifier(Baseline):
    """Gradient boosting whose trees are stored as arrays.

    With `environments_lr`, the environments are weighted by exponentiated gradient as the trees grow:

        q_e <- q_e exp(environments_lr l_e), normalised,      row i counts q_e n / n_e

    after every ten trees, where l_e is the mean log loss of the trees so far on the n_e rows of environment e. The
    weights start at q_e = n_e / n, at which every row counts the same.

    Parameters
    ----------
    library : {"scikit-learn", "lightgbm"}, default="scikit-learn"
        HistGradientBoostingClassifier, or LightGBM's LGBMClassifier, if it is installed.
    params : dict or None, default=None
        Parameters of that class. Those with which scores would not be sums of leaves, such as LightGBM's
        `linear_tree`, are refused.
    environments_lr : float, default=0.0
        Learning rate of the weights of environments. 0: every row counts the same. Above 0, the library must be
        "scikit-learn".
    categorical : sequence of int, default=()
        Columns of an array that hold the index of a category; all others hold numbers. Categorical columns of a
        DataFrame need not be listed. Missing values are nan, or an index below 0.
    random_state : int or None, default=None
        Random seed.

    Attributes
    ----------
    classes_ : ndarray of shape (C,)
        Labels.
    environment_weights_ : ndarray of shape (E,)
        The last q, of the environments in sorted order.
    model_ : transferrisk.models.Classifier
        Fitted trees.

    Examples
    --------
    >>> import numpy as np
    >>> from transferrisk.sklearn import BoostingClassifier
    >>> rng = np.random.default_rng(0)
    >>> y, site = rng.integers(2, size=150), np.repeat(["A", "B", "C"], 50)
    >>> X = rng.normal(size=(150, 3)) + 2 * y[:, None]
    >>> params = {"max_iter": 20}
    >>> model = BoostingClassifier(environments_lr=0.1, params=params, random_state=0).fit(X, y, environments=site)
    >>> model.environment_weights_.shape
    (3,)
    """

    _takes_gaps = True
    _own_params: ClassVar[Mapping[str, Any]] = MappingProxyType({})  # those of the library where `params` is None

    def __init__(
        self,
        library: Literal["scikit-learn", "lightgbm"] = "scikit-learn",
        *,
        params: Mapping[str, Any] | None = None,
        environments_lr: float = 0.0,
        categorical: Sequence[int] = (),
        random_state: Any = None,
    ) -> None:
        self.library = library
        self.params = params
        self.environments_lr = environments_lr
        self.categorical = categorical
        self.random_state = random_state

    def _validated(self, X: Any, **more: Any) -> Any:
        found = super()._validated(X, **more)
        rows, fitting = found[0] if "y" in more else found, "y" in more
        rows = rows.copy() if len(self.categorical) else rows
        for column in self.categorical:
            if column not in range(rows.shape[1]):
                raise InputError(f"categorical must hold columns among {rows.shape[1]}, counted from 0, got {column!r}")
            rows[rows[:, column] < 0, column] = np.nan
            codes = rows[~np.isnan(rows[:, column]), column]
            wrong = codes[(codes % 1 != 0) | (fitting & (codes > MOST_CODE))]
            if len(wrong):
                raise InputError(
                    f"column {column} must hold whole numbers up to {MOST_CODE}, got {wrong[0]:g}: encode it"
                )
        return (rows, found[1]) if fitting else rows

    def _fitted(self, X: Array, labels: Array, environments: Array) -> Classifier:
        library = convert("library", self.library, Literal["scikit-learn", "lightgbm"])
        convert("params", self.params, Mapping[str, Any] | None)
        if convert("environments_lr", self.environments_lr, NonNegative) and library == "lightgbm":
            raise InputError(f"environments_lr must be 0 with lightgbm, got {self.environments_lr}: use scikit-learn")
        categories: dict[int, list[int]] = {}
        for column in (*self.categorical, *self._categories):
            given = X[:, column]
            categories[column] = np.unique(given[~np.isnan(given)]).astype(int).tolist()
        if library == "lightgbm":
            return self._grow_lightgbm(X.astype(np.float64), labels, categories)
        return self._grow_scikit_learn(X.astype(np.float64), labels, categories, environments)

    def _grow_scikit_learn(
        self, X: Array, labels: Array, categories: Mapping[int, list[int]], environments: Array
    ) -> Classifier:
        from sklearn.ensemble import HistGradientBoostingClassifier
        from threadpoolctl import threadpool_limits

        first, compared = [column for column, seen in categories.items() if seen], _some_rows(X)
        given_rows = X[compared].copy()
        order = [*first, *(column for column in range(X.shape[1]) if column not in categories)]
        if not order:  # nothing but empty columns
            order, X = [0], np.zeros_like(X)
        for column in first:  # values become places among the categories, as scikit-learn encodes them
            given = ~np.isnan(X[:, column])
            X[given, column] = np.searchsorted(categories[column], X[given, column])
        params = {"random_state": self.random_state, **(self._own_params if self.params is None else self.params)}
        names = {*HistGradientBoostingClassifier().get_params()} - {"categorical_features", "warm_start"}
        if order != [*range(X.shape[1])]:
            names -= {"interaction_cst", "monotonic_cst"}  # which refer to columns by their places
        for name in params:
            if name not in names:
                raise InputError(
                    f"params must hold parameters of {self.library}, got {name!r}{choices(name, sorted(names))}"
                )
        weighted, counts = self.environments_lr > 0, np.bincount(environments)
        booster = HistGradientBoostingClassifier(
            categorical_features=range(len(first)) if first else None, warm_start=weighted, **params
        )
        most = booster.max_iter
        # With weighted rows, scikit-learn takes seconds to find weighted quantiles of columns with many values.
        cuts: dict[int, Array] = {}
        for column in order if weighted else ():
            if column not in categories:
                cuts[column] = _cuts(X[:, column])
                X[:, column] = np.where(np.isnan(X[:, column]), np.nan, np.searchsorted(cuts[column], X[:, column]))
        self.environment_weights_ = counts / counts.sum()
        with threadpool_limits(torch.get_num_threads(), "openmp"):
            for trees in (*range(TREES_A_ROUND, most if weighted else 0, TREES_A_ROUND), most):
                shares = self.environment_weights_ * counts.sum() / counts  # q_e n / n_e
                booster.set_params(max_iter=trees).fit(X[:, order], labels, shares[environments] if weighted else None)
                if trees == most:
                    break
                chances = booster.predict_proba(X[:, order])[np.arange(len(X)), labels]
                losses = np.bincount(environments, -np.log(np.maximum(chances, np.finfo(float).tiny))) / counts
                moved = self.environment_weights_ * np.exp(self.environments_lr * (losses - losses.max()))
                self.environment_weights_ = moved / moved.sum()
        model = from_scikit_learn(booster, order, categories, cuts)
        _check_agreement(model, given_rows, booster.predict_proba(X[compared][:, order]))
        return model

    def _grow_lightgbm(self, X: Array, labels: Array, categories: Mapping[int, list[int]]) -> Classifier:
        lightgbm = require("lightgbm", "boosting")
        common = {"random_state": self.random_state, "verbose": -1, "n_jobs": torch.get_num_threads()}
        booster = lightgbm.LGBMClassifier(**common | dict(self.params or {}))
        booster.fit(X, labels, categorical_feature=[*categories] or "auto")
        model = from_lightgbm(booster.booster_.dump_model(), len(self.classes_), categories)
        rows = np.concatenate([X[_some_rows(X)], np.zeros((1, X.shape[1])), np.full((1, X.shape[1]), np.nan)])
        chances = booster.booster_.predict(rows)
        _check_agreement(model, rows, chances if chances.ndim == 2 else np.stack([1 - chances, chances], 1))
        return model


class LeafTransferClassifier(BoostingClassifier):
    """Transfer risk minimisation on the leaves of boosted trees.

    Trees are grown on all rows. The part of a row's scores that comes from splits of column k is a feature z_k; these
    features add up to the scores. A scale s_k in (0, 1] of each is learned by

        minimise over s   min_W l(W; s z) + transfer_weight R(s z)

    where l is the ridge-regularised loss of a linear head and R the transfer risk of the scaled features, both with
    exact gradients: a column that does not transfer between environments loses its scale. Both are computed on up to
    2000 rows of the 20 largest environments, about as many of each. The head is the W that minimises l on all rows at
    the learned scales, and becomes new values of the leaves. Scales are at most 1, since larger features would only
    lower the ridge.

    Environments with fewer than 50 rows are not used to learn the scales. Without two larger ones, the trees stay as
    they are.

    Parameters
    ----------
    transfer_weight : float, default=3.0
        Weight of the transfer risk.
    ridge : float, default=0.01
        Ridge of the head and of the predictors in the transfer risk.
    params : dict or None, default=None
        Parameters of HistGradientBoostingClassifier. None: small trees.
    categorical, random_state
        See `BoostingClassifier`.

    Attributes
    ----------
    classes_ : ndarray of shape (C,)
        Labels.
    scales_ : ndarray of shape (k,)
        Scale s of each column.
    model_ : transferrisk.models.Classifier
        Fitted trees.

    Examples
    --------
    >>> import numpy as np
    >>> from transferrisk.sklearn import LeafTransferClassifier
    >>> rng = np.random.default_rng(0)
    >>> y, site = rng.integers(2, size=150), np.repeat(["A", "B", "C"], 50)
    >>> X = rng.normal(size=(150, 3)) + 2 * y[:, None]
    >>> model = LeafTransferClassifier(params={"max_iter": 20}, random_state=0).fit(X, y, environments=site)
    >>> model.scales_.shape
    (3,)
    """

    _own_params = SMALL_TREES

    def __init__(
        self,
        transfer_weight: float = 3.0,
        ridge: float = 1e-2,
        *,
        params: Mapping[str, Any] | None = None,
        categorical: Sequence[int] = (),
        random_state: Any = None,
    ) -> None:
        super().__init__(params=params, categorical=categorical, random_state=random_state)
        self.transfer_weight = transfer_weight
        self.ridge = ridge

    def _fitted(self, X: Array, labels: Array, environments: Array) -> Classifier:
        ridge = convert("ridge", self.ridge, Positive)
        transfer_weight = convert("transfer_weight", self.transfer_weight, NonNegative)
        model = super()._fitted(X, labels, environments)
        self.scales_ = np.ones(X.shape[1])
        trees, sizes = model.featuriser, sizes_of(model)
        large = np.bincount(environments) >= FEWEST_TO_TRANSFER
        if not isinstance(trees, TreeEnsemble) or sizes is None or large.sum() < 2:
            return model
        shares, said = trees.column_shares(torch.from_numpy(X), X.shape[1])
        centre = said.mean(0)  # (k, S)
        features = said - centre  # (n, k, S)
        y, C = torch.from_numpy(labels), len(self.classes_)
        scale = self._transferred(features, y, torch.from_numpy(environments), ridge, transfer_weight)  # (k,)
        scale = scale.unsqueeze(-1)
        W = optimal_predictor((features * scale).flatten(1), y, C, ridge)
        weight = W[:, :-1].unflatten(1, centre.shape) * scale  # (C, k, S)
        found = empty_trees(replace(sizes, scores=C), C)
        found.featuriser.load_state_dict({**trees.state_dict(), "value": torch.einsum("nks,cks->nc", shares, weight)})
        found.head.bias.copy_(W[:, -1] - (weight * centre).sum((1, 2)))
        self.scales_ = scale.squeeze(-1).numpy()
        return found

    def _transferred(
        self, features: Tensor, labels: Tensor, environments: Tensor, ridge: float, transfer_weight: float
    ) -> Tensor:
        """Learn the scales s, (k,)."""
        C, rows = len(self.classes_), _rows_of_the_largest(environments)
        z, y, e = features[rows], labels[rows], environments[rows]
        logs = torch.zeros(z.shape[1], dtype=z.dtype, requires_grad=True)
        dense = (C - 1) * (z[0].numel() + 1) <= SMALL_HEAD
        solver = MINIMISERS["rough"] if dense else Newton()
        risk = TransferRisk(
            ridge, weights="worst", num_classes=C, solver=solver, implicit="cholesky" if dense else "exact"
        )
        W, mean, square = None, torch.zeros_like(logs), torch.zeros_like(logs)
        for step in range(1, SCALE_STEPS + 1):
            scaled = (z * logs.exp().unsqueeze(-1)).flatten(1)
            # W is held fixed: by the envelope theorem, the gradient of min_W l in s is that of the cross entropy at W,
            # the ridge term being free of s. Each search for it starts at the one before.
            W = optimal_predictor(scaled, y, C, ridge, solver=solver, start=W)
            loss = torch.nn.functional.cross_entropy(scaled @ W[:, :-1].mT + W[:, -1], y)
            (slope,) = torch.autograd.grad(loss + transfer_weight * risk(scaled, y, e, W).risk, logs)
            mean, square = 0.9 * mean + 0.1 * slope, 0.999 * square + 0.001 * slope.square()  # Adam's
            moved = SCALE_LR * mean / (1 - 0.9**step) / ((square / (1 - 0.999**step)).sqrt() + 1e-8)
            logs = (logs.detach() - moved).clamp(max=0).requires_grad_()
        return logs.detach().exp()


def _some_rows(X: Array) -> slice:
    """Return a slice of about `COMPARED_ROWS` evenly spaced rows."""
    return slice(None, None, -(-len(X) // COMPARED_ROWS))


def _check_agreement(model: Classifier, rows: Array, expected: Array) -> None:
    """Refuse trees whose probabilities as arrays differ from those of the library that grew them."""
    off = abs(model(torch.from_numpy(rows)).softmax(1).numpy() - expected).max()
    if not off <= EXACT:
        raise InputError(
            f"params must give trees whose leaves are added up, got probabilities that are {off:.2g} off: leave "
            "out those that change how leaves are combined, or which values are missing"
        )


def _cuts(values: Array) -> Array:
    """Return cuts between the values of a column: halfway between all, or between quantiles if they are many."""
    given = np.unique(values[~np.isnan(values)])
    if len(given) > MOST_CUTS + 1:
        given = np.unique(np.quantile(values[~np.isnan(values)], np.linspace(0, 1, MOST_CUTS + 1), method="nearest"))
    return np.asarray((given[:-1] + given[1:]) / 2)


def _rows_of_the_largest(environments: Tensor) -> Tensor:
    """Draw rows of the largest environments, `MOST_TO_TRANSFER` at most and about as many of each; return places."""
    counts = environments.bincount()
    large = counts.argsort(descending=True, stable=True)[:MOST_ENVIRONMENTS]
    large = large[counts[large] >= FEWEST_TO_TRANSFER]
    each = max(FEWEST_TO_TRANSFER, MOST_TO_TRANSFER // len(large))
    drawn = torch.randperm(len(environments), generator=torch.Generator().manual_seed(0))
    return torch.cat([drawn[environments[drawn] == e][:each] for e in large])
