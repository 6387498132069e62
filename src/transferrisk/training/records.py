"""What a run leaves behind: one record for each evaluation, as JSON lines."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import MISSING, asdict, dataclass, field, fields
from functools import partial
from pathlib import Path
from typing import Any

from ..data import SPLITS
from ..errors import InputError
from ..files import write_atomically
from . import read
from .plain import dumps


@dataclass(frozen=True)
class Scores:
    """Accuracy and mean cross-entropy in one environment, and the accuracy in the class where it is lowest."""

    accuracy: float
    loss: float
    worst_group: float | None = None


@dataclass(frozen=True)
class Record:
    """One evaluation of one run; scores are by name of the environment.

    transfer_matrix  [Q][P] on training-domain validation data, names as in `training_domain`; empty: not asked for
    irm              IRMv1 penalty of each environment on the same data; empty: not asked for
    settings         of the algorithm, where they are not its defaults
    held_out         the training environment that was left out and is tested on here, to select settings by
    origin           what the run's data and model were made from: data, test_env, backbone, ...
    training         its TrainingConfig
    identity         a digest of all that decides the run's numbers; "" in records of earlier versions
    """

    algorithm: str
    seed: int
    step: int
    epoch: float
    seconds: float  # of training so far, evaluations left out
    train: dict[str, Scores]
    training_domain: dict[str, Scores]
    test_domain: dict[str, Scores]
    test: dict[str, Scores]
    transfer_matrix: list[list[float]]
    logs: dict[str, float] = field(default_factory=dict)
    irm: dict[str, float] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    held_out: str | None = None
    origin: dict[str, Any] = field(default_factory=dict)
    training: dict[str, Any] = field(default_factory=dict)
    identity: str = ""

    @property
    def transfer_risk(self) -> float:
        """Mean over Q of the worst loss of Q's predictor elsewhere (eq. 1); nan where any of them was not measured."""
        rows = [[loss for p, loss in enumerate(row) if p != q] for q, row in enumerate(self.transfer_matrix)]
        # Of nan and a number, max takes whichever comes first.
        if not rows or not all(rows) or any(math.isnan(loss) for row in rows for loss in row):
            return math.nan
        return sum(map(max, rows)) / len(rows)

    @property
    def run(self) -> tuple[str, int, str | None, str, tuple[str, ...], str]:
        """What records of one run have in common, and those of two do not."""
        settings = dumps(self.settings, sort_keys=True)
        return self.algorithm, self.seed, self.held_out, settings, tuple(self.test), self.identity


def mean_accuracy(scores: dict[str, Scores]) -> float:
    """Over environments, each counting the same; nan where there are none."""
    return sum(s.accuracy for s in scores.values()) / len(scores) if scores else math.nan


def worst_group(scores: dict[str, Scores]) -> float:
    """Lowest accuracy over (environment, class) groups; nan where it was not recorded."""
    groups = [s.worst_group for s in scores.values() if s.worst_group is not None]
    return min(groups) if groups else math.nan


def write_records(path: Path | str, records: Iterable[Record]) -> None:
    write_atomically(Path(path), "".join(map(_line, records)))


def append_record(path: Path, record: Record) -> None:
    """Add a line, and return when it is on the disk."""
    with path.open("a") as file:
        file.write(_line(record))
        file.flush()
        os.fsync(file.fileno())


def keep_records(path: Path, count: int) -> list[Record]:
    """The first `count` records, of one run; whatever else is in the file, half a line perhaps, is removed from it."""
    content = path.read_bytes() if path.exists() else b""
    lines = content.splitlines(keepends=True)[:count]
    if len(lines) < count:
        raise InputError(f"{path} holds {len(lines)} of the {count} records of the checkpoint beside it: bring it back")
    records = _parsed(path, lines)
    for number, record in enumerate(records, 1):
        if record.run != records[0].run:
            raise InputError(f"{path}, line {number}, is of another run than those before it: bring the file back")
    if b"".join(lines) != content:
        write_atomically(path, b"".join(lines))
    return records


def read_records(path: Path | str) -> list[Record]:
    """All records of a file, of one run or of several; what is none is an error that names its line."""
    path = Path(path)
    if not path.is_file():
        raise InputError(f"{path} does not exist: nothing was recorded there")
    return _parsed(path, path.read_bytes().splitlines())


def _parsed(path: Path, lines: Sequence[bytes]) -> list[Record]:
    records, steps = [], dict[object, int]()
    for number, line in enumerate(lines, 1):
        try:
            record = _record(json.loads(line, parse_constant=lambda _: None))  # NaN: an earlier version's null
            if record.step <= steps.get(record.run, -1):
                raise ValueError(f"step {record.step} comes after step {steps[record.run]}")
        except (ValueError, RecursionError) as error:
            raise InputError(f"{path}, line {number}, is not a record ({error}): the file is damaged") from None
        steps[record.run] = record.step
        records.append(record)
    return records


def _record(values: Any) -> Record:
    """From what JSON gives, whoever has edited it; ValueError says what is wrong."""
    read.mapping(values, "it")
    known = {field.name: field for field in fields(Record)}
    for name in values:
        if name not in known:
            raise ValueError(f"{name!r} is not known")
    for name, one in known.items():
        if name not in values and one.default is MISSING and one.default_factory is MISSING:
            raise ValueError(f"{name!r} is missing")
    return Record(**{name: _READERS[name](value, name) for name, value in values.items()})


def _scores(value: Any, name: str) -> Scores:
    read.mapping(value, name)
    if not {"accuracy", "loss"} <= value.keys() <= {"accuracy", "loss", "worst_group"}:
        raise ValueError(f"{name} has {', '.join(value) or 'nothing'} where accuracy and loss are expected")
    worst = value.get("worst_group")
    return Scores(
        read.number(value["accuracy"], name),
        read.number(value["loss"], name),
        None if worst is None else read.number(worst, name),
    )


_READERS: dict[str, Callable[[Any, str], Any]] = {
    "algorithm": read.text,
    "seed": read.whole,
    "step": read.whole,
    "epoch": read.number,
    "seconds": read.number,
    "transfer_matrix": read.square,
    "logs": partial(read.each, read.number),
    "irm": partial(read.each, read.number),
    "settings": read.mapping,
    "held_out": lambda value, name: None if value is None else read.text(value, name),
    "origin": read.mapping,
    "training": read.mapping,
    "identity": read.text,
    **dict.fromkeys(SPLITS, partial(read.each, _scores)),
}


def _line(record: Record) -> str:
    return dumps(asdict(record)) + "\n"
