"""What an experiment left behind: its recipe, the runs that were planned, and the records of those that are done."""

from __future__ import annotations

import json
import math
import shlex
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import cached_property
from pathlib import Path
from typing import Any

import pandas as pd

from ..errors import InputError, choices
from ..files import readable
from ..results import read_table
from ..results.records import DONE, FAILED, ORIGIN, RECIPE, RESULT_PREFIX, RUN_COLUMN, RUNS, TABLE
from ..results.selection import RULES
from ..settings import Settings, checked_values, convert
from .tables import axis_text

AGAIN = "run trm experiment again, which rewrites it"
NOT_AXES = ("method", "point", "seed")
NAMED = 3  # commits that are named; the rest is counted
Table = Mapping[str, Any]


@dataclass(frozen=True)
class Recipe(Settings):
    """The keys of a recipe that a report reads."""

    select: tuple[str, ...]
    title: str = ""
    paper: str = ""
    seeds: Any = None
    given: tuple[str, ...] = ()
    show: Table = field(default_factory=dict)
    settings: Table = field(default_factory=dict)
    methods: Mapping[str, Table] = field(default_factory=dict)
    problems: Mapping[str, Table] = field(default_factory=dict)
    published: Mapping[str, Mapping[str, Table]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.select:
            raise InputError(f"select must name at least one rule, got none: choose from {', '.join(RULES)}")
        for key, rules in (("select", self.select), ("published", self.published)):
            for rule in rules:
                if rule not in RULES:
                    raise InputError(f"{key} must name rules of selection, got {rule!r}{choices(rule, RULES)}")


@dataclass(frozen=True)
class PlannedRun:
    """A place of the experiment; `run` is the name of the run that fills it."""

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


@dataclass(frozen=True)
class Origin:
    """How a run was done; "" where its records do not say. Threads count on a CPU only."""

    precision: str = ""
    hardware: str = ""
    version: str = ""
    commit: str = ""
    threads: str = ""

    @property
    def kind(self) -> tuple[str, str]:
        """What its numbers may depend on."""
        each = f"{self.threads} thread{'s' if self.threads != '1' else ''} a run" if self.threads else ""
        return ", ".join(filter(None, [self.precision, each])), self.hardware


@dataclass(frozen=True, eq=False)
class Experiment:
    """
    name     of its folder
    records  of the finished runs, each run once: its name under `run`, then the columns of its records
    runs     the folder of all runs
    """

    name: str
    recipe: Recipe
    planned: Sequence[PlannedRun]
    records: pd.DataFrame
    runs: Path

    @property
    def title(self) -> str:
        return (self.recipe.title or self.name) + (" (small version)" if "--fast" in self.recipe.given else "")

    @cached_property
    def axes(self) -> dict[str, list[Any]]:
        """What the experiment varies besides methods and seeds -> its values, in the order of the plan."""
        found: dict[str, dict[Any, None]] = {}
        for place in self.planned:
            for name, value in place.columns.items():
                if name not in NOT_AXES:
                    found.setdefault(name, {})[value] = None
        return {name: list(values) for name, values in found.items()}

    @cached_property
    def methods(self) -> list[str]:
        return list(dict.fromkeys(place.method for place in self.planned))

    @cached_property
    def done(self) -> set[str]:
        """Names of the runs that have records."""
        return set(self.records[RUN_COLUMN])

    @cached_property
    def finished(self) -> list[PlannedRun]:
        return [place for place in self.planned if place.run in self.done]

    @cached_property
    def missing(self) -> list[str]:
        """Names of the planned runs that have no records."""
        return list(dict.fromkeys(place.run for place in self.planned if place.run not in self.done))

    @cached_property
    def failed(self) -> dict[str, str]:
        """Run -> why its last attempt failed, among those that are missing."""
        return {run: why for run in self.missing if (why := _failure(self.runs / run))}

    @cached_property
    def origins(self) -> dict[str, Origin]:
        """Run -> how it was done."""
        columns = [name for name in ORIGIN if name in self.records and name != "date"]
        firsts = self.records.drop_duplicates(RUN_COLUMN)
        return {
            run: Origin(**{name: _digits(value) for name, value in zip(columns, values, strict=True)})
            for run, *values in zip(firsts[RUN_COLUMN], *(firsts[name] for name in columns), strict=True)
        }

    def setting(self, place: PlannedRun, name: str) -> str:
        """A setting of this run as the recipe has it, "" where it does not say."""
        tables = (
            self.recipe.methods.get(place.method, {}), place.columns,
            self.recipe.problems.get(place.columns.get("problem", ""), {}), self.recipe.settings,
        )  # fmt: skip
        return next((str(table[name]) for table in tables if name in table), "")

    def about(self) -> list[str]:
        """Where in the paper it is, on what data and machines it ran, and what is missing, a sentence each."""
        where = f"{self.name}." + (f" In the paper: {self.recipe.paper}." if self.recipe.paper else "")
        return [where, *filter(None, [self.data(), origin_words(self.origins), self.missing_words()])]

    def data(self) -> str:
        """ "Data: 10c-digits, cnn:16.": those of the finished runs, or of all where none is finished."""
        sentences = []
        for start, names in (("Data", ("data", "backbone")), ("Setting", ("setting",))):
            told = [[self.setting(place, name) for name in names] for place in self.finished or self.planned]
            found = dict.fromkeys(", ".join(filter(None, values)) for values in told if values[0])
            sentences += [f"{start}: {'; '.join(found)}."] if found else []
        return " ".join(sentences)

    def missing_words(self) -> str:
        """How many runs are missing, and how many of them failed, with the first reason."""
        if not self.missing:
            return ""
        told = f"Missing: {len(self.missing)} of {len({place.run for place in self.planned})} runs"
        if not self.failed:
            return f"{told}."
        why = textwrap.shorten(next(iter(self.failed.values())), 300, placeholder=" ...").rstrip(".")
        count = len(self.failed)
        return f"{told}, of which {count} failed{', the first' if count > 1 else ''}: {why}."

    def command(self, root: str) -> str:
        """`trm experiment` with the options that ask for what is done, or for all where nothing is."""
        options = [*self._only(), *self._seeds(), *self._same("precision"), *self._same("threads")]
        return shlex.join(["trm", "experiment", *(self.recipe.given or [self.name]), *options, "--output", root])

    def _only(self) -> Iterator[str]:
        """The methods, and the values of an axis, that have any run, where others have none."""
        for column in (*self.axes, "method") if self.finished else ():
            there = dict.fromkeys(axis_text(place.columns.get(column)) for place in self.finished)
            if len(there) < len({axis_text(place.columns.get(column)) for place in self.planned}):
                lists = [",".join(there)] if not any("," in value for value in there) else list(there)
                for values in lists:
                    yield from ("--only", values if column == "method" else f"{column}={values}")

    def _seeds(self) -> Iterator[str]:
        """Enough seeds that all of these are among them: the recipe's own come first, then those after them."""
        there, own = {place.seed for place in self.finished}, self.recipe.seeds
        if not there or not isinstance(own, list) or not all(isinstance(seed, int) for seed in (*there, *own)):
            return
        places = [own.index(seed) + 1 if seed in own else len(own) + seed - max(own) for seed in there]
        reached = all(seed in own or seed > max(own) for seed in there)  # else they are of another form of the recipe
        if reached and max(places) != len(own):
            yield from ("--seeds", str(max(places)))

    def _same(self, name: str) -> Iterator[str]:
        """An option where all runs have the same value and the recipe does not set it."""
        found = {getattr(origin, name) for origin in self.origins.values()}
        if len(found) == 1 and "" not in found and name not in self.recipe.settings:
            yield from (f"--{name}", *found)

    def circumstances(self) -> str:
        """ "Seeds 0 to 2. Run on NVIDIA H200 (bf16) at commit 1a2b3c4. Done 2026-01-30 to 2026-02-01." """
        if not self.finished:
            return "No run is done."
        seeds: list[Any] = sorted({place.seed for place in self.finished if isinstance(place.seed, int)})
        told = ", ".join(map(str, seeds))
        if len(seeds) > 1 and seeds == list(range(seeds[0], seeds[-1] + 1)):
            told = f"{seeds[0]} to {seeds[-1]}"
        dates = self.records["date"].dropna() if "date" in self.records else []
        days = sorted({str(date)[:10] for date in dates})
        when = f"Done {' to '.join(dict.fromkeys((days[0], days[-1])))}." if days else ""
        which = f"Seed{'s' if len(seeds) > 1 else ''} {told}." if seeds else ""
        return " ".join(filter(None, [which, origin_words(self.origins), when]))


def origin_words(origins: Mapping[str, Origin]) -> str:
    """ "Run on NVIDIA H200 (bf16) at commit 1a2b3c4." """
    words = [
        f"on {hardware or 'unknown hardware'}" + (f" ({precision})" if precision else "")
        for precision, hardware in _kinds(origins.values())
    ]
    found = [" and ".join(words)] if words else []
    for name, before in (("commit", "at"), ("version", "by")):
        names = list(dict.fromkeys(getattr(origin, name) for origin in origins.values() if getattr(origin, name)))
        if names:
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            found.append(f"{before} {name}{'s' if len(names) > 1 else ''} {', '.join(names[:NAMED])}{more}")
            break
    unknown = sum(origin == Origin() for origin in origins.values())
    without = f"; {unknown} of {len(origins)} runs do not say" if unknown else ""
    return f"Run {' '.join(found)}{without}." if found else ""


def mixed_words(origins: Mapping[str, Origin], runs: Iterable[str], differences: str) -> str:
    """A warning that these runs were done in several ways, "" where all are alike; `differences`: the doubtful ones."""
    kinds = [" on ".join(filter(None, kind)) for kind in _kinds(origins[run] for run in runs if run in origins)]
    if len(kinds) < 2:
        return ""
    return f"Mixes {', '.join(kinds[:-1])} and {kinds[-1]}: {differences} may be the machine's."


def _kinds(origins: Iterable[Origin]) -> list[tuple[str, str]]:
    """Those that records name, in the order in which they come."""
    return list(dict.fromkeys(origin.kind for origin in origins if any(origin.kind)))


def _digits(value: Any) -> str:
    """Text as it is, a whole number as its digits, which pandas may have as a float; "" for anything else."""
    is_whole = isinstance(value, int | float) and math.isfinite(value)
    return value if isinstance(value, str) else f"{value:.0f}" if is_whole else ""


def experiment_folders(root: Path, names: Sequence[str] = ()) -> list[Path]:
    """The folders of the experiments in a folder of results, all or these."""
    if not root.is_dir():
        raise InputError(f"{readable(root)} must be a folder of results, as trm experiment --output names it")
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
            raise InputError(f"{readable(root)} has no experiment {name!r}{choices(name, found)}")
    return [root / name for name in dict.fromkeys(names or found)]


def load_experiment(folder: Path) -> Experiment:
    path = folder / RECIPE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{readable(path)} cannot be read ({error.strerror}): mend that") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{readable(path)} cannot be read as JSON ({error}): {AGAIN}") from None
    recipe, planned = planned_runs(found, readable(path), AGAIN)
    table, runs = folder / TABLE, folder.parent / RUNS
    if not table.exists() and any((runs / place.run / DONE).exists() for place in planned):
        raise InputError(f"{readable(table)} does not exist, though runs are done: {AGAIN}")
    return Experiment(folder.name, recipe, planned, _records(table, planned), runs)


def planned_runs(found: Any, where: str, remedy: str) -> tuple[Recipe, list[PlannedRun]]:
    """The recipe and its planned runs from the content of a recipe file, which messages call `where`."""
    recipe, cells = (found.get("recipe"), found.get("cells")) if isinstance(found, Mapping) else (None, None)
    try:
        cells = convert("cells", cells, tuple[tuple[str, Mapping[str, str | int | float | bool | None]], ...])
        recipe = convert("recipe", recipe, Mapping[str, Any])
        kept = {key.name: recipe[key.name] for key in fields(Recipe) if recipe.get(key.name) is not None}
        return Recipe(**checked_values(Recipe, kept)), [PlannedRun(*cell) for cell in cells]
    except InputError as error:
        raise InputError(f"{where}: {error}: {remedy}") from None


def no_records() -> pd.DataFrame:
    """The records of an experiment of which nothing is done."""
    return pd.DataFrame({RUN_COLUMN: pd.Series(dtype=object)})


def _records(path: Path, planned: Sequence[PlannedRun]) -> pd.DataFrame:
    """Records of the planned runs; a run that fills several places is in the file once for each, and is taken once."""
    if not path.exists():
        return no_records()
    table = read_table(path)
    if RUN_COLUMN not in table:
        raise InputError(f"{readable(path)} must have a column {RUN_COLUMN!r}, got none: {AGAIN}")
    table = table[table[RUN_COLUMN].isin({place.run for place in planned})]
    own = [name for name in dict.fromkeys(name for place in planned for name in place.columns) if name in table]
    copies = table.groupby([RUN_COLUMN, *own], dropna=False, sort=False).ngroup()
    table = table[copies == copies.groupby(table[RUN_COLUMN]).transform("first")]
    names = {f"{RESULT_PREFIX}{name}": name for name in own}
    return table.drop(columns=own).rename(columns=names).reset_index(drop=True)


def _failure(run: Path) -> str:
    """Why a run failed, "" where it did not, or is done since."""
    if not (run / FAILED).is_file() or (run / DONE).exists():
        return ""
    try:
        return str(json.loads((run / FAILED).read_text(encoding="utf-8"))["error"]) or "no reason is given"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return f"its {FAILED} cannot be read"
