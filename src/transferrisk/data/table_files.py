"""Tables in files: CSV and TSV, plain or compressed with gzip, and Parquet.

`read_header` reads the names of the columns, `read_frame` all rows, `read_frames` the rows in parts; `frame_writer`
writes rows in parts. Whatever is wrong with a file is one `InputError` that names it. Columns without a name, such as
the index that pandas writes, are not read.
"""

from __future__ import annotations

import csv
import gzip
import itertools
import re
import warnings
import zlib
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from ..errors import DataWarning, InputError, cause_of, counted, listed, warn
from ..files import existing_file, standard_output, whole_file
from .values import is_number, stands_for_missing

if TYPE_CHECKING:
    import pandas as pd

SEPARATORS = {".csv": ",", ".csv.gz": ",", ".tsv": "\t", ".tsv.gz": "\t"}
"""Ending of a file's name -> the separator of its fields."""
PARQUET = (".parquet", ".pq")
"""Endings of the names of Parquet files."""
SEPARATOR_NAMES = {",": "commas", "\t": "tabs", ";": "semicolons", "|": "bars"}
LONGEST_FIELD = 2**31 - 1  # characters; the csv module's own limit stops at 2^17
MARKS = ("?", ".", "-", "--", "*", "#")
"""Cells that mean missing in a column of numbers."""
TRUTH = {text: text.lower() == "true" for text in ("True", "False", "TRUE", "FALSE", "true", "false")}
"""Cells that pandas reads as truth values, where a column holds no others."""
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""Beginnings of cells that a spreadsheet runs."""
INDEX = re.compile(r"__index_level_\d+__")
"""Parquet's name for an index without one."""


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


def read_frame(
    file: Path | str,
    columns: Sequence[str] | None = None,
    texts: Collection[str] = (),
    missing: Mapping[str, Collection[str]] = MappingProxyType({}),
    expected: Collection[str] = (),
) -> pd.DataFrame:
    """Read all rows of a table, of which there must be at least one.

    Parameters
    ----------
    file
        Path of the file.
    columns
        Names of the columns to read. Default: all.
    texts
        Columns whose cells are read as they are written, so that "01" stays so.
    missing
        Column -> texts that stand for a missing value in it, besides empty cells.
    expected
        Those of these texts that are worth a warning if no column has them.
    """
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
        raise InputError(f"{path} has columns and no rows: check how it was written")
    emptied = _emptied(frame, texts, missing)
    marked = []
    for name in emptied:
        marked += [name] if frame[name].isin(MARKS).any() else []
    if marked:
        warn(f"{path}: {listed(map(repr, MARKS))} count as missing in {listed(map(repr, marked))}", DataWarning)
    unused = dict.fromkeys(expected)
    for name, code in itertools.product(emptied, [*unused]):
        if code in missing.get(name, ()) and stands_for_missing(frame[name], [code]).any():
            unused.pop(code, None)
    if unused:
        warn(f"{path}: no column has the missing value {listed(map(repr, unused))}", DataWarning)
    return frame.assign(**emptied)


def read_frames(
    file: Path | str,
    size: int,
    texts: Collection[str] = (),
    missing: Mapping[str, Collection[str]] = MappingProxyType({}),
) -> Iterator[pd.DataFrame]:
    """Read the rows of a table in parts of `size` rows, so that a file of any length can be read.

    `texts` and `missing` are as in `read_frame`. The types of the other columns of a CSV file may differ between parts.
    """
    path, names, rows = existing_file(file), list(read_header(file)), 0
    separator = _separator(path)
    frames: Iterator[pd.DataFrame]
    if separator is None:
        parts = parquet_parts(path, names, size)
        frames = (part.to_pandas(ignore_metadata=True, date_as_object=False) for part in parts)
    else:
        frames = _csv_parts(path, separator, texts, size)
    for frame in frames:
        rows += len(frame)
        yield frame[names].assign(**_emptied(frame[names], texts, missing))
    if not rows:
        raise InputError(f"{path} has columns and no rows: check how it was written")


def _separator(path: Path) -> str | None:
    """Return the separator of a CSV or TSV file, by its name; None for a Parquet file."""
    name = path.name.lower()
    for ending, separator in SEPARATORS.items():
        if name.endswith(ending):
            return separator
    if not name.endswith(PARQUET):
        raise InputError(f"the name of a table must end in {', '.join((*SEPARATORS, *PARQUET))}, got {path}")
    return None


def _emptied(
    frame: pd.DataFrame, texts: Collection[str], missing: Mapping[str, Collection[str]]
) -> dict[str, pd.Series]:
    """Return the columns in which some cells stand for a missing value, with these cells missing.

    These are the texts of a column in `missing` and, in columns of numbers, `MARKS`. A column that holds only numbers
    otherwise becomes one of numbers, unless it is in `texts`, and true and false become truth values.
    """
    import pandas as pd

    found = {}
    for name in frame.columns:
        series = frame[name]
        if name in missing:
            coded = stands_for_missing(series, missing[name])
            if coded.any():
                series = found[name] = series.mask(coded)
        if name in texts or pd.api.types.is_numeric_dtype(series.dtype):
            continue
        marked = series.isin(MARKS)
        if marked.any() or name in found:
            numbers = pd.to_numeric(series.mask(marked), errors="coerce")
            if (numbers.isna() == (series.isna() | marked)).all():
                found[name] = numbers
            elif series.dropna().isin(TRUTH).all():
                found[name] = series.map(TRUTH)
    return found


# ---- Parquet


def open_parquet(path: Path) -> Any:
    """Return a pyarrow.parquet.ParquetFile; only the names and types of its columns are read."""
    import pyarrow.parquet as pq

    with _clear_errors(path):
        return pq.ParquetFile(path)


def read_parquet(path: Path, columns: Sequence[str]) -> Any:
    """Return a pyarrow.Table of these columns, without the notes of pandas in the file, which may be damaged."""
    file = open_parquet(path)
    with _clear_errors(path):
        table = file.read(columns=list(columns)).select(list(columns))
        table.validate(full=True)  # texts that are not UTF-8 would be noticed much later
        return table.replace_schema_metadata(None)


def parquet_parts(path: Path, columns: Sequence[str], size: int) -> Iterator[Any]:
    """Yield pyarrow.Tables of these columns, with at most `size` rows each."""
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


# ---- CSV


def _csv_header(path: Path, separator: str, whole: bool = False) -> tuple[list[str], int]:
    """Return the names of the columns, and the number of lines without any text before them.

    With `whole`, all lines are read, and the first one with more or fewer fields than the header is an error.
    """
    names: list[str] = []
    before = 0
    opener: Any = gzip.open if path.name.lower().endswith(".gz") else open
    limit = csv.field_size_limit(LONGEST_FIELD)
    try:
        with _clear_errors(path), opener(path, "rt", encoding="utf-8-sig", newline="") as lines:
            reader = csv.reader(lines, delimiter=separator, skipinitialspace=True)
            for fields in reader:
                names = list(map(str.strip, fields))
                if any(names):
                    break
                before = reader.line_num
            width = len(names)
            for fields in reader if whole else ():
                if fields and len(fields) != width and (len(fields) < width or any(fields[width:])):
                    raise InputError(
                        f"{path} is not well-formed: line {reader.line_num} has {counted(len(fields), 'field')}, the "
                        f"header has {width}; correct the line"
                    )
    finally:
        csv.field_size_limit(limit)
    if not any(names):
        raise InputError(f"{path} has no columns: check how it was written")
    text = "".join(names)
    other = max(set(SEPARATOR_NAMES) - {separator}, key=text.count)
    if len(names) <= 2 and text.count(other) >= 2:  # which would divide it into three or more
        rename = next((f"name it {ending}, or " for ending, mark in SEPARATORS.items() if mark == other), "")
        found = "one column" if len(names) == 1 else "two columns"
        raise InputError(
            f"{path} has {found}, {' and '.join(repr(name[:100]) for name in names)}: its separators are "
            f"{SEPARATOR_NAMES[other]}; {rename}save it with {SEPARATOR_NAMES[separator]}"
        )
    return names, before


def _csv_parts(path: Path, separator: str, texts: Collection[str], size: int | None) -> Iterator[pd.DataFrame]:
    """Yield the rows of a file in parts of `size` rows, or in one part where it is None.

    Lines with more or fewer fields than the header are errors, whereas pandas would fill up short ones silently.
    """
    import pandas as pd

    header, before = _csv_header(path, separator)
    names = list(header)
    for i in range(len(names)):
        names[i] = names[i] or f"\0{i}"
    checked = False
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
            if not checked and len(frame) and frame[names[-1]].isna().any():
                _csv_header(path, separator, whole=True)
                checked = True
            yield frame
    except InputError:
        _csv_header(path, separator, whole=True)  # a better reason, where this is it
        raise
    finally:
        if size is not None and reader is not None:
            reader.close()


@contextmanager
def _clear_errors(path: Path) -> Iterator[None]:
    """Turn errors of reading a table into an `InputError`."""
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


# ---- writing


@contextmanager
def frame_writer(output: Path | None, neutralise: bool = False) -> Iterator[Callable[[pd.DataFrame], None]]:
    """Yield a function that writes one part of a table after the other; the file is there when the block has ended.

    Parameters
    ----------
    output
        File to write, in the format of its ending; None: standard output, as CSV.
    neutralise
        Write ' before CSV cells that a spreadsheet would take for formulas; otherwise such cells are a warning.
    """
    separator = "," if output is None else _separator(output)
    if output is not None and separator is None:
        with whole_file(output) as temporary, _parquet_writer(temporary) as write_part:
            yield write_part
        return
    formulas: list[str] = []  # the first one is enough
    form: dict[str, Any] = {"sep": separator, "index": False, "header": True, "lineterminator": "\n"}

    def as_text(cell: Any) -> Any:
        if not (isinstance(cell, str) and cell.startswith(FORMULA) and not is_number(cell)):
            return cell
        formulas[:] = formulas or [cell]
        return f"'{cell}" if neutralise else cell

    def write(frame: pd.DataFrame) -> None:
        frame = frame.rename(columns=as_text)
        for name in frame.select_dtypes(exclude=["number", "bool"]):
            frame[name] = frame[name].map(as_text)
        text = frame.to_csv(**form)
        if "\r" in text or "\r" in "".join(frame):  # it is not quoted by itself, and ends a line for most readers
            text = frame.to_csv(**form, quoting=csv.QUOTE_NONNUMERIC)
        file.write(text)
        form["header"] = False

    with ExitStack() as stack:
        if output is None:
            file: Any = standard_output()
        else:
            temporary = stack.enter_context(whole_file(output))
            opener: Any = gzip.open if output.name.lower().endswith(".gz") else open
            file = stack.enter_context(opener(temporary, "wt", encoding="utf-8", newline=""))
        try:
            yield write
        except OSError as error:
            # The file of another part of the work, or a reader that has seen enough.
            if output is not None or error.filename is not None or isinstance(error, BrokenPipeError):
                raise
            raise InputError(f"standard output cannot be written ({cause_of(error)}): name a file") from None
    if formulas and not neutralise:
        warn(
            f"cells such as {formulas[0][:40]!r} begin as formulas do, which a spreadsheet would run: "
            "write them as texts with --neutralise (neutralise=True in Python), or read the file with another program",
            DataWarning,
        )


@contextmanager
def _parquet_writer(path: Path) -> Iterator[Callable[[pd.DataFrame], None]]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer: Any = None

    def write(frame: pd.DataFrame) -> None:
        nonlocal writer
        table = pa.Table.from_pandas(frame, preserve_index=False)
        if writer is None:
            writer = pq.ParquetWriter(path, table.schema)
        try:
            writer.write_table(table.cast(writer.schema))
        except pa.ArrowInvalid as error:
            raise InputError(
                f"the column to keep has values of different types ({cause_of(error)}): write .csv instead"
            ) from None

    try:
        yield write
    finally:
        if writer is not None:
            writer.close()
