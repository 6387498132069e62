"""Predictions of whole files, in parts that fit into memory: a table, embeddings, or images.

`predict_file` reads a part, predicts it, writes it and counts how well it did, if the file has labels. Differences from
the training data are counted over all parts and are one warning each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..data.schema import Categorical, Date, Note, Numeric, Schema
from ..data.table_files import PARQUET, frame_writer, parquet_parts, read_frames, read_header
from ..data.values import as_codes, as_name, standardised
from ..errors import DataWarning, InputError, did_you_mean, listed, require_name, warn
from ..files import check_target, existing_file, expand_home
from ..reports.elements import short_number
from ..settings import Count, convert
from .metrics import decide
from .model import Model
from .scoring import Predicted, Scores

if TYPE_CHECKING:
    import pandas as pd

ROWS = 50_000  # of a table at a time
PREDICTION, SET = "prediction", "prediction_set"
PREFIXES = ("table", "npz", "parquet", "folder", "manifest")
"""Kinds of data that a path may begin with, such as table:new.csv."""
FEW = 20  # rows; up to so many, most may lie a little outside by chance
MOST_LINES = 5  # columns that have a line each; more share one
RARE_ZEROS = 0.01  # share of zeroes in the training rows up to which many new ones are worth a remark
FEWEST_ZEROS = 5  # rows


@dataclass(frozen=True)
class Part:
    """Samples to predict.

    inputs        (n, ...), as the network takes them
    kept          columns that are written beside the predictions, by name
    labels        names of classes, (n,), None where a sample has none; None: the file has no labels
    environments  names of environments, in the same form
    notes         differences from the training table
    """

    inputs: Tensor
    kept: Mapping[str, Any] = field(default_factory=dict)
    labels: Sequence[str | None] | None = None
    environments: Sequence[str | None] | None = None
    notes: Sequence[Note] = ()


def predict_file(
    model: Model,
    given: str,
    output: Path | None,
    *,
    label: str | None = None,
    environment: str | None = None,
    features: str | None = None,
    path: str | None = None,
    identity: str | None = None,
    skip_bad: bool = False,
    size: int = ROWS,
    on_progress: Callable[[str, int, int], None] | None = None,
    coverage: float | None = None,
    neutralise: bool = False,
) -> Predicted:
    """Write the class and the probabilities of each sample of a file or folder.

    Parameters
    ----------
    model
        The model.
    given
        Path of a table, embeddings, a manifest, an archive or a folder of images.
    output
        File to write; None: standard output, as CSV.
    label, environment, features, path
        Names of columns or arrays in the file. Default: those of the training data, where the file has them.
    identity
        Column to keep beside the predictions.
    skip_bad
        Leave out images that cannot be read, with a warning.
    size
        Number of rows to read and predict at a time.
    on_progress
        Called with "rows predicted", their number, and 0.
    coverage
        Coverage of the prediction sets, which are written as classes joined by " | "; None: none are written.
    neutralise
        Write ' before CSV cells that a spreadsheet would take for formulas.
    """
    import pandas as pd

    size = convert("--chunk-rows (size in Python)", size, Count)
    columns = list(map("probability_{}".format, model.classes))
    if identity in (PREDICTION, *columns, *([] if coverage is None else [SET])):
        raise InputError(
            f"--id (identity in Python) must not be the name of a column of predictions, got {identity!r}: rename yours"
        )
    if coverage is not None:
        model.sets(np.full((1, len(columns)), 1 / len(columns)), coverage)  # refused before anything is read
    prefix, colon, rest = given.partition(":")
    file = expand_home(rest if colon and prefix in PREFIXES else given)
    if output is not None:
        check_target(output, file)

    required = dict[str, str]()
    for option, name in (("label", label), ("environment", environment), ("id", identity)):
        if name is not None:
            required[option] = name
    names = (label or model.origin.label, environment or model.origin.environment)
    if model.schema is not None:
        parts = _table_parts(model, model.schema, existing_file(file), names, required, size)
    elif model.origin.kind == "images":
        from .pictures import image_parts

        parts = image_parts(model, file, names, path or model.origin.names.get("path") or "path", required, skip_bad)
    elif existing_file(file).name.lower().endswith(PARQUET):
        parts = _parquet_parts(model.origin.columns, file, features, names, required, size)
    else:
        parts = _npz_parts(model.origin.columns, file, features, names, required, size)

    classes = np.array(model.classes, dtype=object)
    scores, ranges, notes, rows = Scores(model.classes), _Ranges(model), dict[Any, Note](), 0
    with frame_writer(output, neutralise) as write:
        for part in parts:
            try:
                chances = model.probabilities(part.inputs)
            except InputError as error:
                raise InputError(f"{_rows_from(given, rows + 1)}: {error}") from None
            chosen = decide(chances, model.decision.threshold)
            sets = None if coverage is None else model.sets(chances, coverage)
            content = {**part.kept, PREDICTION: classes[chosen], **dict(zip(columns, chances.T, strict=True))}
            if sets is not None:
                content[SET] = [" | ".join(classes[held]) for held in sets]
            write(pd.DataFrame(content))
            scores.add(part.labels, part.environments, chances, chosen, sets)
            ranges.add(part.inputs)
            for note in part.notes:
                notes[note.key] = notes[note.key] + note if note.key in notes else note
            rows += len(chances)
            if on_progress is not None:
                on_progress("rows predicted", rows, 0)
    for line in filter(None, (*map(str, notes.values()), *ranges.lines(), scores.remarks())):
        warn(f"{given}: {line}", DataWarning)
    return scores.result(rows, model.decision, coverage)


def _rows_from(path: Path | str, first: int) -> str:
    """Return how a message names the rest of a file, whose rows it counts from 1."""
    return f"{path}, from row {first} on" if first > 1 else str(path)


Names = tuple[str, str]
"""Columns with the labels and the environments, which a file need not have."""
Required = Mapping[str, str]
"""Option -> the name that the user gave with it, which the file must have."""


def _table_parts(
    model: Model, schema: Schema, path: Path, names: Names, required: Required, size: int
) -> Iterator[Part]:
    header, wanted, texts = read_header(path), dict[str, None](), set[str]()
    for column in schema.columns:
        wanted[column.name] = None
        if isinstance(column, Categorical | Date):
            texts.add(column.name)
    absent = wanted.keys() - set(header)
    if 2 * len(absent) > len(wanted):
        raise InputError(
            f"{path} must have most of the {len(wanted)} columns of the model, and {listed(map(repr, sorted(absent)))} "
            "are missing: name another file, or add these columns, with empty cells where a value is unknown"
        )
    for option, name in required.items():
        require_name(name, header, path, "column", option)
    aside = {*names, *required.values()}.difference(wanted).intersection(header)
    if absent:  # a note says that they are taken as missing
        unused = set(header) - wanted.keys() - aside
        renamed = [f"; for {name!r}, {near.strip()}" for name in sorted(absent) if (near := did_you_mean(name, unused))]
        warn(
            f"{path}: the accuracy that the model had when it was fitted may not hold without columns that it uses"
            f"{''.join(renamed)}",
            DataWarning,
        )
    first = 1
    for frame in read_frames(path, size, texts.intersection(header) | aside, schema.missing):
        try:
            encoded = schema.encode(frame.drop(columns=[*aside]), model.form)
        except InputError as error:
            raise InputError(f"{_rows_from(path, first)}: {error}") from None
        yield _part(encoded.features, frame, names, required, encoded.notes)
        first += len(frame)


def _parquet_parts(
    columns: Sequence[str], path: Path, features: str | None, names: Names, required: Required, size: int
) -> Iterator[Part]:
    from ..data.sets.embeddings import vectors_of

    header = read_header(path)
    chosen = columns if features is None else tuple(features.split(","))
    for option, name in (*(("features", name) for name in chosen), *required.items()):
        require_name(name, header, path, "column", option)
    others = {*names, *required.values()}.intersection(header).difference(chosen)
    first = 1
    for table in parquet_parts(path, [*chosen, *others], size):
        vectors = torch.from_numpy(vectors_of(table, chosen, path))
        _refuse_not_finite(vectors, path, first)
        yield _part(vectors, table.select([*others]).to_pandas(ignore_metadata=True), names, required)
        first += len(vectors)


def _npz_parts(
    columns: Sequence[str], path: Path, features: str | None, names: Names, required: Required, size: int
) -> Iterator[Part]:
    import pandas as pd

    from ..data.sets.embeddings import as_vectors, read_arrays

    chosen = features or (columns[0] if len(columns) == 1 else "features")
    needed = {"features": chosen, **required}
    others = read_arrays(path, needed, [name for name in names if name not in needed.values()])
    vectors = torch.from_numpy(as_vectors(others.pop(chosen), chosen, path))
    for name, values in others.items():
        if values.shape != vectors.shape[:1]:
            raise InputError(f"{path}: array {name!r} must have shape ({len(vectors)},), got {values.shape}")
    for start in range(0, len(vectors), size):
        part = vectors[start : start + size]
        _refuse_not_finite(part, path, start + 1)
        frame = pd.DataFrame({name: values[start : start + size] for name, values in others.items()})
        yield _part(part, frame, names, required)


def _refuse_not_finite(vectors: Tensor, path: Path, first: int) -> None:
    finite = vectors.isfinite().all(1)
    if not finite.all():
        row = first + int(finite.int().argmin())
        raise InputError(f"{path}: features must be finite numbers of float32, got another in row {row}: correct it")


def _part(inputs: Tensor, frame: pd.DataFrame, names: Names, required: Required, notes: Sequence[Note] = ()) -> Part:
    """Return the inputs with the column to keep, labels and environments, as far as the frame has them."""
    kept: dict[str, Any] = {}
    if "id" in required:  # whole numbers stay so beside missing ones
        kept = {required["id"]: frame[required["id"]].reset_index(drop=True).convert_dtypes()}
    found: dict[str, Any] = {}
    for group, name in zip(("labels", "environments"), names, strict=True):
        if name in frame:
            codes, texts = as_codes(frame[name], as_name)
            found[group] = np.array([*texts, None], dtype=object)[codes]
    return Part(inputs, kept, notes=notes, **found)


class _Ranges:
    """Counts of numbers outside the range that their column had in training, and of zeroes where there were hardly any.

    A number is far outside if it is beyond the range by more than the range is wide, as in a column in other units.
    Zeroes may mean missing. Numbers are compared as features, since the ends of a range are rounded as they are. The
    counts do not grow with the rows.
    """

    def __init__(self, model: Model) -> None:
        import pandas as pd

        self.columns: list[Numeric] = []
        self.places: list[int] = []  # of their features
        ends = [np.empty((0, 3), np.float32)]  # lowest, highest, 0
        places = {} if model.schema is None else model.schema.encode(pd.DataFrame(), model.form).places
        for column in () if model.schema is None else model.schema.columns:
            if isinstance(column, Numeric) and column.scaling.scale and column.scaling.low is not None:
                scaling = column.scaling
                self.columns.append(column)
                self.places.append(places[column.name])
                numbers = np.array([[scaling.low, scaling.high, 0]], np.float64)
                with np.errstate(over="ignore"):
                    ends.append(standardised(numbers, scaling.mean, scaling.scale).astype(np.float32))
        self.low, self.high, self.zero = np.concatenate(ends).T  # (c,) each
        self.rows = 0
        self.outside, self.far, self.zeros = np.zeros((3, len(self.columns)), np.int64)
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
        self.zeros += (given == self.zero).sum(0)
        self.least = np.fmin(self.least, np.fmin.reduce(given))
        self.largest = np.fmax(self.largest, np.fmax.reduce(given))

    def lines(self) -> list[str]:
        """Return remarks on columns that are 0 in most rows, far outside in some, or outside in most."""
        zero, outside = dict[str, str](), dict[str, str]()
        most = 0
        for i, column in enumerate(self.columns):
            before, scaling = 1.0 if column.zeros is None else column.zeros, column.scaling
            if self.zeros[i] > max(self.rows / 2, FEWEST_ZEROS - 1) and before <= RARE_ZEROS:
                share = f"{100 * before:.1g} %" if before else "none"
                zero[column.name] = (
                    f"column {column.name!r} is 0 in {self.zeros[i]} of {self.rows} rows, and was so in {share} of "
                    "those trained on"
                )
            elif self.far[i] or (self.outside[i] > self.rows / 2 and self.rows > FEW):
                rows, how = (self.far[i], "far ") if self.far[i] else (self.outside[i], "")
                ends = []
                for end, trained in ((self.least[i], self.low[i]), (self.largest[i], self.high[i])):
                    if end != trained:
                        ends.append(short_number(scaling.mean + scaling.scale * float(end)))
                most = max(most, int(rows))
                seen = f"{short_number(scaling.low)} to {short_number(scaling.high)}"
                outside[column.name] = (
                    f"column {column.name!r} lies {how}outside {seen}, all that was trained on, in {rows} of "
                    f"{self.rows} rows, reaching {' and '.join(ends)}: check its units, and "
                    "whether such numbers mean missing"
                )
        lines = [*zero.values()]
        if len(zero) > MOST_LINES:
            lines = [f"columns {listed(map(repr, zero))} are 0 in most rows, and hardly ever were in those trained on"]
        lines = list(map("{}: does 0 mean missing? Then leave such cells empty".format, lines))
        if len(outside) > MOST_LINES:
            lines.append(
                f"{len(outside)} columns have numbers outside of all that were trained on, in up to {most} of "
                f"{self.rows} rows: {listed(map(repr, outside))}; check their units, and "
                "whether such numbers mean missing"
            )
            return lines
        return [*lines, *outside.values()]
