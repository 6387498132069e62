"""table:FILE, the user's own table in CSV, TSV or Parquet: a row a sample, a column each for label and environment.

CSV and TSV may be compressed with gzip. All other columns become features as `Schema` says, unless `features` names
some of them; columns without a name, such as the index that pandas writes, are not read. Missing values of features are
filled in; rows without a label or an environment, or with an infinite number, are errors or left out with `skip_bad`.
"""

from __future__ import annotations

import csv
import gzip
import re
import warnings
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...errors import DataWarning, InputError, cause_of, counted, listed, warn
from ...files import existing_file, expand_home
from ..catalogue import PARQUET, SEPARATORS, Options, register_own_files
from ..checks import require_name, review_vectors, usable_rows
from ..environments import EnvironmentSet
from ..schema import Declared, Kind, Numeric, Schema, read_declared
from ..values import Codes, as_codes, as_numbers, classes_of, is_blank, kind_of

if TYPE_CHECKING:
    import pandas as pd

NAMES = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}  # separator -> its name
LONGEST_FIELD = 2**31 - 1  # characters; the csv module's own limit stops at 2^17
FEW_CODES, ROWS_PER_CODE = range(3, 11), 10  # whole numbers that may be codes: so many different ones, in so many rows
OFTEN, RARELY = 0.1, 0.01  # shares of rows with a zero that may mean missing: in some environments, and in the others
FEWEST_ZEROS = 5  # rows
MOST_LINES = 3  # columns with such zeroes that have a line each; more share one
CODES = (-1, -9, -99, -999, -9999, 9, 99, 999, 9999)  # numbers that mean missing where they lie far from all others
MARKS = ("?", ".", "-", "--", "*", "#")  # that mean missing in a column of numbers
INDEX = re.compile(r"__index_level_\d+__")  # Parquet's name for an index without one


@dataclass(frozen=True)
class Table:
    """The usable rows of a table, read once. Schema and features are those of these rows, computed once when needed.

    frame      columns of features, the label's and the environment's
    positions  the rows' positions in the file, None where all are used
    declared   what is said about the columns
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
    declared: Declared

    def __len__(self) -> int:
        return len(self.labels)

    @cached_property
    def schema(self) -> Schema:
        """The encoding that these rows, and no others, suggest."""
        try:
            return Schema.infer(self.frame, self.label, self.environment, self.declared)
        except InputError as error:
            raise InputError(f"{self.file}: {error}") from None

    @cached_property
    def data(self) -> EnvironmentSet:
        """The rows, encoded by their own schema."""
        return self.encode(self.schema)

    def encode(self, schema: Schema) -> EnvironmentSet:
        """Return the rows, encoded by a schema."""
        features = schema.encode(self.frame).features
        labels, environments = torch.from_numpy(self.labels), torch.from_numpy(self.environments)
        return EnvironmentSet(features, labels, environments, self.environment_names, self.class_names)

    def select(self, rows: Tensor) -> Table:
        """Return the table of these rows, by position; the same table if these are all of them, in their order."""
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


def read_table(file: Path | str, options: Options) -> Table:
    """Read the table in a file, without encoding it."""
    header = read_header(file)
    label, environment, features = _columns(file, header, options)
    declared = _declared(file, header, features, options)
    texts = {name for name, kind in declared.kinds.items() if kind in ("categorical", "date")}
    frame = read_frame(file, [*features, label, environment], texts={label, environment, *texts})
    problems = {}
    for name in (label, environment):
        problems[f"column {name!r} is empty; NA, NaN, null and None count as empty too"] = is_blank(frame[name])
    for name in features:
        if declared.kinds.get(name, kind_of(frame[name])) == "numeric":
            try:
                problems[f"column {name!r} is infinite"] = np.isinf(as_numbers(frame[name], name))
            except InputError as error:  # of a column that is said to hold numbers
                raise InputError(f"{file}: {error}") from None
    rows = usable_rows(problems, file, options.skip_bad)
    if rows is not None:
        frame = frame.iloc[rows]
    labels, class_names = classes_of(frame[label], label, file, "label")
    environments, environment_names = classes_of(frame[environment], environment, file, "environment")
    names = class_names, environment_names
    return Table(file, frame, label, environment, labels, environments, *names, rows, declared)


def load_table(file: str, options: Options) -> EnvironmentSet:
    return review_table(read_table(expand_home(file), options))


def review_table(table: Table, schema: Schema | None = None) -> EnvironmentSet:
    """Return the rows, encoded by the schema, after warnings about columns that are not used or are worth a look.

    schema  None: the table's own
    """
    schema = schema or table.schema
    asked = {name for name, kind in table.declared.kinds.items() if kind == "drop"}
    unused = {name: why for name, why in schema.dropped.items() if name not in asked}
    for what, found in (("columns not used", unused), ("columns to look at", schema.remarks)):
        if found:
            names = listed(f"{name!r} ({why})" for name, why in found.items())
            warn(f"{table.file}: {what}: {names}", DataWarning)
    ask_about_columns(table)
    return review_vectors(table.encode(schema), table.file, table.positions)


def ask_about_columns(table: Table) -> None:
    """Warn about columns to look at: the label under another name, codes of categories, and codes of missing values."""
    copies = [column.name for column in table.schema.columns if _is_label(table, column.name)]
    if copies:
        warn(
            f"{table.file}: each value of {listed(map(repr, copies))} stands for one value of the label "
            f"{table.label!r}: where it is not known before the label is, leave it out with --drop {','.join(copies)}",
            DataWarning,
        )
    codes: dict[str, str] = {}
    absent: dict[tuple[str, float], str] = {}
    for column in table.schema.columns:
        if not isinstance(column, Numeric):
            continue
        values = as_numbers(table.frame[column.name], column.name)
        given = ~np.isnan(values)
        different = np.unique(values[given])
        whole = len(different) in FEW_CODES and bool((different % 1 == 0).all())
        if whole and given.sum() >= ROWS_PER_CODE * len(different) and column.name not in table.declared.kinds:
            codes[column.name] = f"{different[0]:g} to {different[-1]:g}"
        for value in _apart(different):
            if told := _told_where(table, values == value, given):
                absent[column.name, value] = told
    if codes:
        names = listed(map(repr, codes))
        which = ",".join(codes) if len(codes) == 1 else "COLUMNS"
        ranges = listed(dict.fromkeys(codes.values()))
        found = f"column {names} has" if len(codes) == 1 else f"columns {names} have few values,"
        warn(
            f"{table.file}: {found} the whole numbers {ranges}: --categorical {which} takes them as codes, --numeric "
            f"{which} keeps them as numbers without this remark",
            DataWarning,
        )
    lines = [
        f"column {name!r} is {value:g} in {told}: does {value:g} mean missing?"
        for (name, value), told in absent.items()
    ]
    if len(lines) > MOST_LINES:
        which = listed(f"{name!r} ({value:g})" for name, value in absent)
        lines = [
            f"columns have one value in many rows of some environments and hardly in the others: {which}; does it mean "
            "missing?"
        ]
    for line in lines:
        warn(f"{table.file}: {line} Then leave such cells empty", DataWarning)


def _is_label(table: Table, name: str) -> bool:
    """Whether each value of a column comes with one class, and each class with one value, in rows that say enough."""
    codes, texts = as_codes(table.frame[name])
    given = codes >= 0
    if len(texts) != len(table.class_names) or given.sum() < ROWS_PER_CODE * len(texts):
        return False
    return len(np.unique(codes[given] * len(texts) + table.labels[given])) == len(texts)


def _apart(different: NDArray[np.float64]) -> list[float]:
    """Values, of all in ascending order, that may mean missing: 0 below all others, or a code far from them."""
    if len(different) < 3:
        return []
    found = [0.0] if different[0] == 0 else []
    for value, others in ((different[0], different[1:]), (different[-1], different[:-1])):
        if value in CODES and np.abs(others - value).min() > others[-1] - others[0]:
            found.append(float(value))
    return found


def _told_where(table: Table, there: NDArray[np.bool_], given: NDArray[np.bool_]) -> str:
    """Say in which environments a value of a column is, if it is frequent in some and rare in all others."""
    counts, rows = (
        np.bincount(table.environments[mask], minlength=len(table.environment_names)) for mask in (there, given)
    )
    often = counts >= np.maximum(OFTEN * rows, FEWEST_ZEROS)
    others = ~often & (rows > 0)
    if not often.any() or not others.any() or (counts[others] > RARELY * rows[others]).any():
        return ""
    places = [f"{counts[e]} of {rows[e]} rows at {table.environment_names[e]!r}" for e in np.flatnonzero(often)]
    rest = counts[others].sum()
    return f"{listed(places, 3)} and {f'{rest} of {rows[others].sum()} rows' if rest else 'nowhere'} else"


def _columns(file: Path | str, header: Sequence[str], options: Options) -> tuple[str, str, list[str]]:
    """Return the names of label, environment and features, all of which the file has."""
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
    features = list(header)
    if options.features is None:
        features.remove(label)
        features.remove(environment)
        return label, environment, features
    features = _names_in(options.features, header)
    for name in features:
        require_name(name, header, file, "column", "features")
        if name in (label, environment) or features.count(name) > 1:
            raise InputError(
                f"{file}: column {name!r} is named twice: a column is a feature, the label or the environment"
            )
    return label, environment, features


def _names_in(given: str | Sequence[str] | None, header: Sequence[str]) -> list[str]:
    """The columns that an option names: commas separate them in a text, unless that is the name of a column."""
    if not isinstance(given, str):
        return list(given or ())
    return [given] if given in header else list(map(str.strip, given.split(",")))


def _declared(file: Path | str, header: Sequence[str], features: Sequence[str], options: Options) -> Declared:
    """What the options say about the columns. A file may name the label, which is then not a feature all the same."""
    said = Declared() if options.schema is None else read_declared(options.schema)
    for name in (*said.kinds, *said.indicators):
        require_name(name, header, file, "column", "schema")
    kinds: dict[str, Kind] = {}
    asked: Mapping[Kind, Any] = {
        "categorical": options.categorical, "numeric": options.numeric, "drop": options.drop
    }  # fmt: skip
    for kind, given in asked.items():
        for name in _names_in(given, header):
            require_name(name, header, file, "column", kind)
            if name in kinds:
                raise InputError(
                    f"{file}: column {name!r} is named twice, with --{kinds[name]} and --{kind}: name it once"
                )
            if name not in features:
                raise InputError(f"{file}: column {name!r} must be a feature for --{kind}, got one that is not used")
            kinds[name] = kind
    kinds = {name: kind for name, kind in {**said.kinds, **kinds}.items() if name in features}
    return Declared(kinds, said.indicators, options.missing_indicators)


# ---- files


def read_header(file: Path | str) -> tuple[str, ...]:
    """Return the names of a table's columns."""
    path = existing_file(file)
    separator = _separator(path)
    names = open_parquet(path).schema_arrow.names if separator is None else _csv_header(path, separator)[0]
    found: dict[str, None] = {}
    for name in names:
        if name in found:
            raise InputError(f"{path} has two columns named {name!r}: rename one")
        if name and not INDEX.fullmatch(name):
            found[name] = None
    return tuple(found)


def read_frame(file: Path | str, columns: Sequence[str] | None = None, texts: Collection[str] = ()) -> pd.DataFrame:
    """Read the rows of a table, at least one, with all columns or these; the columns `texts` as they are written."""
    path, chosen = existing_file(file), list(columns or read_header(file))
    separator = _separator(path)
    if separator is None:
        frame = read_parquet(path, chosen).to_pandas(
            ignore_metadata=True, date_as_object=False, split_blocks=True, self_destruct=True
        )
    else:
        (frame,) = _csv_parts(path, separator, texts, None)
        frame = frame[chosen]
    if not len(frame):
        raise InputError(f"{path} has columns and no rows: write it again with data")
    unmarked = _unmarked(frame, texts)
    if unmarked:
        warn(f"{path}: {listed(map(repr, MARKS))} count as missing in {listed(map(repr, unmarked))}", DataWarning)
    return frame.assign(**unmarked)


def _unmarked(frame: pd.DataFrame, texts: Collection[str]) -> dict[str, pd.Series]:
    """Columns of numbers in which some cells hold one of `MARKS`, with these cells missing."""
    import pandas as pd

    found = {}
    for name in frame.columns:
        if name in texts or pd.api.types.is_numeric_dtype(frame[name].dtype):
            continue
        marked = frame[name].isin(MARKS)
        if marked.any():
            numbers = pd.to_numeric(frame[name].mask(marked), errors="coerce")
            if (numbers.isna() == (frame[name].isna() | marked)).all():
                found[name] = numbers
    return found


def read_frames(file: Path | str, size: int, texts: Collection[str] = ()) -> Iterator[pd.DataFrame]:
    """Read the same rows in parts of `size`, so that a file of any length can be read; `texts` as above.

    The other columns of a CSV file have types for each part by itself.
    """
    path, names, rows = existing_file(file), list(read_header(file)), 0
    separator = _separator(path)
    frames = (
        _csv_parts(path, separator, texts, size) if separator else map(_to_pandas, parquet_parts(path, names, size))
    )
    for frame in frames:
        rows += len(frame)
        yield frame[names].assign(**_unmarked(frame[names], texts))
    if not rows:
        raise InputError(f"{path} has columns and no rows: write it again with data")


def _separator(path: Path) -> str | None:
    """The separator of a CSV or TSV file by its name; None: it is a Parquet file."""
    name = path.name.lower()
    for ending, separator in SEPARATORS.items():
        if name.endswith(ending):
            return separator
    if not name.endswith(PARQUET):
        raise InputError(f"the name of a table must end in {', '.join((*SEPARATORS, *PARQUET))}, got {path}")
    return None


# ---- Parquet


def open_parquet(path: Path) -> Any:
    """A pyarrow.parquet.ParquetFile; only the names and types of its columns have been read."""
    import pyarrow.parquet as pq

    with _clear_errors(path):
        return pq.ParquetFile(path)


def read_parquet(path: Path, columns: Sequence[str]) -> Any:
    """A pyarrow.Table of these columns, without what pandas had noted, which may be damaged and is not used."""
    file = open_parquet(path)
    with _clear_errors(path):
        table = file.read(columns=list(columns)).select(list(columns))
        table.validate(full=True)  # texts that are not UTF-8 would be noticed much later
        return table.replace_schema_metadata(None)


def parquet_parts(path: Path, columns: Sequence[str], size: int) -> Iterator[Any]:
    """pyarrow.Tables of these columns, with at most `size` rows each."""
    import pyarrow as pa

    batches = open_parquet(path).iter_batches(batch_size=size, columns=list(columns))
    while True:
        with _clear_errors(path):
            batch = next(batches, None)
            if batch is not None:
                batch.validate(full=True)
        if batch is None:
            return
        yield pa.Table.from_batches([batch]).select(list(columns)).replace_schema_metadata(None)


def _to_pandas(table: Any) -> pd.DataFrame:
    return table.to_pandas(ignore_metadata=True, date_as_object=False)


# ---- CSV


def _csv_header(path: Path, separator: str) -> tuple[list[str], int]:
    """Return the names of the columns, and how many lines without any text come before them."""
    names: list[str] = []
    before = 0
    with _csv_reader(path, separator) as reader:
        for fields in reader:
            names = list(map(str.strip, fields))
            if any(names):
                break
            before = reader.line_num
    if not any(names):
        raise InputError(f"{path} has no columns: write it again")
    text = "".join(names)
    other = max(set(NAMES) - {separator}, key=text.count)
    if len(names) <= 2 and text.count(other) >= 2:  # which would divide it into three or more
        rename = next((f"name it {ending}, or " for ending, mark in SEPARATORS.items() if mark == other), "")
        found = "one column" if len(names) == 1 else "two columns"
        raise InputError(
            f"{path} has {found}, {' and '.join(repr(name[:100]) for name in names)}: its separators are "
            f"{NAMES[other]}; {rename}save it with {NAMES[separator]}"
        )
    return names, before


def _csv_parts(path: Path, separator: str, texts: Collection[str], size: int | None) -> Iterator[pd.DataFrame]:
    """Yield parts of a file with `size` rows each, or all rows in one part.

    Fields beyond the header are errors, and so are lines that end early: pandas would fill them up silently.
    """
    import pandas as pd

    header, before = _csv_header(path, separator)
    names = [name or f"\0{i}" for i, name in enumerate(header)]
    looked = False
    reader: Any = None
    try:
        with _clear_errors(path):
            reader = pd.read_csv(
                path,
                sep=separator,
                skiprows=before,
                header=0,
                names=names,
                index_col=False,
                dtype=dict.fromkeys(texts, str),
                skipinitialspace=True,
                low_memory=False,  # types of whole columns, not of parts of them
                encoding="utf-8-sig",
                chunksize=size,
            )
        parts = iter([reader]) if size is None else reader
        while True:
            with _clear_errors(path):
                frame = next(parts, None)
            if frame is None:
                return
            if not looked and len(frame) and frame[names[-1]].isna().any():
                _refuse_ragged(path, separator, len(names), before)
                looked = True
            yield frame
    except InputError:
        _refuse_ragged(path, separator, len(names), before)  # a better reason, where this is it
        raise
    finally:
        if size is not None and reader is not None:
            reader.close()


def _refuse_ragged(path: Path, separator: str, width: int, before: int) -> None:
    """Raise an error for the first line with another number of fields than the header, which follows `before` lines."""
    with _csv_reader(path, separator) as reader:
        for fields in reader:
            if fields and len(fields) != width and (len(fields) < width or any(fields[width:])):
                if reader.line_num <= before:
                    continue
                raise InputError(
                    f"{path} is not well-formed: line {reader.line_num} has {counted(len(fields), 'field')}, the "
                    f"header has {width}; correct the line"
                )


@contextmanager
def _csv_reader(path: Path, separator: str) -> Iterator[Any]:
    """A csv.reader over the lines of a file, decompressed."""
    opener: Any = gzip.open if path.name.lower().endswith(".gz") else open
    limit = csv.field_size_limit(LONGEST_FIELD)
    try:
        with _clear_errors(path), opener(path, "rt", encoding="utf-8-sig", newline="") as lines:
            yield csv.reader(lines, delimiter=separator, skipinitialspace=True)
    finally:
        csv.field_size_limit(limit)


@contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    """Turn errors of reading a table into one clear line."""
    import pandas as pd
    import pyarrow as pa

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            yield
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({cause_of(error)}): save it as UTF-8") from None
    except (csv.Error, pd.errors.ParserError, pd.errors.ParserWarning) as error:
        raise InputError(f"{path} is not well-formed ({cause_of(error)}): correct the file") from None
    except pa.ArrowException as error:
        raise InputError(f"{path} is not a Parquet file, or damaged ({cause_of(error)}): write it again") from None
    except (OSError, EOFError, zlib.error) as error:
        way_out = "fix that" if isinstance(error, OSError) and error.errno else "write it again"
        raise InputError(f"{path} cannot be read ({cause_of(error)}): {way_out}") from None


register_own_files(
    "table",
    "your table, CSV, TSV or Parquet: a row a sample, columns for label and environment",
    load_table,
    takes="label environment features categorical numeric drop schema missing_indicators",
)
