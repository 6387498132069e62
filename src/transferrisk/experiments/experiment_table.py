"""The folder of an experiment: its recipe and cells, and the records of all its finished runs as one Parquet file."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from ..errors import InputError
from ..results import Record, read_table, records_table, table_bytes
from ..results.records import RECIPE, RUN_COLUMN, TABLE, runs_of
from ..settings import digest, dumps
from .plan import Plan
from .recipe import Recipe
from .store import Lost, Store

NamedCell = tuple[str, Mapping[str, Any]]
"""Name of a run, and the columns of its place in the experiment."""
Place = frozenset[tuple[str, Any]]
"""Columns of a cell with their values, by which the cell is found; 1 and 1.0 are the same."""
Content = tuple[dict[str, Any], list[Record]]
"""Provenance and records of a run."""


@dataclass
class ExperimentTable:
    """The files in an experiment's folder. Finished runs are read once, since they do not change.

    replaced  whether the folder belonged to another recipe before it was written
    """

    plan: Plan
    store: Store
    replaced: bool = False
    _runs: dict[str, Content] = field(default_factory=dict, repr=False)

    def write(self) -> dict[str, str]:
        """Write all finished runs. Safe with concurrent writers: neither drops cells or records of the other.

        Cells of an earlier call with the same recipe stay if this plan does not ask for them, such as further seeds.
        Earlier runs of a cell, such as those in another precision, stay until the new run is finished. Both also hold
        for records without folders of their runs, such as published ones. Without records no table is written.

        Returns run -> reason, for finished runs whose files cannot be read and which are therefore missing again.
        """
        recipe = self.plan.recipe
        name = recipe.name
        with self.store.alone(name):
            asked = recipe_digest(recipe)
            finished, earlier = self.store.finished(), self._earlier_cells(asked)
            pruned = [(cell.run.name, cell.columns) for cell in self.plan.pruned]
            for _, columns in pruned:
                earlier.pop(frozenset(columns.items()), None)
            recorded = self._recorded({run for run, _ in earlier.values()}, finished)
            known = finished | recorded.keys()
            cells: list[NamedCell] = []
            for cell in self.plan.whole or self.plan.cells:
                run = cell.run.name
                before, _ = earlier.pop(frozenset(cell.columns.items()), (run, {}))
                cells.append((before if before in known and run not in known else run, cell.columns))
            cells += earlier.values()  # cells that this plan does not ask for
            about = {"recipe": recipe, "asked": asked, "cells": cells, **({"pruned": pruned} if pruned else {})}
            self.store.write(f"{name}/{RECIPE}", dumps(about, indent=2) + "\n")
            lost: dict[str, str] = {}
            rows = []
            for run, columns in cells:
                if found := self._read_run(run, lost) if run in finished else recorded.get(run):
                    rows.append(({**columns, RUN_COLUMN: run, **found[0]}, found[1]))
            table = records_table(rows)
            if len(table):
                self.store.write(f"{name}/{TABLE}", table_bytes(table))
        return lost

    def _read_run(self, name: str, lost: dict[str, str]) -> Content | None:
        """Return the content of a finished run; None, with the reason in `lost`, if its files cannot be read."""
        if name not in self._runs and name not in lost:
            try:
                self._runs[name] = self.store.provenance(name), self.store.records(name)
            except Lost as error:
                self.store.set_aside(name)
                lost[name] = str(error)
        return self._runs.get(name)

    def _recorded(self, runs: Collection[str], finished: Collection[str]) -> dict[str, Content]:
        """Return the content of those of the runs that are in the last table and not finished here."""
        path = f"{self.plan.recipe.name}/{TABLE}"
        try:
            table = read_table(self.store.read(path) or b"", path)
            table = table[~table[RUN_COLUMN].isin(list(finished)) & table[RUN_COLUMN].isin(list(runs))]
            found = runs_of(table)
        except (InputError, KeyError):  # it does not exist or is damaged, and is written anew
            return {}
        return {run: content for run, content in found.items() if not self.store.is_aside(run)}

    def _earlier_cells(self, asked: str) -> dict[Place, NamedCell]:
        """Return the cells that were written last, {} if there are none or if they are those of another recipe."""
        content = self.store.read(f"{self.plan.recipe.name}/{RECIPE}")
        try:
            before = json.loads(content or b"")
            cells = {frozenset(columns.items()): (str(run), columns) for run, columns in before["cells"]}
            same = before["asked"] == asked
        except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
            return {}
        self.replaced = self.replaced or not same
        return cells if same else {}


def recipe_digest(recipe: Recipe) -> str:
    """Return a digest of all that decides which runs there are, except for the seeds."""
    search = [recipe.search] if recipe.search.kind != "grid" else []
    return digest([recipe.task, recipe.grids, recipe.settings, recipe.problems, recipe.vary, recipe.methods, *search])
