"""The way a table's columns become features: inferred from one table, used for every later one, kept as JSON.

    numeric      (x - mean) / scale                                         missing: the median
    boolean      0 or 1                                                     missing: the more frequent of the two
    categorical  one 0/1 feature for each category                          missing: a category of its own
    date         (days - mean) / scale, and sine and cosine of the day's place in the year and in the week;
                                                                            missing: the median date

Columns that had missing values when they were inferred also give a 0/1 feature that says where, the missing-value
indicator. It can be left out, since what is missing may tell the environment: then the most frequent category stands in
for a missing one. A feature that was constant is not given, since nothing can be learnt about it.

The owner of a table may say more than its values do, see `Declared`, in a file of JSON such as `trm fit` writes, with
an entry for each column:

    {
      "age":    {"kind": "numeric", "missing_indicator": false},
      "ward":   {"kind": "categorical"},
      "number": {"kind": "drop", "remark": "it counts the rows"}
    }

kind is numeric, categorical, boolean, date or drop; missing_indicator is true or false; remark is for people. All of
them may be left out, and so may columns: what is not said is inferred. Statistics always come from the rows.

Trees take the columns themselves: the index of a category in one feature, and nan where a value is missing or a
category was not there before; see `Form`. The label and the environment are never features, since a
model is for new environments.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..errors import InputError, choices, counted, listed
from ..files import existing_file
from ..settings import convert
from .values import (
    KINDS,
    MANY,
    PERCENT,
    Features,
    Floats,
    Scaling,
    as_codes,
    as_days,
    as_numbers,
    as_truth,
    is_blank,
    is_number,
    kind_of,
)

if TYPE_CHECKING:
    import pandas as pd

VERSION = 2
Kind = Literal["numeric", "categorical", "boolean", "date", "drop"]
Indicators = Literal["auto", "always", "never"]
Form = Literal["features", "columns", "both"]
"""What rows become: "features" for linear models and networks, "columns" for trees, which take categories whole;
"both" side by side for averages of such models"""
YEAR, WEEK = 365.2425, 7
MONDAY = 4  # the first one of 1970, in days
WAVES = {"sin year": (np.sin, YEAR), "cos year": (np.cos, YEAR), "sin week": (np.sin, WEEK), "cos week": (np.cos, WEEK)}

KEPT = MANY - 1  # categories of a column with more than MANY; the rest counts as one
FEW = 20  # rows; in no more than these, whole numbers may all differ by chance
MOSTLY = 0.9  # share of numbers from which a text among them is worth a word
IDENTIFIER = re.compile(r"\s*(.*id|index|key|nr|number)\s*", re.IGNORECASE)  # names of columns that name rows
ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]|$)")
OTHER_FORMS = {  # of texts, all of which have one: what to write in its place
    "numbers with decimal commas, taken as texts: write 0.52 for 0,52": re.compile(r"\s*[-+]?\d+,\d+\s*"),
    "dates that may be read in two ways, taken as texts: write 2024-05-31": re.compile(
        r"\s*(\d{1,2}[./-]\d{1,2}[./-](\d{4}|\d{2}))([T ].*)?"
    ),
}


@dataclass(frozen=True)
class Declared:
    """What is said about columns; all else is inferred from the rows.

    kinds       column -> what it is taken as, whatever its values suggest
    indicators  column -> whether it has a missing-value indicator
    others      whether other columns have one: "never", "always", or "auto" where `settle_indicators` of auditing
                finds that they help in held-out environments; a schema that is inferred has them until then
    """

    kinds: Mapping[str, Kind] = field(default_factory=dict)
    indicators: Mapping[str, bool] = field(default_factory=dict)
    others: Indicators = "auto"


ENTRY: dict[str, Any] = {"kind": Kind, "missing_indicator": bool, "remark": str}


def read_declared(file: Path | str) -> Declared:
    """Read what a file of JSON says about columns; the module says how it is written."""
    path = existing_file(file)
    try:
        content = json.loads(path.read_bytes())
    except ValueError as error:
        raise InputError(f"{path} is not JSON ({error}): correct the file") from None
    example = 'an object such as {"kind": "numeric"} for each column'
    if not isinstance(content, dict):
        raise InputError(f"{path} must hold {example}, got a {type(content).__name__}")
    for name, entry in content.items():
        if not isinstance(entry, dict):
            raise InputError(f"{path} must hold {example}, got {json.dumps(entry)[:50]} for {name!r}")
        for key, value in entry.items():
            if key not in ENTRY:
                raise InputError(f"{path}: unknown key {key!r} of column {name!r}{choices(key, ENTRY)}")
            convert(f"{path}: {key} of column {name!r}", value, ENTRY[key])
    said = {key: {name: entry[key] for name, entry in content.items() if key in entry} for key in ENTRY}
    return Declared(said["kind"], said["missing_indicator"])


@dataclass(frozen=True)
class Note:
    """Something in a table that its schema had not seen. Notes with one key, as of chunks of a file, can be added.

    count   number of rows
    values  categories not seen before, or the names of columns
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


class BaseColumn:
    """A column that gives features.

    missing    whether values were missing when it was inferred
    indicator  whether a feature says where, in that case
    """

    kind: ClassVar[str]
    name: str
    missing: bool
    indicator: bool

    def encode(self, series: pd.Series) -> tuple[dict[str, Features], list[Note]]:
        """Return the features (n,) by name, the indicator among them, and notes about all that was not there before."""
        raise NotImplementedError

    def names(self, form: Form) -> tuple[str, ...]:
        """Names of the features in a form."""
        import pandas as pd

        features, _ = self.encode(pd.Series([], dtype=object))
        return tuple(self.as_columns(features) if form == "columns" else self.as_features(features))

    @cached_property
    def features(self) -> tuple[str, ...]:
        """Names of the features in the form "features"."""
        return self.names("features")

    @property
    def constant_but_for_missing(self) -> bool:
        """Whether nothing but the indicator varied."""
        return not {*self.features} - {f"{self.name} (missing)"}

    def as_features(self, features: dict[str, Features]) -> dict[str, Features]:
        """The features in the form "features"."""
        if not self.indicator:
            features.pop(f"{self.name} (missing)", None)
        return features

    def as_columns(self, features: dict[str, Features]) -> dict[str, Features]:
        """The features in the form "columns": nan where a value is missing, in place of a feature that says so."""
        absent = features.pop(f"{self.name} (missing)", None)
        if isinstance(self, Date):  # trees split the days; sine and cosine differ between machines in the last digit
            features = dict(list(features.items())[:1])
        if absent is None:
            return features
        return {name: np.where(absent > 0, np.float32(np.nan), values) for name, values in features.items()} or {
            f"{self.name} (missing)": absent
        }

    def _with_indicator(
        self, features: dict[str, Features], absent: NDArray[np.bool_], stand_in: str = ""
    ) -> tuple[dict[str, Features], list[Note]]:
        if self.missing:
            return features | {f"{self.name} (missing)": absent.astype(np.float32)}, []
        number = int(absent.sum())
        return features, [Note("missing values", self.name, number, used=stand_in)] if number else []


@dataclass(frozen=True)
class Numeric(BaseColumn):
    kind: ClassVar[str] = "numeric"
    name: str
    scaling: Scaling
    missing: bool
    indicator: bool = True
    zeros: float | None = None  # share of the values that were 0; None: not kept

    def encode(self, series: pd.Series) -> tuple[dict[str, Features], list[Note]]:
        values = as_numbers(series, self.name)
        absent = np.isnan(values)
        features = {}
        if self.scaling.scale:
            features[self.name] = self.scaling.apply(np.where(absent, self.scaling.median, values), self.name)
        return self._with_indicator(features, absent, f"median {self.scaling.median:g}")


@dataclass(frozen=True)
class Boolean(BaseColumn):
    kind: ClassVar[str] = "boolean"
    name: str
    usual: bool  # the more frequent value, false where both are as frequent
    constant: bool
    missing: bool
    indicator: bool = True

    def encode(self, series: pd.Series) -> tuple[dict[str, Features], list[Note]]:
        values = as_truth(series, self.name)
        absent = np.isnan(values)
        features = {}
        if not self.constant:
            features[self.name] = np.where(absent, float(self.usual), values).astype(np.float32)
        return self._with_indicator(features, absent, f"more frequent value {self.usual}")


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

    def as_features(self, features: dict[str, Features]) -> dict[str, Features]:
        """The features; without an indicator, the usual category stands in where one is missing."""
        if self.missing and not self.indicator:
            features[f"{self.name}={self.usual}"] += features.pop(f"{self.name} (missing)")
        return features

    def as_columns(self, features: dict[str, Features]) -> dict[str, Features]:
        """The place of the category, `other` being the last; nan where it is missing or was not there before."""
        features.pop(f"{self.name} (missing)", None)
        one_hot = np.stack([*features.values()])
        return {self.name: np.where(one_hot.any(0), one_hot.argmax(0), np.nan).astype(np.float32)}

    def encode(self, series: pd.Series) -> tuple[dict[str, Features], list[Note]]:
        import pandas as pd

        if kind_of(series) not in KINDS:
            raise InputError(f"column {self.name!r} must hold categories, got {kind_of(series)} values")
        codes, texts = as_codes(series)
        absent = codes < 0
        places = np.append(pd.Index(self.categories, dtype=object).get_indexer(texts), -1)[codes]
        unseen = (places < 0) & ~absent
        features = {}
        for i, category in enumerate(self.categories):
            features[f"{self.name}={category}"] = (places == i).astype(np.float32)
        if self.other:
            features[f"{self.name} (other)"] = unseen.astype(np.float32)
        features, notes = self._with_indicator(features, absent)
        all_new = bool(unseen.any()) and unseen.sum() == (~absent).sum() > FEW
        if all_new or (unseen.any() and not self.other):
            values = tuple(texts[code] for code in np.unique(codes[unseen]))
            used = "feature of rare ones" if self.other else ""
            notes.insert(0, Note("unseen categories", self.name, int(unseen.sum()), values, used))
        return features, notes


@dataclass(frozen=True)
class Date(BaseColumn):
    kind: ClassVar[str] = "date"
    name: str
    scaling: Scaling
    missing: bool
    indicator: bool = True

    def encode(self, series: pd.Series) -> tuple[dict[str, Features], list[Note]]:
        days = as_days(series, self.name)
        absent = np.isnan(days)
        days = np.where(absent, self.scaling.median, days)
        features = {}
        if self.scaling.scale:
            features[f"{self.name} (days)"] = self.scaling.apply(days, self.name)
            whole = np.floor(days).astype(np.int64)
            year = whole.astype("datetime64[D]").astype("datetime64[Y]").astype("datetime64[D]").astype(np.int64)
            since = {YEAR: whole - year, WEEK: (whole - MONDAY) % WEEK}  # 0 on 1 January, and on a Monday
            for name, (wave, period) in WAVES.items():
                features[f"{self.name} ({name})"] = wave(2 * np.pi * since[period] / period).astype(np.float32)
        return self._with_indicator(features, absent, "median date")


def infer_column(series: pd.Series, name: str, said: Kind | None = None) -> tuple[Column | None, str]:
    """Return the column and a remark for its owner, or ""; None and the reason if it cannot be a feature.

    said  the kind it is taken as; None: its values decide
    """
    if said == "drop":
        return None, "left out as asked"
    kind = {None: kind_of(series), "categorical": "text"}.get(said, said)
    absent = is_blank(series)
    missing = bool(absent.any())
    if absent.all():
        return None, "every value is missing"
    if kind == "numeric":
        return _infer_numeric(series, name, absent, said is not None)
    if kind == "boolean":
        values = as_truth(series, name)
        true, false = int((values == 1).sum()), int((values == 0).sum())
        if not missing and not (true and false):
            return None, "constant"
        return Boolean(name, true > false, not (true and false), missing), ""
    if kind == "date":
        return _infer_date(as_days(series, name), name, missing)
    if kind == "text":
        return _infer_text(series, name, missing, said is not None)
    return None, f"it holds {kind} values"


def _infer_numeric(series: pd.Series, name: str, absent: NDArray[np.bool_], said: bool) -> tuple[Column | None, str]:
    values, missing = as_numbers(series, name), bool(absent.any())
    if np.isinf(values).any():
        row = int(np.isinf(values).argmax())
        raise InputError(f"column {name!r} has {values[row]} in row {row + 1}, which is not a number: correct the file")
    column = Numeric(name, Scaling.of(values), missing, zeros=float((values[~absent] == 0).mean()))
    if not column.scaling.scale and not missing:
        return None, "constant"
    if said:
        return column, ""
    with np.errstate(over="ignore"):
        steps = np.diff(values)
    if len(values) > MANY and (steps == 1).all():
        return None, "it counts the rows"
    given = series[~absent]  # as it was read: long identifiers differ in digits that a float does not hold
    if len(given) <= FEW or not given.is_unique or (values[~absent] % 1 != 0).any():
        return column, ""
    if IDENTIFIER.fullmatch(name) and (given.is_monotonic_increasing or given.is_monotonic_decreasing):
        return None, "an identifier by its name, with another number in order in every row"
    return column, "whole numbers, another one in every row: leave it out if they only name the rows"


def _infer_date(days: Floats, name: str, missing: bool) -> tuple[Column | None, str]:
    scaling = Scaling.of(days)
    return (Date(name, scaling, missing), "") if scaling.scale or missing else (None, "constant")


def _infer_text(series: pd.Series, name: str, missing: bool, said: bool) -> tuple[Column | None, str]:
    if kind_of(series) not in KINDS:
        raise InputError(f"column {name!r} must hold categories, got {kind_of(series)} values")
    codes, texts = as_codes(series, ordered=True)
    if not said and all(map(ISO_DATE.match, texts)):
        with suppress(InputError):
            return _infer_date(as_days(series, name), name, missing)
    if not said and all(map(PERCENT.fullmatch, texts)):
        return _infer_numeric(series, name, codes < 0, said)
    if len(texts) == 1 and not missing:
        return None, "constant"
    counts = np.bincount(codes[codes >= 0], minlength=len(texts))
    numeric = np.fromiter(map(is_number, texts), bool) & (not said)
    remark = next((way for way, form in OTHER_FORMS.items() if not said and all(map(form.fullmatch, texts))), "")
    if not remark and numeric.all():
        remark = "numbers written as texts" if len(texts) > MANY else ""
    elif not remark and counts[numeric].sum() >= MOSTLY * counts.sum():
        row = int((~np.append(numeric, True)[codes]).argmax())
        remark = f"numbers but for {texts[codes[row]]!r} in row {row + 1}"
    if not said and len(texts) > MANY and len(texts) > counts.sum() / 2:
        return None, f"{len(texts)} different texts in {counts.sum()} rows{remark and ', '}{remark}"
    usual = texts[counts.argmax()]
    if len(texts) <= MANY:
        return Categorical(name, texts, False, missing, usual), remark and f"{remark}, and is taken as categories"
    most = np.sort(np.argsort(-counts, kind="stable")[:KEPT])  # of equally frequent ones, the first
    pooled = f"{len(texts)} categories: all but the {KEPT} most frequent count as one"
    kept = tuple(texts[i] for i in most)
    return Categorical(name, kept, True, missing, usual), f"{remark}{remark and '; '}{pooled}"


Column = Numeric | Boolean | Categorical | Date
COLUMNS: dict[str, type[Column]] = {kind.kind: kind for kind in (Numeric, Boolean, Categorical, Date)}


@dataclass(frozen=True)
class Encoded:
    """Features of a table, and notes about everything in it that the schema had not seen."""

    features: Tensor  # (n, d) float32
    names: tuple[str, ...]  # (d,)
    notes: tuple[Note, ...] = ()
    categorical: tuple[int, ...] = ()  # places of features that hold the index of a category


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
    def infer(cls, frame: pd.DataFrame, label: str, environment: str, declared: Declared | None = None) -> Self:
        """Return the schema of the table that a model is to be fitted on, with its statistics."""
        declared = declared or Declared()
        if frame.empty:
            raise InputError(f"a table of {len(frame)} rows and {frame.shape[1]} columns has no features: give more")
        columns: list[Column] = []
        kept, dropped, remarks = [], {}, {}
        for name, series in _columns_by_name(frame).items():
            if name in (label, environment):
                continue
            column, remark = infer_column(series, name, declared.kinds.get(name))
            if column is None:
                dropped[name] = remark
                continue
            columns.append(column)
            if remark:
                remarks[name] = remark
            if declared.indicators.get(name, declared.others != "never"):
                kept.append(name)
        return cls(tuple(columns), label, environment, dropped, remarks).without_indicators(kept)

    def without_indicators(self, kept: Collection[str] = ()) -> Self:
        """Return the schema without missing-value indicators, but for those of the columns that are kept.

        A column that nothing else varied in is dropped.
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

    def names_by_column(self, form: Form = "features") -> list[tuple[str, ...]]:
        """Names of the features that each column gives."""
        return [column.features if form == "features" else column.names(form) for column in self.columns]

    @property
    def feature_names(self) -> tuple[str, ...]:
        """(d,)"""
        return tuple(chain.from_iterable(self.names_by_column()))

    def encode(self, frame: pd.DataFrame, form: Form = "features") -> Encoded:
        """Return the features of a table's rows; notes tell which columns were missing, and which were too many."""
        import pandas as pd

        if form == "both":
            first, second = self.encode(frame, "features"), self.encode(frame, "columns")
            places = tuple(len(first.names) + place for place in second.categorical)
            whole = torch.cat([first.features, second.features], 1)
            return Encoded(whole, first.names + second.names, first.notes, places)
        given = _columns_by_name(frame)
        nothing = pd.Series([None] * len(frame), dtype=object)
        names = tuple(chain.from_iterable(self.names_by_column(form)))
        features = np.empty((len(frame), len(names)), dtype=np.float32)
        categorical: list[int] = []
        place = 0
        absent: list[str] = []
        notes: list[Note] = []
        for column in self.columns:
            series = given.pop(column.name, None)
            encoded, met = column.encode(nothing if series is None else series)
            encoded = column.as_columns(encoded) if form == "columns" else column.as_features(encoded)
            if form == "columns":
                met = [replace(one, used=one.used or "branch for missing values") for one in met]
                categorical += [place] if isinstance(column, Categorical) else []
            for values in encoded.values():
                features[:, place] = values
                place += 1
            if series is None:
                absent.append(column.name)
            else:
                notes += met
        for name in (*self.dropped, self.label, self.environment):
            given.pop(name, None)
        if absent:
            notes.insert(0, Note("missing columns", values=tuple(absent)))
        if given:
            notes.insert(0, Note("unused columns", values=tuple(given)))
        return Encoded(torch.from_numpy(features), names, tuple(notes), tuple(categorical))

    def declaration(self) -> dict[str, dict[str, Any]]:
        """Return what `read_declared` reads: kinds and indicators, without statistics."""
        found: dict[str, dict[str, Any]] = {}
        for column in self.columns:
            found[column.name] = {"kind": column.kind}
            if column.missing:
                found[column.name]["missing_indicator"] = column.indicator
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
            if content.get("version") != VERSION:
                raise InputError(f"this release reads version {VERSION}, got {content.get('version')!r}")
            for i, entry in enumerate(convert("columns", content.get("columns"), tuple[dict[str, Any], ...])):
                kind = convert(f"columns[{i}].kind", entry.pop("kind", None), Literal[*COLUMNS])
                column: Column = convert(f"columns[{i}]", entry, COLUMNS[kind])
                if isinstance(column, Categorical):
                    names = column.categories
                    if column.usual not in names or len(set(names)) < len(names):
                        raise InputError(f"categories must be different and hold {column.usual!r}, got {names}")
                columns.append(column)
            rest = {key: value for key, value in content.items() if key != "version"}
            schema: Self = convert("schema", {**rest, "columns": columns}, cls)
        except InputError as error:
            raise InputError(f"schema was changed or damaged ({error}): fit the model again") from None
        return schema


def _columns_by_name(frame: pd.DataFrame) -> dict[str, pd.Series]:
    found: dict[str, pd.Series] = {}
    for name, series in frame.items():
        if str(name) in found:
            raise InputError(f"two columns are named {str(name)!r}: rename one")
        found[str(name)] = series
    return found
