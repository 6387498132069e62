"""Tables as they should not be: what a user may hand to a command, with odd values, names, sizes and bytes.

A column is a few drawn values, dealt out to the rows at random: small to draw, and small to report.
"""

from __future__ import annotations

import csv
import datetime as dt
import io
import math
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, replace
from decimal import Decimal
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

ODD_NAMES = [
    "", " ", " x ", "x", "X", "a,b", "a;b", 'say "so"', "'", "two\nlines", "tab\there", "car\rriage",
    "__index_level_0__", "<b>bold</b>", "</script><script>", "[red]rich[/red]", "[/]", "🙂", "naïve", "e\u0301",
    "\u202eabc", "long" * 200, "--label", "-", "--help", "prediction", "probability_0", "label", "labels",
    "environment", "features", "embedding", "path", "all rows", "x (missing)", "x=a", "{}", "{{ x }}", "%s", "\\",
    "/", "NaN", "None", "0", "1.0", "#", "\0", "=1+1",
]  # fmt: skip
MISSING = [None, math.nan, "", " ", "NA", "nan", "null"]
DATES = st.datetimes(dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31))
TEXTS = st.text(st.characters(exclude_categories=("Cs",)), max_size=8)

NUMBERS: dict[str, st.SearchStrategy[Any]] = {
    "whole": st.integers(-5, 5),
    "large whole": st.integers(-(2**63), 2**63 - 1),
    "fraction": st.floats(-10, 10),
    "any float": st.floats(allow_nan=True, allow_infinity=False),
    "infinite": st.sampled_from([math.inf, -math.inf, 1.0]),
    "huge": st.sampled_from([1e308, -1e308, 1.7976931348623157e308, 1e39, 3.5e38]),
    "tiny": st.sampled_from([5e-324, 1e-308, -1e-300, 1e-45, 0.0, -0.0]),
    "near": st.sampled_from([1e9, 1e9 + 1e-6, 1.0, 1.0 + 2.0**-52]),
}
CELLS: dict[str, st.SearchStrategy[Any]] = NUMBERS | {
    "enormous": st.integers(-(10**400), 10**400),
    "boolean": st.booleans(),
    "truth in words": st.sampled_from(["true", "False", "1", "0", "yes"]),
    "letter": st.sampled_from("abc"),
    "text": TEXTS,
    "leading zeros": st.sampled_from(["007", "07", "7", "7.0", "+7", "1e3", "0x1F", "1_000"]),
    "date": DATES.map(lambda value: value.date()),
    "moment": DATES,
    "date in words": st.sampled_from(["2024-02-30", "2024-05-31", "0001-01-01", "9999-12-31T23:59:59+14:00", "1/2/99"]),
    "duration": st.timedeltas(),
    "time": st.times(),
    "bytes": st.binary(max_size=4),
    "decimal": st.decimals(allow_nan=False, allow_infinity=False, places=2, min_value=-1000, max_value=1000),
    "list": st.lists(st.integers(0, 3), max_size=3),
    "pair": st.lists(st.floats(-1, 1), min_size=2, max_size=2),
    "record": st.fixed_dictionaries({"a": st.integers(0, 3)}),
    "missing": st.just(None),
    "mixed": st.one_of(st.integers(-3, 3), st.floats(), st.booleans(), TEXTS, st.none()),
}  # fmt: skip
GROUPS: dict[str, st.SearchStrategy[Any]] = {
    "letters": st.sampled_from("abc"),
    "numbers": st.integers(0, 2),
    "sites": st.sampled_from(["north", "south", "<i>east</i>", "a\nb", "c\rd", "[bold]", 'a"', "🙂", "1.0", "1", "01"]),
}  # fmt: skip

ASPECTS = ["names", "groups", "size", "missing", "asked", "form", "features"]  # in which a file may be odd
ODDITIES = st.sets(st.sampled_from(ASPECTS), max_size=2)  # at most so many at once, so that not all files are refused
MOST_GROUPS = 15  # fits of an audit grow with them
PLAIN_SIZES = st.integers(30, 60)
ODD_SIZES = st.integers(0, 29)
PLAIN_NAMES = ["y", "site", "x", "dose", "ward", "seen"]
NAMES = st.one_of(st.sampled_from(ODD_NAMES), TEXTS)


@dataclass(frozen=True)
class Column:
    name: str
    cells: list[Any]


@dataclass(frozen=True)
class Sheet:
    """Columns of equal length, and which of them are meant as label and environment."""

    columns: list[Column]
    label: str | None
    environment: str | None
    features: str | None

    @property
    def names(self) -> list[str]:
        return [column.name for column in self.columns]


@dataclass(frozen=True)
class File:
    """A file's ending and content, and what a command is told about it."""

    ending: str
    content: bytes
    label: str | None
    environment: str | None
    features: str | None = None
    identity: str | None = None

    @property
    def options(self) -> list[str]:
        asked = {"label": self.label, "environment": self.environment, "features": self.features}
        return [f"--{option}={value}" for option, value in asked.items() if value is not None]


@st.composite
def columns(draw: st.DrawFn, name: str, rows: int, missing: bool) -> Column:
    values = draw(st.lists(CELLS[draw(st.sampled_from(sorted(CELLS)))], min_size=2, max_size=8))
    dealt = np.random.default_rng(draw(st.integers(0, 99))).integers(len(values), size=rows)
    cells = [values[i] for i in dealt]
    for row in draw(st.lists(st.integers(0, 59), max_size=4)) if missing else []:
        if row < rows:
            cells[row] = draw(st.sampled_from(MISSING))
    return Column(name, cells)


@st.composite
def group_columns(draw: st.DrawFn, name: str, rows: int, odd: bool) -> Column:
    """What a label or an environment should be, few values and each often; or one, many, or anything."""
    if not odd:
        kind = GROUPS[draw(st.sampled_from(sorted(GROUPS)))]
        values = draw(st.lists(kind, min_size=2, max_size=3, unique=True))
        turn = draw(st.integers(1, 3))
        return Column(name, [values[(i // turn) % len(values)] for i in range(rows)])
    how = draw(st.sampled_from(["one", "each", "pairs", "any"]))
    if how == "any":
        return draw(columns(name, rows, True))
    size = {"one": max(rows, 1), "each": 1, "pairs": 2}[how]
    return Column(name, [i // size % MOST_GROUPS for i in range(rows)])


@st.composite
def sheets(draw: st.DrawFn, odd: Set[str], names: Sequence[str] = ()) -> Sheet:
    """With these names, or with others where none are given; the first two are the label's and the environment's."""
    rows = draw(ODD_SIZES if "size" in odd else PLAIN_SIZES)
    if not names:
        count = draw(st.integers(2 if "names" in odd else 3, len(PLAIN_NAMES)))
        names = draw(st.lists(NAMES, min_size=count, max_size=count)) if "names" in odd else PLAIN_NAMES[:count]
    found = [draw(group_columns(name, rows, "groups" in odd)) for name in names[:2]]
    found += [draw(columns(name, rows, "missing" in odd)) for name in names[2:]]
    others = st.one_of(st.none(), st.sampled_from([*names, "nowhere", "", "\udcff"]))
    asked = [draw(others) if "asked" in odd else name for name in names[:2]]
    features = [None, "", ",", "nowhere", ",".join(names), names[-1]] if "features" in odd else [None]
    return Sheet(draw(st.permutations(found)), *asked, draw(st.sampled_from(features)))


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Cut off, with junk in it, or with nothing in it."""
    how = draw(st.sampled_from(["cut", "junk", "flip", "empty"]))
    place = draw(st.integers(0, max(len(content) - 1, 0)))
    if how == "cut":
        return content[:place]
    if how == "junk":
        return content[:place] + draw(st.binary(min_size=1, max_size=20)) + content[place:]
    if how == "flip" and content:
        return content[:place] + bytes([content[place] ^ 0xFF]) + content[place + 1 :]
    return b""


@st.composite
def csv_files(draw: st.DrawFn, sheet: Sheet, odd: Set[str]) -> File:
    ending = draw(st.sampled_from(["csv", "csv", "tsv"]))
    usual = "\t" if ending == "tsv" else ","
    form = draw(CSV_FORMS) if "form" in odd else {}
    text = io.StringIO()
    dialect = {"delimiter": usual, "lineterminator": "\n"} | {key: form[key] for key in form if key != "encoding"}
    writer = csv.writer(text, **dialect)
    writer.writerow(sheet.names)
    writer.writerows(zip(*(map(_written, column.cells) for column in sheet.columns), strict=True))
    content = text.getvalue().encode(form.get("encoding", "utf-8"), errors="replace")
    label, environment = (name and name.strip() for name in (sheet.label, sheet.environment))
    return File(ending, content, label, environment, sheet.features, sheet.names[-1].strip())


CSV_FORMS = st.fixed_dictionaries(
    {},
    optional={
        "delimiter": st.sampled_from([",", ";", "\t", "|"]),
        "lineterminator": st.sampled_from(["\r\n", "\r", "\n\n", " \n"]),
        "quoting": st.just(csv.QUOTE_ALL),
        "encoding": st.sampled_from(["utf-8-sig", "utf-16", "cp1252"]),
    },
)


@st.composite
def parquet_files(draw: st.DrawFn, sheet: Sheet, odd: Set[str]) -> File:
    arrays = [draw(arrow_arrays(column.cells, "form" in odd)) for column in sheet.columns]
    table = pa.Table.from_arrays(arrays, names=sheet.names)
    sink = io.BytesIO()
    pq.write_table(table, sink, row_group_size=draw(st.sampled_from([1000, 7])))
    return File("parquet", sink.getvalue(), sheet.label, sheet.environment, sheet.features, sheet.names[-1])


@st.composite
def arrow_arrays(draw: st.DrawFn, cells: list[Any], odd: bool) -> pa.Array:
    """The cells in Arrow's own type for them, in another that takes them, or as texts."""
    plain = [None if isinstance(cell, str) and not cell.strip() else cell for cell in cells]
    kinds = [None, pa.float32(), pa.float16(), pa.int8(), pa.uint64(), pa.dictionary(pa.int32(), pa.string())]
    kinds += [pa.large_string(), pa.binary(), pa.date32(), pa.timestamp("ns", "Asia/Tokyo"), pa.decimal128(20, 3)]
    kind = draw(st.sampled_from(kinds if odd else [None]))
    for attempt in (lambda: pa.array(plain, kind), lambda: pa.array(plain)):
        try:
            return attempt()
        except (pa.ArrowException, TypeError, ValueError, OverflowError):
            continue
    return pa.array([None if cell is None else _written(cell) for cell in cells], pa.string())


DTYPES = ["f4", "f8", "f2", "g", "i1", "i8", "u8", "?", "U3", "S3", "M8[D]", "m8[s]", "c16", "O", "V2", ">f4", "f4,i4"]


@st.composite
def npz_files(draw: st.DrawFn, width: int, odd: Set[str]) -> File:
    rows = draw(ODD_SIZES if "size" in odd else PLAIN_SIZES)
    random = np.random.default_rng(draw(st.integers(0, 99)))
    numbers = random.normal(size=(rows, width))
    if "features" in odd:
        numbers *= draw(st.sampled_from([1e-40, 1e-20, 1e20, 1e38, 1e60, 0]))
    if "missing" in odd and numbers.size:
        numbers[draw(st.integers(0, rows - 1)), 0] = draw(st.sampled_from([math.nan, math.inf]))
    arrays = {"features": numbers}
    for name in ("labels", "environments"):
        arrays[name] = _as_array(draw(group_columns(name, rows, "groups" in odd)).cells)
    if "form" in odd:
        name = draw(st.sampled_from(sorted(arrays)))
        array = draw(odd_arrays(arrays.pop(name)))
        arrays |= {} if array is None else {name: array}
    asked = draw(st.lists(st.sampled_from([None, "features", "labels", "nowhere", ""]), min_size=3, max_size=3))
    sink = io.BytesIO()
    draw(st.sampled_from([np.savez, np.savez_compressed]))(sink, **arrays)
    return File("npz", sink.getvalue(), *(asked if "asked" in odd else [None] * 3), "labels")


@st.composite
def odd_arrays(draw: st.DrawFn, array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any] | None:
    """Of another type or shape, of objects, or none at all."""
    what = draw(st.sampled_from(["type", "type", "shape", "objects", "nothing"]))
    rows = len(array)
    if what == "type":
        return _retyped(array, draw(st.sampled_from(DTYPES)))
    if what == "shape":
        return np.resize(array, draw(st.sampled_from([(), (0,), (rows, 0), (rows + 1,), (rows, 1), (2, 2, 2)])))
    return np.array([Unpickled()] * max(rows, 1), dtype=object) if what == "objects" else None


@st.composite
def table_pairs(draw: st.DrawFn, files: Callable[[Sheet, Set[str]], st.SearchStrategy[File]]) -> tuple[File, File]:
    """Two files, of which the second may have the columns of the first."""
    odd, later = draw(ODDITIES), draw(ODDITIES)
    first = draw(sheets(odd))
    second = draw(sheets(later, draw(st.sampled_from([tuple(first.names), ()]))))
    return draw(files(first, odd)), draw(files(second, later))


@st.composite
def npz_pairs(draw: st.DrawFn) -> tuple[File, File]:
    width = draw(st.integers(1, 4))
    return draw(npz_files(width, draw(ODDITIES))), draw(npz_files(draw(st.sampled_from([width, 2])), draw(ODDITIES)))


@st.composite
def junk_pairs(draw: st.DrawFn) -> tuple[File, File]:
    """A good file; and one that is damaged, has another's ending, or was never one. Either may come first."""
    good, file = draw(st.one_of(PAIRS["csv"], PAIRS["parquet"], PAIRS["npz"]))
    endings = [file.ending] * 6 + ["csv", "tsv", "parquet", "npz", "csv.gz", "jsonl", "zip", "tar", "txt"]
    content = draw(damaged(draw(st.sampled_from([good.content, file.content, b"junk" * 20]))))
    junk = replace(good, ending=draw(st.sampled_from(endings)), content=content)
    return (junk, good) if draw(st.booleans()) else (good, junk)


PAIRS: dict[str, st.SearchStrategy[tuple[File, File]]] = {
    "csv": table_pairs(csv_files),
    "parquet": table_pairs(parquet_files),
    "npz": npz_pairs(),
}
PAIRS["junk"] = junk_pairs()


class Unpickled:
    """What an array of objects may hold: it runs code when it is read with pickle."""

    happened: bool = False

    def __reduce__(self) -> tuple[Any, ...]:
        return _run_code, ()


def _run_code() -> None:
    Unpickled.happened = True


def _written(cell: Any) -> str:
    if isinstance(cell, float | int | Decimal) and not isinstance(cell, bool) and abs(cell) > 10**300:
        return str(Decimal(cell)) if isinstance(cell, int) else repr(cell)
    return "" if cell is None else str(cell)


def _retyped(array: np.ndarray[Any, Any], kind: str) -> np.ndarray[Any, Any]:
    try:
        with np.errstate(all="ignore"):
            return array.astype(kind)
    except (TypeError, ValueError):
        return np.zeros(array.shape, kind)


def _as_array(cells: list[Any]) -> np.ndarray[Any, Any]:
    try:
        return np.array(cells)
    except ValueError:
        return np.array([str(cell) for cell in cells])
