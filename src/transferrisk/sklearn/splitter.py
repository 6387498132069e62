"""`LeaveOneEnvironmentOut`: cross-validation that tests in environments which were not trained on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import BaseCrossValidator
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d

from ..errors import InputError
from ..settings import Count, convert

Integers = NDArray[np.integer[Any]]


class LeaveOneEnvironmentOut(BaseCrossValidator):  # type: ignore[misc]  # scikit-learn has no types
    """Hold out each environment once: train on all others, test on its rows.

    The environment of each row reaches the splitter by metadata routing under the name `environments`, which is also
    what `TransferRiskClassifier.fit` requests, so that one array serves both. Without routing, pass it as `groups`.

    Parameters
    ----------
    max_splits : int or None, default=None
        Number of environments to hold out at most, drawn at random where there are more. None: every environment.
    random_state : int, RandomState, Generator or None, default=0
        Source of the draw; not used where every environment is held out.

    Notes
    -----
    Splits come in the sorted order of the environments that are held out.

    Examples
    --------
    >>> import numpy as np, sklearn
    >>> from sklearn.model_selection import cross_validate
    >>> from transferrisk.sklearn import LeaveOneEnvironmentOut, TransferRiskClassifier
    >>> rng = np.random.default_rng(0)
    >>> site = np.repeat(["east", "north", "west"], 50)
    >>> y = rng.integers(2, size=150)
    >>> X = rng.normal(size=(150, 4)) + y[:, None]
    >>> with sklearn.config_context(enable_metadata_routing=True):
    ...     scores = cross_validate(
    ...         TransferRiskClassifier(random_state=0), X, y, cv=LeaveOneEnvironmentOut(), params={"environments": site}
    ...     )["test_score"]
    >>> len(scores)
    3
    >>> for train, test in LeaveOneEnvironmentOut().split(X, environments=site):
    ...     print(np.unique(site[train]), np.unique(site[test]))
    ['north' 'west'] ['east']
    ['east' 'west'] ['north']
    ['east' 'north'] ['west']
    """

    __metadata_request__split: ClassVar[dict[str, bool]] = {"environments": True}

    def __init__(self, max_splits: int | None = None, *, random_state: Any = 0) -> None:
        self.max_splits = max_splits
        self.random_state = random_state

    def split(
        self, X: Any, y: Any = None, groups: Any = None, environments: Any = None
    ) -> Iterator[tuple[Integers, Integers]]:
        """Positions of the rows to train on and of those to test on, for each environment that is held out."""
        names, index = encode_environments(_given(environments, groups))
        check_consistent_length(X, y, index)
        for held_out in self._held_out(names):
            away = index == held_out
            yield np.flatnonzero(~away), np.flatnonzero(away)

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None, environments: Any = None) -> int:
        """Number of environments that are held out."""
        names, _ = encode_environments(_given(environments, groups))
        return len(self._held_out(names))

    def _held_out(self, names: NDArray[Any]) -> Integers:
        """Numbers of the environments to hold out, ascending."""
        most = convert("max_splits", self.max_splits, Count | None)
        if len(names) < 2:
            raise InputError(f"environments must hold two or more different values, got {names.tolist()}")
        if most is None or most >= len(names):
            return np.arange(len(names))
        state = self.random_state
        if not isinstance(state, np.random.Generator):
            state = check_random_state(state)
        return np.sort(state.permutation(len(names))[:most])


def encode_environments(environments: Any) -> tuple[NDArray[Any], Integers]:
    """The distinct environments (E,), sorted, and the number (n,) of each row's."""
    import pandas as pd

    try:
        index, names = pd.factorize(column_or_1d(environments), sort=True)
    except TypeError:
        raise InputError(
            "environments must all be strings or all be numbers, got values that cannot be sorted"
        ) from None
    if (index < 0).any():
        raise InputError(f"environments must have a value in every row, got none in row {int((index < 0).argmax())}")
    return np.asarray(names), index.astype(np.int64)


def _given(environments: Any, groups: Any) -> Any:
    if environments is None and groups is None:
        raise InputError(
            "environments must be given: pass them by metadata routing "
            "(sklearn.set_config(enable_metadata_routing=True)), or as groups without it"
        )
    return groups if environments is None else environments
