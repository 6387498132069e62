"""Numbers of new rows that lie outside of all that were trained on, as those of a column in other units do."""

from __future__ import annotations

import numpy as np
from torch import Tensor

from ..data.columns import Numeric, Scaling
from ..errors import listed
from .encoders import Encoder, TableEncoder

FEW = 20  # rows; of no more than these, most may lie a little outside by chance
MOST_LINES = 5  # columns that have a line each; more share one


class Outside:
    """Counts over the parts of a file, of each numeric column: what is kept does not grow with the rows.

    A number is outside where it is less than the least or more than the largest of the training rows, and far outside
    where it is so by more than these two are apart.
    """

    def __init__(self, encoder: Encoder) -> None:
        self.columns: list[tuple[str, Scaling]] = []
        self.places: list[int] = []  # of their features
        ranges, start = [np.empty((0, 2), np.float32)], 0
        for column in encoder.schema.columns if isinstance(encoder, TableEncoder) else ():
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
        """The features (n, d) of a part."""
        if not self.columns or not len(inputs):
            return
        given = inputs[:, self.places].numpy()
        beyond = np.maximum(self.low - given, given - self.high)
        self.rows += len(given)
        self.outside += (beyond > 0).sum(0)
        self.far += (beyond > self.high - self.low).sum(0)
        self.least, self.largest = np.minimum(self.least, given.min(0)), np.maximum(self.largest, given.max(0))

    def notes(self) -> list[str]:
        """Of columns with numbers far outside, or with most of them outside."""
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
