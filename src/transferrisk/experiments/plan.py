"""Plans: the runs that a recipe asks for."""

from __future__ import annotations

import itertools
import math
import shlex
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from ..data.fetch import verify
from ..data.roots import data_root
from ..errors import InputError, choices
from ..results.selection import HELD_OUT
from ..settings import dumps
from ..training import TrainConfig
from .points import count_points, value_text
from .recipe import Recipe, load_recipe, recipe_names
from .studies import MOST_RUNS, Cell, Study, find_studies, study_cells
from .tasks import PlannedRun, get_task, has_needs, needs_of

LABELS = {"seed": "seed", "hold_out": "without"}
"""Columns by which --only does not choose -> their words in labels of runs."""


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
            words = []
            for key, value in columns.items():
                is_word = isinstance(value, str) and key not in LABELS
                words.append(value if is_word else f"{LABELS.get(key, key)} {value_text(value)}")
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
    whole = [cell for study in studies for cell in study_cells(study, every)]
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
    where = f"recipe {recipe.where}"
    try:
        task = get_task(recipe.task)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    if recipe.task == Recipe.task and not (recipe.settings or recipe.problems or recipe.methods):
        raise InputError(
            f'{where} has nothing to run: add data, as data = "pacs" below [settings], and methods, as '
            'ERM = { algorithm = "erm" } below [methods]'
        )
    settings = task.settings_type.__dataclass_fields__
    of_training = TrainConfig.__dataclass_fields__.keys() if "training" in settings else set()
    for key in recipe.vary:
        if key not in settings and key not in of_training:
            known = choices(key, sorted({*settings, *of_training}))
            raise InputError(f"{where}, [vary]: unknown setting {key!r}{known}")
    kinds = {"": {"settings": recipe.settings}, "problems.": recipe.problems, "methods.": recipe.methods}
    for kind, tables in kinds.items():
        for label, table in tables.items():
            for key in of_training & table.keys() - settings.keys():
                value = dumps(table[key])
                raise InputError(
                    f"{where}, [{kind}{label}]: {key} is a setting of training: write training = {{ {key} = {value} }}"
                )
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
