"""manifest:FILE, images listed in a table: CSV, Parquet or JSON lines with the columns path, label and environment.

Paths are relative to the folder the table lies in, or absolute. Other column names are given by the options `path`,
`label` and `environment`.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...errors import InputError
from ..archives import because
from ..catalogue import DataSet, register
from ..checks import existing_file, known_name, leave_out
from ..containers import Entry
from ..environments import EnvironmentSet
from ..facts import Facts
from ..image_set import SIZE, LabelledFile, image_set
from ..options import Options
from ..tabular import read_frame, read_header
from ..values import as_name

JSON_LINES = (".jsonl", ".ndjson")
OPTIONS = ("path", "label", "environment")
Row = tuple[str, str, str]


def load(file: Path | str, asked: Options | None = None) -> EnvironmentSet:
    asked, path = asked or Options(), existing_file(file)
    columns = (asked.path or "path", asked.label or "label", asked.environment or "environment")
    samples: list[LabelledFile] = []
    bad: list[str] = []
    for number, row in enumerate(_rows(path, columns), start=1):
        try:
            samples.append(LabelledFile(_image(path.parent, row, columns), row[1], row[2]))
        except InputError as error:
            bad.append(f"row {number} ({error})")
    if not samples and not bad:
        raise InputError(f"{path} has no rows: write it again with data")
    leave_out(bad, len(samples) + len(bad), "row", path, asked.skip_bad)
    environments = sorted({sample.environment for sample in samples})
    classes = sorted({sample.label for sample in samples})
    return image_set(samples, environments, classes, SIZE, asked, path)


def _image(folder: Path, row: Row, columns: tuple[str, str, str]) -> Entry:
    """The file of a row, if it has one."""
    if not all(row):
        raise InputError(f"it has no {columns[row.index('')]}")
    name = row[0]
    try:
        if not (folder / name).is_file():
            raise InputError(f"{name} does not exist, or is no file")
        status = (folder / name).stat()
    except InputError:
        raise
    except (OSError, ValueError) as error:
        raise InputError(f"{name[:100]} cannot be read: {because(error)}") from None
    return Entry(folder, name, status.st_size, status.st_mtime_ns)


def _rows(path: Path, columns: tuple[str, str, str]) -> Iterator[Row]:
    """Path, label and environment of each row, "" where there is none."""
    if path.name.lower().endswith(JSON_LINES):
        yield from _json_rows(path, columns)
        return
    header = read_header(path)
    for option, column in zip(OPTIONS, columns, strict=True):
        known_name(column, header, path, "column", option)
    frame = read_frame(path, columns, texts=columns)
    for values in zip(*(frame[column].astype(object).tolist() for column in columns), strict=True):
        yield _row(values)


def _json_rows(path: Path, columns: tuple[str, str, str]) -> Iterator[Row]:
    try:
        content = path.read_bytes().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise InputError(f"{path} is not UTF-8 text ({because(error)}): save it as UTF-8") from None
    first = True
    for number, line in enumerate(content.split("\n"), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError) as error:
            cause = error.msg if isinstance(error, json.JSONDecodeError) else because(error)
            raise InputError(f"{path}, line {number}, is not JSON ({cause}): write one object a line") from None
        if not isinstance(record, dict):
            raise InputError(f"{path}, line {number}, is not an object: write one object a line")
        if first:
            for option, column in zip(OPTIONS, columns, strict=True):
                known_name(column, tuple(record), path, "key", option)
        first = False
        yield _row([record.get(name) for name in columns])


def _row(values: Any) -> Row:
    """A path as it is written; a label and an environment by name."""
    path, label, environment = ("" if _missing(value) else value for value in values)
    return str(path).strip(), as_name(label), as_name(environment)


def _missing(value: Any) -> bool:
    return value is None or (isinstance(value, float) and math.isnan(value)) or str(value) in ("<NA>", "NaT")


register(
    DataSet(
        Facts(
            name="manifest",
            title="your images, listed with path, label and environment in CSV, Parquet or JSON lines",
            licence="your own",
            citation="",
            shape=(3, SIZE, SIZE),
        ),
        load,
        takes=frozenset({"size", "lazy", "label", "environment", "path"}),
        argument="FILE",
    )
)
