"""manifest:FILE, images listed in a table: CSV, Parquet or JSON lines with the columns path, label and environment.

Paths are relative to the folder the table lies in, or absolute. Other column names are given by the options `path`,
`label` and `environment`.
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path

from ...errors import DataWarning, InputError
from ..catalogue import DataSet, register
from ..checks import counted, existing_file, known_name, listed
from ..containers import Entry
from ..environments import EnvironmentSet
from ..facts import Facts
from ..image_set import LabelledFile, image_set
from ..options import Options
from ..tabular import read_frame, read_header
from .folder import SIZE

JSON_LINES = (".jsonl", ".ndjson")
OPTIONS = ("path", "label", "environment")
Row = tuple[str, str, str]


def load(file: Path | str, asked: Options | None = None) -> EnvironmentSet:
    asked, path = asked or Options(), existing_file(file)
    columns = (asked.path or "path", asked.label or "label", asked.environment or "environment")
    samples: list[LabelledFile] = []
    bad: list[str] = []
    for number, row in enumerate(_rows(path, columns), start=1):
        image = path.parent / row[0]
        if not all(row):
            bad.append(f"row {number} has no {columns[row.index('')]}")
        elif not image.is_file():
            bad.append(f"row {number} names {row[0]}, which does not exist")
        else:
            stat = image.stat()
            samples.append(LabelledFile(Entry(path.parent, row[0], stat.st_size, stat.st_mtime_ns), row[1], row[2]))
    if bad and not (asked.skip_bad and samples):
        raise InputError(
            f"{path}: {counted(len(bad), 'row')} cannot be used; {bad[0]}: correct the file, or leave such rows out "
            "with --skip-bad"
        )
    if bad:
        warnings.warn(f"{path}: {counted(len(bad), 'row')} left out: {listed(bad)}", DataWarning, stacklevel=2)
    environments = sorted({sample.environment for sample in samples})
    classes = sorted({sample.label for sample in samples})
    return image_set(samples, environments, classes, SIZE, asked)


def _rows(path: Path, columns: tuple[str, str, str]) -> Iterator[Row]:
    """Path, label and environment of each row, "" where there is none."""
    if path.name.lower().endswith(JSON_LINES):
        yield from _json_rows(path, columns)
        return
    header = read_header(path)
    for option, column in zip(OPTIONS, columns, strict=True):
        known_name(column, header, path, "column", option)
    frame = read_frame(path, columns, texts=columns)
    table = frame.astype("string").fillna("")
    yield from zip(*(table[column].str.strip().tolist() for column in columns), strict=True)


def _json_rows(path: Path, columns: tuple[str, str, str]) -> Iterator[Row]:
    for number, line in enumerate(path.read_text(encoding="utf-8", errors="replace").splitlines(), start=1):
        if not line.strip():
            continue
        try:
            record = json.loads(line)
        except json.JSONDecodeError as error:
            raise InputError(f"{path}, line {number}, is not JSON ({error.msg}): write one object a line") from None
        if not isinstance(record, dict):
            raise InputError(f"{path}, line {number}, is not an object: write one object a line")
        if number == 1:
            for option, column in zip(OPTIONS, columns, strict=True):
                known_name(column, tuple(record), path, "key", option)
        path_, label, environment = ("" if (v := record.get(name)) is None else str(v).strip() for name in columns)
        yield path_, label, environment


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
