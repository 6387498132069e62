"""Figures of the predictions of a file with labels, counted while it is read, and their tables and curve.

Accuracies and the confusion count all rows. Log loss, Brier score, AUROC and calibration error are of the rows whose
probabilities are kept: of all rows up to `KEPT` numbers, beyond that of a random half of them, a quarter, and so on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import nan
from operator import attrgetter, itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import counted, listed
from ..reports import Curves, Table, percent
from ..reports.elements import Entry
from ..settings import as_json
from .decisions import Decision
from .metrics import Figures, Floats, Ints, figures, per_class, reliability

KEPT = 1 << 26  # probabilities in float32, 256 MiB
ALL = "all rows"  # the environment of a file without environments
UNKNOWN = -1  # a label that the model does not know
ENDS = 10  # environments that are shown at either end, the worst and the best, where there are many
MANY = 20  # classes above which a confusion is not printed


@dataclass(frozen=True)
class Predicted:
    """A file that was predicted, and how well, if it has labels that the model knows.

    rows      number of samples
    decision  the model's decision, with its figures in held-out environments
    right     environment -> (number of right predictions, number of labelled rows)
    figures   environment -> figures of its predictions
    matrix    counts of rows, true class x predicted class; None: no label is known
    coverage  coverage of the prediction sets; None: there are no sets
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
        """Return the results in the types of JSON."""
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
            "remarks": no_better(self.figures),
        }
        if self.coverage is not None:
            content["sets"] = {"coverage": self.coverage, "expected": self._expected(), "found": dict(self.covered)}
        return dict(as_json(content))

    def sections(self) -> list[Table | str]:
        """Return what is known of the model from held-out environments, and tables of the file's labels and sets."""
        found: list[Table | str] = []
        seen = self.decision.seen
        if seen:
            where = (
                "in environments it was not trained on" if self.decision.held == "environments" else "on held-out rows"
            )
            of_each = map(attrgetter("accuracy", "log_loss"), seen.values())
            accuracies, losses = np.array(list(of_each)).T
            found.append(
                f"{counted(self.rows, 'row')} predicted. When the model was fitted, it was tested {where}: it had an "
                f"accuracy of {100 * accuracies.mean():.1f} % on average, {100 * accuracies.min():.1f} % at worst "
                f"({[*seen][accuracies.argmin()]}), and a mean log loss of {losses.mean():.3f}."
            )
        if self.figures:
            if len(self.figures) > 1:
                sizes, *of_file = np.array([*map(attrgetter("rows", "accuracy", "log_loss"), self.figures.values())]).T
                (accuracy, loss), (of_rows, loss_of_rows) = np.mean(of_file, 1), np.average(of_file, 1, sizes)
                found.append(
                    f"In {len(sizes)} environments of this file, the accuracy is {100 * accuracy:.1f} % and the log "
                    f"loss {loss:.3f} on average; over all labelled rows they are {100 * of_rows:.1f} % and "
                    f"{loss_of_rows:.3f}."
                )
            found.append(figures_table(self.figures))
            if known := sorted(self.figures.keys() & seen):
                found.append(
                    f"The model was trained on rows of {listed(known, 5)}. If these rows are among them, the "
                    "figures are too good."
                )
        if self.matrix is not None:
            found += class_tables(self.matrix, self.classes)
        if self.coverage is not None:
            expected = self._expected()
            rows: list[list[Entry]] = [
                [name, percent(expected.get(name, nan)), percent(self.covered.get(name, nan))]
                for name in dict.fromkeys([*expected, *self.covered])
            ]
            columns = ["Environment", "When it was held out, %", "In this file, %"]
            found.append(Table(f"Rows whose set of {100 * self.coverage:g} % holds the label", columns, rows))
        return [*found, *no_better(self.figures)]

    def _expected(self) -> dict[str, float]:
        conformal = self.decision.conformal
        return {} if conformal is None or self.coverage is None else conformal.expected(self.coverage)


@dataclass
class Scores:
    """Counts and probabilities of labelled rows, added part by part.

    most        largest number of probabilities that are kept
    share       share of the rows whose probabilities are kept
    counts      (environment, label, prediction) -> number of rows
    covered     environment -> number of rows whose set holds the label
    unlabelled  number of rows without a label
    known       number of rows whose label the model knows
    unknown     labels that it does not know
    places      environment -> its number in `kept`
    kept        labels, environments and probabilities of rows whose label is known
    """

    classes: tuple[str, ...]
    most: int = KEPT
    share: float = 1.0
    counts: Counter[tuple[str, int, int]] = field(default_factory=Counter)
    covered: Counter[str] = field(default_factory=Counter)
    unlabelled: int = 0
    known: int = 0
    unknown: dict[str, None] = field(default_factory=dict)
    places: dict[str, int] = field(default_factory=dict)
    kept: list[tuple[Ints, Ints, Floats]] = field(default_factory=list)
    random: np.random.Generator = field(default_factory=partial(np.random.default_rng, 0))

    def add(
        self,
        labels: Sequence[str | None] | None,
        environments: Sequence[str | None] | None,
        probabilities: Floats,
        chosen: Ints,
        sets: NDArray[np.bool_] | None = None,
    ) -> None:
        """Count the rows of a part; None stands for a label or an environment that is missing."""
        import pandas as pd

        if labels is None:
            self.unlabelled += len(chosen)
            return
        given = pd.Series(list(labels), dtype=object)
        where = pd.Series(ALL if environments is None else list(environments), given.index, object)
        rows = given.notna().to_numpy()
        self.unlabelled += len(given) - int(rows.sum())
        given, where = given[rows], where[rows].fillna("(no environment)")
        y = pd.Index(self.classes, dtype=object).get_indexer(given)  # -1 is UNKNOWN
        self.known += int((y != UNKNOWN).sum())
        self.unknown |= dict.fromkeys(given[y == UNKNOWN])
        self.counts.update(zip(where, y.tolist(), chosen[rows].tolist(), strict=True))
        if sets is not None:
            self.covered.update(where[sets[rows][np.arange(len(y)), y] & (y != UNKNOWN)])
        for name in where.unique():
            self.places.setdefault(name, len(self.places))
        taken = (y != UNKNOWN) & (self.random.random(len(y)) < self.share)
        codes = where.map(self.places).to_numpy(int)
        self.kept.append((y[taken], codes[taken], probabilities[rows][taken].astype(np.float32)))
        while sum(map(len, map(itemgetter(0), self.kept))) * len(self.classes) > self.most:
            self.share /= 2
            for i, (y, codes, kept) in enumerate(self.kept):
                half = self.random.random(len(y)) < 0.5
                self.kept[i] = y[half], codes[half], kept[half]

    def result(self, rows: int, decision: Decision, coverage: float | None = None) -> Predicted:
        """Return the figures of all parts, if any label is known.

        Labels that the model does not know count as wrong in accuracies, and are left out of the other figures.
        """
        if not self.known:
            return Predicted(rows, self.classes, decision, coverage=coverage)
        counts: dict[str, NDArray[np.int64]] = {}  # true class x predicted class; the last row is of unknown labels
        for (name, label, chosen), count in sorted(self.counts.items()):
            counts.setdefault(name, np.zeros((len(self.classes) + 1, len(self.classes)), np.int64))[label, chosen] = (
                count
            )
        labels, codes, chances = map(np.concatenate, zip(*self.kept, strict=True))
        right, found, covered = dict[str, tuple[int, int]](), dict[str, Figures](), dict[str, float]()
        for name, matrix in counts.items():
            hits, of = int(matrix.trace()), int(matrix.sum())
            own = codes == self.places[name]
            frequent = float(matrix[:-1].sum(1).max() / of)
            found[name] = replace(
                figures(labels[own], chances[own]), rows=of, accuracy=hits / of, most_frequent=frequent
            )
            right[name], covered[name] = (hits, of), self.covered[name] / of
        whole = np.sum(list(counts.values()), 0)[:-1]
        return Predicted(
            rows, self.classes, decision, right, found, whole, coverage, {} if coverage is None else covered
        )

    def remarks(self) -> str:
        """Return a line on the labels; "" if all are known."""
        unknown = listed(map(repr, sorted(self.unknown)))
        if not self.known:
            classes = listed(map(repr, self.classes))
            return f"no accuracy, since the model knows none of the labels {unknown}, but {classes}" if unknown else ""
        lines = []
        if self.unlabelled:
            lines.append(f"{counted(self.unlabelled, 'row')} without a label left out of the accuracy")
        if unknown:
            lines.append(f"labels the model does not know count as wrong: {unknown}")
        if self.share < 1:
            lines.append(
                f"log loss, Brier score, AUROC and calibration error are of {100 * self.share:.3g} % of the rows, "
                "drawn at random"
            )
        return "; ".join(lines)


def no_better(found: Mapping[str, Figures]) -> list[str]:
    """Return lines on environments in which predictions are no better than their own most frequent class."""
    worse, rest = list[str](), list[str]()
    for name, one in found.items():
        if one.accuracy <= one.most_frequent and one.entropy > 0:
            (rest if one.log_loss < one.entropy else worse).append(
                f"{name} (accuracy {100 * one.accuracy:.1f} %, most frequent class {100 * one.most_frequent:.1f} %)"
            )
    lines = [f"No better than always predicting the most frequent class at {listed(worse)}."] if worse else []
    if rest:
        lines.append(
            f"No more accurate than always predicting the most frequent class at {listed(rest)}, though the log loss "
            "is lower than that of the class shares."
        )
    return lines


def figures_table(found: Mapping[str, Figures], title: str = "By environment", first: str = "Environment") -> Table:
    """Return a table of figures by environment, or by what `first` names; if there are many, by falling log loss."""
    if len(found) > 2 * ENDS:
        found = dict(sorted(found.items(), key=lambda item: -item[1].log_loss))
    columns = [first, "Rows", "Accuracy, %", "Most frequent class, %"]
    columns += ["Log loss", "Brier score", "AUROC", "Calibration error"]
    rows: list[list[Entry]] = []
    for name, f in found.items():
        shares = percent(f.accuracy), percent(f.most_frequent)
        rows.append([name, f.rows, *shares, f.log_loss, f.brier, f.auroc, f.calibration_error])
    return Table(title, columns, rows, digits=3, fold=ENDS)


def class_tables(matrix: NDArray[np.int64], classes: Sequence[str]) -> list[Table]:
    """Return tables of a confusion: precision, recall and F1 of each class and, unless there are many, its counts.

    The counts are of true class x predicted class, with recall in the last column and precision in the last row.
    """
    by_class: list[list[Entry]] = []
    confusion: list[list[Entry]] = []
    scores = per_class(matrix)  # (C, 3)
    for name, counts, (precision, recall, f1) in zip(classes, matrix.tolist(), scores.tolist(), strict=True):
        by_class.append([name, sum(counts), percent(precision), percent(recall), percent(f1)])
        confusion.append([name, *counts, percent(recall)])
    tables = [Table("By class", ["Class", "Rows", "Precision, %", "Recall, %", "F1, %"], by_class)]
    if len(classes) <= MANY:
        confusion.append(["Precision, %", *map(percent, scores[:, 0].tolist()), ""])
        columns = ["True class", *map("as {}".format, classes), "Recall, %"]
        tables.append(Table("Confusion", columns, confusion))
    return tables


def reliability_section(
    curves: Mapping[str, tuple[Ints, Floats]], title: str = "Reliability", classes: Sequence[str] = ()
) -> Curves:
    """Return a figure of how often predictions come true; `curves` are name -> (labels, probabilities)."""
    lines = {name: reliability(*given) for name, given in curves.items()}
    of = f"of {classes[1]}" if len(classes) == 2 else "of the predicted class"
    return Curves(
        title,
        {
            "as it should be": ([0.0, 1.0], [0.0, 1.0]),
            **{name: (line.probability.tolist(), line.frequency.tolist()) for name, line in lines.items()},
        },
        x=f"Predicted probability {of}",
        y="Share of rows in which it was so",
        note="Bins with about as many rows each. Below the diagonal, probabilities are too high.",
    )
