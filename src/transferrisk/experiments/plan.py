"""Plans: the runs that a recipe asks for."""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..algorithms import get_algorithm, setting_names
from ..data.fetch import verify
from ..data.roots import data_root
from ..errors import InputError, choices
from ..results.selection import HELD_OUT
from ..settings import field_kinds
from ..training import TrainConfig
from ..training.spec import facts_of
from .points import Grid, Point, count_points, find_points, point_text, read_grid, value_text
from .recipe import ALL, Recipe, load_recipe, recipe_names
from .tasks import PlannedRun, get_task, has_needs, needs_of, plan_run

MOST_RUNS = 100_000


LABELS = {"seed": "seed", "hold_out": "without"}
"""Columns that are named beside their values, and by which --only does not choose."""


@dataclass(frozen=True)
class Cell:
    """One place of an experiment's table; several cells, of several experiments perhaps, may share a run.

    columns  the values that distinguish the cells: problem, what is varied, method, the point of its grid as text, seed
    """

    run: PlannedRun
    columns: Mapping[str, Any]


@dataclass(frozen=True)
class Plan:
    """
    cells    cells to run; with optuna, random ones that stand for those that its search will find
    whole    all cells of the recipe, of which those are a part; (): they are all
    studies  with optuna, each with its seed
    pruned   cells whose runs such a search has given up, which are none of the others
    """

    recipe: Recipe
    cells: tuple[Cell, ...]
    whole: tuple[Cell, ...] = ()
    studies: tuple[tuple[Study, int], ...] = ()
    pruned: tuple[Cell, ...] = ()

    @cached_property
    def runs(self) -> list[PlannedRun]:
        """Each run once, those that others need before them; the model is kept where any of them asks for it."""
        found: dict[str, PlannedRun] = {}
        for cell in self.cells:
            for run in _with_needs(cell.run):
                before = found.get(run.name, run)
                found[run.name] = replace(before, keep=True) if run.keep else before
        return list(found.values())

    @cached_property
    def labels(self) -> dict[str, str]:
        """Name of a run -> its label while it is done; a run in several cells has that of the first."""
        found: dict[str, str] = {}
        for cell in self.cells:
            columns = {key: value for key, value in cell.columns.items() if value != ""}
            words = [f"{LABELS[key]} {v}" if key in LABELS else value_text(v) for key, v in columns.items()]
            found.setdefault(cell.run.name, ", ".join(words))
        for run in self.runs:
            if run.name not in found:
                words = [str(run.settings[key]) for key in ("data", "algorithm", "shift") if run.settings.get(key)]
                found[run.name] = ", ".join([*words, f"seed {run.settings['seed']}", "which others need"])
        return found

    @property
    def needed(self) -> int:
        """Number of runs that are there only because others need them."""
        return len(self.runs) - len({cell.run.name for cell in self.cells})


def _with_needs(run: PlannedRun) -> list[PlannedRun]:
    return [*itertools.chain.from_iterable(map(_with_needs, needs_of(run))), run]


def make_plan(
    recipe: Recipe, only: Sequence[str] = (), seeds: int | None = None, given: Mapping[str, Any] | None = None
) -> Plan:
    """A plan of every problem, combination, method, point and seed, in this order.

    only   "column=value,value" leaves the others out of the plan's cells; a value alone is a method's label
    seeds  how many, in place of the recipe's; whole numbers come after its own
    given  settings where the recipe does not say them, such as the precision of the machine; those that the task does
           not have are left out
    """
    _check_recipe(recipe)
    given = given or {}
    names = get_task(recipe.task).settings_type.__dataclass_fields__.keys()
    common = {key: given[key] for key in given.keys() & names}
    numbers = recipe.seeds
    if seeds is not None:
        if seeds < 1:
            raise InputError(f"--seeds must be an integer >= 1, got {seeds}")
        after = itertools.count(max(numbers) + 1)
        numbers = (*numbers[:seeds], *itertools.islice(after, max(0, seeds - len(numbers))))
    # Where each seed has points of its own, only those that are asked for are drawn.
    every = numbers if len(numbers) > len(recipe.seeds) or recipe.search.by_seed else recipe.seeds
    studies = list(find_studies(recipe, common))
    _check_count(recipe, studies, len(every))
    whole = [cell for study in studies for cell in _cells(study, every)]
    wanted = _wanted(recipe, only, whole)
    cells = []
    for cell in whole:
        chosen = all(_comparable(cell.columns.get(column)) in names for column, names in wanted.items())
        if chosen and cell.columns["seed"] in numbers:
            cells.append(cell)
    if not cells:
        raise InputError(f"--only {' '.join(only)} leaves nothing of {recipe.name}: name less")
    if recipe.search.kind != "optuna":
        return Plan(recipe, tuple(cells), tuple(whole))
    places = {frozenset((key, value) for key, value in c.columns.items() if key != "point") for c in cells}
    pairs = itertools.product(studies, every)
    chosen_studies = [(one, seed) for one, seed in pairs if {*one.columns.items(), ("seed", seed)} in places]
    return Plan(recipe, tuple(cells), studies=tuple(chosen_studies))


@dataclass(frozen=True)
class Study:
    """A method on one problem, of which points are tried.

    columns    of its cells, but for point and seed
    settings   of its runs, but for those of the point and the seed
    grid       {}: its settings are as they are
    hold_outs  environments that runs leave out, "" for none, where settings are chosen by that
    """

    recipe: Recipe
    columns: Mapping[str, Any]
    settings: Mapping[str, Any]
    grid: Grid
    hold_outs: tuple[str, ...] = ()

    def at(self, point: Point, seeds: Sequence[int]) -> list[Cell]:
        """The cells of a point."""
        recipe = self.recipe
        settings = _joined(self.settings, _settings_of(recipe, point, self.settings.get("algorithm")))
        try:
            run = plan_run(recipe.task, {**settings, "seed": seeds[0]}, recipe.keep)
        except InputError as error:
            method = f", method {self.columns['method']}" if self.columns.get("method") else ""
            raise InputError(f"recipe {recipe.where}{method}: {error}") from None
        columns = {**self.columns, **({"point": point_text(point)} if recipe.methods else {})}
        cells = []
        for seed, hold_out in itertools.product(seeds, self.hold_outs or (None,)):
            own = {"seed": seed} if hold_out is None else {"seed": seed, "hold_out": hold_out}
            changed = {key: value or None if key == "hold_out" else value for key, value in own.items()}
            cells.append(Cell(replace(run, settings={**run.settings, **changed}), {**columns, **own}))
        return cells


def _cells(study: Study, seeds: Sequence[int]) -> Iterator[Cell]:
    """All cells of a study; those of an optuna study, whose points are not known before, with points in their place."""
    search = study.recipe.search
    for some in [(seed,) for seed in seeds] if search.by_seed else [seeds]:
        for point in find_points(study.grid, search, some[0]):
            yield from study.at(point, some)


def _check_count(recipe: Recipe, studies: Sequence[Study], seeds: int) -> None:
    """Refuse more runs than anyone waits for, before they are listed."""
    total = sum(seeds * max(1, len(one.hold_outs)) * count_points(one.grid, recipe.search) for one in studies)
    if MOST_RUNS < total < math.inf:  # find_points says what to do about a grid without an end
        raise InputError(
            f"recipe {recipe.where} asks for {total:,} runs, more than {MOST_RUNS:,}: shorten its grids or lists, or "
            'draw points of its grids with search = "random"'
        )


def count_runs(recipe: Recipe) -> int:
    """Number of runs of a recipe, those that others need among them.

    The points of grids, most of them all, are counted without resolving them, as if no two were the same run.
    """
    studies = list(find_studies(recipe))
    with_grid = {str(study.columns.get("method")) for study in studies if study.grid}
    if has_needs(get_task(recipe.task)) or not with_grid:
        return len(recipe.seeds) * len(make_plan(recipe, seeds=1).runs)
    seeds, points = len(recipe.seeds), 0
    for study in studies:
        if study.grid:
            points += max(1, len(study.hold_outs)) * int(count_points(study.grid, recipe.search))
    others = {label: method for label, method in recipe.methods.items() if label not in with_grid}
    return seeds * points + (count_runs(replace(recipe, methods=others)) if others else 0)


def list_recipes() -> list[tuple[str, Recipe, int, int | None]]:
    """Name, recipe, number of runs, and that of the small version if there is one, of each recipe of a package."""
    found = []
    for name in recipe_names():
        recipe, fast = load_recipe(name), None
        with suppress(InputError):
            fast = count_runs(load_recipe(name, fast=True))
        found.append((name, recipe, count_runs(recipe), fast))
    return found


def absent_data(plan: Plan, missing: Iterable[PlannedRun], root: Path | None) -> str | None:
    """Say which data set is not on this machine, and what to do; None where only reading can tell what is missing."""
    place = data_root(root)
    for data in sorted({run.settings["data"] for run in missing if isinstance(run.settings.get("data"), str)}):
        for file in verify(data, place, digests=False):
            folder = place / file.path.relative_to(place).parts[0]
            if file.state == "missing" and not folder.exists():
                return (
                    f"{data} is not there, since {folder} does not exist: see trm data fetch {data}, say where it is "
                    f"with --data-root or $TRANSFERRISK_DATA, or leave its runs out{_without_data(plan, data)}"
                )
    return None


def _without_data(plan: Plan, data: str) -> str:
    """The options by which runs on a data set are left out, where a column tells the data sets apart."""
    for column in ("problem", "data"):
        others = {c.columns[column] for c in plan.cells if column in c.columns and c.run.settings.get("data") != data}
        if others:
            return " with " + " ".join(f"--only {shlex.quote(f'{column}={name}')}" for name in sorted(others))
    return ""


def _check_recipe(recipe: Recipe) -> None:
    """Refuse a recipe without runs, one that sets what it varies, and rules that its task has no data for."""
    where, task = f"recipe {recipe.where}", get_task(recipe.task)
    if recipe.task == Recipe.task and not (recipe.settings or recipe.problems or recipe.methods):
        raise InputError(
            f'{where} has nothing to run: add data, as data = "pacs" below [settings], and methods, as '
            'ERM = { algorithm = "erm" } below [methods]'
        )
    kinds = {"": {"settings": recipe.settings}, "problems.": recipe.problems, "methods.": recipe.methods}
    for kind, tables in kinds.items():
        for label, table in tables.items():
            within = [own for own in (table.get("training"), table.get("grid")) if isinstance(own, Mapping)]
            for key in recipe.vary.keys() & {*table, *itertools.chain(*within)}:
                # Cells of the table would not be what they are called.
                raise InputError(
                    f"{where}: {key} is varied and set in [{kind}{label}] as well: list its values below [vary], or "
                    f"write {key} = false there, and set it once"
                )
    for rule in recipe.select:
        if rule not in task.rules:
            raise InputError(f"{where}: select must be of {', '.join(task.rules)} for task {recipe.task!r}, got {rule}")
    if recipe.search.kind == "optuna" and HELD_OUT in recipe.select:
        raise InputError(
            f'{where}: search = "optuna" compares points by the runs themselves, so select must not be {HELD_OUT}'
        )
    has_grid = recipe.grids and any("grid" in method for method in recipe.methods.values())
    if has_grid and "last" in recipe.select and "training_domain" not in task.rules:
        raise InputError(
            f"{where}: task {recipe.task!r} has no validation data to choose a point of a grid by at the last step: "
            "add grids = false, or select = ['test_domain']"
        )


def find_studies(recipe: Recipe, common: Mapping[str, Any] | None = None) -> Iterator[Study]:
    """Every problem, combination and method, in this order; `common` are settings of all, unless they say otherwise."""
    whole = math.prod(map(len, (recipe.problems or [""], recipe.methods or [""], *recipe.vary.values())))
    if whole > MOST_RUNS:
        raise InputError(f"recipe {recipe.where} asks for {whole:,} runs, more than {MOST_RUNS:,}: shorten its lists")
    for problem, of_problem in (recipe.problems or {"": {}}).items():
        settings = _joined(common or {}, recipe.settings, of_problem)
        vary = _with_all_environments(recipe, settings)
        for values in itertools.product(*vary.values()):
            varied = dict(zip(vary, values, strict=True))
            for method, of_method in (recipe.methods or {"": {}}).items():
                own = dict(of_method)
                grid = own.pop("grid", {})
                base = _joined(settings, _settings_of(recipe, varied), own)
                columns = {**({"problem": problem} if recipe.problems else {}), **varied}
                if recipe.methods:
                    columns["method"] = method
                held_out = _hold_outs(recipe, base) if HELD_OUT in recipe.select else ()
                points = _grid(recipe, method, grid, base.get("algorithm", "")) if recipe.grids else {}
                yield Study(recipe, columns, base, points, held_out)


def _with_all_environments(recipe: Recipe, settings: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    """What is varied, with the names of the test environments where all of them are asked for."""
    if recipe.vary.get("test_env") != (ALL,):
        return dict(recipe.vary)
    return {**recipe.vary, "test_env": _environments(recipe, settings, f"test_env = {ALL!r}")}


def _hold_outs(recipe: Recipe, settings: Mapping[str, Any]) -> tuple[str, ...]:
    names = _environments(recipe, settings, f"select = [{HELD_OUT!r}]")
    if settings.get("test_env") not in names:
        raise InputError(
            f"recipe {recipe.where}: select = [{HELD_OUT!r}] leaves out training environments, so test_env must say "
            f"which of {', '.join(names)} is not one, got {settings.get('test_env')!r}"
        )
    return ("", *[name for name in names if name != settings["test_env"]])


def _environments(recipe: Recipe, settings: Mapping[str, Any], what: str) -> list[str]:
    """The environments of the data, each of which can be the one to test on."""
    data = settings.get("data")
    facts = facts_of(data) if isinstance(data, str) else None
    if facts is None or facts.test:
        why = "has a test environment of its own" if facts else "names its environments only when it is read"
        raise InputError(
            f"recipe {recipe.where}: {what} needs data with several environments to test on, and {data!r} {why}: name "
            "the environments below [vary]"
        )
    return list(facts.environments)


def _grid(recipe: Recipe, method: str, grid: Any, algorithm: str) -> Grid:
    if grid == "paper":
        grid = get_algorithm(algorithm).grid
    if not isinstance(grid, Mapping):
        raise InputError(f'recipe {recipe.where}: grid of {method} must be "paper" or a table, got {grid!r}')
    if not grid:
        return {}
    kinds = {**field_kinds(get_task(recipe.task).settings_type), **field_kinds(TrainConfig)}
    kinds |= field_kinds(get_algorithm(algorithm).config_type) if algorithm else {}
    return read_grid(grid, kinds, f"recipe {recipe.where}: grid of {method}")


def _settings_of(recipe: Recipe, values: Mapping[str, Any], algorithm: str | None = None) -> dict[str, Any]:
    """Values by name as settings of the task: those of training, such as epochs, are within its `training`.

    With an `algorithm` they are a point of its grid: a name is that of its own setting first, and whatever is not known
    is taken for one, so that it says so.
    """
    of_task = get_task(recipe.task).settings_type.__dataclass_fields__
    own = () if algorithm is None else setting_names(algorithm)
    found: dict[str, Any] = {}
    for key, value in values.items():
        tables = {
            "settings": key in own,
            "": key in of_task,
            "training": key in TrainConfig.__dataclass_fields__ and "training" in of_task,
        }
        table = next((name for name, has in tables.items() if has), "" if algorithm is None else "settings")
        (found.setdefault(table, {}) if table else found)[key] = value
    return found


def _joined(*tables: Mapping[str, Any]) -> dict[str, Any]:
    """Later tables over earlier ones; tables within them (settings, training) key by key."""
    out: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
            out[key] = {**out[key], **value} if both else value
    return out


def _wanted(recipe: Recipe, only: Sequence[str], cells: Sequence[Cell]) -> dict[str, set[str]]:
    """Column -> the values that `only` leaves, in the form in which they are compared.

    Without a column, a value of `only` belongs to the first column that has it.
    """
    values: dict[str, dict[str, str]] = {}  # column -> each of its values, as compared and as text
    for cell in cells if only else ():
        for column, value in cell.columns.items():
            if column not in LABELS:
                values.setdefault(column, {})[_comparable(value)] = value_text(value)
    if only and not values:
        raise InputError(f"--only {only[0]}: {recipe.name} is one run for each seed, of which nothing can be left out")
    wanted: dict[str, set[str]] = {}
    for text in only:
        if not text.strip():
            raise InputError("--only must name a method, or be COLUMN=VALUE, got nothing")
        column, equals, listed = text.partition("=")
        if not equals:
            listed, asked = text, set(map(_comparable, (text, *text.split(","))))
            column = usual = "method" if "method" in values else next(iter(values))
            for name in (usual, *values):
                if name != "point" and asked & values[name].keys():
                    column = name
                    break
        if column not in values:
            raise InputError(f"--only {text}: unknown column {column!r} of {recipe.name}{choices(column, values)}")
        there = values[column]
        for name in [listed] if _comparable(listed) in there else listed.split(","):
            if _comparable(name) not in there:
                again = "; give --only once for each column" if "=" in name and column != "point" else ""
                known = choices(name, [repr(one) if "," in one else one for one in sorted(there.values())])
                raise InputError(f"--only {text}: unknown {column} {name!r} of {recipe.name}{known}{again}")
            wanted.setdefault(column, set()).add(_comparable(name))
    return wanted


def _comparable(value: Any) -> str:
    """The value as text, the same for 0.85 and "0.850"."""
    try:
        return f"{float(value):g}" if isinstance(value, str) else value_text(value)
    except ValueError:
        return str(value)
