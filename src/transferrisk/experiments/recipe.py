"""Recipes: experiments as data, in TOML.

Recipes come as files, or with packages that have an entry point in the group `transferrisk.recipes`, such as this one.

extends    another recipe, of which this one states the differences; `x = false` drops x from methods, problems or vary,
           or a whole table, such as `published = false`. The paper's numbers and their place are inherited unless this
           recipe has its own settings or problems
title      title of its report
paper      place in the paper
task       task of each run, as in `tasks`
seeds      number of seeds (0, 1, ...), or a list of seeds
select     rules by which evaluations and points of grids are selected; each has its own tables
keep       whether to keep the trained models in the runs' folders
grids      whether methods have their grids; false runs every method with its default settings
search     how points of grids are found: a kind or a table, see `points.Search`
settings   settings of every run, as its task takes them
problems   label -> settings; the experiment consists of all problems
vary       setting of the task or of its training, such as epochs -> values; every combination is run on every problem.
           `test_env = "all"`, here or in settings, stands for every environment of the data
methods    label -> settings, with `grid` = "paper" (appendix B.2) or a table of lists or distributions, see `points`,
           and `on`: a place, such as "shift=combined" or "problem=PACS" -> the same keys, for differences there
fast       differences of the small version, a table of the same keys; it is inherited, except for keys that this recipe
           has itself
show       how the report shows the results, see `reports`; inherited panels lose axes that this recipe drops
published  the paper's numbers: rule -> method -> column -> [mean, deviation]
"""

from __future__ import annotations

import itertools
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from types import ModuleType
from typing import Annotated, Any

from ..errors import InputError, choices
from ..files import readable
from ..registry import ambiguous, entries, failures_named, is_own, package_of, warn_left_out, warn_unused
from ..results import Rule
from ..settings import Bound, Length, Settings, checked_fields, dumps
from .points import Search

SUFFIX = ".toml"
GROUP = "transferrisk.recipes"
TAKEN = ("runs", "report.html")  # names with another meaning in a folder of results
MOST_SEEDS = 10_000
ALL = "all"  # as test_env: every environment of the data


@dataclass(frozen=True)
class Recipe(Settings):
    """A recipe with all that it inherits.

    given   words of `trm experiment` that ask for it: its name or file, --defaults, --fast
    others  see the module
    """

    name: str
    title: str = ""
    paper: str = ""
    task: str = "train"
    seeds: Annotated[tuple[Annotated[int, Bound(least=0, below=2**31)], ...], Length(1)] = (0,)
    select: Annotated[tuple[Rule, ...], Length(1)] = ("training_domain",)
    keep: bool = False
    grids: bool = True
    search: Search = field(default_factory=Search)
    settings: Mapping[str, Any] = field(default_factory=dict)
    problems: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    vary: Mapping[str, Annotated[tuple[str | int | float | bool, ...], Length(1)]] = field(default_factory=dict)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    show: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, Any] = field(default_factory=dict)
    given: tuple[str, ...] = field(default=(), compare=False)

    @property
    def where(self) -> str:
        """Name of the recipe in messages: that of its file if it is one."""
        return self.given[0] if self.given and self.given[0].endswith(SUFFIX) else self.name


_OWN_KEYS = tuple(field.name for field in fields(Recipe) if field.name not in ("name", "given"))
KEYS = (*_OWN_KEYS, "extends", "fast")
_TABLES = ("settings", "problems", "vary", "methods", "show", "published", "fast")


def recipe_names() -> list[str]:
    """Return the names of recipes of packages, without those that begin with _, which are only inherited from."""
    return sorted({name for source in _sources() for name in source.names if name[0] != "_"})


def load_recipe(name: str | Path, fast: bool = False, defaults: bool = False) -> Recipe:
    """Return a recipe of a package by its name, or read one from a file.

    Parameters
    ----------
    name
        Name of a recipe, as in `trm experiment --list`, or path of a TOML file.
    fast
        Whether to return the small version, called NAME-fast.
    defaults
        Whether every method has its default settings, without grids. The recipe is called NAME-defaults.

    Returns
    -------
    Recipe
        The recipe with all that it inherits. Its fields are the keys of a recipe file, such as `methods` and `seeds`.

    Examples
    --------
    >>> from transferrisk.experiments import load_recipe
    >>> recipe = load_recipe("cmnist", fast=True)
    >>> recipe.name, recipe.seeds, recipe.methods["ERM"]["algorithm"]
    ('cmnist-fast', (0, 1), 'erm')
    """
    given = [str(name)]
    called = Path(name).name.removesuffix(SUFFIX)  # the name of the folder of its results
    if not called or called[0] == "." or called in TAKEN or not called.isprintable():
        raise InputError(
            f"NAME must be an experiment or FILE{SUFFIX}, which also names a folder, got {readable(name)}: "
            "choose another name"
        )
    table, small = _whole(given[0], _find(given[0]), ())
    if defaults:
        methods = table.get("methods", {}).values()
        if not any("grid" in method for method in methods if isinstance(method, Mapping)):
            raise InputError(f"--defaults must be left out, since recipe {name} has no grids")
        table, called = _merged(table, {"grids": False}), f"{called}-defaults"
        given.append("--defaults")
    if fast:
        if not small:
            raise InputError(
                f"--fast must be left out, since recipe {name} has no small version: use --only and --seeds"
            )
        table, called = small, f"{called}-fast"
        table |= {"grids": False} if defaults else {}
        table.pop("published", None)  # the paper's numbers belong to the whole recipe
        given.append("--fast")
    return _recipe(called, table, tuple(given))


@dataclass(frozen=True)
class _Source:
    """A folder of recipes that a package adds; `names` are the stems of its files."""

    package: str
    folder: Traversable
    names: set[str]


def _sources() -> Iterator[_Source]:
    """Yield folders of recipes of packages, our own first, without broken ones and without names that ours have."""
    own: set[str] = set()
    for entry in itertools.chain.from_iterable(entries(GROUP).values()):
        try:
            with failures_named(entry, f"recipes {entry.value!r}"):
                found = entry.load()  # a package, or a path
                folder = files(found) if isinstance(found, ModuleType) else Path(found)
                names = {file.name.removesuffix(SUFFIX) for file in folder.iterdir() if file.name.endswith(SUFFIX)}
        except InputError as error:
            warn_left_out(error)
            continue
        if is_own(entry):
            own |= names
        else:
            for name in own & names:
                if name[0] != "_":
                    warn_unused(entry, f"recipe {name!r}")
                    names.remove(name)
        yield _Source(package_of(entry), folder, names)


def _find(name: str, hidden: bool = False) -> Traversable:
    """Return the folder of the recipe of a name or path; with `hidden` its name may begin with _."""
    if name.endswith(SUFFIX):
        if not Path(name).is_file():
            how = "is a folder" if Path(name).is_dir() else "does not exist"
            raise InputError(f"{name} {how}: check the path, or name one of {', '.join(recipe_names())}")
        return Path(name).parent
    found = [source for source in _sources() if name in source.names and (hidden or name[0] != "_")]
    if not found:
        if Path(name + SUFFIX).is_file():
            raise InputError(f"NAME must be an experiment or a file, got {name!r}: write {name}{SUFFIX} for this file")
        raise InputError(
            f"unknown experiment {name!r}{choices(name, recipe_names())}, or name a file that ends in {SUFFIX}"
        )
    if len(found) > 1:
        raise ambiguous(f"recipe {name!r}", [source.package for source in found])
    return found[0].folder


def _whole(name: str, folder: Traversable, within: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the table with all that it inherits, and that of its small version, {} without one."""
    if name in within:
        raise InputError(f"extends must not lead back to the same recipe, got {' extends '.join((*within, name))}")
    table = _read(name, folder)
    base, fast = table.pop("extends", None), table.pop("fast", {})
    whole, small = ({}, {}) if base is None else _inherited(name, str(base), folder, (*within, name))
    if "title" in table:  # another experiment than that of the paper
        for inherited in (whole, small):
            inherited.pop("paper", None)
    if table.get("settings") or table.get("problems"):  # the paper's numbers belong to other settings
        for key, inherited in itertools.product(("published", "paper"), (whole, small)):
            inherited.pop(key, None)
    if fast is False or not (fast or small):
        small = {}
    elif not small:
        small = _changed(_changed(whole, table), fast)
    else:
        own = dict(table)
        for key in ("methods", "problems", "vary"):  # names that the inherited small version drops stay dropped
            dropped = whole.get(key, {}).keys() - small.get(key, {}).keys()
            if isinstance(own.get(key), Mapping):
                own[key] = {name: value for name, value in own[key].items() if name not in dropped}
        small = _changed(_changed(small, own), fast)
    whole = _changed(whole, table)
    for key, found in itertools.product(_TABLES, (whole, small)):
        if found.get(key) is False:  # it drops a table that was not inherited
            del found[key]
    return whole, small


def _inherited(
    name: str, base: str, folder: Traversable, within: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return both tables of another recipe, which is first looked for beside this one."""
    if name.endswith(SUFFIX) and (beside := Path(name).parent / f"{base.removesuffix(SUFFIX)}{SUFFIX}").is_file():
        base = str(beside)
    try:
        if name.endswith(SUFFIX) or not folder.joinpath(f"{base}{SUFFIX}").is_file():
            folder = _find(base, hidden=True)
    except InputError as error:
        raise InputError(f"recipe {name}, extends: {error}") from None
    return _whole(base, folder, within)


def _read(name: str, folder: Traversable) -> dict[str, Any]:
    """Return the recipe's own table after checking its keys."""
    try:
        content = folder.joinpath(Path(name).name.removesuffix(SUFFIX) + SUFFIX).read_text(encoding="utf-8")
        table = tomllib.loads(content)
        dumps(table)
    except (ValueError, RecursionError) as error:
        raise InputError(f"recipe {name} cannot be read as TOML ({error}): correct that line") from None
    except TypeError as error:  # TOML has dates and times, JSON does not
        raise InputError(
            f"recipe {name}: values must be text, numbers or truth values ({error}): write dates as text"
        ) from None
    except OSError as error:
        raise InputError(
            f"recipe {name} cannot be read ({error.strerror}): correct that, or name another recipe"
        ) from None
    _check_keys(f"recipe {name}", table, KEYS, may_drop="extends" in table)
    if fast := table.get("fast"):
        _check_keys(f"recipe {name}, [fast]", fast, _OWN_KEYS)
    return table


def _check_keys(where: str, table: Mapping[str, Any], keys: tuple[str, ...], may_drop: bool = False) -> None:
    for key, value in table.items():
        if key not in keys:
            raise InputError(f"{where}: unknown key {key!r}{choices(key, keys)}")
        if key in _TABLES and not isinstance(value, Mapping) and not (may_drop and value is False):
            raise InputError(f"{where}: {key} must be a table, got {dumps(value)}: write [{key}]")


def _merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return tables merged key by key; other values, and a show of another kind, are replaced by those of `change`.

    False removes a value that is not a truth value itself.
    """
    out = dict(base)
    for key, value in change.items():
        before = out.get(key)
        if (
            isinstance(value, Mapping)
            and isinstance(before, Mapping)
            and value.get("kind") in (None, before.get("kind"))
        ):
            out[key] = _merged(before, value)
        elif value is False and not isinstance(out.get(key, False), bool):
            del out[key]
        else:
            out[key] = value
    return out


def _changed(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return a recipe's table with changes; the panels that it inherits lose what no longer varies."""
    out = _merged(base, change)
    if dropped := _axes(base) - _axes(out):
        out["show"] = _without_panels(out.get("show", {}), change.get("show"), [*dropped])
    return out


def _axes(table: Mapping[str, Any]) -> set[str]:
    """Return the names of what a recipe's table varies."""
    found = {*(table.get("vary") or ()), *(["problem"] if table.get("problems") else [])}
    return found | ({"test_env"} if (table.get("settings") or {}).get("test_env") == ALL else set())


def _without_panels(show: Any, own: Any, dropped: list[str]) -> Any:
    """Return [show] without the panels that were dropped, unless a recipe's own [show] names them."""
    if not isinstance(show, Mapping):
        return show
    out: dict[str, Any] = {}
    for key, value in show.items():
        of_own = own.get(key) if isinstance(own, Mapping) else None
        if isinstance(value, Mapping):
            out[key] = _without_panels(value, of_own, dropped)
        elif key == "panels" and of_own is None:
            panels = value if isinstance(value, list) else [value]
            out[key] = [name for name in panels if name not in dropped]
        else:
            out[key] = value
    return out


def _recipe(name: str, table: Mapping[str, Any], given: tuple[str, ...]) -> Recipe:
    where = f"recipe {Recipe(name, given=given).where}"
    for key in ("methods", "problems"):
        for label, settings in table.get(key, {}).items():
            if settings is False:
                others = [other for other in table[key] if other != label]
                why = f"{key}.{label} = false must drop an inherited entry{choices(label, others)}"
                raise InputError(f"{where}: {why}, or leave it out")
    seeds = table.get("seeds", (0,))
    if isinstance(seeds, int) and not isinstance(seeds, bool):
        if not 0 < seeds <= MOST_SEEDS:
            raise InputError(f"{where}: seeds must be a list, or a number from 1 to {MOST_SEEDS}, got {seeds}")
        seeds = list(range(seeds))
    settings, vary, search = (table.get(key, {}) for key in ("settings", "vary", "search"))
    search = search if isinstance(search, Mapping) else {"kind": search}
    if isinstance(vary, Mapping) and ALL in (settings.get("test_env"), vary.get("test_env")):
        settings = {key: value for key, value in settings.items() if key != "test_env"}
        vary = {**vary, "test_env": (ALL,)}
    keys = {"name": name, **table, "settings": settings, "vary": vary, "seeds": seeds, "given": given}
    with checked_fields(Search, search, f"{where}, search"):
        keys["search"] = Search(**search)
    with checked_fields(Recipe, keys, where):
        recipe = Recipe(**keys)
    if len(set(recipe.seeds)) < len(recipe.seeds):
        raise InputError(f"{where}: seeds must differ, got {list(recipe.seeds)}")
    for key, values in recipe.vary.items():
        if len(set(values)) < len(values):
            raise InputError(f"{where}: vary.{key} must not repeat a value, got {list(values)}")
    return recipe
