"""All rows of an experiment's finished runs as one Parquet file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..training.plain import dumps
from .plan import Plan
from .store import Lost, Store
from .tasks import Row

if TYPE_CHECKING:
    import pyarrow as pa

RECIPE, RECORDS = "recipe.json", "records.parquet"
RUN_COLUMN = "run"


Cell = tuple[str, Mapping[str, Any]]
"""Name of a run, and the columns of its place in the experiment."""


@dataclass
class Records:
    """The files of an experiment's folder, and what has been read for them so far: a finished run does not change."""

    plan: Plan
    store: Store
    _rows: dict[str, list[Row]] = field(default_factory=dict, repr=False)
    _made: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)

    @property
    def path(self) -> str:
        return f"{self.plan.recipe.name}/{RECORDS}"

    def write(self) -> dict[str, str]:
        """With what is done now; of two writers, neither takes cells or rows of the other away. Without a row, no file.

        Cells that an earlier call asked for and this one does not, more seeds perhaps, stay, if the recipe is the same.
        Returns why runs that were done are not any more: their files could not be read.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        with self.store.alone(self.plan.recipe.name):
            cells = self._cells()
            about = {"recipe": self.plan.recipe.to_json(), "cells": cells}
            self.store.write(f"{self.plan.recipe.name}/{RECIPE}", dumps(about, indent=2) + "\n")
            lost = self._read(self.store.finished() & {name for name, _ in cells})
            whole = table(
                [
                    ({**columns, RUN_COLUMN: name, **self._made[name]}, self._rows[name])
                    for name, columns in cells
                    if name in self._rows
                ]
            )
            if whole.num_rows:
                sink = pa.BufferOutputStream()
                pq.write_table(whole, sink)
                self.store.write(self.path, sink.getvalue().to_pybytes())
        return lost

    def _read(self, done: Iterable[str]) -> dict[str, str]:
        lost = {}
        for name in sorted(done):
            if name not in self._rows:
                try:
                    self._made[name], self._rows[name] = self.store.made_with(name), self.store.rows(name)
                except Lost as error:
                    self.store.set_aside(name)
                    lost[name] = str(error)
        return lost

    def _cells(self) -> list[Cell]:
        cells: list[Cell] = [(cell.run.name, cell.columns) for cell in self.plan.cells]
        content = self.store.read(f"{self.plan.recipe.name}/{RECIPE}")
        try:
            before = json.loads(content) if content else {}
            same = _asked(before["recipe"]) == _asked(json.loads(dumps(self.plan.recipe.to_json())))
            earlier = [(str(name), dict(columns)) for name, columns in before["cells"]] if same else []
        except (ValueError, KeyError, TypeError):  # damaged: it is written anew
            return cells
        known = {_key(columns) for _, columns in cells}
        return cells + [(name, columns) for name, columns in earlier if _key(columns) not in known]


def _asked(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What decides which runs there are, but for the seeds."""
    return {key: recipe[key] for key in ("task", "grids", "settings", "problems", "vary", "methods")}


def _key(columns: Mapping[str, Any]) -> str:
    return dumps(columns, sort_keys=True)


def table(cells: Sequence[tuple[Mapping[str, Any], Sequence[Row]]]) -> pa.Table:
    """One line a row, the cell's columns before its own; a name that both have is the cell's."""
    import pyarrow as pa

    of_cells = dict.fromkeys(name for columns, _ in cells for name in columns)
    of_rows = dict.fromkeys(name for _, rows in cells for row in rows for name in row)
    columns: dict[str, list[Any]] = {name: [] for name in (*of_cells, *of_rows)}
    for about, rows in cells:
        for row in rows:
            for name, values in columns.items():
                values.append(about[name] if name in about else row.get(name))
    return pa.table({name: column(values) for name, values in columns.items()})


def column(values: Iterable[Any]) -> pa.Array:
    """Of the one type that holds all values; where only text does, what is none is written as JSON."""
    import pyarrow as pa

    values = list(values)
    kinds = {type(value) for value in values} - {type(None)}
    if kinds <= {int, float} and float in kinds:
        return pa.array([None if value is None else float(value) for value in values], pa.float64())
    if len(kinds) <= 1 and kinds <= {bool, int, str}:
        try:
            return pa.array(values)
        except OverflowError:  # more than 64 bits
            pass
    return pa.array([v if v is None or isinstance(v, str) else dumps(v) for v in values], pa.string())
