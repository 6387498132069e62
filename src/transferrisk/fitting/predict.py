"""Predictions for new samples, written part by part."""

from __future__ import annotations

import csv
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from ..data import Options
from ..data.columns import Note
from ..errors import DataWarning, InputError, cause_of, counted, listed, warn
from ..files import check_target, keep_apart, whole_file
from .model import Model
from .outside import Outside
from .stream import ROWS, Part, beginning, parts, path_of

if TYPE_CHECKING:
    import pandas as pd

Write = Callable[["pd.DataFrame"], None]
PREDICTION = "prediction"
ENDINGS = (".parquet", ".csv", ".csv.gz", ".tsv")
ALL = "all rows"


@dataclass(frozen=True)
class Predicted:
    """
    rows   how many were predicted
    right  environment -> (how many came out right, of how many), where the file has labels, one of which is known
    """

    rows: int
    right: Mapping[str, tuple[int, int]]


def predict(
    model: Model,
    given: str,
    output: Path | None,
    asked: Options | None = None,
    identity: str | None = None,
    size: int = ROWS,
    on_rows: Callable[[int], None] | None = None,
) -> Predicted:
    """Write label and probabilities of each sample of a file or folder; as CSV to standard output without `output`.

    What the model had not seen is one warning each, however many parts of the file it is in.
    """
    columns = [f"probability_{name}" for name in model.class_names]
    if identity in (PREDICTION, *columns):
        raise InputError(f"identity={identity!r} (--id): a column of the predictions has that name; rename yours")
    if output is not None:
        check_target(output)
        keep_apart(output, path_of(given))
    score, outside, rows = _Score(model.class_names), Outside(model.encoder), 0
    notes: dict[tuple[str, str], Note] = {}
    with _writer(output) as write:
        for part in parts(model, given, asked or Options(), identity, size):
            try:
                chances = model.probabilities(part.inputs)
            except InputError as error:
                raise InputError(f"{beginning(given, rows + 1)}: {error}") from None
            write(_frame(part, chances, model.class_names, columns))
            score.add(part, chances)
            outside.add(part.inputs)
            for note in part.notes:
                notes[note.key] = notes[note.key] + note if note.key in notes else note
            rows += len(chances)
            if on_rows is not None:
                on_rows(rows)
    for line in filter(None, (*map(str, notes.values()), *outside.notes(), score.note())):
        warn(f"{given}: {line}", DataWarning)
    return Predicted(rows, dict(sorted(score.right.items())) if score.known else {})


class _Score:
    """How many predictions came out right, by environment."""

    def __init__(self, class_names: tuple[str, ...]) -> None:
        self.class_names = np.array(class_names, dtype=object)
        self.right: dict[str, tuple[int, int]] = {}
        self.unknown: set[str] = set()
        self.known = self.unlabelled = 0  # rows

    def note(self) -> str:
        """What is to be known beside the accuracy; "" where there is nothing."""
        unknown = listed(map(repr, sorted(self.unknown)))
        if not self.known:
            knows = listed(map(repr, self.class_names))
            return f"no accuracy, since the model knows none of the labels {unknown}, but {knows}" if unknown else ""
        left = f"{counted(self.unlabelled, 'row')} without a label left out of the accuracy" if self.unlabelled else ""
        wrong = f"labels the model does not know count as wrong: {unknown}" if unknown else ""
        return "; ".join(filter(None, (left, wrong)))

    def add(self, part: Part, chances: NDArray[np.float64]) -> None:
        if part.labels is None:
            self.unlabelled += len(chances)
            return
        guesses = self.class_names[chances.argmax(1)]
        environments = part.environments or [ALL] * len(guesses)
        for guess, label, environment in zip(guesses, part.labels, environments, strict=True):
            if label is None:
                self.unlabelled += 1
                continue
            if label in self.class_names:
                self.known += 1
            else:
                self.unknown.add(label)
            name = environment or "(no environment)"
            right, count = self.right.get(name, (0, 0))
            self.right[name] = (right + (guess == label), count + 1)


def _frame(part: Part, chances: NDArray[np.float64], class_names: tuple[str, ...], columns: list[str]) -> pd.DataFrame:
    import pandas as pd

    content: dict[str, Any] = dict(part.kept)
    content[PREDICTION] = np.array(class_names, dtype=object)[chances.argmax(1)]
    content |= dict(zip(columns, chances.T, strict=True))
    return pd.DataFrame(content)


@contextmanager
def _writer(output: Path | None) -> Iterator[Write]:
    """What takes one part after the other; a file is there when all of them are in it."""
    if output is None:
        with _csv(sys.stdout, ",") as write:
            yield write
        return
    lower = output.name.lower()
    if not lower.endswith(ENDINGS):
        raise InputError(f"{output} is no table by its name: it has to end in {', '.join(ENDINGS)}, or be -")
    with whole_file(output) as temporary:
        if lower.endswith(".parquet"):
            with _parquet(temporary) as write:
                yield write
            return
        import gzip

        opener: Any = gzip.open if lower.endswith(".gz") else open
        with (
            opener(temporary, "wt", encoding="utf-8", newline="") as file,
            _csv(file, "\t" if lower.endswith(".tsv") else ",") as write,
        ):
            yield write


@contextmanager
def _csv(file: Any, separator: str) -> Iterator[Write]:
    first = True

    def write(frame: pd.DataFrame) -> None:
        nonlocal first
        quoting = csv.QUOTE_NONNUMERIC if _has_returns(frame) else csv.QUOTE_MINIMAL
        frame.to_csv(file, sep=separator, index=False, header=first, lineterminator="\n", quoting=quoting)
        first = False

    yield write


def _has_returns(frame: pd.DataFrame) -> bool:
    """Whether a carriage return is in it, which is not quoted by itself and ends a line for most readers."""
    texts = [frame[name].astype(str) for name in frame.select_dtypes(exclude="number")]
    return any("\r" in name for name in frame) or any(bool(t.str.contains("\r", regex=False).any()) for t in texts)


@contextmanager
def _parquet(path: Path) -> Iterator[Write]:
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
