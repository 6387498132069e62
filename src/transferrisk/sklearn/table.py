"""Rows of a table as a training set of several environments.

Every environment counts the same, however many rows it has, and within it a row counts by its weight. Where a step
sees all rows, weights see to both. Where it draws from each environment, the draw balances the environments; those
with fewer rows than the mean are repeated, so that an epoch is about as many rows as the table has.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from ..data import EnvironmentSet, filled

Floats = NDArray[np.floating[Any]]
Integers = NDArray[np.integer[Any]]


@dataclass(frozen=True)
class Table:
    """n rows; weights are positive, and None where all are the same."""

    rows: Floats  # (n, d)
    labels: Integers  # (n,) 0..C-1
    environments: Integers  # (n,) 0..E-1
    weights: Floats | None  # (n,)
    names: tuple[str, ...]  # of the environments
    num_classes: int

    def only(self, environments: Integers) -> Table:
        """The rows of these environments, which are numbered anew."""
        chosen = np.isin(self.environments, environments)
        return Table(
            self.rows[chosen],
            self.labels[chosen],
            np.searchsorted(environments, self.environments[chosen]),
            None if self.weights is None else self.weights[chosen],
            tuple(self.names[int(e)] for e in environments),
            self.num_classes,
        )

    def __len__(self) -> int:
        return len(self.rows)


def environment_weights(table: Table, batch_size: int | None) -> Floats | None:
    """See the top; the mean is 1 over all rows, or within each environment where batches are drawn."""
    E = len(table.names)
    counts = np.bincount(table.environments, minlength=E)
    if table.weights is None and (batch_size is not None or (counts == counts[0]).all()):
        return None
    weights = np.ones(len(table)) if table.weights is None else table.weights
    total = np.bincount(table.environments, weights, E)
    wanted = np.full(E, len(table) / E) if batch_size is None else counts
    return np.asarray((wanted / total)[table.environments] * weights)


def training_set(table: Table, batch_size: int | None, dtype: torch.dtype) -> EnvironmentSet:
    weights = environment_weights(table, batch_size)
    data = EnvironmentSet(
        as_tensor(table.rows),
        torch.from_numpy(table.labels),
        torch.from_numpy(table.environments),
        table.names,
        tuple(map(str, range(table.num_classes))),
        weights=None if weights is None else torch.from_numpy(weights).to(dtype),
    )
    if batch_size is None:
        return data
    return filled(data, max(-(-len(table) // len(table.names)), batch_size))


def as_tensor(rows: Floats) -> torch.Tensor:
    """Shared where torch allows it."""
    rows = np.ascontiguousarray(rows)
    return torch.from_numpy(rows if rows.flags.writeable else rows.copy())
