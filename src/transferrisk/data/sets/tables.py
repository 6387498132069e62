"""table:FILE, the user's own table in CSV, TSV or Parquet: a row a sample, a column each for label and environment.

All other columns become features as `Schema` says, unless `features` names some of them. Missing values of features are
filled in; rows without a label or an environment, or with an infinite number, are errors or left out with `skip_bad`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import torch

from ...errors import DataWarning, InputError, warn
from ..catalogue import DataSet, register
from ..checks import known_name, listed, review_vectors, usable_rows
from ..environments import EnvironmentSet
from ..facts import Facts
from ..inference import infinite
from ..options import Options
from ..root import expanded
from ..schema import Schema
from ..tabular import read_frame, read_header
from ..values import Codes, blank, classes_of

if TYPE_CHECKING:
    import pandas as pd

FACTS = Facts(
    name="table",
    title="your table, CSV, TSV or Parquet: a row a sample, columns for label and environment",
    licence="your own",
    citation="",
)


@dataclass(frozen=True)
class Table:
    """A table as a set of environments, and how new tables are to be encoded for a model of it."""

    data: EnvironmentSet
    schema: Schema


@dataclass(frozen=True)
class Sheet:
    """The usable rows of a table, not encoded yet.

    frame      columns of features, the label's and the environment's
    positions  the rows' places in the file, None where all are used
    """

    frame: pd.DataFrame
    label: str
    environment: str
    labels: Codes  # (n,) index into class_names
    environments: Codes  # (n,) index into environment_names
    class_names: tuple[str, ...]
    environment_names: tuple[str, ...]
    positions: Codes | None

    def encoded(self, schema: Schema) -> EnvironmentSet:
        return EnvironmentSet(
            schema.encode(self.frame).features,
            torch.from_numpy(self.labels),
            torch.from_numpy(self.environments),
            self.environment_names,
            self.class_names,
        )


def read_rows(file: Path | str, asked: Options) -> Sheet:
    """The table in a file, as it is written there."""
    label, environment, features = _columns(file, asked)
    chosen = [*features, *(name for name in (label, environment) if name not in features)]
    frame = read_frame(file, chosen, texts=(label, environment))
    problems = [
        (f"column {name!r} is empty; NA, NaN, null and None count as empty too", blank(frame[name]))
        for name in (label, environment)
    ]
    problems += [(f"column {name!r} is infinite", infinite(frame[name], name)) for name in features]
    rows = usable_rows(problems, file, asked.skip_bad)
    if rows is not None:
        frame = frame.iloc[rows]
    labels, class_names = classes_of(frame[label], label, file, "label")
    environments, environment_names = classes_of(frame[environment], environment, file, "environment")
    return Sheet(frame, label, environment, labels, environments, class_names, environment_names, rows)


def read(file: Path | str, asked: Options) -> Table:
    """The table in a file."""
    sheet = read_rows(file, asked)
    schema = _schema(sheet.frame, sheet.label, sheet.environment, file)
    return Table(review_vectors(sheet.encoded(schema), file, sheet.positions), schema)


def load(file: str, asked: Options) -> EnvironmentSet:
    return read(expanded(file), asked).data


def _columns(file: Path | str, asked: Options) -> tuple[str, str, list[str]]:
    """Names of label, environment and features, all of which the file has."""
    known = read_header(file)
    there = f"{file} has the columns {listed(map(repr, known), 30)}"
    if len(known) < 3:
        raise InputError(
            f"{there}: a label, an environment and a feature are needed, separated by commas in .csv files"
        )
    if asked.label is None or asked.environment is None:
        option = "label" if asked.label is None else "environment"
        raise InputError(f"{there}: say which holds the {option}, with --{option}")
    label = known_name(asked.label, known, file, "column", "label")
    environment = known_name(asked.environment, known, file, "column", "environment")
    if label == environment:
        raise InputError(f"{file}: column {label!r} cannot be both label and environment: name two columns")
    if asked.features is None:
        return label, environment, [name for name in known if name not in (label, environment)]
    names = [asked.features] if asked.features in known else [name.strip() for name in asked.features.split(",")]
    features = [known_name(name, known, file, "column", "features") for name in names]
    for name in features:
        if name in (label, environment) or features.count(name) > 1:
            raise InputError(
                f"{file}: column {name!r} is named twice: a column is a feature, the label or the environment"
            )
    return label, environment, features


def _schema(frame: pd.DataFrame, label: str, environment: str, file: Path | str) -> Schema:
    try:
        schema = Schema.infer(frame, label, environment)
    except InputError as error:
        raise InputError(f"{file}: {error}") from None
    for what, found in (("columns not used", schema.dropped), ("columns to look at", schema.remarks)):
        if found:
            names = listed(f"{name!r} ({why})" for name, why in found.items())
            warn(f"{file}: {what}: {names}", DataWarning)
    return schema


register(DataSet(FACTS, load, takes=frozenset({"label", "environment", "features"}), argument="FILE"))
