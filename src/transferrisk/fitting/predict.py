"""Predictions for new samples, written part by part, and what is odd about them."""

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
from torch import Tensor

from ..data import Options
from ..data.schema import Note, Numeric, Scaling, Schema
from ..errors import DataWarning, InputError, cause_of, counted, listed, warn
from ..files import check_target, keep_apart, whole_file
from ..reports import Table, percent
from ..reports.values import Entry
from .model import Model
from .stream import ROWS, Part, beginning, path_of, read_parts

if TYPE_CHECKING:
    import pandas as pd

Write = Callable[["pd.DataFrame"], None]
PREDICTION = "prediction"
ENDINGS = (".parquet", ".csv", ".csv.gz", ".tsv")
ALL = "all rows"
FEW = 20  # rows; of no more than these, most may lie a little outside by chance
MOST_LINES = 5  # columns that have a line each; more share one


@dataclass(frozen=True)
class Predicted:
    """
    rows   how many were predicted
    right  environment -> (how many came out right, of how many), where the file has labels, one of which is known
    """

    rows: int
    right: Mapping[str, tuple[int, int]]

    def to_dict(self) -> dict[str, Any]:
        """The counts in the types of JSON."""
        return {
            "rows": self.rows,
            "accuracy": {name: right / count for name, (right, count) in self.right.items()},
            "labelled_rows": {name: count for name, (_, count) in self.right.items()},
        }

    def sections(self) -> list[Table]:
        """The accuracy in each environment, where labels are known."""
        rows: list[list[Entry]] = [[name, count, percent(right / count)] for name, (right, count) in self.right.items()]
        return [Table("Accuracy by environment", ["Environment", "Rows", "Accuracy, %"], rows)] if rows else []


def predict(
    model: Model,
    given: str,
    output: Path | None,
    asked: Options | None = None,
    identity: str | None = None,
    size: int = ROWS,
    on_progress: Callable[[str, int, int], None] | None = None,
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
    score, outside, notes, rows = _Score(model.class_names), _Outside(model.schema), dict[Any, Note](), 0
    with _writer(output) as write:
        for part in read_parts(model, given, asked or Options(), identity, size):
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
            if on_progress is not None:
                on_progress("rows predicted", rows, 0)
    for line in filter(None, (*map(str, notes.values()), *outside.notes(), score.note())):
        warn(f"{given}: {line}", DataWarning)
    return Predicted(rows, dict(sorted(score.right.items())) if score.known else {})


class _Score:
    """Counts of the predictions that came out right, by environment."""

    def __init__(self, class_names: tuple[str, ...]) -> None:
        self.class_names = np.array(class_names, dtype=object)
        self.right: dict[str, tuple[int, int]] = {}
        self.unknown: set[str] = set()
        self.known = self.unlabelled = 0  # rows

    def note(self) -> str:
        """A remark on the accuracy; "" where there is none to make."""
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


class _Outside:
    """Counts of numbers outside of all that were trained on, as those of a column in other units are.

    A number is outside where it is less than the least or more than the largest of the training rows, and far outside
    where it is so by more than these two are apart. The counts do not grow with the rows.
    """

    def __init__(self, schema: Schema | None) -> None:
        self.columns: list[tuple[str, Scaling]] = []
        self.places: list[int] = []  # of their features
        ranges, start = [np.empty((0, 2), np.float32)], 0
        for column in () if schema is None else schema.columns:
            if isinstance(column, Numeric) and column.scaling.scale:
                low, high = column.scaling.low, column.scaling.high
                if low is not None and high is not None:
                    self.columns.append((column.name, column.scaling))
                    self.places.append(start)
                    ranges.append(column.scaling.apply(np.array([low, high]), column.name)[None])
            start += len(column.features)
        self.low, self.high = np.concatenate(ranges).T  # (c,) each, standardised as features are
        self.rows = 0
        self.outside, self.far = np.zeros((2, len(self.columns)), np.int64)
        self.least, self.largest = self.low.copy(), self.high.copy()

    def add(self, inputs: Tensor) -> None:
        """Count the features (n, d) of a part."""
        if not self.columns or not len(inputs):
            return
        given = inputs[:, self.places].numpy()
        beyond = np.maximum(self.low - given, given - self.high)
        self.rows += len(given)
        self.outside += (beyond > 0).sum(0)
        self.far += (beyond > self.high - self.low).sum(0)
        self.least, self.largest = np.minimum(self.least, given.min(0)), np.maximum(self.largest, given.max(0))

    def notes(self) -> list[str]:
        """Remarks on columns with numbers far outside, or with most of them outside."""
        most = (self.outside > self.rows / 2) & (self.rows > FEW)
        told = np.flatnonzero((self.far > 0) | most)
        if len(told) > MOST_LINES:
            rows = int(np.where(self.far > 0, self.far, self.outside)[told].max())
            names = listed(repr(self.columns[i][0]) for i in told)
            return [
                f"{len(told)} columns have numbers outside of all that were trained on, in up to {rows} of {self.rows} "
                f"rows: {names}; check their units"
            ]
        return [self._note(int(i)) for i in told]

    def _note(self, i: int) -> str:
        name, scaling = self.columns[i]
        rows, how = (self.far[i], "far ") if self.far[i] else (self.outside[i], "")
        ends = [(self.least[i], self.low[i]), (self.largest[i], self.high[i])]
        met = " and ".join(f"{scaling.mean + scaling.scale * float(end):g}" for end, known in ends if end != known)
        return (
            f"column {name!r} lies {how}outside {scaling.low:g} to {scaling.high:g}, all that was trained on, in "
            f"{rows} of {self.rows} rows, reaching {met}: check its units"
        )


@contextmanager
def _writer(output: Path | None) -> Iterator[Write]:
    """A function that takes one part after the other; a file is there when all of them are in it."""
    if output is None:
        with _csv(sys.stdout, ",") as write:
            yield write
        return
    lower = output.name.lower()
    if not lower.endswith(ENDINGS):
        raise InputError(f"--output must end in {', '.join(ENDINGS)}, or be -, got {output}")
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
