"""What a model is fitted to: samples with labels and environments, from a file, a folder or a data set by name."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import torch

from ..data import EnvironmentSet, Options, Splits, load_data
from ..data.catalogue import find_set, set_name
from ..data.checks import review_vectors
from ..data.environments import concatenate, retyped
from ..data.schema import Schema
from ..data.sets.embeddings import find_columns
from ..data.sets.tables import read_table
from ..errors import DataWarning, InputError, counted, listed, warn
from ..files import existing_file, expand_home

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["table", "vectors", "images"]
FEWEST = 10  # rows of an environment that can be trained or tested on


@dataclass(frozen=True)
class Source:
    """
    name         the data set, as in `trm data list`
    samples      labels and environments; inputs are images or vectors as they are, of a table its encoded rows
    label        what the label is called, likewise the environment
    columns      of a file of vectors: the columns or the array that hold them
    frame        of a table, its columns; None: there is no table
    schema       of a table, how all its rows were encoded
    """

    name: str
    kind: Kind
    samples: EnvironmentSet
    label: str
    environment: str
    columns: tuple[str, ...] = ()
    frame: pd.DataFrame | None = None
    schema: Schema | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Rows of each environment."""
        return _sizes(self.samples)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return tuple(self.samples.inputs[:1].shape[1:])


def read_source(given: str, options: Options, drop_small: bool = False) -> Source:
    """The data of a path or a name. Environments with few rows are an error, or left out with `drop_small`."""
    name = set_name(given, options)
    base, _, argument = name.partition(":")
    data_set, _ = find_set(name)
    options.refuse_all_but(data_set.takes, name)
    if base == "table":
        return _read_table(name, expand_home(argument), options, drop_small)
    data = load_data(name, options)
    if isinstance(data, Splits):
        warn(f"{name}: its training environments are used, and its test environment is not touched", DataWarning)
        data = concatenate([data.train, retyped(data.training_domain, EnvironmentSet)])
    kind: Kind = "images" if data.inputs[:1].dim() == 4 else "vectors"
    columns: tuple[str, ...] = ()
    label, environment = options.label or "label", options.environment or "environment"
    if base == "npz":
        columns = (options.features or "features",)
        label, environment = options.label or "labels", options.environment or "environments"
    elif base == "parquet":
        found = find_columns(existing_file(argument), options)
        columns, label, environment = found.features, found.label, found.environment
    left = large_enough(data, name, drop_small)
    return Source(name, kind, data if left is None else data.only(left), label, environment, columns)


def _read_table(name: str, path: Path, options: Options, drop_small: bool) -> Source:
    """The table, its schema inferred and its rows encoded once."""
    table = read_table(path, options)
    rows = EnvironmentSet(
        torch.arange(len(table)),
        torch.from_numpy(table.labels),
        torch.from_numpy(table.environments),
        table.environment_names,
        table.class_names,
    )
    left = large_enough(rows, name, drop_small)
    if left is not None:
        table = table.select(rows.only(left).inputs[:])
    data = table.data if left is None else table.data.only(left)
    samples = review_vectors(data, path, table.positions)
    return Source(name, "table", samples, table.label, table.environment, frame=table.frame, schema=table.schema)


def large_enough(samples: EnvironmentSet, name: str, drop_small: bool) -> list[str] | None:
    """Names of the environments that have rows enough; None: all have."""
    sizes = _sizes(samples)
    small = [f"{environment!r} ({counted(size, 'row')})" for environment, size in sizes.items() if size < FEWEST]
    if not small:
        return None
    line = f"{name}: environments must have {FEWEST} rows or more, got {listed(small)}"
    if not drop_small:
        raise InputError(f"{line}: merge them with others, or go on without them with drop_small (--drop-small)")
    left = [environment for environment, size in sizes.items() if size >= FEWEST]
    if len(left) < 2:
        raise InputError(f"{line}; without them {len(left)} would be left, and two are needed: merge some")
    warn(f"{line}; they are left out", DataWarning)
    return left


def _sizes(samples: EnvironmentSet) -> dict[str, int]:
    return dict(zip(samples.environment_names, samples.group_counts().sum(1).tolist(), strict=True))
