"""A fitted model: what it takes, what it tells apart, how likely each class is, and its predictions of whole files.

It is kept in a folder:

    model.safetensors, model.json            the network and how inputs are encoded, see `models.saved`
    schema.json                              what a table's columns were taken as, to be edited and given back
    comparison.json, card.md, report.html    what was compared, for programs and for people

Predictions are written part by part, with a warning on what is odd about the samples.
"""

from __future__ import annotations

import csv
import gzip
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..data import Options
from ..data.schema import Form, Note, Numeric, Schema
from ..data.values import Scaling, is_number, standardised
from ..errors import DataWarning, InputError, cause_of, counted, listed, warn
from ..files import check_target, keep_apart, standard_output, whole_file
from ..models import Classifier, evaluation_mode, features_of, from_hub
from ..models.saved import DESCRIPTION, WEIGHTS, SavedModel, load_model_folder
from ..reports import Table, percent
from ..reports.elements import Entry
from ..settings import Settings, as_json, convert
from .metrics import Decision, Figures, decide, per_class
from .scoring import MANY, Scores, class_table, confusion_table, figures_table, guesses
from .stream import ROWS, beginning, path_of, read_parts

if TYPE_CHECKING:
    import pandas as pd

Kind = Literal["table", "vectors", "images"]
CARD, COMPARISON, REPORT, SCHEMA = "card.md", "comparison.json", "report.html", "schema.json"
FILES = (WEIGHTS, DESCRIPTION, SCHEMA, CARD, COMPARISON, REPORT)
PREDICTION, SET = "prediction", "prediction_set"
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # beginnings of what spreadsheets run
ENDINGS = (".parquet", ".csv", ".csv.gz", ".tsv")
ALL = "all rows"
FEW = 20  # rows; of no more than these, most may lie a little outside by chance
MOST_LINES = 5  # columns that have a line each; more share one
HARDLY = 0.01  # share of zeroes that a column may have had, so that many are worth a remark
FEWEST_ZEROS = 5  # rows

Write = Callable[["pd.DataFrame", bool], None]
"""Takes a part of the predictions, and whether it is the first"""


@dataclass(frozen=True)
class Origin(Settings):
    """The data that a model was fitted to.

    data     the data set, as in `trm data list`
    kind     table, vectors or images
    names    what else in the file had a name: the array or columns of features, the column of paths
    columns  of a file of vectors: the columns or the array that hold them
    digest   of the samples it was trained on, by which they are recognised under another name; "": not kept
    """

    data: str = ""
    kind: Kind = "vectors"
    label: str = "label"
    environment: str = "environment"
    names: Mapping[str, str] = field(default_factory=dict)
    columns: tuple[str, ...] = ()
    algorithm: str = ""
    digest: str = ""


@dataclass(frozen=True)
class Model(SavedModel):
    """A fitted network on the CPU, with what it takes and what it tells apart.

    Attributes
    ----------
    origin
        The data that it was fitted to.
    schema
        From rows of a table to the network's inputs; None: it takes vectors or images.
    form
        In which the network takes the rows of a table.
    decision
        What was learned from predictions in held-out environments, where there was a comparison.
    network
        The classifier.
    backbone
        Its name, as `models.build_model` takes it.
    input_shape
        Of one input.
    classes, environments
        Their names, by number.
    about
        How it came about, in the types of JSON.

    Examples
    --------
    >>> from transferrisk.fitting import Model
    >>> from transferrisk.models import build_model
    >>> model = Model(build_model("linear", 2, (3,)).eval(), "linear", (3,), ("no", "yes"), ("north", "south"))
    >>> import torch
    >>> model.predict_proba(torch.randn(4, 3)).shape
    (4, 2)
    """

    origin: Origin = field(default_factory=Origin)
    schema: Schema | None = None
    form: Form = "features"
    decision: Decision = field(default_factory=Decision)

    @classmethod
    def from_pretrained(cls, name: str | Path, revision: str | None = None) -> Model:
        """The model in a folder, or in a repository of the Hugging Face hub; `models.push_to_hub` pushes one."""
        return load_model(from_hub(name, revision))

    def predict_proba(self, samples: pd.DataFrame | NDArray[Any] | Tensor) -> NDArray[np.float64]:
        """Probability of each class, (n, C): of a table's rows, vectors (n, d), or images (n, 3, h, w) in 0..255.

        What the schema had not seen is a warning.
        """
        if self.schema is not None:
            if not hasattr(samples, "columns"):
                raise InputError(
                    f"samples must be a pandas.DataFrame with the columns of the table, got {type(samples).__name__}"
                )
            encoded = self.schema.encode(samples, self.form)
            for note in encoded.notes:
                warn(str(note), DataWarning)
            return self.probabilities(encoded.features)
        if hasattr(samples, "columns"):
            raise InputError(f"samples must be an array, since this model takes {self.origin.kind}, got a table")
        return self.probabilities(torch.as_tensor(samples))

    def predict(self, samples: pd.DataFrame | NDArray[Any] | Tensor) -> NDArray[np.str_]:
        """The class of each sample by name, (n,): the most likely one, or by the threshold that the model came with."""
        places = decide(self.predict_proba(samples), self.decision.threshold)
        chosen: NDArray[np.str_] = np.array(self.classes)[places]
        return chosen

    def predict_sets(self, samples: pd.DataFrame | NDArray[Any] | Tensor, coverage: float = 0.9) -> NDArray[np.bool_]:
        """The classes that are in each sample's set, (n, C), see `metrics.Conformal`."""
        return self._sets(self.predict_proba(samples), coverage)

    def _sets(self, probabilities: NDArray[np.float64], coverage: float) -> NDArray[np.bool_]:
        conformal = self.decision.conformal
        if conformal is None:
            raise InputError(
                "sets (--sets) need predictions in held-out environments, and this model was fitted without a "
                "comparison: fit it again with one"
            )
        return conformal.sets(probabilities, coverage)

    def probabilities(self, inputs: Tensor) -> NDArray[np.float64]:
        """Probabilities (n, C) of inputs as the network takes them (n, ...), images as bytes."""
        if inputs.shape[1:] != self.input_shape:
            raise InputError(
                f"inputs must have shape (n, {', '.join(map(str, self.input_shape))}), got {tuple(inputs.shape)}: use "
                "samples like those the model was fitted to"
            )
        batch = (lambda part: inputs[part].float() / 255) if inputs.dtype == torch.uint8 else inputs.__getitem__
        return class_probabilities(self.network, batch, len(inputs))


def class_probabilities(network: Classifier, batch: Callable[[slice], Tensor], count: int) -> NDArray[np.float64]:
    """Probabilities of the classes, (count, C); a sample too large for the network's arithmetic is refused."""
    features = features_of(network, batch, count)
    with evaluation_mode(network):
        found: Tensor = network.head(features).double().softmax(1)
    finite = found.isfinite().all(1)
    if not finite.all():
        raise InputError(
            f"row {int(finite.int().argmin()) + 1} has no probabilities, since a value is missing or lies too far from "
            "those of the rows that were trained on: correct or remove it"
        )
    return found.numpy()


def load_model(folder: Path | str) -> Model:
    """Read the model in a folder that `trm fit`, `trm train` or `TransferRiskClassifier.save` wrote.

    Parameters
    ----------
    folder
        Of the model.

    Returns
    -------
    Model
        The model.

    Examples
    --------
    >>> from tempfile import mkdtemp
    >>> import numpy as np
    >>> from transferrisk.fitting import load_model
    >>> from transferrisk.sklearn import TransferRiskClassifier
    >>> X, y, site = np.random.rand(60, 3), np.arange(60) % 2, np.arange(60) % 3
    >>> folder = mkdtemp() + "/model"
    >>> TransferRiskClassifier(max_epochs=2, random_state=0).fit(X, y, environments=site).save(folder)
    >>> load_model(folder).classes
    ('0', '1')
    """
    saved = load_model_folder(folder)
    kind = "images" if len(saved.input_shape) == 3 else "vectors"
    about = saved.about
    try:
        origin = convert("origin", {"kind": kind} | convert("origin", about.get("origin", {}), dict), Origin)
        schema = None if about.get("schema") is None else Schema.from_dict(about["schema"])
        if (origin.kind == "images", origin.kind == "table") != (kind == "images", schema is not None):
            raise InputError(f"origin: kind must fit the inputs, got {origin.kind!r} for shape {saved.input_shape}")
        form = convert("form", about.get("form", "features"), Form)
        if schema is not None:
            import pandas as pd

            encoded = schema.encode(pd.DataFrame(), form).features.shape[1]
            if (encoded,) != saved.input_shape:
                raise InputError(f"schema must give {saved.input_shape[0]} features, got {encoded}")
        decision = convert("decision", about.get("decision", {}), Decision)
    except InputError as error:
        raise InputError(f"{Path(folder) / WEIGHTS} cannot be understood ({error}): fit the model again") from None
    return Model(**vars(saved), origin=origin, schema=schema, form=form, decision=decision)


@dataclass(frozen=True)
class Predicted:
    """
    rows      how many were predicted
    decision  the model's, which tells how it did in environments it was not trained on
    right     environment -> (how many came out right, of how many), where the file has labels, one of which is known
    figures   environment -> how good its predictions are, likewise
    matrix    rows with a label that is known, true class x predicted class; None: there is none
    coverage  asked for with sets; None: there are no sets
    covered   environment -> share of its labelled rows whose set holds the label
    """

    rows: int
    classes: tuple[str, ...]
    decision: Decision
    right: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    figures: Mapping[str, Figures] = field(default_factory=dict)
    matrix: NDArray[np.int64] | None = None
    coverage: float | None = None
    covered: Mapping[str, float] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """What is known in the types of JSON."""
        scores = () if self.matrix is None else per_class(self.matrix)
        named = ("precision", "recall", "f1")
        content = {
            "rows": self.rows,
            "accuracy": {name: right / count for name, (right, count) in self.right.items()},
            "labelled_rows": {name: count for name, (_, count) in self.right.items()},
            "figures": dict(self.figures),
            "confusion": None if self.matrix is None else self.matrix.tolist(),
            "classes": {
                name: dict(zip(named, map(float, one), strict=True))
                for name, one in zip(self.classes, scores, strict=False)
            },
            "held_out": {"kind": self.decision.held, "figures": dict(self.decision.seen)},
            "threshold": self.decision.threshold,
            "remarks": guesses(self.figures),
        }
        if self.coverage is not None:
            sets = {"coverage": self.coverage, "expected": self._expected(), "found": dict(self.covered)}
            content["sets"] = sets
        return dict(as_json(content))

    def lead(self) -> str:
        """One line: how many rows, and how the model did where it was not trained."""
        seen, done = self.decision.seen, f"{counted(self.rows, 'row')} predicted."
        if not seen:
            return done
        where = "in environments it was not trained on" if self.decision.held == "environments" else "on held-out rows"
        accuracies, losses = np.transpose([(one.accuracy, one.log_loss) for one in seen.values()])
        worst = [*seen][int(accuracies.argmin())]
        return (
            f"{done} When the model was fitted, it was tested {where}: it had an accuracy of "
            f"{100 * accuracies.mean():.1f} % on average, {100 * seen[worst].accuracy:.1f} % at worst ({worst}), and a "
            f"log loss of {losses.mean():.3f}."
        )

    def sections(self) -> list[Table | str]:
        """Figures of environments and classes, where labels are known, the coverage of sets, and where it guesses."""
        found: list[Table | str] = []
        if self.figures:
            found.append(figures_table(self.figures))
        if self.matrix is not None:
            few = len(self.classes) <= MANY
            found.append(class_table(self.matrix, self.classes))
            found += [confusion_table(self.matrix, self.classes)] if few else []
        if self.coverage is not None:
            expected = self._expected()
            rows: list[list[Entry]] = [
                [name, *(percent(shares.get(name, float("nan"))) for shares in (expected, self.covered))]
                for name in dict.fromkeys([*expected, *self.covered])
            ]
            columns = ["Environment", "When it was held out, %", "In this file, %"]
            found.append(Table(f"Rows whose set of {100 * self.coverage:g} % holds the label", columns, rows))
        return [*found, *guesses(self.figures)]

    def _expected(self) -> dict[str, float]:
        conformal = self.decision.conformal
        return {} if conformal is None or self.coverage is None else conformal.expected(self.coverage)


def predict_file(
    model: Model,
    given: str,
    output: Path | None,
    asked: Options | None = None,
    identity: str | None = None,
    size: int = ROWS,
    on_progress: Callable[[str, int, int], None] | None = None,
    coverage: float | None = None,
    neutralise: bool = False,
) -> Predicted:
    """Write label and probabilities of each sample of a file or folder; as CSV to standard output without `output`.

    With `neutralise`, texts of CSV that a spreadsheet would take for formulas are written after a '. With `coverage`,
    the column prediction_set holds the classes that are in each sample's set, joined by " | ".
    What the model had not seen is one warning each, however many parts of the file it is in.
    """
    import pandas as pd

    columns = [f"probability_{name}" for name in model.classes]
    if identity in (PREDICTION, *columns, *([] if coverage is None else [SET])):
        raise InputError(f"identity={identity!r} (--id): a column of the predictions has that name; rename yours")
    if coverage is not None:
        model._sets(np.full((1, len(columns)), 1 / len(columns)), coverage)  # refused before anything is read
    if output is not None:
        check_target(output)
        keep_apart(output, path_of(given))
        if not output.name.lower().endswith(ENDINGS):
            raise InputError(f"--output must end in {', '.join(ENDINGS)}, or be -, got {output}")
    classes, outside, notes, rows = np.array(model.classes, dtype=object), _Outside(model), dict[Any, Note](), 0
    scores, decision = Scores(model.classes), model.decision
    with _writer(output, neutralise) as write:
        for number, part in enumerate(read_parts(model, given, asked or Options(), identity, size)):
            try:
                chances = model.probabilities(part.inputs)
            except InputError as error:
                raise InputError(f"{beginning(given, rows + 1)}: {error}") from None
            chosen = decide(chances, decision.threshold)
            content = {**part.kept, PREDICTION: classes[chosen], **dict(zip(columns, chances.T, strict=True))}
            sets = None if coverage is None else model._sets(chances, coverage)
            if sets is not None:
                content[SET] = [" | ".join(classes[held]) for held in sets]
            write(pd.DataFrame(content), number == 0)
            unknown = [None] * len(chances)
            scores.add(part.labels or unknown, part.environments or [ALL] * len(chances), chances, chosen, sets)
            outside.add(part.inputs)
            for note in part.notes:
                notes[note.key] = notes[note.key] + note if note.key in notes else note
            rows += len(chances)
            if on_progress is not None:
                on_progress("rows predicted", rows, 0)
    for line in filter(None, (*map(str, notes.values()), *outside.notes(), scores.remarks())):
        warn(f"{given}: {line}", DataWarning)
    matrix, right = scores.confusion(), scores.right
    if not matrix.any():
        return Predicted(rows, model.classes, decision, coverage=coverage)
    covered = {} if coverage is None else {name: scores.covered[name] / right[name][1] for name in right}
    return Predicted(rows, model.classes, decision, right, scores.figures(), matrix, coverage, covered)


class _Outside:
    """Counts of numbers outside of all that were trained on, as those of a column in other units are, and of zeroes.

    A number is outside where it is less than the least or more than the largest of the training rows, and far outside
    where it is so by more than these two are apart. Zeroes count where there were hardly any in the training rows, as
    those that mean missing. The counts do not grow with the rows.
    """

    def __init__(self, model: Model) -> None:
        self.columns: list[tuple[str, Scaling]] = []
        self.before: list[float] = []  # share of zeroes in training
        self.places: list[int] = []  # of their features
        ranges, zeros, start = [np.empty((0, 2), np.float32)], list[float](), 0
        schema = model.schema
        form: Form = "columns" if model.form == "columns" else "features"  # of both, features come first
        widths = [] if schema is None else [len(column.names(form)) for column in schema.columns]
        for column, width in zip(() if schema is None else schema.columns, widths, strict=True):
            if isinstance(column, Numeric) and column.scaling.scale:
                low, high = column.scaling.low, column.scaling.high
                if low is not None and high is not None:
                    self.columns.append((column.name, column.scaling))
                    self.before.append(1.0 if column.zeros is None else column.zeros)
                    self.places.append(start)
                    ranges.append(column.scaling.apply(np.array([low, high]), column.name)[None])
                    with np.errstate(over="ignore"):
                        zeros.append(standardised(np.zeros(1), column.scaling.mean, column.scaling.scale).item())
            start += width
        self.low, self.high = np.concatenate(ranges).T  # (c,) each, standardised as features are
        self.rows = 0
        self.outside, self.far, self.zeros = np.zeros((3, len(self.columns)), np.int64)
        self.least, self.largest = self.low.copy(), self.high.copy()
        self.zero = np.array(zeros, dtype=np.float32)

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

    def notes(self) -> list[str]:
        """Remarks on columns that are 0 all of a sudden, with numbers far outside, or with most of them outside."""
        zero = (self.zeros > max(self.rows / 2, FEWEST_ZEROS - 1)) & (np.array(self.before) <= HARDLY)
        lines = [
            f"column {self.columns[i][0]!r} is 0 in {self.zeros[i]} of {self.rows} rows, and was so in "
            f"{f'{100 * self.before[i]:.1g} %' if self.before[i] else 'none'} of those trained on"
            for i in np.flatnonzero(zero)
        ]
        if len(lines) > MOST_LINES:
            names = listed(repr(self.columns[i][0]) for i in np.flatnonzero(zero))
            lines = [f"columns {names} are 0 in most rows, and hardly ever were in those trained on"]
        lines = [f"{line}: does 0 mean missing? Then leave such cells empty" for line in lines]
        most = (self.outside > self.rows / 2) & (self.rows > FEW)
        told = np.flatnonzero(((self.far > 0) | most) & ~zero)
        if len(told) > MOST_LINES:
            rows = int(np.where(self.far > 0, self.far, self.outside)[told].max())
            names = listed(repr(self.columns[i][0]) for i in told)
            return [
                *lines,
                f"{len(told)} columns have numbers outside of all that were trained on, in up to {rows} of {self.rows} "
                f"rows: {names}; check their units",
            ]
        return [*lines, *map(self._note, told.tolist())]

    def _note(self, i: int) -> str:
        name, scaling = self.columns[i]
        rows, how = (self.far[i], "far ") if self.far[i] else (self.outside[i], "")
        ends = [(self.least[i], self.low[i]), (self.largest[i], self.high[i])]
        met = " and ".join(f"{scaling.mean + scaling.scale * float(end):g}" for end, trained in ends if end != trained)
        return (
            f"column {name!r} lies {how}outside {scaling.low:g} to {scaling.high:g}, all that was trained on, in "
            f"{rows} of {self.rows} rows, reaching {met}: check its units"
        )


@contextmanager
def _writer(output: Path | None, neutralise: bool) -> Iterator[Write]:
    """A function that takes one part after the other; a file is there when all of them are in it."""
    formulas: list[str] = []
    form: Any = {"formulas": formulas, "neutralise": neutralise}
    if output is None:
        try:
            yield partial(_write_csv, standard_output(), ",", **form)
        except OSError as error:
            if error.filename is not None:  # it is another file's
                raise
            raise InputError(f"standard output cannot be written ({cause_of(error)}): name a file") from None
    else:
        with _file_writer(output, form) as write:
            yield write
    if formulas and not neutralise:
        warn(
            f"cells such as {formulas[0][:40]!r} begin as formulas do, which a spreadsheet would run: "
            "write them as texts with neutralise (--neutralise), or read the file with another program",
            DataWarning,
        )


@contextmanager
def _file_writer(output: Path, form: dict[str, Any]) -> Iterator[Write]:
    lower = output.name.lower()
    with whole_file(output) as temporary:
        if lower.endswith(".parquet"):
            with _parquet(temporary) as write:
                yield write
            return
        opener: Any = gzip.open if lower.endswith(".gz") else open
        with opener(temporary, "wt", encoding="utf-8", newline="") as file:
            yield partial(_write_csv, file, "\t" if lower.endswith(".tsv") else ",", **form)


def _write_csv(
    file: Any, separator: str, frame: pd.DataFrame, first: bool, formulas: list[str], neutralise: bool
) -> None:
    """Write a part, with the names of the columns if it is the first; the first formula among its cells is kept."""
    import pandas as pd

    def as_text(cell: Any) -> Any:
        if not (isinstance(cell, str) and cell.startswith(FORMULA) and not is_number(cell)):
            return cell
        formulas[:] = formulas or [cell]  # one is enough to tell
        return f"'{cell}" if neutralise else cell

    texts = [name for name, kind in frame.dtypes.items() if not pd.api.types.is_numeric_dtype(kind)]
    frame = frame.assign(**{name: frame[name].map(as_text) for name in texts}).rename(columns=as_text)
    form: Any = {"sep": separator, "index": False, "header": first, "lineterminator": "\n"}
    text = frame.to_csv(**form)
    if "\r" in text or "\r" in "".join(frame):  # it is not quoted by itself, and ends a line for most readers
        text = frame.to_csv(**form, quoting=csv.QUOTE_NONNUMERIC)
    file.write(text)


@contextmanager
def _parquet(path: Path) -> Iterator[Write]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    writer: Any = None

    def write(frame: pd.DataFrame, first: bool) -> None:
        nonlocal writer
        table = pa.Table.from_pandas(frame, preserve_index=False)
        if first:
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
