"""The data of a fit: a table, embeddings or images, read with a check of how many rows each environment has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from ..auditing.samples import settle_indicators
from ..data import EnvironmentSet, Options, Splits, load_data
from ..data.catalogue import set_name
from ..data.environments import concatenate, large_environments, review_vectors
from ..data.infer import Declared
from ..data.schema import Schema
from ..data.sets.embeddings import find_columns
from ..data.sets.tables import ask_about_columns, read_table
from ..data.splits import retyped
from ..errors import DataWarning, InputError, warn
from ..files import existing_file
from .candidates import stable_schema
from .model import Kind

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Source:
    """Samples to fit a model to, and the names of what they were read from.

    name         name of the data set, as in `trm data list`
    samples      inputs, labels and environments; inputs are images, vectors, or the encoded rows of a table
    label        name of the label; `environment` is that of the environment
    columns      for a file of vectors, the columns or the array that hold them
    frame        for a table, its columns; None: there is no table
    schema       for a table, the encoding of all its rows
    declared     for a table, what the user declared about its columns
    suspects     for a table, column -> values that may mean missing -> where they are
    judged       for a table, its columns with these values missing, by which effects of columns are judged
    """

    name: str
    kind: Kind
    samples: EnvironmentSet
    label: str
    environment: str
    columns: tuple[str, ...] = ()
    frame: pd.DataFrame | None = None
    schema: Schema | None = None
    declared: Declared | None = None
    suspects: Mapping[str, Mapping[float, str]] = field(default_factory=dict)
    judged: pd.DataFrame | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Number of rows of each environment."""
        return dict(zip(self.samples.environment_names, self.samples.group_counts().sum(1).tolist(), strict=True))

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of one input."""
        return tuple(self.samples.inputs[:1].shape[1:])

    def without_unstable(self) -> Source:
        """Return the table without the columns whose effect on the label differs between its environments."""
        if self.schema is None or self.frame is None:
            raise InputError(f"--drop-unstable (drop_unstable in Python) is for tables, got {self.name}: leave it out")
        samples = self.samples
        schema = stable_schema(self.schema, samples.inputs[:], samples.labels.numpy(), samples.environments.numpy())
        return replace(self, schema=schema, samples=replace(samples, inputs=schema.encode(self.frame).features))


def read_source(given: str, options: Options, drop_small: bool | None = False) -> Source:
    """Read the data of a path or a name.

    Environments with few rows are refused, or left out with `drop_small`; None keeps them.
    """
    name = set_name(given, options)
    base, _, argument = name.partition(":")
    if base == "table":
        table = read_table(argument, options)
        if drop_small is not None:  # before anything is inferred from the rows
            large = large_environments(table.sizes, name, drop_small)
            table = table if len(large) == len(table.sizes) else table.only(large)
        schema = settle_indicators(table.schema, table.declared, table.frame, table.labels, table.environments)
        samples = table.encode(schema)
        ask_about_columns(table)
        review_vectors(samples, table.file, table.positions)
        source = Source(name, "table", samples, table.label, table.environment, (), table.frame, schema, table.declared)
        judged = table.without_suspects().frame if table.suspects else table.frame
        return replace(source, suspects=table.suspects, judged=judged)
    data = load_data(name, options)
    if isinstance(data, Splits):
        warn(f"{name}: its training environments are used; its test environment is not", DataWarning)
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
    source = Source(name, kind, data, label, environment, columns)
    if drop_small is not None:
        large = large_environments(source.sizes, name, drop_small)
        source = source if len(large) == len(source.sizes) else replace(source, samples=data.only(large))
    return source
