"""table:FILE, the user's own table in CSV, TSV or Parquet: a row a sample, a column each for label and environment.

All other columns become features as `Schema` says, unless `features` names some of them. Missing values of features are
filled in; rows without a label or an environment, or with an infinite number, are errors or left out with `skip_bad`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from ...errors import DataWarning, InputError, listed, warn
from ...files import expand_home
from ..catalogue import Options, register_own_files
from ..checks import require_name, review_vectors, usable_rows
from ..columns import is_infinite
from ..environments import EnvironmentSet
from ..schema import Schema
from ..tabular import read_frame, read_header
from ..values import Codes, classes_of, is_blank

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Table:
    """The usable rows of a table, read once. Schema and features are those of these rows, computed once when needed.

    frame      columns of features, the label's and the environment's
    positions  the rows' positions in the file, None where all are used
    """

    file: Path | str
    frame: pd.DataFrame
    label: str
    environment: str
    labels: Codes  # (n,) index into class_names
    environments: Codes  # (n,) index into environment_names
    class_names: tuple[str, ...]
    environment_names: tuple[str, ...]
    positions: Codes | None

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def schema(self) -> Schema:
        """The encoding that these rows, and no others, suggest."""
        try:
            return Schema.infer(self.frame, self.label, self.environment)
        except InputError as error:
            raise InputError(f"{self.file}: {error}") from None

    @cached_property
    def data(self) -> EnvironmentSet:
        """The rows, encoded by their own schema."""
        return self._encode(self.schema)

    def encode(self, schema: Schema) -> EnvironmentSet:
        """The rows, encoded by a schema, which may be that of other rows."""
        return self.data if schema is self.schema else self._encode(schema)

    def _encode(self, schema: Schema) -> EnvironmentSet:
        return EnvironmentSet(
            schema.encode(self.frame).features,
            torch.from_numpy(self.labels),
            torch.from_numpy(self.environments),
            self.environment_names,
            self.class_names,
        )

    def select(self, rows: Tensor) -> Table:
        """The table of these rows, by position; the same table if these are all of them, in their order."""
        if torch.equal(rows, torch.arange(len(self))):
            return self
        chosen = rows.numpy()
        return replace(
            self,
            frame=self.frame.iloc[chosen],
            labels=self.labels[chosen],
            environments=self.environments[chosen],
            positions=chosen if self.positions is None else self.positions[chosen],
        )

    def reviewed(self) -> EnvironmentSet:
        """`data`, if it can be learnt from; warns if environments share rows."""
        return review_vectors(self.data, self.file, self.positions)


def read_table(file: Path | str, options: Options) -> Table:
    """The table in a file, not encoded yet."""
    label, environment, features = _columns(file, options)
    chosen = [*features, *(name for name in (label, environment) if name not in features)]
    frame = read_frame(file, chosen, texts=(label, environment))
    problems = [
        (f"column {name!r} is empty; NA, NaN, null and None count as empty too", is_blank(frame[name]))
        for name in (label, environment)
    ]
    problems += [(f"column {name!r} is infinite", is_infinite(frame[name], name)) for name in features]
    rows = usable_rows(problems, file, options.skip_bad)
    if rows is not None:
        frame = frame.iloc[rows]
    labels, class_names = classes_of(frame[label], label, file, "label")
    environments, environment_names = classes_of(frame[environment], environment, file, "environment")
    return Table(file, frame, label, environment, labels, environments, class_names, environment_names, rows)


def load_table(file: str, options: Options) -> EnvironmentSet:
    table = read_table(expand_home(file), options)
    for what, found in (("columns not used", table.schema.dropped), ("columns to look at", table.schema.remarks)):
        if found:
            names = listed(f"{name!r} ({why})" for name, why in found.items())
            warn(f"{table.file}: {what}: {names}", DataWarning)
    return table.reviewed()


def _columns(file: Path | str, options: Options) -> tuple[str, str, list[str]]:
    """Names of label, environment and features, all of which the file has."""
    header = read_header(file)
    there = f"{file} has the columns {listed(map(repr, header), 30)}"
    if len(header) < 3:
        raise InputError(
            f"{there}: a label, an environment and a feature are needed, separated by commas in .csv files"
        )
    if options.label is None or options.environment is None:
        option = "label" if options.label is None else "environment"
        raise InputError(f"{there}: say which holds the {option}, with --{option}")
    label = require_name(options.label, header, file, "column", "label")
    environment = require_name(options.environment, header, file, "column", "environment")
    if label == environment:
        raise InputError(f"{file}: column {label!r} cannot be both label and environment: name two columns")
    if options.features is None:
        return label, environment, [name for name in header if name not in (label, environment)]
    names = [options.features] if options.features in header else [name.strip() for name in options.features.split(",")]
    features = [require_name(name, header, file, "column", "features") for name in names]
    for name in features:
        if name in (label, environment) or features.count(name) > 1:
            raise InputError(
                f"{file}: column {name!r} is named twice: a column is a feature, the label or the environment"
            )
    return label, environment, features


register_own_files(
    "table",
    "your table, CSV, TSV or Parquet: a row a sample, columns for label and environment",
    load_table,
    takes="label environment features",
)
