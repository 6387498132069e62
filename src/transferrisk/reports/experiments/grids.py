"""The numbers of a table: mean and deviation over seeds, the paper's beside ours, and differences to ERM by seed."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from ...errors import InputError
from ..numbers import NOTHING, number
from ..tables import Summary

CONFIDENCE = 0.95
MISSING, NO_VALUE = "missing", "no value"


@dataclass(frozen=True)
class Published:
    """The paper's number; a deviation that it does not give is nan."""

    mean: float
    deviation: float = math.nan


@dataclass(frozen=True)
class Paired:
    """Mean difference over the seeds that both have, and its t interval, nan for a single seed."""

    mean: float
    low: float
    high: float
    seeds: int

    @classmethod
    def of(cls, ours: Mapping[Any, float], theirs: Mapping[Any, float]) -> Paired | None:
        from scipy.special import stdtrit

        pairs = [value - theirs[seed] for seed, value in ours.items() if seed in theirs]
        if not pairs:
            return None
        mean, n = statistics.mean(pairs), len(pairs)
        if n == 1:
            return cls(mean, math.nan, math.nan, 1)
        half = float(stdtrit(n - 1, (1 + CONFIDENCE) / 2)) * statistics.stdev(pairs) / math.sqrt(n)
        return cls(mean, mean - half, mean + half, n)


@dataclass(frozen=True)
class Entry:
    """One place of a table, in the units that are printed.

    values   by seed, of those that have one
    planned  how many seeds there should be
    done     how many have run
    """

    values: Mapping[Any, float]
    planned: int
    done: int
    digits: int = 1
    published: Published | None = None
    against: Paired | None = None
    point: str = ""

    @property
    def summary(self) -> Summary:
        """nan where no seed has a value."""
        return Summary.of(list(self.values.values())) if self.values else Summary(math.nan, math.nan, ())

    @property
    def ours(self) -> str:
        """Mean ± deviation."""
        if not self.values:
            return NO_VALUE if self.done else MISSING
        return _spread(self.summary.mean, self.summary.std if len(self.values) > 1 else math.nan, self.digits)

    @property
    def paper(self) -> str:
        return (
            NOTHING if self.published is None else _spread(self.published.mean, self.published.deviation, self.digits)
        )

    @property
    def difference(self) -> float:
        """Ours less the paper's, nan where one is not there."""
        return self.summary.mean - self.published.mean if self.published and self.values else math.nan

    @property
    def difference_text(self) -> str:
        return signed(self.difference, self.digits)

    @property
    def against_text(self) -> str:
        """ "+2.1 (0.3 to 3.9)", without the interval for a single seed."""
        if self.against is None:
            return NOTHING
        shown = signed(self.against.mean, self.digits)
        if math.isnan(self.against.low):
            return shown
        return f"{shown} ({number(self.against.low, self.digits)} to {number(self.against.high, self.digits)})"


@dataclass(frozen=True)
class Grid:
    """A table: methods, or whatever its lines are, against columns.

    title      of its panel, "" where there is one only
    corner     what the lines are
    keys       of the columns, as `published` and the CSV name them
    columns    as they are printed
    less       whether less is better, of each column; without any, no line is better than another
    apart      lines that are no match for the others, such as an oracle's
    """

    title: str
    corner: str
    keys: Sequence[str]
    columns: Sequence[str]
    lines: Mapping[str, Sequence[Entry]]
    less: Sequence[bool] = ()
    apart: frozenset[str] = field(default_factory=frozenset)
    notes: Sequence[str] = ()

    @cached_property
    def seeds(self) -> int:
        """The most that any of its numbers is of: what the caption tells, so that only those with fewer say it."""
        return max((len(entry.values) for entries in self.lines.values() for entry in entries), default=0)

    def lacks(self, entry: Entry) -> str:
        there = len(entry.values)
        return f"{there} of {entry.planned} seeds" if 0 < there < self.seeds else ""

    def ours(self, entry: Entry) -> str:
        """Mean ± deviation, and of how many seeds where others have more."""
        return f"{entry.ours} ({self.lacks(entry)})" if self.lacks(entry) else entry.ours

    @cached_property
    def best(self) -> frozenset[tuple[str, int]]:
        """Line and column of the best mean of each column, all that are printed alike; none where there is one only."""
        found: set[tuple[str, int]] = set()
        for column, less in enumerate(self.less):
            entries = {name: line[column] for name, line in self.lines.items() if name not in self.apart}
            means = {name: round(e.summary.mean, e.digits) for name, e in entries.items() if e.values}
            if len(means) > 1:
                top = min(means.values()) if less else max(means.values())
                found |= {(name, column) for name, mean in means.items() if mean == top}
        return frozenset(found)

    @property
    def is_empty(self) -> bool:
        """Whether it has no number, neither ours nor the paper's."""
        return len(self.absent) == len(self.lines)

    @cached_property
    def absent(self) -> list[str]:
        """Lines without a number, neither ours nor the paper's, of which none of the runs is done."""
        return [
            name
            for name, entries in self.lines.items()
            if not any(entry.values or entry.published or entry.done for entry in entries)
        ]

    @property
    def shown(self) -> dict[str, Sequence[Entry]]:
        """The other lines, for people to read."""
        return {name: entries for name, entries in self.lines.items() if name not in self.absent}

    @property
    def has_published(self) -> bool:
        return any(entry.published for entries in self.lines.values() for entry in entries)

    @property
    def has_against(self) -> bool:
        return any(entry.against for entries in self.lines.values() for entry in entries)


def signed(value: float, digits: int) -> str:
    shown = number(value, digits)
    return f"+{shown}" if value > 0 and float(f"{value:.{digits}f}") else shown


def published(table: Mapping[str, Any], rule: str, line: str, keys: Sequence[str], recipe: str) -> Published | None:
    """The paper's number under the first of these keys that it has."""
    of_line = table.get(rule, {}).get(line, {})
    for key in keys:
        if key in of_line:
            given = of_line[key]
            found = given if isinstance(given, list) else [given]
            if not 1 <= len(found) <= 2 or not all(_is_number(value) for value in found):
                where = f"recipe {recipe}: published.{rule}.{line}.{key}"
                raise InputError(f"{where} = {given!r} is neither [mean] nor [mean, deviation]")
            return Published(*map(float, found))
    return None


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _spread(mean: float, deviation: float, digits: int) -> str:
    shown = number(mean, digits)
    return shown if math.isnan(deviation) else f"{shown} ± {number(deviation, digits)}"
