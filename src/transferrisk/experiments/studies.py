"""Studies: each method of a recipe on each problem and combination of settings, with the points of its grid."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from ..algorithms import get_algorithm, setting_names
from ..errors import InputError
from ..results.selection import HELD_OUT
from ..settings import field_kinds
from ..training import TrainConfig
from ..training.spec import facts_of
from .points import Grid, Point, find_points, point_text, read_grid, value_text
from .recipe import ALL, Recipe
from .tasks import PlannedRun, get_task, plan_run

MOST_RUNS = 100_000


@dataclass(frozen=True)
class Cell:
    """One place of an experiment's table. Several cells, also of several experiments, may share a run.

    columns  values that tell the cells apart: problem, what is varied, method, point of its grid (as text), seed
    """

    run: PlannedRun
    columns: Mapping[str, Any]


@dataclass(frozen=True)
class Study:
    """A method on one problem and combination of settings, of which points are tried.

    columns    columns of its cells, without point and seed
    settings   settings of its runs, without those of the point and the seed
    grid       values to try, {} if there is one point only
    hold_outs  environments that runs leave out ("" for none), if settings are chosen by leaving environments out
    """

    recipe: Recipe
    columns: Mapping[str, Any]
    settings: Mapping[str, Any]
    grid: Grid
    hold_outs: tuple[str, ...] = ()

    def at(self, point: Point, seeds: Sequence[int]) -> list[Cell]:
        """Return the cells of a point."""
        recipe = self.recipe
        try:
            settings = _joined(self.settings, _settings_of(recipe, point, self.settings.get("algorithm")))
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


def study_cells(study: Study, seeds: Sequence[int]) -> Iterator[Cell]:
    """Yield all cells of a study; an optuna study, whose points are not known before, has random points instead."""
    search = study.recipe.search
    for some in [(seed,) for seed in seeds] if search.by_seed else [seeds]:
        for point in find_points(study.grid, search, some[0]):
            yield from study.at(point, some)


def find_studies(recipe: Recipe, common: Mapping[str, Any] | None = None) -> Iterator[Study]:
    """Yield every problem, combination and method, in this order; `common` are defaults of settings."""
    whole = math.prod(map(len, (recipe.problems or [""], recipe.methods or [""], *recipe.vary.values())))
    if whole > MOST_RUNS:
        raise InputError(f"recipe {recipe.where} asks for {whole:,} runs, more than {MOST_RUNS:,}: shorten its lists")
    for problem, of_problem in (recipe.problems or {"": {}}).items():
        settings = _joined(common or {}, recipe.settings, of_problem)
        vary = _with_all_environments(recipe, settings)
        for values in itertools.product(*vary.values()):
            varied = dict(zip(vary, values, strict=True))
            for method, of_method in (recipe.methods or {"": {}}).items():
                columns = {**({"problem": problem} if recipe.problems else {}), **varied}
                own = _at_place(of_method, columns)
                grid = own.pop("grid", {})
                base = _joined(settings, _settings_of(recipe, varied), own)
                if recipe.methods:
                    columns["method"] = method
                held_out = _hold_outs(recipe, base) if HELD_OUT in recipe.select else ()
                points = _grid(recipe, method, grid, base.get("algorithm", "")) if recipe.grids else {}
                yield Study(recipe, columns, base, points, held_out)


def _at_place(method: Mapping[str, Any], columns: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a method on one problem and combination: its own, and those of `on` for this place."""
    here = {f"{column}={value_text(value)}" for column, value in columns.items()}
    own = {key: value for key, value in method.items() if key != "on"}
    return _joined(own, *(change for place, change in method.get("on", {}).items() if place in here))


def _with_all_environments(recipe: Recipe, settings: Mapping[str, Any]) -> dict[str, Sequence[Any]]:
    """Return what is varied, with the names of all test environments in place of "all"."""
    if recipe.vary.get("test_env") != (ALL,):
        return dict(recipe.vary)
    return {**recipe.vary, "test_env": _environments(recipe, settings, f"test_env = {ALL!r}")}


def _hold_outs(recipe: Recipe, settings: Mapping[str, Any]) -> tuple[str, ...]:
    names = _environments(recipe, settings, f"select = [{HELD_OUT!r}]")
    if settings.get("test_env") not in names:
        raise InputError(
            f"recipe {recipe.where}: test_env must be one of {', '.join(names)} with select = [{HELD_OUT!r}], got "
            f"{settings.get('test_env')!r}"
        )
    return ("", *[name for name in names if name != settings["test_env"]])


def _environments(recipe: Recipe, settings: Mapping[str, Any], what: str) -> list[str]:
    """Return the environments of the data, each of which can be the test environment."""
    data = settings.get("data")
    facts = facts_of(data) if isinstance(data, str) else None
    if facts is None or facts.test:
        why = "has a test environment of its own" if facts else "names its environments only when it is read"
        raise InputError(
            f"recipe {recipe.where}: {what} needs data with several environments to test on, but {data!r} {why}: list "
            "the environments below [vary]"
        )
    return list(facts.environments)


def _grid(recipe: Recipe, method: str, grid: Any, algorithm: str) -> Grid:
    try:
        known = get_algorithm(algorithm) if algorithm else None
    except InputError as error:
        raise InputError(f"recipe {recipe.where}, method {method}: {error}") from None
    if grid == "paper" and known is not None:
        grid = known.grid
    if not isinstance(grid, Mapping):
        raise InputError(f'recipe {recipe.where}: grid of {method} must be "paper" or a table, got {grid!r}')
    if not grid:
        return {}
    kinds = {**field_kinds(get_task(recipe.task).settings_type), **field_kinds(TrainConfig)}
    kinds |= {} if known is None else field_kinds(known.config_type)
    return read_grid(grid, kinds, f"recipe {recipe.where}: grid of {method}")


def _settings_of(recipe: Recipe, values: Mapping[str, Any], algorithm: str | None = None) -> dict[str, Any]:
    """Return values by name as settings of the task, with those of training, such as epochs, inside `training`.

    With an `algorithm` they are a point of its grid: a name is first looked for among its own settings, and an unknown
    name is passed on as one of these, so that checking them reports it.
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
    """Return later tables merged over earlier ones; inner tables (settings, training) are merged key by key."""
    out: dict[str, Any] = {}
    for table in tables:
        for key, value in table.items():
            both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
            out[key] = {**out[key], **value} if both else value
    return out
