"""What an experiment has left: its recipe, the cells that were planned, and the rows of those that are done."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, get_args

import pandas as pd

from ...errors import InputError, did_you_mean
from ...files import readable
from ...training.selection import Selection
from .made import Made, made_by_run

RECIPE, RECORDS, RUNS = "recipe.json", "records.parquet", "runs"
AGAIN = "run trm experiment again, which writes it anew"
DONE, FAILED = "done.json", "failed.json"
RESULT = "result."  # before a column of the rows whose name is one of the cells' too
NOT_AXES = ("method", "point", "seed")


@dataclass(frozen=True)
class Cell:
    """One place of the experiment's table; `run` is the name of the run that fills it."""

    run: str
    columns: Mapping[str, Any]

    @property
    def method(self) -> str:
        return str(self.columns.get("method", ""))

    @property
    def point(self) -> str:
        return str(self.columns.get("point", ""))

    @property
    def seed(self) -> Any:
        return self.columns.get("seed")


@dataclass(frozen=True, eq=False)
class Experiment:
    """
    name   of its folder
    rows   of the finished runs, each run once: its name under `run`, then the columns of its result
    runs   the folder of all runs
    """

    name: str
    recipe: Mapping[str, Any]
    cells: Sequence[Cell]
    rows: pd.DataFrame
    runs: Path

    @property
    def title(self) -> str:
        return str(self.recipe.get("title") or self.name) + (" (small version)" if self.is_small else "")

    @property
    def rules(self) -> Sequence[str]:
        return tuple(self.recipe["select"])

    @cached_property
    def axes(self) -> dict[str, list[Any]]:
        """What the experiment varies but for methods and seeds -> its values, in the order of the plan."""
        found: dict[str, dict[Any, None]] = {}
        for cell in self.cells:
            for name, value in cell.columns.items():
                if name not in NOT_AXES:
                    found.setdefault(name, {})[value] = None
        return {name: list(values) for name, values in found.items()}

    @cached_property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(cell.method for cell in self.cells))

    @cached_property
    def done(self) -> set[str]:
        """Names of the runs that have rows."""
        return set(self.rows["run"])

    @cached_property
    def made(self) -> dict[str, Made]:
        """Run -> on what it was made."""
        return made_by_run(self.rows)

    @cached_property
    def dates(self) -> list[str]:
        """When its runs were done, as far as the records say."""
        return [date for date in self.rows["date"].unique() if isinstance(date, str)] if "date" in self.rows else []

    @property
    def missing(self) -> int:
        return len({cell.run for cell in self.cells} - self.done)

    @cached_property
    def failed(self) -> dict[str, str]:
        """Run -> why its last attempt failed, of those that are missing."""
        missing = dict.fromkeys(cell.run for cell in self.cells if cell.run not in self.done)
        return {run: why for run in missing if (why := _failure(self.runs / run))}

    @property
    def given(self) -> list[str]:
        """Words of `trm experiment` that ask for it."""
        found = self.recipe.get("given")
        return list(map(str, found)) if isinstance(found, list) and found else [self.name]

    @property
    def is_small(self) -> bool:
        """Whether it is the small version of a recipe."""
        return "--fast" in self.given

    def setting(self, cell: Cell, name: str) -> str:
        """As the recipe has it for this cell, "" where it does not say."""
        of_methods, of_problems = self.recipe.get("methods", {}), self.recipe.get("problems", {})
        own = of_methods.get(cell.method), cell.columns, of_problems.get(cell.columns.get("problem"))
        tables = (*own, self.recipe.get("settings", {}))
        return next((str(table[name]) for table in tables if isinstance(table, Mapping) and name in table), "")

    def algorithm(self, method: str) -> str:
        return str(self._of_method(method).get("algorithm", ""))

    def is_oracle(self, method: str) -> bool:
        """Whether it is trained on data that the others do not have."""
        return bool(self._of_method(method).get("oracle"))

    def _of_method(self, method: str) -> Mapping[str, Any]:
        settings = self.recipe.get("methods", {}).get(method, {})
        return settings if isinstance(settings, Mapping) else {}


def folders(root: Path, names: Sequence[str] = ()) -> list[Path]:
    """Of the experiments in a folder of results, all or these."""
    if not root.is_dir():
        raise InputError(f"{readable(root)} is no folder: name the one that trm experiment wrote its results to")
    if (root / RECIPE).is_file():
        raise InputError(
            f"{readable(root)} is one experiment: name the folder that holds it, trm report {readable(root.parent)} "
            f"{readable(root.name)}"
        )
    found = sorted(path.parent.name for path in root.glob(f"*/{RECIPE}") if path.parent.name != RUNS)
    if not found:
        raise InputError(f"{readable(root)} holds no results: run trm experiment with --output {readable(root)} first")
    for name in names:
        if name not in found:
            near = did_you_mean(name, found)
            raise InputError(f"{readable(root)} has no experiment {name!r}: {near}choose from {', '.join(found)}")
    return [root / name for name in dict.fromkeys(names or found)]


def load(folder: Path) -> Experiment:
    recipe, cells = _planned(folder / RECIPE)
    records, runs = folder / RECORDS, folder.parent / RUNS
    if not records.exists() and any((runs / cell.run / DONE).exists() for cell in cells):
        raise InputError(
            f"{readable(records)} is not there, though runs are done: run trm experiment again, which writes it"
        )
    return Experiment(folder.name, recipe, cells, _rows(records, cells), runs)


def _planned(path: Path) -> tuple[Mapping[str, Any], list[Cell]]:
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{readable(path)} cannot be read ({error.strerror}): mend that") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{readable(path)} cannot be read as JSON ({error}): {AGAIN}") from None
    return planned(found, readable(path), AGAIN)


def planned(found: Any, where: str, mend: str) -> tuple[Mapping[str, Any], list[Cell]]:
    """The recipe and the cells; every entry that is used has the type it is used as."""
    recipe, cells = (found.get("recipe"), found.get("cells")) if isinstance(found, Mapping) else (None, None)
    if not isinstance(recipe, Mapping) or not isinstance(cells, list) or not all(map(_is_cell, cells)):
        raise InputError(f"{where} is not what an experiment writes (a recipe and its cells): {mend}")
    tables = {key: recipe.get(key, {}) for key in ("show", "published", "methods", "problems", "settings")}
    if isinstance(tables["published"], Mapping):
        tables |= {f"published.{rule}": table for rule, table in tables["published"].items()}
    for key, table in tables.items():
        nested = table.values() if key.startswith("published.") and isinstance(table, Mapping) else ()
        if not isinstance(table, Mapping) or not all(isinstance(inner, Mapping) for inner in nested):
            raise InputError(f"{where}: {key} is no table of the kind that a recipe has: {mend}")
    rules = get_args(Selection)
    for rule in tables["published"]:
        if rule not in rules:
            near = did_you_mean(rule, rules)
            raise InputError(f"{where}: published.{rule} is by no rule: {near}choose from {', '.join(rules)}")
    selected = recipe.get("select")
    if not isinstance(selected, list) or not selected or any(rule not in rules for rule in selected):
        raise InputError(f"{where}: select = {selected!r} is no list of {', '.join(rules)}: {mend}")
    return recipe, [Cell(run, columns) for run, columns in cells]


def _failure(run: Path) -> str:
    """Why a run failed, "" where it did not, or is done since."""
    if not (run / FAILED).is_file() or (run / DONE).exists():
        return ""
    try:
        return str(json.loads((run / FAILED).read_text(encoding="utf-8"))["error"]) or "no reason is given"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return f"its {FAILED} cannot be read"


def _is_cell(entry: Any) -> bool:
    if not isinstance(entry, list) or len(entry) != 2 or not isinstance(entry[0], str):
        return False
    columns = entry[1]
    scalars = str | int | float | bool | None
    return isinstance(columns, Mapping) and all(isinstance(value, scalars) for value in columns.values())


def no_rows() -> pd.DataFrame:
    """Of an experiment of which nothing is done."""
    return pd.DataFrame({"run": pd.Series(dtype=object)})


def _rows(path: Path, cells: Sequence[Cell]) -> pd.DataFrame:
    """Of the planned runs. A run that several cells share is there once for each of them, and is taken once."""
    planned = list(dict.fromkeys(name for cell in cells for name in cell.columns))
    if not path.exists():
        return no_rows()
    table = _parquet(path)
    if "run" not in table:
        raise InputError(f"{readable(path)} has no column 'run': {AGAIN}")
    table = table[table["run"].isin({cell.run for cell in cells})]
    known = [name for name in planned if name in table]
    copies = table.groupby(["run", *known], dropna=False, sort=False).ngroup()
    table = table[copies == copies.groupby(table["run"]).transform("first")]
    own = {f"{RESULT}{name}": name for name in known}
    return table.drop(columns=known).rename(columns=own).reset_index(drop=True)


def _parquet(path: Path) -> pd.DataFrame:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with path.open("rb") as file:
            return pq.read_table(file).to_pandas()
    except (pa.ArrowException, OSError) as error:
        why = str(error).partition("\n")[0]
        raise InputError(f"{readable(path)} cannot be read as Parquet ({why}): {AGAIN}") from None
