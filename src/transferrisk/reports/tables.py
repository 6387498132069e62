"""Tables of experiments: mean and deviation over seeds, the paper's numbers, and paired differences between methods.

Differences are taken seed by seed, to ERM and from the best method to the runner-up. A difference whose interval
contains 0 is marked, and the best method is then not the only bold one. Methods that have the same runs are not
compared.
"""

from __future__ import annotations

import math
import numbers
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..results.selection import selection_words
from .elements import NOTHING, Cell, Curves, Entry, Table, number

AVERAGE = "average"  # key of a column with the mean of the others
CONFIDENCE = 0.95
EDGE = "At the edge of its grid"  # begins a remark in a note on the points that were chosen
UNSEPARATED = "?"  # printed after a difference whose interval contains 0
MISSING, NO_VALUE, SAME = "missing", "no value", "same runs"


@dataclass(frozen=True)
class Summary:
    """Mean and sample standard deviation over seeds; nan if a value is nan.

    The deviation of a single value is 0, and is not printed.
    """

    mean: float
    std: float
    values: tuple[float, ...]

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        if not values or any(map(math.isnan, values)):
            return cls(math.nan, math.nan, tuple(values))
        return cls(statistics.mean(values), statistics.stdev(values) if len(values) > 1 else 0.0, tuple(values))

    def cell(self, factor: float, digits: int) -> Cell:
        """Return the mean and deviation, multiplied by a factor such as 100 for percent, as a cell."""
        if math.isnan(self.mean):
            return Cell(NOTHING, math.nan)
        spread = f" ± {factor * self.std:.{digits}f}" if len(self.values) > 1 else ""
        return Cell(f"{factor * self.mean:.{digits}f}{spread}", factor * self.mean)


LABELS = {
    "bias": "bias degree",
    "irm": "IRMv1 penalty",
    "ms": "ms a step",
    "ratio": "times ERM's",
    "seconds_per_epoch": "seconds an epoch",
    "peak_mib": "peak memory, MiB",
    "irm_loss": "IRMv1 loss",
    "transfer_risk_sum": "transfer risk",
    "transfer_bound": "lower bound",
    "erm_accuracy": "ERM's accuracy",
    "loss_of_j_on_i": "loss of j's in i",
}
SHARES = frozenset({"bias", "first_bias"})
"""Axes whose values are printed in percent."""


def axis_text(value: Any) -> str:
    """Return the text by which `published` and options name a value of an axis."""
    return f"{value:g}" if isinstance(value, float) else str(value)


def axis_value(name: str, value: Any) -> str:
    """Return the text of a value where the axis is named already, such as on its ticks."""
    return f"{100 * value:g} %" if name in SHARES and isinstance(value, int | float) else axis_text(value)


def axis_words(values: Mapping[str, Any]) -> str:
    """Return the text of values of several axes: a number after the name of its axis, a word alone."""
    words = []
    for name, value in values.items():
        is_number = isinstance(value, numbers.Real) and not isinstance(value, bool | np.bool_)
        words.append(f"{column_label(name)} {axis_value(name, value)}" if is_number else axis_text(value))
    return ", ".join(words)


def column_label(name: str) -> str:
    """Return the label of a column, for an axis or the head of a table."""
    return LABELS.get(name, name.replace("_", " "))


@dataclass(frozen=True)
class Published:
    """A number of the paper; the deviation is nan if the paper gives none."""

    mean: float
    deviation: float = math.nan


def find_published(table: Mapping[str, Any], rule: str, line: str, keys: Sequence[str]) -> Published | None:
    """Return the paper's number under the first key that it has, None if it has none of them."""
    of_line = table.get(rule, {}).get(line, {})
    for key in keys:
        if key in of_line:
            given = of_line[key]
            found = given if isinstance(given, list | tuple) else [given]
            return Published(*map(float, found))
    return None


@dataclass(frozen=True)
class Paired:
    """Mean difference over the seeds that both methods have, and its t interval (nan for a single seed).

    same  whether both have the same runs, so that there is nothing to compare
    """

    mean: float
    low: float
    high: float
    seeds: int
    same: bool = False

    @classmethod
    def of(cls, ours: Mapping[Any, float], theirs: Mapping[Any, float]) -> Paired | None:
        from scipy.special import stdtrit

        pairs = [ours[seed] - theirs[seed] for seed in ours if seed in theirs]
        if not pairs:
            return None
        mean, n = statistics.mean(pairs), len(pairs)
        if n == 1:
            return cls(mean, math.nan, math.nan, 1)
        half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * statistics.stdev(pairs) / math.sqrt(n)
        return cls(mean, mean - half, mean + half, n)

    @property
    def is_unseparated(self) -> bool:
        """True if there is an interval and it contains 0."""
        return self.low <= 0 <= self.high

    def cell(self, digits: int) -> Cell:
        """Return the difference as a cell, with the interval below it."""
        if self.same:
            return Cell(SAME, self.mean)
        below = {}
        if not math.isnan(self.low):
            below[""] = f"{number(self.low, digits)} to {number(self.high, digits)}"
        mark = f" {UNSEPARATED}" if self.is_unseparated else ""
        return Cell(f"{_signed(self.mean, digits)}{mark}", self.mean, below=below)


@dataclass(frozen=True)
class Score:
    """One entry of a table, in the units that are printed.

    values     seed -> value, for the seeds that have one
    planned    number of seeds that are planned
    done       number of seeds whose runs are done
    published  the paper's number
    against    difference to ERM
    point      point of the grid that was chosen, "" without a grid
    runs       seed -> its run, or its runs if the value is an average over several
    """

    values: Mapping[Any, float]
    planned: int
    done: int
    digits: int = 1
    published: Published | None = None
    against: Paired | None = None
    point: str = ""
    runs: Mapping[Any, Any] = field(default_factory=dict)

    @cached_property
    def summary(self) -> Summary:
        """Mean and deviation; nan if no seed has a value."""
        return Summary.of(list(self.values.values()))

    @property
    def difference(self) -> float:
        """Our mean minus the paper's; nan if one of them is absent."""
        return self.summary.mean - self.published.mean if self.published and self.values else math.nan

    def minus(self, other: Score) -> Paired | None:
        """Return the paired difference to another score, None if they share no seed."""
        paired = Paired.of(self.values, other.values)
        return replace(paired, low=math.nan, high=math.nan, same=True) if paired and self.is_same(other) else paired

    def is_same(self, other: Score) -> bool:
        """Return True if both have the same runs on all seeds that both have."""
        shared = self.runs.keys() & other.runs.keys()
        return bool(shared) and all(self.runs[seed] == other.runs[seed] for seed in shared)

    def cell(self, lacking: str = "", bold: bool = False) -> Cell:
        """Return our number as a cell; below it stand a remark on seeds, the paper's number and the difference."""
        if not self.values:
            text = NO_VALUE if self.done else MISSING
        else:
            text = _spread(self.summary.mean, self.summary.std if len(self.values) > 1 else math.nan, self.digits)
        below = {"": lacking} if lacking else {}
        if self.published:
            below["paper"] = _spread(self.published.mean, self.published.deviation, self.digits)
            if self.values:
                below["difference"] = _signed(self.difference, self.digits)
        return Cell(text, self.summary.mean, below=below, bold=bold)


def _signed(value: float, digits: int) -> str:
    shown = number(value, digits)
    return f"+{shown}" if value > 0 and float(f"{value:.{digits}f}") else shown


def _spread(mean: float, deviation: float, digits: int) -> str:
    shown = number(mean, digits)
    return shown if math.isnan(deviation) else f"{shown} ± {number(deviation, digits)}"


@dataclass(frozen=True)
class Grid:
    """A table of scores: lines, such as methods, against columns.

    title    title of the panel, "" if there is one panel only
    corner   what the lines are, such as "Method"
    keys     names of the columns in `published` and in CSV files
    columns  names of the columns as they are printed
    lines    name of a line -> its scores, one for each column
    less     for each column, whether less is better; () if no line is better than another
    apart    lines that do not compete with the others, such as an oracle
    notes    sentences on the points of grids that were chosen
    across   what the columns are, such as "bias degree"
    """

    title: str
    corner: str
    keys: Sequence[str]
    columns: Sequence[str]
    lines: Mapping[str, Sequence[Score]]
    less: Sequence[bool] = ()
    apart: frozenset[str] = frozenset()
    notes: Sequence[str] = ()
    across: str = ""

    @cached_property
    def scores(self) -> list[Score]:
        return [score for scores in self.lines.values() for score in scores]

    def competitors(self, column: int) -> dict[str, float]:
        """Return line -> mean for the lines that compete in a column, {} if no line is better than another."""
        found = {}
        for name, scores in self.lines.items() if column < len(self.less) else ():
            if name not in self.apart and not math.isnan(scores[column].summary.mean):
                found[name] = scores[column].summary.mean
        return found

    @cached_property
    def best(self) -> set[tuple[str, int]]:
        """Line and column of each column's best mean, with ties as printed; a column of one competitor has no best.

        The next best follow, down to the first that is separated from the best.
        """
        return {place for column in range(len(self.less)) for place in self._best(column)}

    def _best(self, column: int) -> Iterator[tuple[str, int]]:
        means = self.competitors(column)
        if len(means) < 2:
            return
        ranked = sorted(means, key=means.__getitem__, reverse=not self.less[column])
        best, digits = self.lines[ranked[0]][column], self.lines[ranked[0]][column].digits
        for name in ranked:
            paired = best.minus(self.lines[name][column])
            ties = round(means[name], digits) == round(means[ranked[0]], digits)
            if not ties and not (paired and (paired.same or paired.is_unseparated)):
                return
            yield name, column

    @cached_property
    def shown(self) -> list[int]:
        """Columns with a finished run; all of them if none has one."""
        columns = range(len(self.columns))
        found = [n for n in columns if any(own[n].values or own[n].done for own in self.lines.values())]
        return found or list(columns)

    @cached_property
    def has_edges(self) -> bool:
        """True if a chosen setting lies at the edge of its grid."""
        return any(EDGE in note for note in self.notes)

    @cached_property
    def absent(self) -> list[str]:
        """Names of lines that have neither a number, ours or the paper's, nor a finished run in what is shown."""
        found = []
        for name, own in self.lines.items():
            if not any(own[n].values or own[n].published or own[n].done for n in self.shown):
                found.append(name)
        return found

    @property
    def is_empty(self) -> bool:
        return len(self.absent) == len(self.lines)

    @cached_property
    def seeds(self) -> list[int]:
        """Numbers of seeds of all scores that have a value, in increasing order.

        The caption names the largest; a score with fewer seeds says so in its own cell.
        """
        return sorted(filter(None, [len(score.values) for score in self.scores]))

    def table(self) -> Table:
        """Return our numbers as a table, with the paper's below them."""
        rows: list[list[Entry]] = []
        for name, scores in self.lines.items():
            if name not in self.absent:
                row: list[Entry] = [name]
                for column, score in ((n, scores[n]) for n in self.shown):
                    few = 0 < len(score.values) < self.seeds[-1] if self.seeds else False
                    lacking = f"{len(score.values)} of {score.planned} seeds" if few else ""
                    row.append(score.cell(lacking, (name, column) in self.best))
                rows.append(row)
        return Table(self.title, self._heads, rows, note=self.caption())

    @property
    def _heads(self) -> list[str]:
        return [self.corner, *map(self.columns.__getitem__, self.shown)]

    def against_table(self) -> Table | None:
        """Return the differences to ERM as a table, None if there are none."""
        rows: list[list[Entry]] = []
        for name, scores in self.lines.items():
            cells = [score.against.cell(score.digits) if score.against else None for score in scores]
            cells = [cells[n] for n in self.shown]
            if any(cells):
                rows.append([name, *cells])
        if not rows:
            return None
        title = f"{self.title}, against ERM" if self.title else "Against ERM"
        note = _difference_caption("Difference to ERM", [score.against for score in self.scores if score.against])
        return Table(title, self._heads, rows, note=note)

    def rival(self, line: str, column: int) -> tuple[str, Paired] | None:
        """Return the best line with other runs in a column and the paired difference to it, None if there is none."""
        own = self.lines[line][column]
        there = self.competitors(column).items()
        others = {name: m for name, m in there if name != line and not own.is_same(self.lines[name][column])}
        if line in self.apart or not others:
            return None
        name = (min if self.less[column] else max)(others, key=others.__getitem__)
        paired = own.minus(self.lines[name][column])
        return None if paired is None else (name, paired)

    def runner_up_table(self) -> Table | None:
        """Return a table of each column's best line against its second best, None if fewer than three lines compete."""
        rows: list[list[Entry]] = []
        found = []
        for column, label in enumerate(self.columns):
            means = self.competitors(column)
            different = {frozenset(self.lines[name][column].runs.items()) or name for name in means}
            if len(different) < 3:  # two are compared with each other anyway
                continue
            best = (min if self.less[column] else max)(means, key=means.__getitem__)
            if rival := self.rival(best, column):
                found.append(rival[1])
                rows.append([label, best, rival[0], rival[1].cell(self.lines[best][column].digits)])
        if not rows:
            return None
        title = f"{self.title}, the best against the runner-up" if self.title else "The best against the runner-up"
        columns = [self.across[:1].upper() + self.across[1:], "Best", "Runner-up", "Difference"]
        return Table(title, columns, rows, note=_difference_caption("Difference", found))

    def caption(self) -> str:
        """Return sentences on the numbers: how many seeds, what is bold, what is missing."""
        planned, paper = 0, False
        for score in self.scores:
            planned, paper = max(planned, score.planned), paper or score.published is not None
        most = self.seeds[-1] if self.seeds else 0
        some = f" of {planned}" if most < planned else ""
        if not most:
            first = "No run is finished."
        elif planned == 1:
            first = "One seed."
        elif most == 1:
            first = f"One{some} seeds so far, which does not show how much is chance."
        else:
            fewest = f"{self.seeds[0]} to " if self.seeds[0] < most else ""
            first = f"Mean ± standard deviation over {fewest}{most}{some} seeds."
        apart = "".join([f", {name} apart" for name in self.lines if name in self.apart and name not in self.absent])
        several = len(self.best) > len({column for _, column in self.best})
        others = " and the next best, down to the first that is separated from it" if several else ""
        bold = f"Bold: the best mean of each column{others}{apart}." if self.best else ""
        under = "Below each number: the paper's, and the difference, ours minus the paper's." if paper else ""
        missing = f"Missing: {_listed(self.absent)}." if self.absent and not self.is_empty else ""
        places = [self.columns[n] for n in range(len(self.columns)) if n not in self.shown and self.keys[n] != AVERAGE]
        hidden = f"Not shown, since no run is finished: {_listed(places)}." if places else ""
        return " ".join(filter(None, [first, bold, under, missing, hidden]))

    def numbers(self) -> list[dict[str, Any]]:
        """Return a line for each score, for CSV and JSON."""
        found = []
        for line, scores in self.lines.items():
            for column, (key, score) in enumerate(zip(self.keys, scores, strict=True)):
                paper, against = score.published or Published(math.nan), score.against
                rival, ahead = self.rival(line, column) or ("", None)
                several = len(score.values) > 1
                found.append(
                    {
                        "panel": self.title, "line": line, "column": key, "mean": score.summary.mean,
                        "std": score.summary.std if several else math.nan, "seeds": len(score.values),
                        "planned_seeds": score.planned, "paper_mean": paper.mean, "paper_std": paper.deviation,
                        "difference": score.difference, "against_erm": against.mean if against else math.nan,
                        "against_erm_low": against.low if against else math.nan,
                        "against_erm_high": against.high if against else math.nan,
                        "shared_seeds": against.seeds if against else 0, "point": score.point, "rival": rival,
                        "against_rival": ahead.mean if ahead else math.nan,
                        "against_rival_low": ahead.low if ahead else math.nan,
                        "against_rival_high": ahead.high if ahead else math.nan,
                    }
                )  # fmt: skip
        return found


def _listed(names: Sequence[str]) -> str:
    """Return the names with a separator that none of them contains."""
    return ("; " if any("," in name for name in names) else ", ").join(names)


def _difference_caption(what: str, differences: Sequence[Paired]) -> str:
    same = f"{SAME.capitalize()}: the settings are the same, so there is nothing to compare."
    seeds = {paired.seeds for paired in differences if not paired.same}
    if not seeds:
        return same
    more = same if any(paired.same for paired in differences) else ""
    if seeds == {1}:
        return " ".join(filter(None, [f"{what} on the same seed. One seed gives no interval.", more]))
    first = f"{what} on the same seeds, with the {100 * CONFIDENCE:g} % interval of Student's t."
    unseparated = any(paired.is_unseparated for paired in differences)
    few = [
        f"{UNSEPARATED} marks an interval that contains 0: the two are not separated." if unseparated else "",
        "A difference on one shared seed has no interval." if 1 in seeds else "",
        "An interval of two seeds is very wide and says little." if 2 in seeds else "",
        more,
    ]
    return " ".join([first, *filter(None, few)])


@dataclass(frozen=True, eq=False)
class Part:
    """The content of one view of an experiment under one selection rule.

    rule      selection rule, "" if nothing is selected
    grids     tables, one for each panel
    curves    drawings, one for each panel
    pictures  name of a run -> environment -> images (C, k, h, w, 3)
    notes     sentences such as the caption of the view
    mixed     warning that the runs were done in several ways, "" if they are alike
    choices   whether points of grids were chosen too
    """

    title: str
    rule: str = ""
    grids: Sequence[Grid] = ()
    curves: Sequence[Curves] = ()
    pictures: Mapping[str, Mapping[str, NDArray[np.uint8]]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    mixed: str = ""
    choices: bool = False

    @cached_property
    def tables(self) -> list[Grid]:
        """Grids that have a number. The others are kept for CSV files, which count what is missing."""
        return [grid for grid in self.grids if not grid.is_empty]

    @cached_property
    def drawn(self) -> list[Curves]:
        """Drawings that have a point."""
        return [curves for curves in self.curves if curves.has_points]

    @property
    def selection(self) -> str:
        return selection_words(self.rule, self.choices) if self.rule else ""

    @property
    def words(self) -> list[str]:
        """All sentences on this part: selection, notes, and what is missing or mixed."""
        return list(filter(None, [self.selection, *self.notes, self.nothing_yet, self.mixed]))

    @property
    def nothing_yet(self) -> str:
        """Sentence that names empty panels, such as "Nothing to show yet: combined."; "" if there are none."""
        empty = []
        for grid in self.grids:
            empty += [grid.title] if grid.is_empty else []
        for curves in self.curves:
            if not curves.has_points and not curves.title.startswith(tuple(empty)):
                empty.append(curves.title)
        if not empty:
            return ""
        return f"Nothing to show yet: {'; '.join(empty)}." if all(empty) else "Nothing to show yet."
