"""How predictions of a file with labels did: counted while it is read, and shown as tables and a curve.

Accuracies and the confusion are of all rows. Log loss, Brier score, AUROC and calibration error are of the rows whose
probabilities are kept: all, up to `KEPT` numbers, and beyond that a random half of the rows, a quarter, and so on.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from ..errors import counted, listed
from ..reports import Curves, Table, percent
from ..reports.elements import Entry
from .metrics import Figures, Floats, Ints, figures, per_class, reliability

KEPT = 1 << 26  # probabilities in float32, 256 MiB
UNKNOWN = -1  # a label that the model does not know
ENDS = 10  # environments that are shown at either end, the worst and the best, where there are many
MANY = 20  # classes above which a confusion is not printed


class Scores:
    """Counts and probabilities of labelled rows.

    right    environment -> (how many came out right, of how many)
    covered  environment -> in how many of them the set held the label
    """

    def __init__(self, classes: Sequence[str], kept: int = KEPT) -> None:
        self.classes, self.most, self.share = tuple(classes), kept // len(classes), 1.0
        self.places = dict(zip(classes, range(len(classes)), strict=True))
        self.counts: Counter[tuple[str, int, int]] = Counter()  # environment, label, prediction
        self.covered: Counter[str] = Counter()
        self.unlabelled = 0
        self.unknown: dict[str, None] = {}
        self.random = np.random.default_rng(0)
        self.names: dict[str, int] = {}
        self.kept: list[tuple[Ints, Ints, Floats]] = []  # labels, environments, probabilities

    def add(
        self,
        labels: Sequence[str | None],
        environments: Sequence[str | None],
        probabilities: Floats,
        chosen: Ints,
        sets: NDArray[np.bool_] | None = None,
    ) -> None:
        """Count the rows of a part; rows without a label are counted as that."""
        rows = [i for i, label in enumerate(labels) if label is not None]
        self.unlabelled += len(labels) - len(rows)
        given = [str(labels[i]) for i in rows]
        y = np.array([self.places.get(label, UNKNOWN) for label in given], int)
        where = [environments[i] or "(no environment)" for i in rows]
        self.unknown |= dict.fromkeys(label for label, place in zip(given, y, strict=True) if place == UNKNOWN)
        self.counts.update(zip(where, y.tolist(), chosen[rows].tolist(), strict=True))
        if sets is not None:
            held = sets[rows, y] & (y != UNKNOWN)
            self.covered.update(name for name, inside in zip(where, held, strict=True) if inside)
        codes = np.array([self.names.setdefault(name, len(self.names)) for name in where], int)
        taken = (y != UNKNOWN) & (self.random.random(len(y)) < self.share)
        self.kept.append((y[taken], codes[taken], probabilities[rows][taken].astype(np.float32)))
        while sum(len(part) for part, _, _ in self.kept) > self.most:
            self._halve()

    def _halve(self) -> None:
        self.share /= 2
        half = [self.random.random(len(part)) < 0.5 for part, _, _ in self.kept]
        self.kept = [(y[m], e[m], p[m]) for (y, e, p), m in zip(self.kept, half, strict=True)]

    @property
    def right(self) -> dict[str, tuple[int, int]]:
        found: dict[str, tuple[int, int]] = {}
        for (name, label, chosen), count in self.counts.items():
            hits, rows = found.get(name, (0, 0))
            found[name] = (hits + (label == chosen) * count, rows + count)
        return dict(sorted(found.items()))

    def confusion(self, environment: str | None = None) -> NDArray[np.int64]:
        """Rows with a label that is known, true class x predicted class; of one environment, or of all."""
        matrix = np.zeros((len(self.classes), len(self.classes)), np.int64)
        for (name, label, chosen), count in self.counts.items():
            if label != UNKNOWN and environment in (None, name):
                matrix[label, chosen] += count
        return matrix

    def figures(self) -> dict[str, Figures]:
        """Environment -> its figures; labels that the model does not know count as wrong in the accuracy alone."""
        labels, codes, chances = (np.concatenate(parts) for parts in zip(*self.kept, strict=True))
        found = {}
        for name, (hits, rows) in self.right.items():
            own = codes == self.names[name]
            majority = float(self.confusion(name).sum(1).max() / rows)
            found[name] = replace(
                figures(labels[own], chances[own]), rows=rows, accuracy=hits / rows, majority=majority
            )
        return found

    def remarks(self) -> str:
        """A line on the labels; "": there is nothing to say."""
        unknown = listed(map(repr, sorted(self.unknown)))
        if not self.confusion().any():
            knows = listed(map(repr, self.classes))
            return f"no accuracy, since the model knows none of the labels {unknown}, but {knows}" if unknown else ""
        return "; ".join(
            filter(
                None,
                (
                    f"{counted(self.unlabelled, 'row')} without a label left out of the accuracy"
                    if self.unlabelled
                    else "",
                    f"labels the model does not know count as wrong: {unknown}" if unknown else "",
                    f"log loss, Brier score, AUROC and calibration error are of {100 * self.share:.3g} % of the rows, "
                    "drawn at random"
                    if self.share < 1
                    else "",
                ),
            )
        )


def guesses(found: Mapping[str, Figures]) -> list[str]:
    """Lines on environments in which predictions are no better than always saying their own most frequent class."""
    same = {name: one for name, one in found.items() if one.accuracy <= one.majority and one.entropy > 0}
    worse = [name for name, one in same.items() if not one.log_loss < one.entropy]
    lines = []
    if worse:
        lines.append(f"No better than guessing at {_beside(found, worse)}.")
    if rest := [name for name in same if name not in worse]:
        lines.append(
            "No more accurate than always saying the environment's own most frequent class at "
            f"{_beside(found, rest)}, though its probabilities say more than a guess."
        )
    return lines


def _beside(found: Mapping[str, Figures], names: Iterable[str]) -> str:
    return listed(
        f"{name} (accuracy {100 * found[name].accuracy:.1f} %, most frequent class there "
        f"{100 * found[name].majority:.1f} %)"
        for name in names
    )


def figures_table(found: Mapping[str, Figures], title: str = "By environment", first: str = "Environment") -> Table:
    """A row of figures for each environment, or whatever else `first` names; of many, the highest log loss first."""
    if len(found) > 2 * ENDS:
        found = dict(sorted(found.items(), key=lambda item: -item[1].log_loss))
    columns = [first, "Rows", "Accuracy, %", "Most frequent class there, %"]
    columns += ["Log loss", "Brier score", "AUROC", "Calibration error"]
    rows: list[list[Entry]] = [
        [name, f.rows, percent(f.accuracy), percent(f.majority), f.log_loss, f.brier, f.auroc, f.calibration_error]
        for name, f in found.items()
    ]
    return Table(title, columns, rows, digits=3, fold=ENDS)


def confusion_table(matrix: NDArray[np.int64], classes: Sequence[str], title: str = "Confusion") -> Table:
    """Rows of each true class by what was predicted, with recall, and precision in the last row."""
    scores = per_class(matrix)
    columns = ["True class", *(f"as {name}" for name in classes), "Recall, %"]
    rows: list[list[Entry]] = [
        [name, *map(int, counts), percent(float(scores[place, 1]))]
        for place, (name, counts) in enumerate(zip(classes, matrix, strict=True))
    ]
    precision: list[Entry] = ["Precision, %", *(percent(float(value)) for value in scores[:, 0]), ""]
    return Table(title, columns, [*rows, precision])


def class_table(matrix: NDArray[np.int64], classes: Sequence[str], title: str = "By class") -> Table:
    """Rows, precision, recall and F1 of each class."""
    rows: list[list[Entry]] = [
        [name, int(count), *map(percent, map(float, scores))]
        for name, count, scores in zip(classes, matrix.sum(1), per_class(matrix), strict=True)
    ]
    return Table(title, ["Class", "Rows", "Precision, %", "Recall, %", "F1, %"], rows)


def reliability_section(
    curves: Mapping[str, tuple[Ints, Floats]], title: str = "Reliability", classes: Sequence[str] = ()
) -> Curves:
    """How often what was predicted happened; `curves` is name -> (labels, probabilities), such as before and after."""
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
