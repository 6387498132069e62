"""Recipes: experiments as data, in TOML.

They come with the package, with others that have an entry point in the group `transferrisk.recipes`, or as files.

extends    another recipe, of which this one says only what differs; `x = false` drops x, in methods, problems or vary,
           or a whole table, as `published = false`. The paper's numbers, and where they are, come along unless this one
           has settings or problems of its own
title      what it shows
paper      where in the paper
task       what one run does, a name of `tasks`
seeds      how many (0, 1, ...), or a list of them
select     the rules by which an evaluation and a point of a grid are chosen, each reported on its own
keep       leave the trained models in the runs' folders
grids      false: every method with its default settings, whatever its grid
settings   of every run, as the task takes them
problems   label -> settings; every problem is a part of the experiment
vary       setting -> values; every combination is tried on every problem
methods    label -> settings, with `grid` = "paper" (that of appendix B.2) or a table of the algorithm's settings
fast       a table like the whole, of what differs in the small version; that of another recipe comes along, except
           where this one says something itself
show       how the report shows it (`reports`)
published  the paper's numbers: rule -> method -> column -> [mean, deviation]
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from types import ModuleType
from typing import Any, get_args

from .. import plugins
from ..data.checks import did_you_mean
from ..errors import InputError
from ..files import readable
from ..training.plain import dumps
from ..training.selection import Selection

SUFFIX = ".toml"
GROUP = "transferrisk.recipes"
TAKEN = ("runs", "report.html")  # in a folder of results
MOST_SEEDS = 100_000
_OWN = files("transferrisk").joinpath("recipes")


@dataclass(frozen=True)
class Recipe:
    """
    given   words of `trm experiment` that ask for it: its name or file, --defaults, --fast; no part of what it is
    others  as above
    """

    name: str
    title: str = ""
    paper: str = ""
    task: str = "train"
    seeds: tuple[int, ...] = (0,)
    select: tuple[str, ...] = ("training_domain",)
    keep: bool = False
    grids: bool = True
    settings: Mapping[str, Any] = field(default_factory=dict)
    problems: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    vary: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    methods: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    show: Mapping[str, Any] = field(default_factory=dict)
    published: Mapping[str, Any] = field(default_factory=dict)
    given: tuple[str, ...] = field(default=(), compare=False)

    @property
    def where(self) -> str:
        """As messages call it."""
        return self.given[0] if self.given and self.given[0].endswith(SUFFIX) else self.name

    def to_json(self) -> dict[str, Any]:
        return asdict(self)


KEYS = (*(field.name for field in fields(Recipe) if field.name not in ("name", "given")), "extends", "fast")
_SCALARS = (str, int, float)
_TABLES = ("settings", "problems", "vary", "methods", "show", "published", "fast")


def names() -> list[str]:
    """Of the recipes that come with packages; one that begins with _ is only there to inherit from."""
    return sorted({*_in(_OWN), *_added()})


def load(name: str | Path, fast: bool = False, defaults: bool = False) -> Recipe:
    """A recipe by name, or from a file of one's own.

    fast      the small version, NAME-fast
    defaults  every method with its default settings, without grids, NAME-defaults
    """
    called, given = _called(str(name)), [str(name)]
    table, small = _whole(str(name), _folder(str(name)), ())
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
        table.pop("published", None)  # the paper's numbers are of the whole
        given.append("--fast")
    return _recipe(called, table, tuple(given))


def _called(name: str) -> str:
    """The name of its folder of results, without what that cannot be."""
    called = Path(name).name.removesuffix(SUFFIX)
    if not called or called[0] == "." or called in TAKEN or not called.isprintable():
        raise InputError(
            f"an experiment cannot be called {called!r}, since its results go into a folder of that name: rename "
            f"{readable(name)}"
        )
    return called


def _whole(name: str, folder: Traversable, within: tuple[str, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The table with what it inherits, and that of its small version, {} where there is none."""
    if name in within:
        raise InputError(f"recipe {' extends '.join((*within, name))}: a recipe cannot inherit from itself")
    table = _checked(name, folder)
    base, fast = table.pop("extends", None), table.pop("fast", {})
    whole, small = ({}, {}) if base is None else _inherited(name, str(base), folder, (*within, name))
    if table.get("settings") or table.get("problems"):  # the paper's numbers are of others
        whole, small = ({k: v for k, v in t.items() if k not in ("published", "paper")} for t in (whole, small))
    has_small = bool(fast or small) and fast is not False
    small = _merged(
        _merged(small, _without_dropped(table, whole, small)) if small else _merged(whole, table), fast or {}
    )
    small = small if has_small else {}
    whole = _merged(whole, table)
    whole, small = ({k: v for k, v in t.items() if k not in _TABLES or v is not False} for t in (whole, small))
    return whole, small


def _without_dropped(table: Mapping[str, Any], whole: Mapping[str, Any], small: Mapping[str, Any]) -> dict[str, Any]:
    """Without what is said of methods, problems or settings to vary that the other's small version does not have."""
    found = dict(table)
    for key in ("methods", "problems", "vary"):
        dropped = whole.get(key, {}).keys() - small.get(key, {}).keys()
        if isinstance(table.get(key), Mapping):
            found[key] = {name: value for name, value in table[key].items() if name not in dropped}
    return found


def _inherited(
    name: str, base: str, folder: Traversable, within: tuple[str, ...]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Of another recipe, which is looked for beside this one first."""
    if name.endswith(SUFFIX) and (beside := Path(name).parent / f"{base.removesuffix(SUFFIX)}{SUFFIX}").is_file():
        base = str(beside)
    try:
        if name.endswith(SUFFIX) or not folder.joinpath(f"{base}{SUFFIX}").is_file():
            folder = _folder(base)
    except InputError as error:
        raise InputError(f"recipe {name}, extends: {error}") from None
    return _whole(base, folder, within)


def _checked(name: str, folder: Traversable) -> dict[str, Any]:
    """The recipe's own table, whose keys are known and whose tables are tables."""
    table = _read(name, folder)
    _check_keys(name, table, KEYS)
    for key in _TABLES:
        dropped = "extends" in table and table.get(key) is False
        if not dropped and not isinstance(table.get(key, {}), Mapping):
            raise InputError(f"recipe {name}: {key} = {dumps(table[key])} is no table: write [{key}]")
    if fast := table.get("fast"):
        _check_keys(f"{name}, [fast]", fast, tuple(key for key in KEYS if key not in ("extends", "fast")))
        for key in _TABLES:
            if not isinstance(fast.get(key, {}), Mapping):
                raise InputError(f"recipe {name}, [fast]: {key} = {dumps(fast[key])} is no table")
    return table


def _folder(name: str) -> Traversable:
    """Where the recipe of a name or path lies."""
    if name.endswith(SUFFIX):
        if not Path(name).is_file():
            how = "is a folder" if Path(name).is_dir() else "does not exist"
            raise InputError(f"{name} {how}: check the path, or name one of {', '.join(names())}")
        return Path(name).parent
    added = _added().get(name, {})
    if _OWN.joinpath(name + SUFFIX).is_file():
        return _OWN
    if len(added) > 1:
        raise plugins.ambiguous(f"recipe {name!r}", list(added))
    if not added:
        raise InputError(
            f"experiment {name!r} is not known: {did_you_mean(name, names())}choose from {', '.join(names())}, or "
            f"name a file that ends in {SUFFIX}"
        )
    return next(iter(added.values()))


def _added() -> dict[str, dict[str, Traversable]]:
    """Recipe -> package -> folder, of what packages add; a broken one, and a name that is ours, are left out."""
    own = _in(_OWN)
    found: dict[str, dict[str, Traversable]] = {}
    for entry in (entry for same in plugins.entries(GROUP).values() for entry in same):
        try:
            folder, recipes = plugins.load(entry, f"recipes {entry.value!r}", _opened)
        except InputError as error:
            plugins.warn_left_out(error)
            continue
        for name in recipes:
            if name in own:
                plugins.warn_unused(entry, f"recipe {name!r}")
            else:
                found.setdefault(name, {})[plugins.package_of(entry)] = folder
    return found


def _opened(found: Any) -> tuple[Traversable, list[str]]:
    """The folder that an entry point leads to, a package or a path, and the recipes in it."""
    folder = files(found) if isinstance(found, ModuleType) else Path(found)
    return folder, _in(folder)


def _in(folder: Traversable) -> list[str]:
    """Names of a folder's recipes, without those that are only there to inherit from."""
    found = (file.name for file in folder.iterdir())
    return [name.removesuffix(SUFFIX) for name in found if name.endswith(SUFFIX) and name[0] != "_"]


def _read(name: str, folder: Traversable) -> dict[str, Any]:
    try:
        content = folder.joinpath(Path(name).name.removesuffix(SUFFIX) + SUFFIX).read_text(encoding="utf-8")
        table = tomllib.loads(content)
        dumps(table)
        return table
    except (ValueError, RecursionError) as error:
        raise InputError(f"recipe {name} cannot be read as TOML ({error}): correct it there") from None
    except TypeError as error:  # of JSON: TOML has dates and times too
        raise InputError(f"recipe {name} holds a value that is no text, number or truth value ({error})") from None
    except OSError as error:
        raise InputError(f"recipe {name} cannot be read ({error.strerror}): mend that, or name another") from None


def _check_keys(where: str, table: Mapping[str, Any], known: Sequence[str]) -> None:
    for key in table:
        if key not in known:
            raise InputError(f"recipe {where} has an unknown key {key!r}: {did_you_mean(key, known)}choose from "
                             f"{', '.join(known)}")  # fmt: skip


def _merged(base: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Tables key by key, anything else as in `change`, and so is a show of another kind.

    False removes what is not a truth value itself.
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
    values, where = dict(table), Recipe(name, given=given).where
    if "seeds" in values:
        values["seeds"] = _seeds(where, values["seeds"])
    if "select" in values:
        rules = values["select"]
        if not isinstance(rules, list) or not rules or any(rule not in get_args(Selection) for rule in rules):
            raise InputError(f"recipe {where}: select = {rules!r} is no list of {', '.join(get_args(Selection))}")
        values["select"] = tuple(rules)
    for key in ("keep", "grids"):
        if not isinstance(values.get(key, False), bool):
            raise InputError(f"recipe {where}: {key} = {values[key]!r} is neither true nor false")
    for key in ("title", "paper", "task"):
        if not isinstance(values.get(key, ""), str):
            raise InputError(f"recipe {where}: {key} = {values[key]!r} is no text")
    for key in ("methods", "problems"):
        for label, settings in values.get(key, {}).items():
            if settings is False:
                near = did_you_mean(label, [name for name in values[key] if name != label])
                raise InputError(f"recipe {where}: {key}.{label} = false drops nothing, since there is none: {near}"
                                 "leave it out")  # fmt: skip
            if not isinstance(settings, Mapping):
                raise InputError(f"recipe {where}: {key}.{label} = {dumps(settings)} is no table of settings")
    inner = (table for key in ("methods", "problems") for table in values.get(key, {}).values())
    if any("seed" in table for table in (values.get("settings", {}), values.get("vary", {}), *inner)):
        raise InputError(f"recipe {where}: seed is no setting of one run: write seeds = [7], above all tables")
    for key, choices in values.get("vary", {}).items():
        if not isinstance(choices, list) or not choices or not all(isinstance(c, _SCALARS) for c in choices):
            raise InputError(
                f"recipe {where}: vary.{key} = {choices!r} is no list of numbers, words or truth values: what goes "
                "together, such as settings of the training, are [problems] or [methods]"
            )
        if len({(type(choice) is bool, choice) for choice in choices}) < len(choices):
            raise InputError(f"recipe {where}: vary.{key} = {choices!r} names a value twice")
    return Recipe(name, **values, given=given)


def _seeds(name: str, given: Any) -> tuple[int, ...]:
    if isinstance(given, int) and not isinstance(given, bool) and 0 < given <= MOST_SEEDS:
        return tuple(range(given))
    if isinstance(given, list) and given and all(type(seed) is int and 0 <= seed < 2**31 for seed in given):
        if len(set(given)) < len(given):
            raise InputError(f"recipe {name}: seeds = {given!r} names a seed twice")
        return tuple(given)
    raise InputError(
        f"recipe {name}: seeds = {given!r} is neither how many, up to {MOST_SEEDS}, nor a list of whole numbers"
    )
