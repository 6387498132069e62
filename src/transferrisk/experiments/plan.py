"""Plans: the runs that a recipe asks for."""

from __future__ import annotations

import itertools
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..algorithms import get_algorithm
from ..data.fetch import verify
from ..data.root import data_root
from ..errors import InputError, did_you_mean
from .recipe import Recipe
from .tasks import PlannedRun, get_task, has_needs, needs_of, plan_run


@dataclass(frozen=True)
class Cell:
    """One place of an experiment's table; several cells, of several experiments perhaps, may share a run.

    columns  what tells the cells apart: problem, what is varied, method, the point of its grid as text, seed
    """

    run: PlannedRun
    columns: Mapping[str, Any]


@dataclass(frozen=True)
class Plan:
    recipe: Recipe
    cells: tuple[Cell, ...]

    @cached_property
    def runs(self) -> list[PlannedRun]:
        """Each once, those that others need before them; the model is kept where any of them asks for it."""
        found: dict[str, PlannedRun] = {}
        for run in _with_needs(cell.run for cell in self.cells):
            known = found.get(run.name)
            found[run.name] = run if known is None else replace(known, keep=known.keep or run.keep)
        return list(found.values())

    @property
    def needed(self) -> int:
        """How many of the runs are there only because others need them."""
        return len(self.runs) - len({cell.run.name for cell in self.cells})


def count_runs(recipe: Recipe) -> int:
    """How many runs a recipe has, those that others need among them.

    The points of grids, most of them all, are counted without resolving them, as if no two were the same run.
    """
    with_grid = {label: method for label, method in recipe.methods.items() if "grid" in method and recipe.grids}
    if has_needs(get_task(recipe.task)) or not with_grid:
        return len(recipe.seeds) * len(make_plan(recipe, seeds=1).runs)
    points = len(recipe.seeds) * sum(1 for _ in _combinations(replace(recipe, methods=with_grid)))
    others = {label: method for label, method in recipe.methods.items() if label not in with_grid}
    return points + (count_runs(replace(recipe, methods=others)) if others else 0)


def absent_data(plan: Plan, missing: Iterable[PlannedRun], root: Path | None) -> str | None:
    """Say which data set is not on this machine, and what to do; None where all are."""
    for data in sorted({run.settings["data"] for run in missing if isinstance(run.settings.get("data"), str)}):
        if folder := absent(data, root):
            return (
                f"{data} is not there, since {folder} does not exist: see trm data fetch {data}, say where it is with "
                f"--data-root or $TRANSFERRISK_DATA, or leave its runs out{_without(plan, data)}"
            )
    return None


def absent(data: str, root: Path | str | None) -> Path | None:
    """A folder that a set has to have and that is not there; None where only reading can tell what is missing."""
    place = data_root(root)
    for state in verify(data, place, digests=False):
        folder = place / state.path.relative_to(place).parts[0]
        if state.state == "missing" and not folder.exists():
            return folder
    return None


def _without(plan: Plan, data: str) -> str:
    """How `--only` says so, where a column tells the data sets apart."""
    for column in ("problem", "data"):
        others = {c.columns[column] for c in plan.cells if column in c.columns and c.run.settings.get("data") != data}
        if others:
            return " with " + " ".join(f"--only {shlex.quote(f'{column}={name}')}" for name in sorted(others))
    return ""


def whole_plan(recipe: Recipe, seeds: int | None = None, given: Mapping[str, Any] | None = None) -> Plan:
    """Every cell of the recipe, with more seeds than it has where those are asked for."""
    return make_plan(recipe, seeds=None if seeds is None or seeds <= len(recipe.seeds) else seeds, given=given)


def make_plan(
    recipe: Recipe, only: Sequence[str] = (), seeds: int | None = None, given: Mapping[str, Any] | None = None
) -> Plan:
    """A plan of every problem, combination, method, point and seed, in this order.

    only   "column=value,value" leaves the others out; a value alone is a method's label
    seeds  the first so many in place of the recipe's
    given  settings where the recipe does not say them, such as the precision of the machine; those that the task does
           not have are left out
    """
    if recipe.task == Recipe.task and not (recipe.settings or recipe.problems or recipe.methods):
        raise InputError(
            f'recipe {recipe.where} has nothing to run: add data, as data = "pacs" below [settings], and methods, as '
            'ERM = { algorithm = "erm" } below [methods]'
        )
    _check_rules(recipe)
    _check_varied(recipe)
    known = {field.name for field in fields(get_task(recipe.task).settings_type)}
    common = {key: value for key, value in (given or {}).items() if key in known}
    chosen = _chosen(recipe, only)
    numbers = recipe.seeds if seeds is None else _more(recipe.seeds, seeds)
    cells = []
    for columns, settings in _combinations(recipe):
        if all(_text(columns.get(column)) in values for column, values in chosen.items()):
            with _named(recipe, columns):
                run = plan_run(recipe.task, {**common, **settings, "seed": numbers[0]}, recipe.keep)
            for seed in numbers:
                own = replace(run, settings={**run.settings, "seed": seed})
                cells.append(Cell(own, {**columns, "seed": seed}))
    if not cells:
        raise InputError(f"--only {' '.join(only)} leaves nothing of {recipe.name}: name less")
    return Plan(recipe, tuple(cells))


def _check_rules(recipe: Recipe) -> None:
    """A point of a grid is chosen by validation data of the training environments, where the rule is the last step."""
    rules = get_task(recipe.task).rules
    for rule in recipe.select:
        if rule not in rules:
            raise InputError(
                f"recipe {recipe.where}: task {recipe.task!r} has nothing to select {rule!r} by: choose from "
                f"{', '.join(rules)}"
            )
    has_grid = recipe.grids and any("grid" in method for method in recipe.methods.values())
    if has_grid and "last" in recipe.select and "training_domain" not in rules:
        raise InputError(
            f"recipe {recipe.where}: task {recipe.task!r} has nothing to choose a point of a grid by at the last "
            "step: add grids = false, or select = ['test_domain']"
        )


def _check_varied(recipe: Recipe) -> None:
    """What is varied has no other value: the cells of a table would not be what they are called."""
    tables = {"settings": recipe.settings} | {
        f"{kind}.{label}": own
        for kind, of_kind in (("problems", recipe.problems), ("methods", recipe.methods))
        for label, own in of_kind.items()
    }
    for where, own in tables.items():
        for key in own:
            if key in recipe.vary:
                raise InputError(
                    f"recipe {recipe.where}: {key} is varied and set in [{where}] as well: list its values below "
                    f"[vary], or write {key} = false there, and set it once"
                )


@contextmanager
def _named(recipe: Recipe, columns: Mapping[str, Any]) -> Iterator[None]:
    """An error says of which recipe and method it is."""
    try:
        yield
    except InputError as error:
        method = f", method {columns['method']}" if columns.get("method") else ""
        raise InputError(f"recipe {recipe.where}{method}: {error}") from None


def _combinations(recipe: Recipe) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Columns and settings of everything but the seed."""
    for problem, of_problem in (recipe.problems or {"": {}}).items():
        for values in itertools.product(*recipe.vary.values()):
            varied = dict(zip(recipe.vary, values, strict=True))
            for method, of_method in (recipe.methods or {"": {}}).items():
                own = {key: value for key, value in of_method.items() if key != "grid"}
                base = _joined(recipe.settings, of_problem, varied, own)
                for point in _points(recipe, method, of_method, base):
                    columns = {**({"problem": problem} if recipe.problems else {}), **varied}
                    if recipe.methods:
                        columns |= {"method": method, "point": _shown(point)}
                    yield columns, _joined(base, {"settings": point} if point else {})


def _points(
    recipe: Recipe, method: str, of_method: Mapping[str, Any], settings: Mapping[str, Any]
) -> Iterator[dict[str, Any]]:
    """Of the method's grid; one without settings where it has none."""
    grid = of_method.get("grid", {}) if recipe.grids else {}
    if grid == "paper":
        grid = get_algorithm(settings.get("algorithm", "")).grid
    if not isinstance(grid, Mapping) or any(not isinstance(v, list | tuple) or not v for v in grid.values()):
        raise InputError(f'recipe {recipe.where}: the grid of {method} is {grid!r}: write "paper" or lists of values')
    for values in itertools.product(*grid.values()):
        yield dict(zip(grid, values, strict=True))


def _joined(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Later tables over earlier ones; tables within them (settings, training) key by key."""
    out: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
            out[key] = {**out[key], **value} if both else value
    return out


def _with_needs(runs: Iterable[PlannedRun]) -> Iterator[PlannedRun]:
    for run in runs:
        yield from _with_needs(needs_of(run))
        yield run


def _chosen(recipe: Recipe, only: Sequence[str]) -> dict[str, set[str]]:
    """Column -> the values wanted, as text."""
    known: dict[str, set[str]] = {}
    for columns, _ in _combinations(recipe):
        for column, value in columns.items():
            known.setdefault(column, set()).add(_text(value))
    if only and not known:
        raise InputError(f"--only {only[0]}: {recipe.name} is one run for each seed, of which nothing can be left out")
    chosen: dict[str, set[str]] = {}
    for text in only:
        if not text.strip():
            raise InputError("--only is given nothing: name a method, or write COLUMN=VALUE")
        column, equals, values = text.partition("=")
        if not equals:
            column, values = _column_of(text, known), text
        if column not in known:
            raise InputError(
                f"--only {text}: {recipe.name} has no {column!r}: {did_you_mean(column, known)}choose from "
                f"{', '.join(known)}"
            )
        for value in [values] if values in known[column] else values.split(","):
            found = next((name for name in (value, _number_text(value)) if name in known[column]), None)
            if found is None:
                again = "give --only once for each column; " if "=" in value and column != "point" else ""
                listed = ", ".join(repr(name) if "," in name else name for name in sorted(known[column]))
                raise InputError(
                    f"--only {text}: {recipe.name} has no {column} {value!r}: {again}"
                    f"{did_you_mean(value, known[column])}choose from {listed}"
                )
            chosen.setdefault(column, set()).add(found)
    return chosen


def _column_of(values: str, known: Mapping[str, set[str]]) -> str:
    """The column of values that are given without one: the first that has any of them, else the methods'."""
    usual = "method" if "method" in known else next(iter(known))
    given = {name for value in (values, *values.split(",")) for name in (value, _number_text(value))}
    return next((name for name in (usual, *known) if name != "point" and given & known[name]), usual)


def _number_text(value: str) -> str:
    """0.85 for 0.850."""
    try:
        return _text(float(value))
    except ValueError:
        return value


def _more(seeds: Sequence[int], count: int) -> list[int]:
    """The first `count` of these, and whole numbers after them where there are too few."""
    if count < 1:
        raise InputError(f"--seeds {count} leaves no run: give 1 or more")
    after = itertools.count(max(seeds) + 1)
    return [*seeds[:count], *itertools.islice(after, max(0, count - len(seeds)))]


def _shown(point: Mapping[str, Any]) -> str:
    return " ".join(f"{key}={_text(value)}" for key, value in point.items())


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)
