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
from .recipe import ALL, Recipe, load_recipe, recipe_names
from .studies import MOST_RUNS, Cell, Study, find_studies, study_cells
from .tasks import PlannedRun, get_task, has_needs, needs_of

LABELS = {"seed": "seed", "hold_out": "without"}
"""Columns by which --only does not choose -> their words in labels of runs."""


@dataclass(frozen=True)
class Plan:
    """The runs that a recipe asks for.

    cells    cells to run; with optuna, random ones in place of those that the search will find
    whole    all cells of the recipe, () if `cells` are all
    studies  with optuna, studies with their seeds
    pruned   with optuna, further cells whose runs the search has given up
    """

    recipe: Recipe
    cells: tuple[Cell, ...]
    whole: tuple[Cell, ...] = ()
    studies: tuple[tuple[Study, int], ...] = ()
    pruned: tuple[Cell, ...] = ()

    @cached_property
    def runs(self) -> list[PlannedRun]:
        """Each run once, after the runs that it needs; its model is kept if any cell or run asks for that."""
        found: dict[str, PlannedRun] = {}
        for cell in self.cells:
            for run in _with_needs(cell.run):
                before = found.get(run.name, run)
                found[run.name] = replace(before, keep=True) if run.keep else before
        return list(found.values())

    @cached_property
    def labels(self) -> dict[str, str]:
        """Name of a run -> its label in progress, taken from the first of its cells."""
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
                found[run.name] = ", ".join([*words, f"seed {run.settings['seed']}", "needed by others"])
        return found

    @property
    def needed(self) -> int:
        """Number of runs that are done only because others need them."""
        return len(self.runs) - len({cell.run.name for cell in self.cells})


def _with_needs(run: PlannedRun) -> list[PlannedRun]:
    return [*itertools.chain.from_iterable(map(_with_needs, needs_of(run))), run]


def make_plan(
    recipe: Recipe, only: Sequence[str] = (), seeds: int | None = None, given: Mapping[str, Any] | None = None
) -> Plan:
    """Return a plan with every problem, combination, method, point and seed, in this order.

    Parameters
    ----------
    recipe
        The recipe.
    only
        Conditions "column=value,value", each of which keeps only runs with one of these values. A value alone is the
        label of a method.
    seeds
        Number of seeds. None: the recipe's seeds. Further seeds are the integers after its largest.
    given
        Settings that apply if the recipe does not set them, such as the precision. Those unknown to the task are
        ignored.

    Returns
    -------
    Plan
        The plan. `runs` lists each run once, after the runs that it needs; a run has `name`, `task` and `settings`.
        `labels` maps the name of a run to a label.

    Examples
    --------
    >>> from transferrisk.experiments import load_recipe, make_plan
    >>> recipe = load_recipe("cmnist", fast=True)
    >>> plan = make_plan(recipe, only=["ERM", "bias=0.85", "shift=label-correlated"])
    >>> for run in plan.runs:
    ...     print(plan.labels[run.name], run.settings["seed"])
    label-correlated, bias 0.85, ERM, seed 0 0
    label-correlated, bias 0.85, ERM, seed 1 1
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
    # If each seed has its own points, only those of the seeds that are asked for are drawn.
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
        raise InputError(f"--only {' '.join(only)} selects no run of {recipe.name}: leave one of them out")
    if recipe.search.kind != "optuna":
        return Plan(recipe, tuple(cells), tuple(whole))
    places = {frozenset((key, value) for key, value in c.columns.items() if key != "point") for c in cells}
    pairs = itertools.product(studies, every)
    chosen_studies = [(one, seed) for one, seed in pairs if {*one.columns.items(), ("seed", seed)} in places]
    return Plan(recipe, tuple(cells), studies=tuple(chosen_studies))


def _check_count(recipe: Recipe, studies: Sequence[Study], seeds: int) -> None:
    """Raise InputError if there are more than `MOST_RUNS` runs, before they are listed."""
    total = sum(seeds * max(1, len(one.hold_outs)) * count_points(one.grid, recipe.search) for one in studies)
    if MOST_RUNS < total < math.inf:  # find_points says what to do about a grid without an end
        raise InputError(
            f"recipe {recipe.where} asks for {total:,} runs, more than {MOST_RUNS:,}: shorten its grids or lists, or "
            'draw points of its grids with search = "random"'
        )


def count_runs(recipe: Recipe) -> int:
    """Return the number of runs of a recipe, including those that others need.

    The points of grids are counted without resolving them, as if no two were the same run.
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
    """Return name, recipe, number of runs and that of the small version (None without one) of each recipe."""
    found = []
    for name in recipe_names():
        recipe, fast = load_recipe(name), None
        with suppress(InputError):
            fast = count_runs(load_recipe(name, fast=True))
        found.append((name, recipe, count_runs(recipe), fast))
    return found


def absent_data(plan: Plan, missing: Iterable[PlannedRun], root: Path | None) -> str | None:
    """Return a message on the first data set that is missing on this machine, None if none is known to be missing."""
    place = data_root(root)
    for data in sorted({run.settings["data"] for run in missing if isinstance(run.settings.get("data"), str)}):
        for file in verify(data, place, digests=False):
            folder = place / file.path.relative_to(place).parts[0]
            if file.state == "missing" and not folder.exists():
                return (
                    f"data set {data} is missing, since {folder} does not exist: see trm data fetch {data}, name its "
                    f"folder with --data-root or $TRANSFERRISK_DATA, or leave its runs out{_without_data(plan, data)}"
                )
    return None


def _without_data(plan: Plan, data: str) -> str:
    """Return the options that leave out runs on a data set, "" if no column tells the data sets apart."""
    for column in ("problem", "data"):
        others = {c.columns[column] for c in plan.cells if column in c.columns and c.run.settings.get("data") != data}
        if others:
            return " with " + " ".join(f"--only {shlex.quote(f'{column}={name}')}" for name in sorted(others))
    return ""


def _check_recipe(recipe: Recipe) -> None:
    """Raise InputError if a recipe has no runs, sets what it varies, or has rules that its task has no data for."""
    where = f"recipe {recipe.where}"
    try:
        task = get_task(recipe.task)
    except InputError as error:
        raise InputError(f"{where}: {error}") from None
    kinds = {"": {"settings": recipe.settings}, "problems.": recipe.problems, "methods.": _with_places(recipe)}
    if any("seed" in table for table in (recipe.vary, *itertools.chain(*(one.values() for one in kinds.values())))):
        raise InputError(f"{where}: seed must not be a setting: write seeds = [7] above all tables")
    if recipe.task == Recipe.task and not (recipe.settings or recipe.problems or recipe.methods):
        raise InputError(
            f'{where} has nothing to run: add data, such as data = "pacs" below [settings], and methods, such as '
            'ERM = { algorithm = "erm" } below [methods]'
        )
    settings = task.settings_type.__dataclass_fields__
    of_training = TrainConfig.__dataclass_fields__.keys() if "training" in settings else set()
    for key in recipe.vary:
        if key not in settings and key not in of_training:
            known = choices(key, sorted({*settings, *of_training}))
            raise InputError(f"{where}, [vary]: unknown setting {key!r}{known}")
    for kind, tables in kinds.items():
        for label, table in tables.items():
            for key in of_training & table.keys() - settings.keys():
                value = dumps(table[key])
                raise InputError(
                    f"{where}, [{kind}{label}]: {key} is a setting of training: write training = {{ {key} = {value} }}"
                )
            within = [own for own in (table.get("training"), table.get("grid")) if isinstance(own, Mapping)]
            for key in recipe.vary.keys() & {*table, *itertools.chain(*within)}:
                # The names of cells would not tell their settings.
                raise InputError(
                    f"{where}: {key} must not be both in [vary] and in [{kind}{label}]: list its values below [vary], "
                    f"or write {key} = false there"
                )
    for rule in recipe.select:
        if rule not in task.rules:
            raise InputError(f"{where}: select must be of {', '.join(task.rules)} for task {recipe.task!r}, got {rule}")
    if recipe.search.kind == "optuna" and HELD_OUT in recipe.select:
        raise InputError(
            f'{where}: select must not be {HELD_OUT} with search = "optuna": use another rule, or search = "random"'
        )
    has_grid = recipe.grids and any("grid" in method for method in recipe.methods.values())
    if has_grid and "last" in recipe.select and "training_domain" not in task.rules:
        raise InputError(
            f"{where}: select must not be last with grids, since task {recipe.task!r} has no validation data to choose "
            "a point by: add grids = false, or select = ['test_domain']"
        )


def _with_places(recipe: Recipe) -> dict[str, Mapping[str, Any]]:
    """Return the tables of settings of all methods by name: their own, and those of `on`, whose places must exist."""
    axes = {**({"problem": recipe.problems} if recipe.problems else {}), **recipe.vary}
    places = [f"{column}={value_text(value)}" for column, values in axes.items() for value in values]
    found: dict[str, Mapping[str, Any]] = dict(recipe.methods)
    for label, method in recipe.methods.items():
        where, on = f"recipe {recipe.where}, [methods.{label}]", method.get("on", {})
        if not isinstance(on, Mapping) or not all(isinstance(change, Mapping) for change in on.values()):
            raise InputError(f'{where}: on must be a table of tables, such as on."shift=combined" = {{ ... }}')
        for place, change in on.items():
            if place not in places and ALL not in recipe.vary.get(place.partition("=")[0], ()):
                raise InputError(f"{where}: unknown place {place!r} of on{choices(place, places)}")
            found[f"{label}.on.{place!r}"] = change
    return found


def _wanted(recipe: Recipe, only: Sequence[str], cells: Sequence[Cell]) -> dict[str, set[str]]:
    """Return column -> the values that `only` keeps, in the form in which they are compared.

    A value of `only` without a column belongs to the first column that has it.
    """
    values: dict[str, dict[str, str]] = {}  # column -> each of its values, as compared and as text
    for cell in cells if only else ():
        for column, value in cell.columns.items():
            if column not in LABELS:
                values.setdefault(column, {})[_comparable(value)] = value_text(value)
    if only and not values:
        raise InputError(f"--only must be left out, since {recipe.name} is one run for each seed, got {only[0]}")
    wanted: dict[str, set[str]] = {}
    for text in only:
        if not text.strip():
            raise InputError("--only must be METHOD or COLUMN=VALUE, got an empty text")
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
    """Return the value as text, which is the same for 0.85 and "0.850"."""
    try:
        return f"{float(value):g}" if isinstance(value, str) else value_text(value)
    except ValueError:
        return str(value)
