"""Records: one flat line for each evaluation, part of the data and environment.

    step, epoch, seconds     time of the evaluation; seconds of training, without evaluations
    part                     train, training_domain, test_domain or test; "batch" for the log of a training step
    environment, samples     name of the environment, and number of its samples that were evaluated
    accuracy, worst_group    accuracy, and accuracy in the class where it is lowest
    loss                     mean cross-entropy
    irm                      IRMv1's penalty of the environment, if it was requested
    transfer                 environment -> loss there of the predictor that is optimal in this one, if requested
    transfer_risk            the largest of these losses in another environment; its mean over environments is the
                             transfer risk (eq. 1 of the paper)

A task that does not train has other columns. The records of a run are JSON lines, which are appended; those of all runs
of an experiment are a Parquet file, in which the columns of the run's place in the experiment (method, seed, ...) come
first.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import InputError
from ..files import readable, write_atomically
from ..settings import dumps

if TYPE_CHECKING:
    import pandas as pd

Record = dict[str, Any]

RECORDS = "records.jsonl"  # in the folder of a run
TABLE, RECIPE = "records.parquet", "recipe.json"  # in the folder of an experiment
RUNS, DONE, FAILED = "runs", "done.json", "failed.json"  # in a folder of results, and in the folder of a run
PICTURES = "pictures.npz"  # in the folder of a run that draws environments: number -> (classes, per class, h, w, 3)
RUN_COLUMN, RESULT_PREFIX = "run", "result."
ORIGIN = ("precision", "hardware", "threads", "version", "commit", "date")  # columns on how and when a run was done
PARTS = ("train", "training_domain", "test_domain", "test")
BATCH = "batch"
RUN_KEYS = ("algorithm", "seed")  # columns that tell runs apart in a file of several runs, such as the demo's


def append_records(path: Path, records: Iterable[Record]) -> None:
    """Append the records of one evaluation to a file, and return once they are on the disk.

    Parameters
    ----------
    path
        File of JSON lines.
    records
        Records to append.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> from transferrisk.results import append_records, read_records
    >>> path = Path(mkdtemp()) / "records.jsonl"
    >>> append_records(path, [{"step": 1, "part": "test", "accuracy": 0.5}])
    >>> read_records(path)
    [{'step': 1, 'part': 'test', 'accuracy': 0.5}]
    """
    with path.open("a", encoding="utf-8") as file:
        for record in records:
            file.write(f"{dumps(record)}\n")
        file.flush()
        os.fsync(file.fileno())


def keep_records(path: Path, count: int) -> list[Record]:
    """Keep the first records of a file, and remove the rest, such as half a line.

    Parameters
    ----------
    path
        File of JSON lines.
    count
        Number of records to keep.

    Returns
    -------
    list[Record]
        Records that were kept.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> from transferrisk.results import append_records, keep_records
    >>> path = Path(mkdtemp()) / "records.jsonl"
    >>> append_records(path, [{"step": 1}, {"step": 2}])
    >>> keep_records(path, 1)
    [{'step': 1}]
    """
    content = path.read_bytes() if path.exists() else b""
    lines = content.splitlines(keepends=True)[:count]
    if len(lines) < count:
        raise InputError(
            f"{readable(path)} must hold {count} records, as its checkpoint says, got {len(lines)}: restore it"
        )
    records = parse_records(lines, path)
    if b"".join(lines) != content:
        write_atomically(path, b"".join(lines))
    return records


def read_records(path: Path | str) -> list[Record]:
    """Read all records of a file. An error names the first line that is not a record.

    Parameters
    ----------
    path
        File of JSON lines.

    Returns
    -------
    list[Record]
        Records of the file.

    Examples
    --------
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> from transferrisk.results import read_records
    >>> path = Path(mkdtemp()) / "records.jsonl"
    >>> _ = path.write_text('{"step": 1}')
    >>> read_records(path)
    [{'step': 1}]
    """
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{readable(path)} does not exist: check the path")
    return parse_records(path.read_bytes().splitlines(), path)


def records_bytes(records: Iterable[Record]) -> bytes:
    """Return the records as lines of JSON."""
    return "".join(map("{}\n".format, map(dumps, records))).encode()


def records_table(runs: Iterable[tuple[Mapping[str, Any], Sequence[Record]]]) -> pd.DataFrame:
    """Return a table with a line for each record, in which the columns of its run come first.

    Parameters
    ----------
    runs
        Columns and records of each run.

    Returns
    -------
    pd.DataFrame
        Table of records. A column that run and record both have is called "result.NAME" in the record.

    Examples
    --------
    >>> from transferrisk.results import records_table
    >>> list(records_table([({"method": "TRM", "seed": 0}, [{"step": 1, "accuracy": 0.5}])]))
    ['method', 'seed', 'step', 'accuracy']
    """
    import pandas as pd

    pairs = [(about, record) for about, records in runs for record in records]
    first = dict.fromkeys(name for about, _ in pairs for name in about)
    columns = {name: _column([about.get(name) for about, _ in pairs]) for name in first}
    for name in dict.fromkeys(name for _, record in pairs for name in record):
        key = f"{RESULT_PREFIX}{name}" if name in first else name
        columns[key] = _column([record.get(name) for _, record in pairs])
    return pd.DataFrame(columns)


def runs_of(table: pd.DataFrame) -> dict[str, tuple[dict[str, Any], list[Record]]]:
    """Return the origin and the records of each run in the table of an experiment, the inverse of `records_table`.

    Parameters
    ----------
    table
        Table with the columns of a run's place in the experiment, `run`, the columns of its origin, and those of the
        records, in this order. Cells may share a run, whose records then stand in the table for each of them.

    Returns
    -------
    dict
        Name of a run -> its origin (precision, hardware, ...; None where it is not known), and its records.

    Examples
    --------
    >>> from transferrisk.results import records_table
    >>> from transferrisk.results.records import runs_of
    >>> place = {"method": "TRM", "run": "a1", "hardware": "NVIDIA H200"}
    >>> origin, records = runs_of(records_table([(place, [{"step": 1, "accuracy": 0.5}])]))["a1"]
    >>> origin["hardware"], records
    ('NVIDIA H200', [{'step': 1, 'accuracy': 0.5}])
    """
    columns = list(map(str, table))
    first = 1 + max(columns.index(name) for name in (RUN_COLUMN, *ORIGIN) if name in columns)
    places = [name for name in columns[:first] if name not in (RUN_COLUMN, *ORIGIN)]
    found: dict[str, tuple[dict[str, Any], list[Record]]] = {}
    cells: dict[str, list[Any]] = {}  # the first cell of each run
    for line in table.astype(object).where(table.notna(), None).to_dict("records"):
        run, cell = str(line[RUN_COLUMN]), [line[name] for name in places]
        if cells.setdefault(run, cell) == cell:
            record = {name.removeprefix(RESULT_PREFIX): line[name] for name in columns[first:]}
            record = {name: value for name, value in record.items() if value is not None}
            if isinstance(record.get("transfer"), str):
                record["transfer"] = json.loads(record["transfer"])
            origin = {name: line.get(name) for name in ORIGIN}
            found.setdefault(run, (origin, []))[1].append(record)
    return found


def table_bytes(table: pd.DataFrame) -> bytes:
    """Return the table as a Parquet file.

    Parameters
    ----------
    table
        Table of records.

    Returns
    -------
    bytes
        Content of the file.

    Examples
    --------
    >>> from transferrisk.results import records_table, table_bytes
    >>> table_bytes(records_table([({"method": "TRM"}, [{"step": 1}])]))[:4]
    b'PAR1'
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(pa.Table.from_pandas(table, preserve_index=False).replace_schema_metadata(), sink)
    content: bytes = sink.getvalue().to_pybytes()
    return content


def read_table(source: Path | bytes, where: str = "") -> pd.DataFrame:
    """Read a table of records from a Parquet file or its content, and check the types of its columns.

    Parameters
    ----------
    source
        File, or its content.
    where
        Name of the file in messages.

    Returns
    -------
    pd.DataFrame
        Table of records.

    Examples
    --------
    >>> from transferrisk.results import read_table, records_table, table_bytes
    >>> table = records_table([({"method": "TRM"}, [{"step": 1, "accuracy": 0.5}])])
    >>> len(read_table(table_bytes(table)))
    1
    """
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pandas.api.types import infer_dtype

    try:
        content = source if isinstance(source, bytes) else source.read_bytes()
        table = pq.read_table(pa.BufferReader(content)).to_pandas(ignore_metadata=True)
        for column, kinds in _COLUMN_TYPES.items():
            kind = infer_dtype(table[column], skipna=True) if column in table else "empty"
            if kind not in ("empty", *kinds):
                raise ValueError(
                    f"column {column!r} must hold {'text' if 'string' in kinds else 'numbers'}, got {kind}"
                )
    except (pa.ArrowException, OSError, ValueError) as error:
        name = where or (readable(source) if isinstance(source, Path) else "the table")
        why = str(error).partition("\n")[0]
        raise InputError(
            f"{name} cannot be read as Parquet with records ({why}): run the experiment again to rewrite it"
        ) from None
    return table


def parse_records(lines: Iterable[bytes], path: Path | str) -> list[Record]:
    """Return records from the lines of a file, which messages name by its path."""
    records: list[Record] = []
    for number, line in enumerate(lines, 1):
        try:
            record = json.loads(line)
            _check_record(record, records[-1] if records else {})
        except (ValueError, RecursionError) as error:
            raise InputError(
                f"{readable(path)}, line {number}, is not a record ({error}): the file is damaged; restore it"
            ) from None
        records.append(record)
    return records


def _check_record(record: Any, before: Record) -> None:
    """Raise ValueError if a column of numbers or text has another type, or if the steps of a run decrease."""
    if not isinstance(record, dict):
        raise ValueError("it is not an object")
    for name, kinds in _TYPES.items():
        value = record.get(name)
        if value is not None and (not isinstance(value, kinds) or isinstance(value, bool)):
            raise ValueError(f"{name} is {value!r}")
    same_run = all(record.get(name) == before.get(name) for name in RUN_KEYS)
    if same_run and isinstance(step := record.get("step"), int) and step < (before.get("step") or 0):
        raise ValueError(f"step {step} comes after step {before['step']}")


_NUMBER = (int, float)
_TYPES: dict[str, type | tuple[type, ...]] = {
    "step": int,
    "samples": int,
    "part": str,
    "environment": str,
    "transfer": dict,
    **dict.fromkeys(("epoch", "seconds", "accuracy", "loss", "worst_group", "irm", "transfer_risk"), _NUMBER),
}
_COLUMN_TYPES: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(("part", "environment", "run", "date"), ("string",)),
    **{name: ("floating", "integer", "mixed-integer-float") for name, kind in _TYPES.items() if kind in (int, _NUMBER)},
}
"""Column of a table -> the kinds of values that pandas may infer for it."""


def _column(values: Sequence[Any]) -> pd.Series:
    """Return values as a column of one type: numbers, truth values or text; others become JSON text."""
    import pandas as pd

    types = {type(value) for value in values} - {type(None)}
    if types == {int} and None not in values and all(-(2**63) <= value < 2**63 for value in values):
        return pd.Series(values, dtype="int64")
    if types == {int} and all(value is None or abs(value) < 2**53 for value in values):
        return pd.Series(values, dtype="Int64")
    if float in types and types <= {int, float}:
        return pd.Series([None if value is None else float(value) for value in values], dtype="float64")
    if types == {bool} and None not in values:
        return pd.Series(values, dtype="bool")
    return pd.Series([v if v is None or isinstance(v, str) else dumps(v) for v in values], dtype="object")
