"""Recipes: experiments as data, in TOML.

They come with packages that have an entry point in the group `transferrisk.recipes`, ours among them, or as files.

extends    another recipe, from which this one states the differences; `x = false` drops x, in methods, problems or
           vary, or a whole table, as `published = false`. The paper's numbers, and where they are, come along unless
           this one has settings or problems of its own
title      title of its report
paper      where in the paper
task       name of the task of each run, as in `tasks`
seeds      how many (0, 1, ...), or a list of them
select     the rules by which an evaluation and a point of a grid are chosen, each reported on its own
keep       leave the trained models in the runs' folders
grids      false: every method with its default settings, whatever its grid
search     how points of grids are found, a kind or a table, as `points.Search`
settings   settings of every run, as the task takes them
problems   label -> settings; every problem is a part of the experiment
vary       setting of the task or of its training, such as epochs -> values; every combination is tried on every
           problem. `test_env = "all"`, here or in settings: every environment of the data
methods    label -> settings, with `grid` = "paper" (that of appendix B.2) or a table of lists or distributions, as
           `points` has them
fast       a table like the whole, with the differences of the small version; that of another recipe comes along,
           except for keys that this one has itself
show       how the report shows it (`reports`)
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
TAKEN = ("runs", "report.html")  # in a folder of results
MOST_SEEDS = 10_000
ALL = "all"  # of test_env: every environment of the data


@dataclass(frozen=True)
class Recipe(Settings):
    """
    given   words of `trm experiment` that ask for it: its name or file, --defaults, --fast; not a part of what it is
    others  as the module says
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
        """The name of the recipe in messages: that of its file, where it is one."""
        return self.given[0] if self.given and self.given[0].endswith(SUFFIX) else self.name


_OWN_KEYS = tuple(field.name for field in fields(Recipe) if field.name not in ("name", "given"))
KEYS = (*_OWN_KEYS, "extends", "fast")
_TABLES = ("settings", "problems", "vary", "methods", "show", "published", "fast")


def recipe_names() -> list[str]:
    """Names of the recipes that come with packages; one that begins with _ is only there to inherit from."""
    return sorted({name for source in _sources() for name in source.names if name[0] != "_"})


def load_recipe(name: str | Path, fast: bool = False, defaults: bool = False) -> Recipe:
    """A recipe by name, or from a file of the user's own.

    fast      the small version, NAME-fast
    defaults  every method with its default settings, without grids, NAME-defaults
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
            raise InputError(f"recipe {name} has no grids: run it without --defaults")
        table, called = _merged(table, {"grids": False}), f"{called}-defaults"
        given.append("--defaults")
    if fast:
        if not small:
            raise InputError(f"recipe {name} has no fast version: run it as it is, with --only and --seeds")
        table, called = small, f"{called}-fast"
        table |= {"grids": False} if defaults else {}
        table.pop("published", None)  # the paper's numbers are those of the whole
        given.append("--fast")
    return _recipe(called, table, tuple(given))


@dataclass(frozen=True)
class _Source:
    """A folder of recipes that a package adds; `names` are those of its files."""

    package: str
    folder: Traversable
    names: set[str]


def _sources() -> Iterator[_Source]:
    """Folders that packages add, our own first. A broken one is left out, and so is a name that we have already."""
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
    """The folder of the recipe of a name or path; with `hidden`, it may be one that is only there to inherit from."""
    if name.endswith(SUFFIX):
        if not Path(name).is_file():
            how = "is a folder" if Path(name).is_dir() else "does not exist"
            raise InputError(f"{name} {how}: check the path, or name one of {', '.join(recipe_names())}")
        return Path(name).parent
    found = [source for source in _sources() if name in source.names and (hidden or name[0] != "_")]
    if not found:
        raise InputError(
            f"unknown experiment {name!r}{choices(name, recipe_names())}, or name a file that ends in {SUFFIX}"
        )
    if len(found) > 1:
        raise ambiguous(f"recipe {name!r}", [source.package for source in found])
    return found[0].folder


def _whole(name: str, folder: Traversable, within: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The table with all that it inherits, and that of its small version, {} where there is none."""
    if name in within:
        raise InputError(f"recipe {' extends '.join((*within, name))}: a recipe cannot inherit from itself")
    table = _read(name, folder)
    base, fast = table.pop("extends", None), table.pop("fast", {})
    whole, small = ({}, {}) if base is None else _inherited(name, str(base), folder, (*within, name))
    if table.get("settings") or table.get("problems"):  # the paper's numbers are those of others
        for key, inherited in itertools.product(("published", "paper"), (whole, small)):
            inherited.pop(key, None)
    if fast is False or not (fast or small):
        small = {}
    elif not small:
        small = _merged(_merged(whole, table), fast)
    else:
        own = dict(table)
        for key in ("methods", "problems", "vary"):  # what the other recipe's small version drops stays dropped
            dropped = whole.get(key, {}).keys() - small.get(key, {}).keys()
            if isinstance(own.get(key), Mapping):
                own[key] = {name: value for name, value in own[key].items() if name not in dropped}
        small = _merged(_merged(small, own), fast)
    whole = _merged(whole, table)
    for key, found in itertools.product(_TABLES, (whole, small)):
        if found.get(key) is False:  # it is dropped, and was not there
            del found[key]
    return whole, small


def _inherited(
    name: str, base: str, folder: Traversable, within: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Both tables of another recipe, which is looked for beside this one first."""
    if name.endswith(SUFFIX) and (beside := Path(name).parent / f"{base.removesuffix(SUFFIX)}{SUFFIX}").is_file():
        base = str(beside)
    try:
        if name.endswith(SUFFIX) or not folder.joinpath(f"{base}{SUFFIX}").is_file():
            folder = _find(base, hidden=True)
    except InputError as error:
        raise InputError(f"recipe {name}, extends: {error}") from None
    return _whole(base, folder, within)


def _read(name: str, folder: Traversable) -> dict[str, Any]:
    """The recipe's own table; an unknown key is an error, and so is a table that is not one."""
    try:
        content = folder.joinpath(Path(name).name.removesuffix(SUFFIX) + SUFFIX).read_text(encoding="utf-8")
        table = tomllib.loads(content)
        dumps(table)
    except (ValueError, RecursionError) as error:
        raise InputError(f"recipe {name} cannot be read as TOML ({error}): correct it there") from None
    except TypeError as error:  # TOML has dates and times, which JSON has not
        raise InputError(f"recipe {name}: values must be text, numbers or truth values ({error})") from None
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
    """Merge tables key by key; other values are those of `change`, and so is a show of another kind.

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


def _recipe(name: str, table: Mapping[str, Any], given: tuple[str, ...]) -> Recipe:
    where = f"recipe {Recipe(name, given=given).where}"
    for key in ("methods", "problems"):
        for label, settings in table.get(key, {}).items():
            if settings is False:
                others = [other for other in table[key] if other != label]
                why = f"{key}.{label} = false drops nothing{choices(label, others)}"
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
            raise InputError(f"{where}: vary.{key} must not name a value twice, got {list(values)}")
    for settings in (recipe.settings, recipe.vary, *recipe.methods.values(), *recipe.problems.values()):
        if "seed" in settings:
            raise InputError(f"{where}: seed is not a setting of one run: write seeds = [7], above all tables")
    return recipe
