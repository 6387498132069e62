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
from itertools import islice
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
    names = open_parquet(path).schema_arrow.names if _is_parquet(path) else _csv_header(path)[0]
    if not _is_parquet(path):
        _refuse_other_separator(path, names)
    twice = [name for name, count in Counter(names).items() if name and count > 1]
    if twice:
        raise InputError(f"{path} has two columns named {twice[0]!r}: rename one")
    return tuple(name for name in names if name and not INDEX.fullmatch(name))


def read_frame(file: Path | str, columns: Sequence[str] | None = None, texts: Collection[str] = ()) -> pd.DataFrame:
    """Rows of a table, at least one, with all columns or these; the columns `texts` are read as they are written."""
    path, names = existing_file(file), read_header(file)
    chosen = list(columns or names)
    if _is_parquet(path):
        frame = read_parquet(path, chosen).to_pandas(
            ignore_metadata=True, date_as_object=False, split_blocks=True, self_destruct=True
        )
    else:
        (frame,) = _csv_parts(path, texts, None)
        frame = frame[chosen]
    if not len(frame):
        raise InputError(f"{path} has columns and no rows: write it again with data")
    return frame


def read_frames(file: Path | str, size: int, texts: Collection[str] = ()) -> Iterator[pd.DataFrame]:
    """The same rows in parts of `size`, so that a file of any length can be read; `texts` as above.

    The other columns of a CSV file have types for each part by itself.
    """
    path, names = existing_file(file), list(read_header(file))
    empty = True
    for frame in _parquet_parts(path, names, size) if _is_parquet(path) else _csv_parts(path, texts, size):
        empty = empty and not len(frame)
        yield frame[names]
    if empty:
        raise InputError(f"{path} has columns and no rows: write it again with data")


def open_parquet(path: Path) -> Any:
    """A pyarrow.parquet.ParquetFile; only the names and types of its columns have been read."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} is not a Parquet file, or damaged ({cause_of(error)}): write it again") from None


def read_parquet(path: Path, columns: Sequence[str]) -> Any:
    """A pyarrow.Table of these columns."""
    import pyarrow as pa

    file = open_parquet(path)
    try:
        return file.read(columns=list(columns)).select(list(columns))
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} is damaged ({cause_of(error)}): write it again") from None


def _is_parquet(path: Path) -> bool:
    if path.name.lower().endswith(PARQUET):
        return True
    _separator(path)
    return False


def _separator(path: Path) -> str:
    for ending, separator in SEPARATORS.items():
        if path.name.lower().endswith(ending):
            return separator
    raise InputError(f"the name of a table must end in {', '.join((*SEPARATORS, *PARQUET))}, got {path}")


def _refuse_other_separator(path: Path, names: Sequence[str]) -> None:
    """Refuse a header with one or two names that another separator would divide into three or more."""
    own = _separator(path)
    other = max((mark for mark in NAMES if mark != own), key=lambda mark: sum(name.count(mark) for name in names))
    if len(names) > 2 or sum(name.count(other) for name in names) < 2:
        return
    rename = next((f"name it {ending}, or " for ending, mark in SEPARATORS.items() if mark == other), "")
    found = "one column" if len(names) == 1 else "two columns"
    raise InputError(
        f"{path} has {found}, {' and '.join(repr(name[:100]) for name in names)}: its separators are {NAMES[other]}; "
        f"{rename}save it with {NAMES[own]}"
    )


def _csv_header(path: Path) -> tuple[list[str], int]:
    """Names of the columns, and how many lines without any text come before them."""
    before = 0
    with _text(path) as lines:
        reader = csv.reader(lines, delimiter=_separator(path), skipinitialspace=True)
        for fields in reader:
            if any(name.strip() for name in fields):
                return [name.strip() for name in fields], before
            before = reader.line_num
    raise InputError(f"{path} has no columns: write it again")


def _csv_parts(path: Path, texts: Collection[str], size: int | None) -> Iterator[pd.DataFrame]:
    """Parts of a file with `size` rows each, or all rows in one part.

    Fields beyond the header are errors, and so are lines that end early: pandas would fill them up silently.
    """
    import pandas as pd

    header, before = _csv_header(path)
    names = [name or f"\0{i}" for i, name in enumerate(header)]
    with _parsing(path, len(names), before):
        read = pd.read_csv(
            path,
            sep=_separator(path),
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
    whole = [read] if size is None else read
    looked, frames = False, iter(whole)
    try:
        while True:
            with _parsing(path, len(names), before):
                frame = next(frames, None)
            if frame is None:
                return
            if not looked and len(frame) and frame[names[-1]].isna().any():
                _refuse_ragged(path, len(names), before)
                looked = True
            yield frame
    finally:
        if size is not None:
            read.close()


@contextmanager
def _parsing(path: Path, width: int, before: int) -> Iterator[None]:
    """Turn errors of pandas into one clear line, with the number of the line in the file where that is known."""
    import pandas as pd

    try:
        with _reading(path), warnings.catch_warnings():
            warnings.simplefilter("error", pd.errors.ParserWarning)
            yield
    except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
        _refuse_ragged(path, width, before)
        raise InputError(f"{path} is not well-formed ({cause_of(error)}): correct the file") from None


def _parquet_parts(path: Path, names: Sequence[str], size: int) -> Iterator[pd.DataFrame]:
    for table in parquet_parts(path, names, size):
        yield table.to_pandas(ignore_metadata=True, date_as_object=False)


def parquet_parts(path: Path, columns: Sequence[str], size: int) -> Iterator[Any]:
    """pyarrow.Tables of these columns, with at most `size` rows each."""
    import pyarrow as pa

    file = open_parquet(path)
    try:
        for batch in file.iter_batches(batch_size=size, columns=list(columns)):
            yield pa.Table.from_batches([batch]).select(list(columns))
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path} is damaged ({cause_of(error)}): write it again") from None


def _refuse_ragged(path: Path, width: int, before: int) -> None:
    """Raise an error for the first line with another number of fields than the header, which follows `before` lines."""
    with _text(path) as lines:
        reader = csv.reader(islice(lines, before, None), delimiter=_separator(path), skipinitialspace=True)
        for fields in reader:
            if fields and len(fields) != width and (len(fields) < width or any(fields[width:])):
                raise InputError(
                    f"{path} is not well-formed: line {before + reader.line_num} has {counted(len(fields), 'field')}, "
                    f"the header has {width}; correct the line"
                )


@contextmanager
def _text(path: Path) -> Iterator[Iterator[str]]:
    """Lines of a file, decompressed."""
    opener: Any = gzip.open if path.name.lower().endswith(".gz") else open
    limit = csv.field_size_limit(LONGEST_FIELD)
    try:
        with _reading(path), opener(path, "rt", encoding="utf-8-sig", newline="") as lines:
            yield lines
    finally:
        csv.field_size_limit(limit)


@contextmanager
def _reading(path: Path) -> Iterator[None]:
    """Turn errors of reading into one clear line."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({cause_of(error)}): save it as UTF-8") from None
    except (OSError, EOFError, zlib.error) as error:
        way_out = "mend that" if isinstance(error, OSError) and error.errno else "write it again"
        raise InputError(f"{path} cannot be read ({cause_of(error)}): {way_out}") from None
    except csv.Error as error:
        raise InputError(f"{path} is not well-formed ({cause_of(error)}): correct the file") from None
