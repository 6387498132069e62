"""Cells of a column, of any type, as numbers, dates or texts; and numbers brought to mean 0 and deviation 1.

Rows in messages are counted from 1.
"""

from __future__ import annotations

import datetime as dt
import math
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ..errors import DataWarning, InputError, refuse_or_skip, warn
from ..settings import NonNegative

if TYPE_CHECKING:
    import pandas as pd

Floats = NDArray[np.float64]
Features = NDArray[np.float32]
Codes = NDArray[np.int64]
Numbers = TypeVar("Numbers", NDArray[np.float64], Tensor)

_CHUNK = 1 << 20  # most numbers that are worked on at once
_SMALLEST = 1e-290  # deviation that can be divided by without losing digits

FEW_NUMBERS, FEWEST_OF_CLASS = 20, 5  # different numbers in a label that may be counts; rows of most of them
MANY = 50  # different values; a column with more may not hold categories

DATES = (
    *("ISO8601", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y", "%d-%m-%Y", "%m-%d-%Y"),
    *("%m/%Y", "%b %Y", "%B %Y", "%d %b %Y", "%d %B %Y", "%B %d, %Y"),
)
"""Forms of dates in the names of environments."""

Order = Literal["", "day-first", "month-first"]
"""Order of day and month in dates such as 05/31/2024; "": dates are ISO 8601."""
DAY_MONTH_YEAR = re.compile(r"\s*(\d{1,2})([./-])(\d{1,2})\2(\d{4})(?:[T ]\s*(\S.*?))?\s*")
EXAMPLES: dict[Order, str] = {"": "2024-05-31", "day-first": "31/05/2024", "month-first": "05/31/2024"}

PERCENT = re.compile(r"\s*([-+]?\d+(?:\.\d+)?)\s*%\s*")
SURROGATE = re.compile("[\ud800-\udfff]")
WHOLE = re.compile(r"(-?(?:0|[1-9]\d*))\.0+")

KINDS = ("numeric", "boolean", "date", "text", "empty")
_KIND_OF = {  # pandas' name of a type -> its kind
    **dict.fromkeys(("integer", "integer-na", "floating", "mixed-integer-float", "decimal", "timedelta64"), "numeric"),
    **dict.fromkeys(("datetime", "datetime64", "date"), "date"),
    **dict.fromkeys(("string", "mixed", "mixed-integer", "categorical"), "text"),
}


def kind_of(series: pd.Series) -> str:
    """Return the kind of a column, one of `KINDS`; for other types, their name in pandas."""
    import pandas as pd

    inferred = str(pd.api.types.infer_dtype(series, skipna=True))
    if inferred == "mixed" and any(isinstance(value, list | dict | set | np.ndarray) for value in series):
        return "list"
    return _KIND_OF.get(inferred, inferred)


def as_text(value: Any) -> str:
    """Return a value as text, the same for every type it may have: 1, 1.0, "1" and "1.0" are "1"; "01" stays so."""
    import pandas as pd

    if isinstance(value, pd.Timestamp) and (value.tzinfo is None or not dt.MINYEAR <= value.year <= dt.MAXYEAR):
        value = value.to_datetime64()  # Python does not have such years
    if isinstance(value, np.timedelta64):
        value = pd.Timedelta(value)
    if isinstance(value, np.datetime64):
        year = int(value.astype("datetime64[Y]").astype(np.int64)) + 1970
        if not dt.MINYEAR <= year <= dt.MAXYEAR:
            return str(value.astype("datetime64[s]"))
        value = value.astype("datetime64[us]").item()
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, dt.datetime):
        return value.date().isoformat() if value.time() == dt.time() else value.isoformat(" ")
    if isinstance(value, dt.date):
        return value.isoformat()
    whole = isinstance(value, float | np.floating) and value.is_integer() and abs(float(value)) < 1e15
    text = str(int(value)) if whole else str(value)
    return match[1] if (match := WHOLE.fullmatch(text)) else text


def is_number(text: str) -> bool:
    """Return whether a text is a finite number."""
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False


def in_order(texts: Iterable[str]) -> list[str]:
    """Sort texts: by value if all are numbers, else by their characters."""
    texts = sorted(texts)
    return sorted(texts, key=float) if all(map(is_number, texts)) else texts


def in_time(texts: Iterable[str]) -> list[str]:
    """Sort texts in natural order: numbers by value, dates by time, other texts with the numbers in them by value."""
    import pandas as pd

    texts = in_order(texts)
    if all(map(is_number, texts)):
        return texts
    orders = []
    if all(any(map(str.isdigit, text)) for text in texts):  # pandas reads "now" as a date
        for form in DATES:
            with suppress(ValueError):
                dates = pd.to_datetime(pd.Index(texts, dtype=object), format=form, utc=True)
                orders.append([texts[i] for i in np.argsort(dates.to_numpy(), kind="stable")])
    if any(order != orders[0] for order in orders):
        raise InputError(f"dates must have one reading, got {texts[0]!r}: write them as year-month-day")
    by_numbers = sorted(texts, key=lambda text: list(map(_natural_key, re.split(r"(\d+)", text))))
    return orders[0] if orders else by_numbers


def _natural_key(part: str) -> Any:
    """Return a key that sorts digits by their number, however many they are, and other texts as they are."""
    digits = part.lstrip("0")
    return (len(digits), digits) if part.isdecimal() else part


def as_name(value: Any) -> str:
    """Return the name of a class or an environment: `as_text` without spaces around it."""
    name = as_text(as_text(value).strip())
    if SURROGATE.search(name):
        raise InputError(f"{name!r} is not a text that can be written as UTF-8: correct the file")
    return name


def as_codes(
    values: pd.Series, text: Callable[[Any], str] = as_text, ordered: bool = False
) -> tuple[Codes, tuple[str, ...]]:
    """Return the position of each value (n,) among the distinct texts, -1 where it is missing or blank, and the texts.

    The texts are in the order of their first rows, or with `ordered` in that of `in_order`.
    """
    import pandas as pd

    codes, distinct = pd.factorize(values)
    texts = list(map(text, np.asarray(distinct)))
    names = list(dict.fromkeys(filter(str.strip, texts)))  # 1 and 1.0 have one text
    if ordered:
        names = in_order(names)
    places = pd.Index(names, dtype=object).get_indexer(texts)
    return np.append(places, -1)[codes], tuple(names)


def stands_for_missing(series: pd.Series, codes: Collection[str]) -> NDArray[np.bool_]:
    """Return the mask (n,) of the cells that are one of these texts, such as unknown or -999; numbers by value."""
    import pandas as pd

    if pd.api.types.is_numeric_dtype(series) and not pd.api.types.is_bool_dtype(series):
        return np.asarray(series.isin(list(map(float, filter(is_number, codes)))), dtype=bool)
    wanted = {as_text(code.strip()) for code in codes}
    places, texts = as_codes(series, lambda value: as_text(as_text(value).strip()))
    return np.array([*(text in wanted for text in texts), False])[places]


def as_numbers(series: pd.Series, name: str) -> Floats:
    """Return numbers (n,), NaN where missing: durations in days, true as 1, and "12%" as 12 if all are percents."""
    import pandas as pd

    kind = kind_of(series)
    if kind == "boolean":
        return as_truth(series, name)
    if kind == "empty":
        return np.full(len(series), np.nan)
    if kind not in ("numeric", "text"):
        if is_blank(series).all():  # a column without values may have any type
            return np.full(len(series), np.nan)
        raise _unexpected(series, ~is_blank(series), name, "a number")
    if pd.api.types.is_timedelta64_dtype(series):
        return np.array(series.dt.total_seconds(), dtype=np.float64) / 86400
    if pd.api.types.is_numeric_dtype(series):
        return np.array(series.to_numpy("float64", na_value=np.nan))
    if kind == "text":
        codes, texts = as_codes(series)
        matches = [PERCENT.fullmatch(text) for text in texts]
        if any(matches):
            values = np.array([*(float(match[1]) if match else np.inf for match in matches), np.nan])[codes]
            if not all(matches):
                raise _unexpected(series, np.isinf(values), name, "a percentage, as others are")
            return values
    try:
        values = np.array(pd.to_numeric(series.astype(object), errors="coerce"), dtype=np.float64)
    except OverflowError:
        values = np.array([_as_float(value) for value in series])
    wrong = np.isnan(values) & ~is_blank(series)
    if wrong.any():
        raise _unexpected(series, wrong, name, "a number")
    return values


def _as_float(value: Any) -> float:
    """Return a value as a float: NaN if it is missing or not a number, infinite if it is too large."""
    try:
        return float(value)
    except OverflowError:
        return math.inf if value > 0 else -math.inf
    except (TypeError, ValueError):
        return math.nan


def as_truth(series: pd.Series, name: str) -> Floats:
    """Return 1 for true and 0 for false (n,), NaN where a value is missing."""
    if kind_of(series) not in KINDS:
        raise _unexpected(series, ~is_blank(series), name, "true or false")
    meaning = {"true": 1.0, "false": 0.0, "1": 1.0, "0": 0.0}
    codes, texts = as_codes(series)
    values = np.array([*(meaning.get(text.lower(), np.inf) for text in texts), np.nan])[codes]
    if np.isinf(values).any():
        raise _unexpected(series, np.isinf(values), name, "true or false")
    return values


def orders_of_dates(texts: Iterable[str]) -> tuple[Order, ...]:
    """Return the orders of day and month that all of these texts, which have the form `DAY_MONTH_YEAR`, allow."""
    first, second = np.array([re.findall(r"\d+", text)[:2] for text in texts], dtype=int).max(0)
    orders: dict[Order, int] = {"day-first": second, "month-first": first}
    return tuple(order for order, largest_month in orders.items() if largest_month <= 12)


def as_iso_dates(series: pd.Series, order: Order) -> pd.Series:
    """Return a column of texts with those that are dates in this order written as ISO 8601, and others as they are."""
    import pandas as pd

    codes, texts = as_codes(series)
    day, month = (1, 3) if order == "day-first" else (3, 1)
    written: list[str | None] = []
    for text in texts:
        found = DAY_MONTH_YEAR.fullmatch(text)
        if found is None or int(found[month]) > 12:
            written.append(text)
            continue
        time = f" {found[5].zfill(5) if found[5][1:2] == ':' else found[5]}" if found[5] else ""
        written.append(f"{found[4]}-{found[month]:0>2}-{found[day]:0>2}{time}")
    return pd.Series(np.array([*written, None], dtype=object)[codes], series.index)


def as_days(series: pd.Series, name: str, order: Order = "") -> Floats:
    """Return days (n,) since 1970 began in Greenwich, NaN where they are missing; texts are ISO 8601 or in `order`."""
    import pandas as pd

    kind = kind_of(series)
    given = ~is_blank(series)
    if not given.any():
        return np.full(len(series), np.nan)
    if kind not in ("date", "text", "empty"):
        raise _unexpected(series, given, name, "a date")
    if kind == "date":
        dates = pd.to_datetime(series, utc=True, errors="coerce")
    else:
        texts = (as_iso_dates(series, order) if order else series).astype(object).where(given, None)
        dates = pd.to_datetime(texts, utc=True, format="ISO8601", errors="coerce")
    if (given & np.asarray(dates.isna())).any():
        raise _unexpected(series, given & np.asarray(dates.isna()), name, f"a date such as {EXAMPLES[order]}")
    stamps = dates.dt.tz_localize(None).to_numpy()
    whole = stamps.astype("datetime64[D]")  # apart, since microseconds would not hold all of a far date
    return np.where(given, whole.astype(np.int64) + (stamps - whole) / np.timedelta64(1, "D"), np.nan)


def is_blank(series: pd.Series) -> NDArray[np.bool_]:
    """Return the mask (n,) of missing values and texts of spaces."""
    missing = np.array(series.isna(), dtype=bool)
    if kind_of(series) in ("text", "bytes"):
        codes, _ = as_codes(series)
        missing |= codes < 0
    return missing


def usable_rows(problems: Mapping[str, NDArray[np.bool_]], where: Path | str, skip_bad: bool) -> Codes | None:
    """Return the positions of the rows without a problem, None for all. Without `skip_bad`, a problem is an error.

    `problems` are description -> mask of the rows that have it; the first row of each stands as the example.
    """
    bad = np.logical_or.reduce(list(problems.values()))
    if not bad.any():
        return None
    descriptions: list[str] = []
    explained: set[str] = set()
    for row in np.flatnonzero(bad):
        reason = next(reason for reason, mask in problems.items() if mask[row])
        descriptions.append(f"row {row + 1}" if reason in explained else f"row {row + 1} ({reason})")
        explained.add(reason)
    refuse_or_skip(descriptions, len(bad), "row", where, skip_bad)
    return np.flatnonzero(~bad)


def _unexpected(series: pd.Series, wrong: NDArray[np.bool_], name: str, wanted: str) -> InputError:
    row = int(wrong.argmax())
    return InputError(
        f"column {name!r} has {as_text(series.iloc[row])!r} in row {row + 1}, which is not {wanted}: correct the file"
    )


def classes_of(
    values: pd.Series, name: str, where: Path | str, noun: str, declared: bool = False, option: str = ""
) -> tuple[Codes, tuple[str, ...]]:
    """Return `as_codes` of labels or environments; refuse measurements and identifiers.

    Many different numbers as labels may be counts or ages. This is a warning, or an error if most of them have hardly
    any rows, unless the user has `declared` that they name classes; `option` is how.
    """
    if kind_of(values) not in (*KINDS, "bytes"):
        raise InputError(
            f"{where}: {noun} {name!r} must hold texts or numbers, got {kind_of(values)} values: name another"
        )
    codes, names = as_codes(values, as_name, ordered=True)
    if len(names) > MANY:
        fractions = sum(is_number(text) and float(text) % 1 != 0 for text in names)
        if fractions > MANY:
            raise InputError(
                f"{where}: {noun} {name!r} looks continuous ({fractions} different fractions, such as {names[0]}): bin "
                "it into classes first"
            )
        if len(names) > len(codes) / 2:
            raise InputError(
                f"{where}: {noun} {name!r} has {len(names)} different values in {len(codes)} rows, so it does "
                "not name groups: name another column, or bin it first"
            )
    if noun == "label" and not declared and len(names) > FEW_NUMBERS and all(map(is_number, names)):
        line = f"{where}: label {name!r} must name classes, got {len(names)} different numbers"
        way_out = f"bin it first if it counts or measures something{option and f'; if not, add {option}'}"
        if len(names) > MANY and np.median(np.bincount(codes[codes >= 0])) < FEWEST_OF_CLASS:
            raise InputError(f"{line}, most of them in fewer than {FEWEST_OF_CLASS} rows: {way_out}")
        warn(f"{line}, which are taken as classes: {way_out}", DataWarning)
    return codes, names


# ---- mean 0 and deviation 1


def moments(
    rows: NDArray[np.floating[Any]], weights: NDArray[np.floating[Any]] | None = None, rounding: int = 10
) -> tuple[Floats, Floats]:
    """Return mean and standard deviation of every column of rows (n, d), each (d,); 0 for a constant column.

    A column is constant if it varies by at most `rounding` epsilons of its type, as computed numbers may. Columns are
    divided by their largest number first, so that no square overflows, and rows are taken in chunks, so that there is
    no second copy of them.
    """
    n, d = rows.shape
    step = max(1, _CHUNK // d)
    low, high = rows.min(0).astype(np.float64), rows.max(0).astype(np.float64)
    largest = np.maximum(np.maximum(-low, high), np.finfo(np.float64).tiny)
    constant = high / largest - low / largest <= rounding * np.finfo(rows.dtype).eps

    counts = np.ones(n) if weights is None else weights / weights.mean()
    mean, square = np.zeros(d), np.zeros(d)
    for start in range(0, n, step):
        shares = rows[start : start + step] / largest
        mean += np.einsum("n,nd->d", counts[start : start + step], shares) / n
    for start in range(0, n, step):
        shares = rows[start : start + step] / largest
        square += np.einsum("n,nd->d", counts[start : start + step], (shares - mean) ** 2) / n
    scale = largest * np.sqrt(square)
    return np.where(constant, low, largest * mean), np.where(constant | (scale <= _SMALLEST), 0.0, scale)


def standardised(values: Numbers, mean: Any, scale: Any) -> Numbers:
    """Return (x - mean) / scale in float64, from a quarter of each, so that differences of large numbers are finite."""
    result: Numbers = (values / 4 - mean / 4) / (scale / 4)
    return result


@dataclass(frozen=True)
class Scaling:
    """Statistics of a column of numbers whose missing values are filled in."""

    median: float
    mean: float
    scale: NonNegative  # 0: the column was constant but for missing values
    low: float | None = None  # the least of them; None: not kept
    high: float | None = None  # the largest

    @classmethod
    def of(cls, values: Floats) -> Self:
        """Return the statistics of values (n,), NaN where missing; any difference counts, since they are as written."""
        median = float(np.nanmedian(values / 2) * 2)  # of halves, so that it does not overflow
        filled = np.where(np.isnan(values), median, values)
        mean, scale = moments(filled[:, None], rounding=0)
        return cls(median, mean.item(), scale.item(), float(filled.min()), float(filled.max()))

    def apply(self, values: Floats, name: str) -> Features:
        """Return (x - mean) / scale, (n,)."""
        with np.errstate(over="ignore"):
            scaled = standardised(values, self.mean, self.scale).astype(np.float32)
        wrong = ~np.isfinite(scaled)
        if wrong.any():
            row = int(wrong.argmax())
            raise InputError(
                f"column {name!r} has {values[row]} in row {row + 1}, which is infinite or too large: correct the file"
            )
        return scaled


class Standardise(nn.Module):
    """Bring columns of (n, d) to mean 0 and deviation 1, in float64 and then in `dtype`; one of scale 0 becomes 0.

    Columns of a table may be large and vary little: after a subtraction in float32, only rounding would be left.
    """

    mean: Tensor
    scale: Tensor

    def __init__(self, mean: Tensor, scale: Tensor, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.register_buffer("mean", mean.double())
        self.register_buffer("scale", scale.double())
        self.dtype = dtype

    @classmethod
    def fit(
        cls,
        rows: NDArray[np.floating[Any]],
        weights: NDArray[np.floating[Any]] | None = None,
        dtype: torch.dtype = torch.float32,
    ) -> Self:
        """Return the module for the moments of rows (n, d)."""
        mean, scale = map(torch.from_numpy, moments(rows, weights))
        return cls(mean, scale, dtype)

    def forward(self, vectors: Tensor) -> Tensor:
        scale = torch.where(self.scale > 0, self.scale, torch.inf)
        return standardised(vectors.double(), self.mean, scale).to(self.dtype)
