"""All rows of an experiment's finished runs as one Parquet file."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ..training.plain import dumps
from .plan import Plan
from .store import MADE, Lost, Store
from .tasks import Row

if TYPE_CHECKING:
    import pyarrow as pa

RECIPE, RECORDS = "recipe.json", "records.parquet"
RUN_COLUMN, RESULT = "run", "result."


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

        Where an earlier call had the same recipe, its cells stay that this one does not ask for, more seeds perhaps,
        and so do its runs, in another precision perhaps, until the ones in their place are done. That holds for rows
        without their runs' folders too, such as published ones.
        Returns why runs that were done are not any more: their files could not be read.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        with self.store.alone(self.plan.recipe.name):
            finished = self.store.finished()
            alone = self._without_folders(finished)
            cells = self._cells(finished | alone.keys())
            about = {"recipe": self.plan.recipe.to_json(), "cells": cells}
            self.store.write(f"{self.plan.recipe.name}/{RECIPE}", dumps(about, indent=2) + "\n")
            lost = self._read(finished & {name for name, _ in cells})
            there = alone | {name: (self._made[name], rows) for name, rows in self._rows.items()}
            whole = table(
                [
                    ({**columns, RUN_COLUMN: name, **there[name][0]}, there[name][1])
                    for name, columns in cells
                    if name in there and name not in lost
                ]
            )
            if whole.num_rows:
                sink = pa.BufferOutputStream()
                pq.write_table(whole, sink)
                self.store.write(self.path, sink.getvalue().to_pybytes())
        return lost

    def _without_folders(self, finished: Collection[str]) -> dict[str, tuple[dict[str, Any], list[Row]]]:
        """What the last writing has of runs that are not finished here: with what they were made, and their rows."""
        import pyarrow as pa
        import pyarrow.compute as pc
        import pyarrow.parquet as pq

        content = self.store.read(self.path)
        try:
            whole = None if content is None else pq.read_table(pa.BufferReader(content))
        except (pa.ArrowException, OSError):
            whole = None  # it is damaged, and written anew
        if whole is None or RUN_COLUMN not in whole.column_names:
            return {}
        names = sorted(set(whole[RUN_COLUMN].unique().to_pylist()) - {*finished, None})
        lines = whole.filter(pc.is_in(whole[RUN_COLUMN], pa.array(names, pa.string()))).to_pylist() if names else []
        of_cells = dict(self._earlier().values())
        found: dict[str, tuple[dict[str, Any], list[Row]]] = {}
        first: dict[str, str] = {}  # cells may share a run, whose rows are then there for each of them
        for line in lines:
            name = line.pop(RUN_COLUMN)
            if name not in of_cells:
                continue
            columns = {key: line.pop(key, None) for key in of_cells[name]}
            if first.setdefault(name, _key(columns)) == _key(columns):
                made = {key: line.pop(key, None) for key in MADE}
                row = {key.removeprefix(RESULT): value for key, value in line.items() if value is not None}
                found.setdefault(name, (made, []))[1].append(row)
        return {name: kept for name, kept in found.items() if not self.store.is_aside(name)}

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

    def _cells(self, finished: Collection[str]) -> list[Cell]:
        earlier = self._earlier()
        cells: list[Cell] = []
        for cell in self.plan.cells:
            name, columns = cell.run.name, cell.columns
            before, _ = earlier.pop(_key(columns), (name, columns))
            cells.append((before if before in finished and name not in finished else name, columns))
        return cells + list(earlier.values())

    @property
    def replaces(self) -> bool:
        """Whether the last writing was of another recipe."""
        before = self._before()
        return before is not None and not self._is_same(before[0])

    def _earlier(self) -> dict[str, Cell]:
        """Those of the last writing, if it was of the same recipe."""
        before = self._before()
        return before[1] if before is not None and self._is_same(before[0]) else {}

    def _before(self) -> tuple[dict[str, Any], dict[str, Cell]] | None:
        """What the last writing was asked for, and its cells; None where there is none, or it is damaged."""
        content = self.store.read(f"{self.plan.recipe.name}/{RECIPE}")
        try:
            before = json.loads(content or b"")
            cells: dict[str, Cell] = {_key(columns): (str(name), dict(columns)) for name, columns in before["cells"]}
            return _asked(before["recipe"]), cells
        except (ValueError, KeyError, TypeError, RecursionError):
            return None

    def _is_same(self, asked: Mapping[str, Any]) -> bool:
        return asked == _asked(json.loads(dumps(self.plan.recipe.to_json())))


def _asked(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What decides which runs there are, but for the seeds."""
    return {key: recipe[key] for key in ("task", "grids", "settings", "problems", "vary", "methods")}


def _key(columns: Mapping[str, Any]) -> str:
    """The same for 1 and 1.0."""
    return dumps({name: float(v) if type(v) is int else v for name, v in columns.items()}, sort_keys=True)


def table(cells: Sequence[tuple[Mapping[str, Any], Sequence[Row]]]) -> pa.Table:
    """One line a row, the cell's columns before its own; where both have a name, the row's is `result.name`."""
    import pyarrow as pa

    of_cells = dict.fromkeys(name for columns, _ in cells for name in columns)
    of_rows = dict.fromkeys(name for _, rows in cells for row in rows for name in row)
    lines = [(about, row) for about, rows in cells for row in rows]
    columns = {name: column(about.get(name) for about, _ in lines) for name in of_cells}
    for name in of_rows:
        columns[f"{RESULT}{name}" if name in of_cells else name] = column(row.get(name) for _, row in lines)
    return pa.table(columns)


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
