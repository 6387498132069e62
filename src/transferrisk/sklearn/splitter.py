"""`LeaveOneEnvironmentOut`: cross-validation that tests in environments not trained on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from sklearn.model_selection import BaseCrossValidator
from sklearn.utils import check_consistent_length, check_random_state, column_or_1d

from ..data.values import in_time
from ..errors import EnvironmentWarning, InputError, describe_values, warn
from ..settings import Count, convert

Integers = NDArray[np.integer[Any]]
MANY = 20  # environments that may be as many as the rows, as in a small example


class LeaveOneEnvironmentOut(BaseCrossValidator):  # type: ignore[misc]  # scikit-learn has no types
    """Cross-validation that holds out each environment once: train on all others, test on its rows.

    The environment of each row is passed by metadata routing as `environments`, which `TransferRiskClassifier.fit`
    requests too. Without routing, pass it as `groups`.

    Parameters
    ----------
    max_splits : int or None, default=None
        Largest number of splits. If there are more environments, each split holds out several, drawn at random, but no
        more than half of them. None: one split for each environment.
    ordered : bool, default=False
        Whether environments are times, such as years. Then each environment from the third on is held out once, with
        training on the earlier ones alone. Numbers are ordered by value, dates by time, and other texts by the numbers
        in them. If there are more than `max_splits`, the last are held out, each by itself.
    random_state : int, RandomState, Generator or None, default=0
        Source of the draw of environments.

    Notes
    -----
    Splits are in the order of the held-out environments: sorted, or by time. The order of splits that hold out several
    is random.

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
    >>> year = np.repeat([2020, 2021, 2022, 2023, 2024], 30)
    >>> for train, test in LeaveOneEnvironmentOut(ordered=True).split(X, environments=year):
    ...     print(np.unique(year[train]), np.unique(year[test]))
    [2020 2021] [2022]
    [2020 2021 2022] [2023]
    [2020 2021 2022 2023] [2024]
    """

    __metadata_request__split: ClassVar[dict[str, bool]] = {"environments": True}

    def __init__(self, max_splits: int | None = None, *, ordered: bool = False, random_state: Any = 0) -> None:
        self.max_splits = max_splits
        self.ordered = ordered
        self.random_state = random_state

    def split(
        self, X: Any, y: Any = None, groups: Any = None, environments: Any = None
    ) -> Iterator[tuple[Integers, Integers]]:
        """Yield the rows to train on and to test on, for each environment, or several, held out.

        Parameters
        ----------
        X
            Rows, (n, d).
        y
            Labels, (n,), which are not used.
        groups, environments
            Environment of each row, (n,), by either name.

        Yields
        ------
        train : ndarray
            Positions of the rows to train on.
        test : ndarray
            Positions of the rows of what is held out.
        """
        names, index = encode_environments(groups if environments is None else environments)
        check_consistent_length(X, y, index)
        if self.ordered and all(isinstance(name, str) for name in names):
            order = in_time(names.tolist())
            index = np.array([order.index(name) for name in names])[index]
        for held_out in self._held_out(names):
            test = np.isin(index, held_out)
            yield np.flatnonzero(index < held_out[0] if self.ordered else ~test), np.flatnonzero(test)

    def get_n_splits(self, X: Any = None, y: Any = None, groups: Any = None, environments: Any = None) -> int:
        """Return the number of splits.

        Parameters
        ----------
        X, y
            Rows and labels, which are not used.
        groups, environments
            Environment of each row, (n,), by either name.

        Returns
        -------
        int
            Number of splits.
        """
        names, _ = encode_environments(groups if environments is None else environments)
        return len(self._held_out(names))

    def _held_out(self, names: NDArray[Any]) -> list[Integers]:
        """Return the places of the environments that each split holds out."""
        most = convert("max_splits", self.max_splits, Count | None)
        if len(names) < (3 if self.ordered else 2):
            least = "three (two to train on before the first that is held out)" if self.ordered else "two"
            raise InputError(f"environments must hold {least} or more different values, got {names.tolist()}")
        places = np.arange(2 if self.ordered else 0, len(names))
        if most is None or most >= len(places):
            return [*places[:, None]]
        if self.ordered:
            return [*places[-most:, None]]
        state = self.random_state
        if not isinstance(state, np.random.Generator):
            state = check_random_state(state)
        fewest = 2 if len(places) > 3 else len(places)  # so that two environments are left to train on
        return [np.sort(part) for part in np.array_split(state.permutation(places), max(most, fewest))[:most]]


def encode_environments(environments: Any) -> tuple[NDArray[Any], Integers]:
    """Return the distinct environments (E,), sorted, and the place (n,) of each row's."""
    import pandas as pd

    if environments is None:
        raise InputError(
            "environments must be given: pass them by metadata routing "
            "(sklearn.set_config(enable_metadata_routing=True)), or as groups without it"
        )
    shape = environments.shape if hasattr(environments, "shape") else np.shape(environments)
    if len(shape) != 1 and shape[1:] != (1,):
        raise InputError(
            f"environments must be an array with one value for each row, got {describe_values(environments)}: give the "
            "values, such as table['site']"
        )
    if isinstance(environments, pd.DataFrame):
        environments = environments.iloc[:, 0]
    if isinstance(environments, pd.Series | pd.Index | pd.api.extensions.ExtensionArray):
        environments = np.asarray(environments)  # scikit-learn would make floats of nullable integers
    try:
        index, names = pd.factorize(column_or_1d(environments), sort=True)
    except TypeError:
        raise InputError(
            "environments must all be strings or all be numbers, got values that cannot be sorted"
        ) from None
    if (index < 0).any():
        raise InputError(f"environments must have a value in every row, got none in row {int((index < 0).argmax())}")
    return np.asarray(names), index.astype(np.int64)


def encode_training_environments(environments: Any, rows: int) -> tuple[NDArray[Any], Integers]:
    """Return `encode_environments` of rows to train on; None: all are of one environment.

    The third argument of most estimators' `fit` is weights of rows. Fractions, which weights are, are refused; there is
    a warning if most rows are environments of their own.
    """
    names, index = encode_environments(["all"] * rows if environments is None else environments)
    check_consistent_length(np.empty(rows), index)
    fractions = [name for name in names.tolist() if isinstance(name, float) and name % 1 != 0]
    if fractions:
        raise InputError(
            f"environments must be strings or integers, got {fractions[0]}: pass weights of rows as sample_weight=, if "
            "the estimator has it, and the environment of each row as environments="
        )
    if len(names) > max(MANY, rows / 2):
        warn(
            f"environments has {len(names)} different values in {rows} rows, so most rows are environments of their "
            "own: pass what groups rows, such as their site, as environments=, and weights of rows as sample_weight=",
            EnvironmentWarning,
        )
    return names, index


def choose_held_out(asked: Any, names: NDArray[Any], seed: int) -> Integers | None:
    """Return the places of the environments to hold out: a number of them, a share, or a list.

    With fewer than three environments, nothing is held out: None, with a warning.
    """
    E = len(names)
    if E < 3:
        warn(
            f"early stopping needs three or more environments, got {E}: none is held out, and training runs to the end",
            EnvironmentWarning,
        )
        return None
    asked = asked.tolist() if isinstance(asked, np.ndarray | np.generic) else asked
    if isinstance(asked, int | float) and not isinstance(asked, bool):
        count = max(1, round(asked * E)) if 0 < asked < 1 else asked
        if count not in range(1, E - 1):
            most = "1" if E == 3 else f"1 to {E - 2}"
            raise InputError(
                f"validation_environments must hold out {most} of {E} environments, so that two are left to train on, "
                f"got {asked!r}"
            )
        return np.sort(np.random.default_rng(seed).permutation(E)[: int(count)])
    if isinstance(asked, str) or not isinstance(asked, Sequence) or not len(asked):
        raise InputError(f"validation_environments must be a number, a share or a list of environments, got {asked!r}")
    values = names.tolist()
    asked = [value.item() if isinstance(value, np.generic) else value for value in asked]
    unknown = [value for value in asked if value not in values]
    if unknown:
        raise InputError(f"validation_environments must be among environments ({values[:10]}), got {unknown[0]!r}")
    chosen = np.unique([values.index(value) for value in asked])
    if len(chosen) > E - 2:
        raise InputError(f"validation_environments must leave two of {E} environments to train on, got {asked!r}")
    return chosen
