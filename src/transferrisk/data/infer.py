"""What the columns of a table are, inferred from their values unless their owner declares it.

    numeric      numbers, durations (in days), percentages
    boolean      true and false
    categorical  texts with at most `MANY` different values; with more, the most frequent ones, if they repeat
    date         dates, and texts that are ISO 8601; also 31/05/2024, where the column tells day from month

A column is left out, with the reason, if nothing can be learnt from it: it is constant or empty, counts the rows, or
differs in nearly every row as names do. Statistics, such as means and categories, come from the same rows.

The owner of a table declares columns in a file of JSON such as `trm fit` writes, with an entry for each of them:

    {
      "age":    {"kind": "numeric", "missing_indicator": false, "missing": ["unknown", "-999"]},
      "ward":   {"kind": "categorical"},
      "number": {"kind": "drop", "remark": "it counts the rows"}
    }

kind is numeric, categorical, boolean, date or drop; missing_indicator is true or false; missing lists texts and numbers
that stand for a missing value; dates is day-first or month-first; remark is for people. Every key and every column may
be left out: it is inferred then.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError, choices, listed
from ..files import existing_file
from ..settings import convert
from .schema import FEW, Boolean, Categorical, Column, Date, Numeric, Schema, columns_by_name
from .values import (
    DAY_MONTH_YEAR,
    KINDS,
    MANY,
    PERCENT,
    Codes,
    Floats,
    Order,
    Scaling,
    as_codes,
    as_days,
    as_numbers,
    as_text,
    as_truth,
    is_blank,
    is_number,
    kind_of,
    orders_of_dates,
)

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["numeric", "categorical", "boolean", "date", "drop"]
Indicators = Literal["auto", "always", "never"]

KEPT = MANY - 1  # categories of a column with more than MANY; all others count as one
FEW_TEXTS, MANY_NUMBERS = 3, 10  # different ones, of a column of numbers in which texts may mean missing
MOSTLY = 0.9  # share of numbers in a column from which the texts among them are worth a remark
IDENTIFIER = re.compile(r"\s*(.*id|index|key|nr|number)\s*", re.IGNORECASE)  # names of columns that name rows
ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]|$)")
OTHER_FORMS = {  # of texts, all of which have one: what to write in its place
    "numbers with decimal commas, taken as texts: write 0.52 for 0,52": re.compile(r"\s*[-+]?\d+,\d+\s*"),
    "dates that are not read as such, taken as texts: write 2024-05-31": re.compile(
        r"\s*(\d{1,2}[./-]\d{1,2}[./-](\d{4}|\d{2}))([T ].*)?"
    ),
}
ENTRY: dict[str, Any] = {
    "kind": Kind, "missing_indicator": bool, "missing": tuple[str | int | float, ...],
    "dates": Literal["day-first", "month-first"], "remark": str,
}  # fmt: skip
"""Key of a column's declaration -> what it may hold."""


@dataclass(frozen=True)
class Declared:
    """Declarations about columns; everything else is inferred.

    kinds       column -> its kind, whatever its values suggest
    indicators  column -> whether it has a missing-value indicator
    others      whether other columns have one: "never", "always", or "auto" where `settle_indicators` of auditing
                finds that they help in held-out environments; an inferred schema has them until then
    missing     column -> texts that stand for a missing value in it, besides empty cells
    orders      column of dates that are not ISO 8601 -> their order
    """

    kinds: Mapping[str, Kind] = field(default_factory=dict)
    indicators: Mapping[str, bool] = field(default_factory=dict)
    others: Indicators = "auto"
    missing: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    orders: Mapping[str, Order] = field(default_factory=dict)


def read_declared(file: Path | str) -> Declared:
    """Read declarations about columns from a file of JSON, whose form is described at the top of this module."""
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
            entry[key] = convert(f"{path}: {key} of column {name!r}", value, ENTRY[key])
    by_key = {key: {name: entry[key] for name, entry in content.items() if key in entry} for key in ENTRY}
    missing = {name: tuple(map(as_text, codes)) for name, codes in by_key["missing"].items()}
    return Declared(by_key["kind"], by_key["missing_indicator"], missing=missing, orders=by_key["dates"])


def infer_schema(frame: pd.DataFrame, label: str, environment: str, declared: Declared | None = None) -> Schema:
    """Return the schema of the table that a model is to be fitted on, with its statistics."""
    declared = declared or Declared()
    if frame.empty:
        raise InputError(f"a table of {len(frame)} rows and {frame.shape[1]} columns has no features: give more")
    columns: list[Column] = []
    with_indicator, dropped, remarks = [], {}, {}
    for name, series in columns_by_name(frame).items():
        if name in (label, environment):
            continue
        column, remark = infer_column(series, name, declared.kinds.get(name))
        if column is None:
            dropped[name] = remark
            continue
        if isinstance(column, Date) and name in declared.orders:
            column = replace(column, order=declared.orders[name])
        columns.append(column)
        if remark:
            remarks[name] = remark
        if declared.indicators.get(name, declared.others != "never"):
            with_indicator.append(name)
    missing = dict(declared.missing)
    for name in dropped:
        missing.pop(name, None)
    schema = Schema(tuple(columns), label, environment, dropped, remarks, missing)
    return schema.without_indicators(with_indicator)


def infer_column(series: pd.Series, name: str, declared: Kind | None = None) -> tuple[Column | None, str]:
    """Return the column and a remark for its owner, or ""; None and the reason if it cannot be a feature."""
    if declared == "drop":
        return None, "left out as asked"
    kind = {None: kind_of(series), "categorical": "text"}.get(declared, declared)
    absent = is_blank(series)
    missing = bool(absent.any())
    if absent.all():
        return None, "every value is missing"
    if kind == "numeric":
        return _infer_numeric(series, name, absent, declared is not None)
    if kind == "boolean":
        values = as_truth(series, name)
        true, false = int((values == 1).sum()), int((values == 0).sum())
        if not missing and not (true and false):
            return None, "constant"
        return Boolean(name, true > false, not (true and false), missing), ""
    if kind == "date":
        return _infer_date(as_days(series, name), name, missing)
    if kind == "text":
        return _infer_text(series, name, missing, declared is not None)
    return None, f"it holds {kind} values"


def _infer_numeric(
    series: pd.Series, name: str, absent: NDArray[np.bool_], declared: bool
) -> tuple[Column | None, str]:
    values, missing = as_numbers(series, name), bool(absent.any())
    if np.isinf(values).any():
        row = int(np.isinf(values).argmax())
        raise InputError(f"column {name!r} has {values[row]} in row {row + 1}, which is not a number: correct the file")
    column = Numeric(name, Scaling.of(values), missing, zeros=float((values[~absent] == 0).mean()))
    if not column.scaling.scale and not missing:
        return None, "constant"
    if declared:
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


def _infer_text(series: pd.Series, name: str, missing: bool, declared: bool) -> tuple[Column | None, str]:
    if kind_of(series) not in KINDS:
        raise InputError(f"column {name!r} must hold categories, got {kind_of(series)} values")
    codes, texts = as_codes(series, ordered=True)
    if not declared and all(map(ISO_DATE.match, texts)):
        with suppress(InputError):
            return _infer_date(as_days(series, name), name, missing)
    if not declared and all(map(PERCENT.fullmatch, texts)):
        return _infer_numeric(series, name, codes < 0, declared)
    if len(texts) == 1 and not missing:
        return None, "constant"
    counts = np.bincount(codes[codes >= 0], minlength=len(texts))
    remark = "" if declared else _remark_on_texts(texts, codes, counts)
    if not declared and len(texts) > MANY and len(texts) > counts.sum() / 2:
        return None, f"{len(texts)} different texts in {counts.sum()} rows{remark and ', '}{remark}"
    usual = texts[counts.argmax()]
    if len(texts) <= MANY:
        return Categorical(name, texts, False, missing, usual), remark and f"{remark}, and is taken as categories"
    most = np.sort(np.argsort(-counts, kind="stable")[:KEPT])  # of equally frequent ones, the first
    pooled = f"{len(texts)} categories: all but the {KEPT} most frequent count as one"
    kept = tuple(texts[i] for i in most)
    return Categorical(name, kept, True, missing, usual), f"{remark}{remark and '; '}{pooled}"


def _remark_on_texts(texts: Sequence[str], codes: Codes, counts: Codes) -> str:
    """Return a remark on texts that may have been meant as numbers or dates, or ""."""
    if all(map(DAY_MONTH_YEAR.fullmatch, texts)):
        orders = len(orders_of_dates(texts))
        if orders == 2:
            return "dates, none of which tells day from month: add --dates day-first or --dates month-first"
        if not orders:
            return "dates in two orders of day and month: write 2024-05-31"
    for remark, form in OTHER_FORMS.items():
        if all(map(form.fullmatch, texts)):
            return remark
    numeric = np.fromiter(map(is_number, texts), bool)
    if numeric.all():
        return "numbers written as texts" if len(texts) > MANY else ""
    others = np.flatnonzero(~numeric).tolist()
    few = len(others) <= FEW_TEXTS and numeric.sum() >= MANY_NUMBERS
    if few or counts[numeric].sum() >= MOSTLY * counts.sum():
        row = int((~np.append(numeric, True)[codes]).argmax())
        found = f"numbers but for {texts[codes[row]]!r} in row {row + 1}"
        if len(others) > FEW_TEXTS:
            return found
        if counts[others].sum() > 1:
            found = f"numbers but for {listed(repr(texts[i]) for i in others)} in {counts[others].sum()} rows"
        return f"{found}: where that means missing, add --missing {','.join(texts[i] for i in others)}"
    return ""
