"""Tables in files: CSV and TSV, also compressed with gzip, and Parquet.

A file that cannot be read is an error in one clear line. Columns without a name, such as the index that pandas writes,
are not read.
"""

from __future__ import annotations

import csv
import gzip
import re
import warnings
import zlib
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError, cause_of, counted
from ..files import existing_file

if TYPE_CHECKING:
    import pandas as pd

NAMES = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}  # separator -> its name
SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
LONGEST_FIELD = 2**31 - 1  # characters; the csv module's own limit stops at 2^17
PARQUET = (".parquet", ".pq")
INDEX = re.compile(r"__index_level_\d+__")  # Parquet's name for an index without one


def read_header(file: Path | str) -> tuple[str, ...]:
    """Names of a table's columns."""
    path = existing_file(file)
    separator = _separator(path)
    names = open_parquet(path).schema_arrow.names if separator is None else _csv_header(path, separator)[0]
    name, count = Counter(filter(None, names)).most_common(1)[0] if any(names) else ("", 0)
    if count > 1:
        raise InputError(f"{path} has two columns named {name!r}: rename one")
    return tuple(name for name in names if name and not INDEX.fullmatch(name))


def read_frame(file: Path | str, columns: Sequence[str] | None = None, texts: Collection[str] = ()) -> pd.DataFrame:
    """Rows of a table, at least one, with all columns or these; the columns `texts` are read as they are written."""
    path, chosen = existing_file(file), list(columns or read_header(file))
    separator = _separator(path)
    if separator is None:
        frame = read_parquet(path, chosen).to_pandas(
            ignore_metadata=True, date_as_object=False, split_blocks=True, self_destruct=True
        )
    else:
        (frame,) = _csv_parts(path, separator, texts, None)
        frame = frame[chosen]
    _refuse_empty(path, len(frame))
    return frame


def read_frames(file: Path | str, size: int, texts: Collection[str] = ()) -> Iterator[pd.DataFrame]:
    """The same rows in parts of `size`, so that a file of any length can be read; `texts` as above.

    The other columns of a CSV file have types for each part by itself.
    """
    path, names, rows = existing_file(file), list(read_header(file)), 0
    separator = _separator(path)
    frames = (
        _csv_parts(path, separator, texts, size) if separator else map(_to_pandas, parquet_parts(path, names, size))
    )
    for frame in frames:
        rows += len(frame)
        yield frame[names]
    _refuse_empty(path, rows)


def _refuse_empty(path: Path, rows: int) -> None:
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
    """A pyarrow.Table of these columns."""
    file = open_parquet(path)
    with _clear_errors(path):
        return file.read(columns=list(columns)).select(list(columns))


def parquet_parts(path: Path, columns: Sequence[str], size: int) -> Iterator[Any]:
    """pyarrow.Tables of these columns, with at most `size` rows each."""
    import pyarrow as pa

    batches = open_parquet(path).iter_batches(batch_size=size, columns=list(columns))
    while True:
        with _clear_errors(path):
            batch = next(batches, None)
        if batch is None:
            return
        yield pa.Table.from_batches([batch]).select(list(columns))


def _to_pandas(table: Any) -> pd.DataFrame:
    return table.to_pandas(ignore_metadata=True, date_as_object=False)


# ---- CSV


def _csv_header(path: Path, separator: str) -> tuple[list[str], int]:
    """Names of the columns, and how many lines without any text come before them."""
    before = 0
    with _csv_reader(path, separator) as reader:
        for fields in reader:
            names = list(map(str.strip, fields))
            if any(names):
                _refuse_other_separator(path, names, separator)
                return names, before
            before = reader.line_num
    raise InputError(f"{path} has no columns: write it again")


def _refuse_other_separator(path: Path, names: Sequence[str], separator: str) -> None:
    """Refuse a header with one or two names that another separator would divide into three or more."""
    text = "".join(names)
    other = max(set(NAMES) - {separator}, key=text.count)
    if len(names) > 2 or text.count(other) < 2:
        return
    rename = next((f"name it {ending}, or " for ending, mark in SEPARATORS.items() if mark == other), "")
    found = "one column" if len(names) == 1 else "two columns"
    raise InputError(
        f"{path} has {found}, {' and '.join(repr(name[:100]) for name in names)}: its separators are {NAMES[other]}; "
        f"{rename}save it with {NAMES[separator]}"
    )


def _csv_parts(path: Path, separator: str, texts: Collection[str], size: int | None) -> Iterator[pd.DataFrame]:
    """Parts of a file with `size` rows each, or all rows in one part.

    Fields beyond the header are errors, and so are lines that end early: pandas would fill them up silently.
    """
    import pandas as pd

    header, before = _csv_header(path, separator)
    names = [name or f"\0{i}" for i, name in enumerate(header)]
    reader: Any = None
    looked = False
    try:
        while True:
            with _clear_errors(path):
                if reader is None:
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
                frame = reader if size is None else next(reader, None)
            if frame is None:
                return
            if not looked and len(frame) and frame[names[-1]].isna().any():
                _refuse_ragged(path, separator, len(names), before)
                looked = True
            yield frame
            if size is None:
                return
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
        way_out = "mend that" if isinstance(error, OSError) and error.errno else "write it again"
        raise InputError(f"{path} cannot be read ({cause_of(error)}): {way_out}") from None
