"""What kind of column a series is, and whether it can be a feature at all."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from .columns import Boolean, Categorical, Column, Date, Numeric, Scaling
from .values import MANY, Codes, Floats, as_codes, as_days, as_numbers, as_truth, blank, is_number, kind_of

if TYPE_CHECKING:
    import pandas as pd

KEPT = MANY - 1  # categories of a column with more than MANY; the rest counts as one
FEW = 20  # rows; in no more than these, whole numbers may all differ by chance
MOSTLY = 0.9  # share of numbers from which a text among them is worth a word
IDENTIFIER = re.compile(r"\s*(.*id|index|key|nr|number)\s*", re.IGNORECASE)  # as columns that name rows are called
ISO_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ]|$)")


def infer_column(series: pd.Series, name: str) -> tuple[Column | None, str]:
    """The column and what its owner may want to know; None and the reason where it cannot be a feature."""
    kind = kind_of(series)
    absent = blank(series)
    missing = bool(absent.any())
    if absent.all():
        return None, "every value is missing"
    if kind == "numeric":
        column, remark = _numeric(as_numbers(series, name), name, missing)
        return (column, remark) if column is None else _unless_identifier(column, series)
    if kind == "boolean":
        values = as_truth(series, name)
        true, false = int((values == 1).sum()), int((values == 0).sum())
        if not missing and not (true and false):
            return None, "constant"
        return Boolean(name, true > false, not (true and false), missing), ""
    if kind == "date":
        return _date(as_days(series, name), name, missing)
    if kind == "text":
        return _text(series, name, missing)
    return None, f"it holds {kind} values"


def infinite(series: pd.Series, name: str) -> NDArray[np.bool_]:
    """Where (n,) a column of numbers is infinite."""
    return np.isinf(as_numbers(series, name)) if kind_of(series) == "numeric" else np.zeros(len(series), bool)


def _numeric(values: Floats, name: str, missing: bool) -> tuple[Column | None, str]:
    if np.isinf(values).any():
        row = int(np.isinf(values).argmax())
        raise InputError(f"column {name!r} has {values[row]} in row {row + 1}, which is no number: correct the file")
    scaling = Scaling.of(values)
    if not scaling.scale and not missing:
        return None, "constant"
    with np.errstate(over="ignore"):
        steps = np.diff(values)
    if len(values) > MANY and (steps == 1).all():
        return None, "it counts the rows"
    return Numeric(name, scaling, missing), ""


def _unless_identifier(column: Column, series: pd.Series) -> tuple[Column | None, str]:
    """Whole numbers that all differ may name the rows; they do where they rise or fall throughout and are called so."""
    given = series[~blank(series)]  # as it was read: long identifiers differ in digits that a float does not hold
    if len(given) <= FEW or not given.is_unique or (as_numbers(given, column.name) % 1 != 0).any():
        return column, ""
    if IDENTIFIER.fullmatch(column.name) and (given.is_monotonic_increasing or given.is_monotonic_decreasing):
        return None, "an identifier by its name, with another number in order in every row"
    return column, "whole numbers, another one in every row: leave it out if they only name the rows"


def _date(days: Floats, name: str, missing: bool) -> tuple[Column | None, str]:
    scaling = Scaling.of(days)
    return (Date(name, scaling, missing), "") if scaling.scale or missing else (None, "constant")


def _text(series: pd.Series, name: str, missing: bool) -> tuple[Column | None, str]:
    codes, texts = as_codes(series)
    if all(map(ISO_DATE.match, texts)) and (days := _days_or_none(series, name)) is not None:
        return _date(days, name, missing)
    if len(texts) == 1 and not missing:
        return None, "constant"
    counts = np.bincount(codes[codes >= 0], minlength=len(texts))
    remark = _numbers_among(codes, texts, counts)
    if len(texts) > MANY and len(texts) > counts.sum() / 2:
        return None, f"{len(texts)} different texts in {counts.sum()} rows{remark and ', '}{remark}"
    if len(texts) <= MANY:
        return Categorical(name, texts, False, missing), remark and f"{remark}, and is taken as categories"
    most = sorted(range(len(texts)), key=lambda i: (-counts[i], texts[i]))[:KEPT]
    pooled = f"{len(texts)} categories: all but the {KEPT} most frequent count as one"
    kept = tuple(texts[i] for i in sorted(most))
    return Categorical(name, kept, True, missing), f"{remark}{remark and '; '}{pooled}"


def _days_or_none(series: pd.Series, name: str) -> Floats | None:
    try:
        return as_days(series, name)
    except InputError:
        return None


def _numbers_among(codes: Codes, texts: tuple[str, ...], counts: NDArray[Any]) -> str:
    """A remark on a column of texts, nearly all of which are numbers."""
    numeric = np.array([is_number(text) for text in texts])
    if numeric.all():
        return "numbers written as texts" if len(texts) > MANY else ""
    if counts[numeric].sum() < MOSTLY * counts.sum():
        return ""
    row = int((~np.append(numeric, True)[codes]).argmax())
    return f"numbers but for {texts[codes[row]]!r} in row {row + 1}"
