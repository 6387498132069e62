"""The encoding of a table's rows: each column becomes features, with statistics that are kept as JSON.

    numeric      (x - mean) / scale                                         missing: the median
    boolean      0 or 1                                                     missing: the more frequent of the two
    categorical  one 0/1 feature for each category                          missing: a category of its own
    date         (days - mean) / scale, and sine and cosine of the day's place in the year and in the week;
                                                                            missing: the median date

`infer.infer_schema` makes a schema from the rows that a model is fitted on; later tables are encoded by the same one.
Columns that had missing values then also give a 0/1 feature that says where, the missing-value indicator. It can be
left out, since missing values may tell the environment: the most frequent category then stands in for a missing one. A
constant column gives no feature, since nothing can be learnt from it. The label and the environment are never features,
since a model is for new environments.

Trees take the columns themselves: the index of a category in one feature, and nan where a value is missing or a
category is new; see `Form`.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError, counted, listed
from ..settings import convert
from .values import KINDS, Features, Order, Scaling, as_codes, as_days, as_numbers, as_truth, kind_of

if TYPE_CHECKING:
    import pandas as pd

VERSION = 2
Form = Literal["features", "columns", "both"]
"""What rows become: "features" for linear models and networks, "columns" for trees, which take categories whole;
"both" side by side for averages of such models"""
YEAR, WEEK = 365.2425, 7
MONDAY = 4  # the first one of 1970, in days
WAVES = {"sin year": (np.sin, YEAR), "cos year": (np.cos, YEAR), "sin week": (np.sin, WEEK), "cos week": (np.cos, WEEK)}
FEW = 20  # rows; up to so many may all be new, or all differ, by chance


@dataclass(frozen=True)
class Note:
    """A remark on something in a table that its schema had not seen.

    Notes with the same key, as those of parts of a file, can be added.

    count   number of rows
    values  new categories, or the names of columns
    used    what stands in for a missing value; "": nothing, all features of the column are 0
    """

    kind: Literal["missing columns", "unused columns", "unseen categories", "missing values"]
    column: str = ""
    count: int = 0
    values: tuple[str, ...] = ()
    used: str = ""

    @property
    def key(self) -> tuple[str, str]:
        return self.kind, self.column

    def __add__(self, other: Note) -> Note:
        assert self.key == other.key
        values = tuple(dict.fromkeys((*self.values, *other.values)))
        return replace(self, count=self.count + other.count, values=values)

    def __str__(self) -> str:
        if self.kind == "missing columns":
            return f"missing columns, taken as missing values: {listed(map(repr, self.values))}"
        if self.kind == "unused columns":
            return f"columns not used: {listed(map(repr, self.values))}"
        used = f"the {self.used} is used" if self.used else "all its features are 0 there"
        if self.kind == "missing values":
            return (
                f"column {self.column!r} has {counted(self.count, 'missing value')}, where there were none before: "
                f"{used}"
            )
        return (
            f"column {self.column!r} has {counted(self.count, 'row')} with categories not seen before "
            f"({listed(map(repr, self.values), 5)}): {used}"
        )


# ---- columns


class BaseColumn:
    """A column that gives features.

    missing    whether values were missing in the rows of the schema
    indicator  whether a feature says where, in that case
    """

    kind: ClassVar[str]
    name: str
    missing: bool
    indicator: bool

    def encode(self, series: pd.Series, form: Form = "features") -> tuple[dict[str, Features], list[Note]]:
        """Return the features (n,) by name, and notes about values that are new."""
        raise NotImplementedError

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of the features in the form "features"."""
        import pandas as pd

        return tuple(self.encode(pd.Series([], dtype=object))[0])

    @property
    def constant_but_for_missing(self) -> bool:
        """True if no feature but the indicator varied."""
        return not {*self.features} - {f"{self.name} (missing)"}

    def _with_missing(
        self, features: dict[str, Features], absent: NDArray[np.bool_], form: Form, stand_in: str
    ) -> tuple[dict[str, Features], list[Note]]:
        """Return features whose missing values are filled in, and say where they were.

        The form "features" has an indicator, the form "columns" nan. Where no value was missing in the rows of the
        schema, a note tells what stands in.
        """
        if not self.missing:
            number = int(absent.sum())
            return features, [Note("missing values", self.name, number, used=stand_in)] if number else []
        if form == "columns" and features:
            return {name: np.where(absent, np.float32(np.nan), values) for name, values in features.items()}, []
        if form == "columns" or self.indicator:
            features[f"{self.name} (missing)"] = absent.astype(np.float32)
        return features, []


@dataclass(frozen=True)
class Numeric(BaseColumn):
    kind: ClassVar[str] = "numeric"
    name: str
    scaling: Scaling
    missing: bool
    indicator: bool = True
    zeros: float | None = None  # share of the values that were 0; None: not kept

    def encode(self, series: pd.Series, form: Form = "features") -> tuple[dict[str, Features], list[Note]]:
        values = as_numbers(series, self.name)
        absent = np.isnan(values)
        features = {}
        if self.scaling.scale:
            features[self.name] = self.scaling.apply(np.where(absent, self.scaling.median, values), self.name)
        return self._with_missing(features, absent, form, f"median {self.scaling.median:g}")


@dataclass(frozen=True)
class Boolean(BaseColumn):
    kind: ClassVar[str] = "boolean"
    name: str
    usual: bool  # the more frequent value, false where both are as frequent
    constant: bool
    missing: bool
    indicator: bool = True

    def encode(self, series: pd.Series, form: Form = "features") -> tuple[dict[str, Features], list[Note]]:
        values = as_truth(series, self.name)
        absent = np.isnan(values)
        features = {}
        if not self.constant:
            features[self.name] = np.where(absent, float(self.usual), values).astype(np.float32)
        return self._with_missing(features, absent, form, f"more frequent value {self.usual}")


@dataclass(frozen=True)
class Date(BaseColumn):
    kind: ClassVar[str] = "date"
    name: str
    scaling: Scaling
    missing: bool
    indicator: bool = True
    order: Order = ""

    def encode(self, series: pd.Series, form: Form = "features") -> tuple[dict[str, Features], list[Note]]:
        days = as_days(series, self.name, self.order)
        absent = np.isnan(days)
        days = np.where(absent, self.scaling.median, days)
        features = {}
        if self.scaling.scale:
            features[f"{self.name} (days)"] = self.scaling.apply(days, self.name)
        # Trees split the days; and sine and cosine differ between machines in the last digit.
        if self.scaling.scale and form == "features":
            whole = np.floor(days).astype(np.int64)
            year = whole.astype("datetime64[D]").astype("datetime64[Y]").astype("datetime64[D]").astype(np.int64)
            since = {YEAR: whole - year, WEEK: (whole - MONDAY) % WEEK}  # 0 on 1 January, and on a Monday
            for name, (wave, period) in WAVES.items():
                features[f"{self.name} ({name})"] = wave(2 * np.pi * since[period] / period).astype(np.float32)
        return self._with_missing(features, absent, form, "median date")


@dataclass(frozen=True)
class Categorical(BaseColumn):
    """A column of texts, or of other values that are taken as such.

    categories  in order
    other       whether all further values count as one more category
    usual       the most frequent category; of several that are equally frequent, the first
    """

    kind: ClassVar[str] = "categorical"
    name: str
    categories: tuple[str, ...]
    other: bool
    missing: bool
    usual: str
    indicator: bool = True

    @property
    def constant_but_for_missing(self) -> bool:
        return len(self.categories) + self.other < 2

    def encode(self, series: pd.Series, form: Form = "features") -> tuple[dict[str, Features], list[Note]]:
        import pandas as pd

        if kind_of(series) not in KINDS:
            raise InputError(f"column {self.name!r} must hold categories, got {kind_of(series)} values")
        codes, texts = as_codes(series)
        places = np.append(pd.Index(self.categories, dtype=object).get_indexer(texts), -1)[codes]
        absent = codes < 0
        unseen = (places < 0) & ~absent
        if self.other:
            places[unseen] = len(self.categories)
        if form == "columns":
            features = {self.name: np.where(places < 0, np.nan, places).astype(np.float32)}
        else:
            if self.missing and not self.indicator:
                places = np.where(absent, self.categories.index(self.usual), places)
            features = {}
            for place, category in enumerate(self.categories):
                features[f"{self.name}={category}"] = (places == place).astype(np.float32)
            if self.other:
                features[f"{self.name} (other)"] = (places == len(self.categories)).astype(np.float32)
            if self.missing and self.indicator:
                features[f"{self.name} (missing)"] = absent.astype(np.float32)
        stand_in = "branch for missing values" if form == "columns" else ""
        notes = []
        all_new = bool(unseen.any()) and unseen.sum() == (~absent).sum() > FEW
        if all_new or (unseen.any() and not self.other):
            values = tuple(texts[code] for code in np.unique(codes[unseen]))
            used = "feature of rare ones" if self.other else stand_in
            notes.append(Note("unseen categories", self.name, int(unseen.sum()), values, used))
        if not self.missing and absent.any():
            notes.append(Note("missing values", self.name, int(absent.sum()), used=stand_in))
        return features, notes


Column = Numeric | Boolean | Categorical | Date
COLUMNS: dict[str, type[Column]] = {kind.kind: kind for kind in (Numeric, Boolean, Categorical, Date)}


# ---- tables


@dataclass(frozen=True)
class Encoded:
    """Features of a table's rows, and notes about everything in it that the schema had not seen."""

    features: Tensor  # (n, d) float32
    names: tuple[str, ...]  # (d,)
    notes: tuple[Note, ...] = ()
    categorical: tuple[int, ...] = ()  # places of features that hold the index of a category
    places: Mapping[str, int] = field(default_factory=dict)  # column -> place of its first feature


@dataclass(frozen=True)
class Schema:
    """The encoding of a table.

    columns      columns that give features, in the order of the table
    label        name of the column to predict
    environment  name of the column with the environments
    dropped      column -> why it gives no feature
    remarks      column -> remark for its owner about how it is used
    missing      column -> texts that stand for a missing value in it, besides empty cells
    """

    columns: tuple[Column, ...]
    label: str
    environment: str
    dropped: Mapping[str, str] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def without_indicators(self, kept: Collection[str] = ()) -> Self:
        """Return the schema without missing-value indicators, except those of the columns `kept`.

        A column in which nothing else varied is dropped.
        """
        columns, dropped = [], dict(self.dropped)
        for column in self.columns:
            if column.missing and column.name not in kept:
                if column.constant_but_for_missing:
                    dropped[column.name] = "constant but for missing values"
                    continue
                column = replace(column, indicator=False)
            columns.append(column)
        if not columns:
            why = listed(f"{name!r} ({reason})" for name, reason in dropped.items())
            raise InputError(f"no column can be a feature: {why or 'there is none beside label and environment'}")
        return replace(self, columns=tuple(columns), dropped=dropped)

    @property
    def feature_names(self) -> tuple[str, ...]:
        """Names of the features in the form "features", (d,)."""
        return tuple(name for column in self.columns for name in column.features)

    def encode(self, frame: pd.DataFrame, form: Form = "features") -> Encoded:
        """Return the features of a table's rows, whose columns have different names, all of them texts.

        Notes tell which columns are missing, and which are not used.
        """
        import pandas as pd

        if form == "both":
            first, second = self.encode(frame, "features"), self.encode(frame, "columns")
            indices = tuple(len(first.names) + place for place in second.categorical)
            whole = torch.cat([first.features, second.features], 1)
            return Encoded(whole, first.names + second.names, first.notes, indices, first.places)
        given = dict(frame.items())
        nothing = pd.Series([None] * len(frame), dtype=object)
        names: list[str] = []
        categorical: list[int] = []
        for column in self.columns:
            if form == "columns" and isinstance(column, Categorical):
                categorical.append(len(names))
            names += column.features if form == "features" else column.encode(nothing[:0], form)[0]
        features = np.empty((len(frame), len(names)), dtype=np.float32)
        place, places = 0, dict[str, int]()
        absent: list[str] = []
        notes: list[Note] = []
        for column in self.columns:
            series = given.pop(column.name, None)
            encoded, new = column.encode(nothing if series is None else series, form)
            places[column.name] = place
            for values in encoded.values():
                features[:, place] = values
                place += 1
            if series is None:
                absent.append(column.name)
            else:
                notes += new
        for name in (*self.dropped, self.label, self.environment):
            given.pop(name, None)
        if absent:
            notes.insert(0, Note("missing columns", values=tuple(absent)))
        if given:
            notes.insert(0, Note("unused columns", values=tuple(given)))
        return Encoded(torch.from_numpy(features), tuple(names), tuple(notes), tuple(categorical), places)

    def declaration(self) -> dict[str, dict[str, Any]]:
        """Return what `infer.read_declared` reads, without statistics."""
        found: dict[str, dict[str, Any]] = {}
        for column in self.columns:
            found[column.name] = {"kind": column.kind}
            if column.missing:
                found[column.name]["missing_indicator"] = column.indicator
            if isinstance(column, Date) and column.order:
                found[column.name]["dates"] = column.order
            if column.name in self.missing:
                found[column.name]["missing"] = self.missing[column.name]
        return found | {name: {"kind": "drop", "remark": why} for name, why in self.dropped.items()}

    def to_dict(self) -> dict[str, Any]:
        """Return the schema in the types of JSON."""
        columns = [{"kind": column.kind} | asdict(column) for column in self.columns]
        return asdict(self) | {"version": VERSION, "columns": columns}

    @classmethod
    def from_dict(cls, content: Any) -> Self:
        """Return the schema that `to_dict` was called on."""
        columns: list[Column] = []
        try:
            content = convert("schema", content, dict[str, Any])
            version = content.pop("version", None)
            if version != VERSION:
                raise InputError(f"this release reads version {VERSION}, got {version!r}")
            for i, entry in enumerate(convert("columns", content.get("columns"), tuple[dict[str, Any], ...])):
                kind = convert(f"columns[{i}].kind", entry.pop("kind", None), Literal[*COLUMNS])
                column: Column = convert(f"columns[{i}]", entry, COLUMNS[kind])
                if isinstance(column, Categorical):
                    names = column.categories
                    if column.usual not in names or len(set(names)) < len(names):
                        raise InputError(f"categories must be different and hold {column.usual!r}, got {names}")
                columns.append(column)
            schema: Self = convert("schema", {**content, "columns": columns}, cls)
        except InputError as error:
            raise InputError(f"schema was changed or damaged ({error}): fit the model again") from None
        return schema


def columns_by_name(frame: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the columns of a table by name, as text; two columns of one name are an error."""
    found: dict[str, pd.Series] = {}
    for name, series in frame.items():
        if str(name) in found:
            raise InputError(f"two columns are named {str(name)!r}: rename one")
        found[str(name)] = series
    return found
