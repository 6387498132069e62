"""What a show gives: tables, drawings, pictures, and the words that belong to them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..sections import Curves
from .grids import Grid

RULES = {
    "training_domain": "Selected by training-domain validation: the evaluation{} of the highest accuracy on held-out "
    "data of the training environments{}.",
    "test_domain": "Selected by test-domain validation: the evaluation{} of the highest accuracy on held-out data of "
    "the test environment{}.",
    "last": "Selected: the last evaluation of each run{}.",
    "": "",
}
"""How models were selected, in words, with room for what grids add; "" where there is nothing to select."""
_MOST = ", among the points with the most seeds"
_OF_GRIDS = {
    "training_domain": (", and the point of a grid,", _MOST),
    "test_domain": (", and the point of a grid,", _MOST),
    "last": (
        ", and the point of a grid of the highest accuracy there on held-out data of the training environments" + _MOST,
    ),
    "": (),
}
SHORT = {
    "training_domain": "by training-domain validation",
    "test_domain": "by test-domain validation",
    "last": "at the last evaluation",
    "": "",
}


def has_points(curves: Curves) -> bool:
    return any(math.isfinite(value) for _, y in curves.series.values() for value in y)


def nothing_yet(grids: Sequence[Grid], curves: Sequence[Curves]) -> str:
    """ "Nothing to show yet: combined." of the panels that are left out, "" where there are none."""
    empty = [grid.title for grid in grids if grid.is_empty]
    empty += [own.title for own in curves if not has_points(own) and not own.title.startswith(tuple(empty))]
    if not empty:
        return ""
    return f"Nothing to show yet: {'; '.join(empty)}." if all(empty) else "Nothing to show yet."


@dataclass(frozen=True, eq=False)
class Part:
    """One show under one rule.

    stem      of its files' names
    rule      of `RULES`
    choices   whether a point of a grid was chosen too
    grids     tables, one for each panel
    curves    drawings, one for each panel that has a point
    pictures  name of a run -> environment -> (C, k, h, w, 3)
    notes     what has to be known beside it, such as what is missing
    mixed     that its runs were made on several machines or in several precisions, "" where they were not
    """

    title: str
    stem: str
    rule: str
    grids: Sequence[Grid] = ()
    curves: Sequence[Curves] = ()
    pictures: Mapping[str, Mapping[str, NDArray[np.uint8]]] = field(default_factory=dict)
    notes: Sequence[str] = ()
    mixed: str = ""
    choices: bool = False

    @property
    def tables(self) -> list[Grid]:
        """Those of the grids that have a number; the others are for programs that count what is missing."""
        return [grid for grid in self.grids if not grid.is_empty]

    @property
    def selection(self) -> str:
        return RULES[self.rule].format(*(_OF_GRIDS[self.rule] if self.choices else ("", "")))

    @property
    def words(self) -> list[str]:
        """All that has to be said of it."""
        return list(filter(None, [self.selection, *self.notes, self.mixed]))
