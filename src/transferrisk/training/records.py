"""What a run leaves behind: one record for each evaluation, as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from ..errors import InputError
from ..files import write_atomically


@dataclass(frozen=True)
class Scores:
    """Accuracy and mean cross-entropy in one environment."""

    accuracy: float
    loss: float


@dataclass(frozen=True)
class Record:
    """One evaluation of one run; scores are by name of the environment."""

    algorithm: str
    seed: int
    step: int
    epoch: float
    seconds: float  # of training so far, evaluations left out
    train: dict[str, Scores]
    training_domain: dict[str, Scores]
    test_domain: dict[str, Scores]
    test: dict[str, Scores]
    transfer_matrix: list[list[float]]  # [Q][P] on training-domain validation data, names as in `training_domain`
    logs: dict[str, float] = field(default_factory=dict)

    @property
    def transfer_risk(self) -> float:
        """Mean over Q of the worst loss of Q's predictor elsewhere (eq. 1)."""
        rows = [[loss for p, loss in enumerate(row) if p != q] for q, row in enumerate(self.transfer_matrix)]
        return sum(max(row) for row in rows) / len(rows)


def mean_accuracy(scores: dict[str, Scores]) -> float:
    """Over environments, each counting the same."""
    return sum(s.accuracy for s in scores.values()) / len(scores)


def write_records(path: Path, records: Iterable[Record]) -> None:
    write_atomically(path, "".join(json.dumps(asdict(record)) + "\n" for record in records))


def read_records(path: Path) -> list[Record]:
    if not path.is_file():
        raise InputError(f"{path} does not exist: nothing was recorded there")
    records = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            values = json.loads(line)
            for split in ("train", "training_domain", "test_domain", "test"):
                values[split] = {name: Scores(**scores) for name, scores in values[split].items()}
            records.append(Record(**values))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise InputError(f"{path}, line {number}, is not a record ({error}): the file is damaged") from None
    return records
