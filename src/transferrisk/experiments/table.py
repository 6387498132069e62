"""The folder of an experiment: its recipe and cells, and the records of all its finished runs as one Parquet file."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import InputError
from ..results import Record, read_table, records_table, table_bytes
from ..results.records import RECIPE, RESULT_PREFIX, RUN_COLUMN, TABLE
from ..settings import as_json, dumps
from .plan import Plan
from .store import PROVENANCE, Lost, Store

NamedCell = tuple[str, Mapping[str, Any]]
"""Name of a run, and the columns of its place in the experiment."""


@dataclass
class ExperimentTable:
    """The files of an experiment's folder, and what has been read for them so far: a finished run does not change.

    replaced  whether the folder was of another recipe until it was written
    """

    plan: Plan
    store: Store
    replaced: bool = False
    _runs: dict[str, tuple[dict[str, Any], list[Record]]] = field(default_factory=dict, repr=False)

    def write(self) -> dict[str, str]:
        """Write all finished runs. Safe with concurrent writers: neither drops cells or records of the other.

        Where an earlier call had the same recipe, its cells stay that this one does not ask for, more seeds perhaps,
        and so do its runs, in another precision perhaps, until the ones in their place are done. That holds for records
        without their runs' folders too, such as published ones. Without a record, no table is written.
        Returns why runs that were done are not any more: their files could not be read.
        """
        name = self.plan.recipe.name
        with self.store.alone(name):
            finished, earlier = self.store.finished(), self._earlier_cells()
            recorded = self._recorded(dict(earlier.values()), finished)
            cells = self._cells(earlier, finished | recorded.keys())
            about = {"recipe": self.plan.recipe, "cells": cells}
            self.store.write(f"{name}/{RECIPE}", dumps(about, indent=2) + "\n")
            lost = self._read_runs(finished & {run for run, _ in cells})
            found = {run: content for run, content in (recorded | self._runs).items() if run not in lost}
            table = records_table(
                [
                    ({**columns, RUN_COLUMN: run, **found[run][0]}, found[run][1])
                    for run, columns in cells
                    if run in found
                ]
            )
            if len(table):
                self.store.write(f"{name}/{TABLE}", table_bytes(table))
        return lost

    def _cells(self, earlier: dict[str, NamedCell], finished: Collection[str]) -> list[NamedCell]:
        """The cells of the plan, with a run of an earlier call where only that is finished, and those left of it."""
        left, cells = dict(earlier), list[NamedCell]()
        for cell in self.plan.whole or self.plan.cells:
            run = cell.run.name
            before, _ = left.pop(_key(cell.columns), (run, {}))
            cells.append((before if before in finished and run not in finished else run, cell.columns))
        return cells + list(left.values())

    def _read_runs(self, names: Iterable[str]) -> dict[str, str]:
        lost = {}
        for name in sorted(set(names) - self._runs.keys()):
            try:
                self._runs[name] = self.store.provenance(name), self.store.records(name)
            except Lost as error:
                self.store.set_aside(name)
                lost[name] = str(error)
        return lost

    def _recorded(
        self, columns: Mapping[str, Mapping[str, Any]], finished: Collection[str]
    ) -> dict[str, tuple[dict[str, Any], list[Record]]]:
        """Provenance and records of the runs that the last table has, and that are not finished here.

        columns  run -> the columns of one of its cells, those of the first lines of the run
        """
        path = f"{self.plan.recipe.name}/{TABLE}"
        try:
            table = read_table(self.store.read(path) or b"", path)
            table = table[~table[RUN_COLUMN].isin(list(finished)) & table[RUN_COLUMN].isin(list(columns))]
        except (InputError, KeyError):  # it is not there, or damaged, and is written anew
            return {}
        found: dict[str, tuple[dict[str, Any], list[Record]]] = {}
        first: dict[str, str] = {}  # cells may share a run, whose records are then there for each of them
        lines = table.astype(object).where(table.notna(), None).to_dict("records")
        for line in lines:
            run = line.pop(RUN_COLUMN)
            own = _key({name: line.pop(name, None) for name in columns[run]})
            if first.setdefault(run, own) == own:
                provenance = {name: line.pop(name, None) for name in PROVENANCE}
                record = {str(k).removeprefix(RESULT_PREFIX): v for k, v in line.items() if v is not None}
                found.setdefault(run, (provenance, []))[1].append(record)
        return {run: content for run, content in found.items() if not self.store.is_aside(run)}

    def _earlier_cells(self) -> dict[str, NamedCell]:
        """The cells of the last writing, if there is one that is whole and of the same recipe."""
        content = self.store.read(f"{self.plan.recipe.name}/{RECIPE}")
        try:
            before = json.loads(content or b"")
            cells: dict[str, NamedCell] = {_key(columns): (str(run), dict(columns)) for run, columns in before["cells"]}
            same = _asked(before["recipe"]) == _asked(as_json(self.plan.recipe))
        except (ValueError, KeyError, TypeError, RecursionError):
            return {}
        self.replaced = self.replaced or not same
        return cells if same else {}


def _asked(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """What decides which runs there are, but for the seeds."""
    return {key: recipe[key] for key in ("task", "grids", "settings", "problems", "vary", "methods")}


def _key(columns: Mapping[str, Any]) -> str:
    """The columns as text, the same for 1 and 1.0."""
    return dumps({name: float(v) if type(v) is int else v for name, v in columns.items()}, sort_keys=True)
