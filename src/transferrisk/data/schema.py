"""The way a table's columns become features: inferred from one table, used for every later one, kept as JSON.

The label and the environment are never features: a model is for environments that are not known yet.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Self

import numpy as np
import torch
from torch import Tensor

from ..errors import InputError, listed
from .columns import Boolean, Categorical, Column, Date, Note, Numeric, Scaling, infer_column

if TYPE_CHECKING:
    import pandas as pd

VERSION = 1
KINDS: dict[str, type[Column]] = {kind.kind: kind for kind in (Numeric, Boolean, Categorical, Date)}


@dataclass(frozen=True)
class Encoded:
    """Features of a table, and notes about everything in it that the schema had not seen."""

    features: Tensor  # (n, d) float32
    names: tuple[str, ...]  # (d,)
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True)
class Schema:
    """
    columns      columns that give features, in the order of the table
    label        name of the column to predict
    environment  name of the column with the environments
    dropped      column -> why it gives no feature
    remarks      column -> remark for its owner about how it is used
    """

    columns: tuple[Column, ...]
    label: str
    environment: str
    dropped: Mapping[str, str] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def infer(cls, frame: pd.DataFrame, label: str, environment: str) -> Self:
        """The schema of the table that a model is to be fitted on, with its statistics."""
        if frame.empty:
            raise InputError(f"a table of {len(frame)} rows and {frame.shape[1]} columns has no features: give more")
        columns: list[Column] = []
        dropped, remarks = {}, {}
        for name, series in _series(frame).items():
            if name in (label, environment):
                continue
            column, remark = infer_column(series, name)
            if column is None:
                dropped[name] = remark
                continue
            columns.append(column)
            if remark:
                remarks[name] = remark
        if not columns:
            why = listed(f"{name!r} ({reason})" for name, reason in dropped.items())
            raise InputError(f"no column can be a feature: {why or 'there is none beside label and environment'}")
        return cls(tuple(columns), label, environment, dropped, remarks)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """(d,)"""
        return tuple(name for column in self.columns for name in column.features)

    @property
    def texts(self) -> frozenset[str]:
        """Names of columns to read as they are written, so that 007 stays 007."""
        return frozenset(column.name for column in self.columns if isinstance(column, Categorical))

    def encode(self, frame: pd.DataFrame) -> Encoded:
        """Features of a table's rows. Columns may come in any order, be missing or be too many: the notes say so."""
        import pandas as pd

        given = _series(frame)
        features = np.empty((len(frame), len(self.feature_names)), np.float32)
        notes: list[Note] = []
        start = 0
        nothing = pd.Series([None] * len(frame), dtype=object)
        absent = tuple(column.name for column in self.columns if column.name not in given)
        for column in self.columns:
            encoded, met = column.encode(given.get(column.name, nothing))
            for feature in encoded:
                features[:, start] = feature
                start += 1
            notes += met if column.name in given else []
        expected = {*(column.name for column in self.columns), *self.dropped, self.label, self.environment}
        extra = tuple(name for name in given if name not in expected)
        if absent:
            notes.insert(0, Note("missing columns", values=absent))
        if extra:
            notes.insert(0, Note("unused columns", values=extra))
        return Encoded(torch.from_numpy(features), self.feature_names, tuple(notes))

    def to_dict(self) -> dict[str, Any]:
        """The schema in the types of JSON."""
        return {
            "version": VERSION,
            "label": self.label,
            "environment": self.environment,
            "columns": [{"kind": column.kind} | asdict(column) for column in self.columns],
            "dropped": dict(self.dropped),
            "remarks": dict(self.remarks),
        }

    @classmethod
    def from_dict(cls, content: Mapping[str, Any]) -> Self:
        """The schema `to_dict` was called on."""
        if content.get("version") != VERSION:
            raise InputError(f"schema of version {content.get('version')!r}: this release reads version {VERSION}")
        try:
            columns = tuple(_column(dict(entry)) for entry in content["columns"])
            return cls(
                columns,
                str(content["label"]),
                str(content["environment"]),
                dict(content["dropped"]),
                dict(content["remarks"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(
                f"schema cannot be read ({error!r}): it was changed or damaged; fit the model again"
            ) from None


def _series(frame: pd.DataFrame) -> dict[str, pd.Series]:
    """Columns by name."""
    found: dict[str, pd.Series] = {}
    for i, name in enumerate(map(str, frame.columns)):
        if name in found:
            raise InputError(f"two columns are named {name!r}: rename one")
        found[name] = frame.iloc[:, i]
    return found


def _column(entry: dict[str, Any]) -> Column:
    kind = KINDS[entry.pop("kind")]
    if "scaling" in entry:
        entry["scaling"] = Scaling(**entry["scaling"])
    if "categories" in entry:
        entry["categories"] = tuple(entry["categories"])
    return kind(**entry)
