"""What a run leaves behind: one record for each evaluation, as JSON lines."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..errors import InputError
from ..files import write_atomically


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

    @property
    def transfer_risk(self) -> float:
        """Mean over Q of the worst loss of Q's predictor elsewhere (eq. 1); nan where it was not measured."""
        rows = [[loss for p, loss in enumerate(row) if p != q] for q, row in enumerate(self.transfer_matrix)]
        return sum(max(row) for row in rows) / len(rows) if rows else math.nan

    @property
    def run(self) -> tuple[str, int, str | None, str, tuple[str, ...]]:
        """What records of one run have in common."""
        settings = json.dumps(self.settings, sort_keys=True)
        return self.algorithm, self.seed, self.held_out, settings, tuple(self.test)


def mean_accuracy(scores: dict[str, Scores]) -> float:
    """Over environments, each counting the same."""
    return sum(s.accuracy for s in scores.values()) / len(scores)


def worst_group(scores: dict[str, Scores]) -> float:
    """Lowest accuracy over (environment, class) groups; nan where it was not recorded."""
    groups = [s.worst_group for s in scores.values() if s.worst_group is not None]
    return min(groups) if groups else math.nan


def write_records(path: Path, records: Iterable[Record]) -> None:
    write_atomically(path, "".join(map(_line, records)))


def append_record(path: Path, record: Record) -> None:
    """Add a line, and return when it is on the disk."""
    with path.open("a") as file:
        file.write(_line(record))
        file.flush()
        os.fsync(file.fileno())


def keep_records(path: Path, count: int) -> list[Record]:
    """The first `count` records; whatever else is in the file, half a line perhaps, is removed from it."""
    content = path.read_bytes() if path.exists() else b""
    lines = content.splitlines(keepends=True)[:count]
    if len(lines) < count:
        raise InputError(f"{path} holds {len(lines)} of the {count} records of the checkpoint beside it: bring it back")
    if b"".join(lines) != content:
        write_atomically(path, b"".join(lines))
    return read_records(path) if count else []


def read_records(path: Path) -> list[Record]:
    if not path.is_file():
        raise InputError(f"{path} does not exist: nothing was recorded there")
    records = []
    for number, line in enumerate(path.read_bytes().splitlines(), 1):
        try:
            values = json.loads(line)
            for split in ("train", "training_domain", "test_domain", "test"):
                values[split] = {name: Scores(**scores) for name, scores in values[split].items()}
            records.append(Record(**values))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{path}, line {number}, is not a record ({error}): the file is damaged") from None
    return records


def _line(record: Record) -> str:
    return json.dumps(asdict(record)) + "\n"
