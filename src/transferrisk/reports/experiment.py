"""Results of an experiment: its recipe, the runs that were planned, and the records of those that are finished."""

from __future__ import annotations

import json
import math
import shlex
import textwrap
from collections import ChainMap
from collections.abc import Iterable, Mapping, Sequence
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
from ..settings import Settings, checked_fields, convert
from .tables import axis_text

AGAIN = "run trm experiment again, which rewrites it"
NOT_AXES = (RUN_COLUMN, "method", "point", "seed", "hold_out")
NAMED = 3  # largest number of commits that are named; the rest is counted
Table = Mapping[str, Any]


@dataclass(frozen=True)
class Recipe(Settings):
    """Keys of a recipe that a report reads."""

    select: tuple[str, ...]
    title: str = ""
    paper: str = ""
    seeds: Any = None
    given: tuple[str, ...] = ()
    show: Table = field(default_factory=dict)
    settings: Table = field(default_factory=dict)
    search: Table = field(default_factory=dict)
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
        for rule, lines in self.published.items():
            for line, columns in lines.items():
                for column, given in columns.items():
                    found = given if isinstance(given, list | tuple) else [given]
                    if not 1 <= len(found) <= 2 or not {int, float} >= set(map(type, found)):
                        where = f"published.{rule}.{line}.{column}"
                        raise InputError(f"{where} must be [mean] or [mean, deviation], got {given!r}")


@dataclass(frozen=True, eq=False)
class Experiment:
    """Results of an experiment.

    name     name of its folder
    planned  a line for each place of the experiment: columns such as method, seed and the axes, and the name of the run
             that fills it under `run`
    records  records of the finished runs, each run once, with its name under `run`
    runs     folder of all runs
    pruned   columns of the places whose runs a search has given up
    """

    name: str
    recipe: Recipe
    planned: pd.DataFrame
    records: pd.DataFrame
    runs: Path
    pruned: Sequence[Table] = ()

    @property
    def title(self) -> str:
        """Title of the recipe, or its name, with a remark on a small version."""
        return (self.recipe.title or self.name) + (" (small version)" if "--fast" in self.recipe.given else "")

    @cached_property
    def axes(self) -> dict[str, list[Any]]:
        """Settings that the experiment varies: name -> values, in the order of the plan."""
        found = {}
        for name in self.planned.columns.difference(NOT_AXES, sort=False):
            found[name] = self.planned[name].dropna().unique().tolist()
        return found

    @cached_property
    def places(self) -> pd.DataFrame:
        """The plan, with empty columns for those of method, point, seed and hold_out that it lacks."""
        empty = {"method": "", "point": "", "seed": None, "hold_out": ""}
        defaults = pd.DataFrame(empty, self.planned.index, dtype=object)
        return self.planned.combine_first(defaults)

    @property
    def methods(self) -> list[str]:
        """Names of the methods, [""] if the experiment has none."""
        return list(self.places["method"].unique())

    @cached_property
    def finished(self) -> pd.DataFrame:
        """Places whose runs have records."""
        return self.places[self.places[RUN_COLUMN].isin(self.records[RUN_COLUMN])]

    @cached_property
    def missing(self) -> list[str]:
        """Names of planned runs that have no records."""
        return list(self.planned.drop(self.finished.index)[RUN_COLUMN].unique())

    @cached_property
    def failed(self) -> dict[str, str]:
        """Missing runs whose last attempt failed: run -> reason."""
        return {run: why for run in self.missing if (why := _failure(self.runs / run))}

    @cached_property
    def origins(self) -> pd.DataFrame:
        """Origin of each run: precision, hardware, threads, version and commit, "" if the run does not record it."""
        firsts = self.records.drop_duplicates(RUN_COLUMN).set_index(RUN_COLUMN)
        return firsts.reindex(columns=pd.Index(ORIGIN).drop("date")).map(_digits)

    def about(self) -> list[str]:
        """Return sentences on its recipe and place in the paper, its data, its machines, and its missing runs."""
        where = f"Experiment: {self.name}." + (f" In the paper: {self.recipe.paper}." if self.recipe.paper else "")
        return [where, *filter(None, [self.data(), origin_words(self.origins), self.missing_words()])]

    def data(self) -> str:
        """Return a sentence such as "Data: 10c-digits, cnn:16.", on finished runs, or on all if none is finished."""
        found: dict[str, dict[str, None]] = {}
        places = self.places if self.finished.empty else self.finished
        for place in places.drop(columns=[RUN_COLUMN, "seed"]).drop_duplicates().to_dict("records"):
            problem = self.recipe.problems.get(place.get("problem", ""), {})
            method = self.recipe.methods.get(place["method"], {})
            own = ChainMap(*map(dict, (method, place, problem, self.recipe.settings)))
            for start, names in (("Data", ("data", "backbone")), ("Setting", ("setting",))):
                if names[0] in own:
                    text = ", ".join([str(own[name]) for name in names if name in own])
                    found.setdefault(start, {})[text] = None
        return " ".join([f"{start}: {'; '.join(texts)}." for start, texts in found.items()])

    def missing_words(self) -> str:
        """Return a sentence on how many runs are missing and how many of them failed, with the first reason."""
        if not self.missing:
            return ""
        first = f"{len(self.missing)} of {self.planned[RUN_COLUMN].nunique()} runs are missing"
        if not self.failed:
            return f"{first}."
        why = textwrap.shorten(next(iter(self.failed.values())), 300, placeholder=" ...").rstrip(".")
        count = len(self.failed)
        return f"{first}, {count} of which failed{', the first' if count > 1 else ''}: {why}."

    def command(self, root: str) -> str:
        """Return the `trm experiment` command that asks for the finished runs, or for all if none is finished."""
        words = ["trm", "experiment", *(self.recipe.given or [self.name])]
        for column in (*self.axes, "method") if len(self.finished) else ():
            there = list(map(axis_text, self.finished[column].dropna().unique()))
            if len(there) < self.places[column].nunique():
                for values in there if "," in "".join(there) else [",".join(there)]:
                    is_plain = column == "method" and "=" not in values
                    words += ["--only", values if is_plain else f"{column}={values}"]
        if count := self._seed_count():
            words += ["--seeds", str(count)]
        for name in ("precision", "threads"):
            values = self.origins[name].unique()
            if len(values) == 1 and values[0] and name not in self.recipe.settings:
                words += [f"--{name}", values[0]]
        return shlex.join([*words, "--output", root])

    def _seed_count(self) -> int:
        """Return the --seeds that covers all finished runs; 0 if that is the recipe's number, or if no number does.

        The recipe's own seeds come first, then those after the largest; other seeds come from another recipe.
        """
        own, count = self.recipe.seeds, 0
        for seed in self.finished["seed"].unique():
            if not isinstance(own, list) or not isinstance(seed, int) or (seed not in own and seed < max(own)):
                return 0
            count = max(count, own.index(seed) + 1 if seed in own else len(own) + seed - max(own))
        return 0 if isinstance(own, list) and count == len(own) else count

    def circumstances(self) -> str:
        """Return "Seeds 0 to 2. Run on NVIDIA H200 (bf16) at commit 1a2b3c4. Finished 2026-01-30 to 2026-02-01." """
        if self.finished.empty:
            return "No run is finished."
        seeds = sorted(set(self.finished["seed"].dropna()))
        listed = ", ".join(map(str, seeds))
        if len(seeds) > 1 and seeds == list(range(seeds[0], seeds[-1] + 1)):
            listed = f"{seeds[0]} to {seeds[-1]}"
        which = f"Seed{'s' if len(seeds) > 1 else ''} {listed}." if seeds else ""
        days = sorted(set(self.records["date"].dropna().str[:10])) if "date" in self.records else []
        when = f"Finished {' to '.join(dict.fromkeys((days[0], days[-1])))}." if days else ""
        return " ".join(filter(None, [which, origin_words(self.origins), when]))


def origin_words(origins: pd.DataFrame) -> str:
    """Return a sentence such as "Run on NVIDIA H200 (bf16) at commit 1a2b3c4." """
    words = []
    for precision, hardware in _kinds(origins):
        words.append(f"on {hardware or 'unknown hardware'}" + (f" ({precision})" if precision else ""))
    found = [" and ".join(words)] if words else []
    for name, before in (("commit", "at"), ("version", "by")):
        names = [*filter(None, origins[name].unique())]
        if names:
            more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
            found.append(f"{before} {name}{'s' if len(names) > 1 else ''} {', '.join(names[:NAMED])}{more}")
            break
    unknown = int((origins == "").all(axis=1).sum())
    without = f"; {unknown} of {len(origins)} runs do not record it" if unknown else ""
    return f"Run {' '.join(found)}{without}." if found else ""


def mixed_words(origins: pd.DataFrame, runs: Iterable[str], differences: str) -> str:
    """Return a warning that runs were done in several ways, so `differences` are doubtful; "" if all are alike."""
    kinds = [" on ".join(filter(None, kind)) for kind in _kinds(origins[origins.index.isin(runs)])]
    if len(kinds) < 2:
        return ""
    return f"Runs mix {', '.join(kinds[:-1])} and {kinds[-1]}: {differences} may come from the machines."


def _kinds(origins: pd.DataFrame) -> list[tuple[str, str]]:
    """Return the pairs of precision (with threads) and hardware that records name; numbers may depend on them."""
    found: dict[tuple[str, str], None] = {}
    for precision, threads, hardware in origins[["precision", "threads", "hardware"]].drop_duplicates().to_numpy():
        each = f"{threads} thread{'s' if threads != '1' else ''} a run" if threads else ""
        found[", ".join(filter(None, [precision, each])), hardware] = None
    found.pop(("", ""), None)
    return list(found)


def _digits(value: Any) -> str:
    """Return text as it is, a number (which pandas may have as a float) without decimals, "" for anything else."""
    is_whole = isinstance(value, int | float) and math.isfinite(value)
    return value if isinstance(value, str) else f"{value:.0f}" if is_whole else ""


def experiment_folders(root: Path, names: Sequence[str] = ()) -> list[Path]:
    """Return the folders of experiments in a folder of results: all, or those of these names."""
    if not root.is_dir():
        raise InputError(f"RESULTS must be a folder, the --output of trm experiment, got {readable(root)}")
    if (root / RECIPE).is_file():
        raise InputError(
            f"{readable(root)} is one experiment: name the folder that holds it, trm report {readable(root.parent)} "
            f"{readable(root.name)}"
        )
    found = {path.parent.name: path.parent for path in sorted(root.glob(f"*/{RECIPE}")) if path.parent.name != RUNS}
    if not found:
        raise InputError(f"{readable(root)} holds no results: name the --output folder of trm experiment")
    for name in names:
        if name not in found:
            raise InputError(f"{readable(root)} has no experiment {name!r}{choices(name, found)}")
    return list(map(found.__getitem__, dict.fromkeys(names or found)))


def load_experiment(folder: Path) -> Experiment:
    """Read the results of an experiment from its folder."""
    path = folder / RECIPE
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{readable(path)} cannot be read ({error.strerror}): correct that") from None
    except (ValueError, RecursionError) as error:
        raise InputError(f"{readable(path)} cannot be read as JSON ({error}): {AGAIN}") from None
    recipe, planned = planned_runs(found, readable(path), AGAIN)
    table, runs = folder / TABLE, folder.parent / RUNS
    if not table.exists() and any((runs / run / DONE).exists() for run in planned[RUN_COLUMN]):
        raise InputError(f"{readable(table)} does not exist, though runs are done: {AGAIN}")
    pruned = [columns for _, columns in found.get("pruned", ())]
    return Experiment(folder.name, recipe, planned, _records(table, planned), runs, pruned)


def planned_runs(found: Any, where: str, remedy: str) -> tuple[Recipe, pd.DataFrame]:
    """Return the recipe and the planned places from the content of a recipe file; errors name it as `where`."""
    recipe, cells = (found.get("recipe"), found.get("cells")) if isinstance(found, Mapping) else (None, None)
    try:
        cells = convert("cells", cells, tuple[tuple[str, Mapping[str, Any]], ...])
        convert("pruned", found.get("pruned", ()), tuple[tuple[str, Mapping[str, Any]], ...])
        recipe = convert("recipe", recipe, Mapping[str, Any])
        kept = {key.name: recipe[key.name] for key in fields(Recipe) if recipe.get(key.name) is not None}
        with checked_fields(Recipe, kept):
            recipe = Recipe(**kept)
        places = [{**columns, RUN_COLUMN: run} for run, columns in cells]
        planned = pd.DataFrame(places, columns=None if places else [RUN_COLUMN], dtype=object)
        if not planned.map(pd.api.types.is_scalar).all(axis=None):
            raise InputError("cells must hold text, numbers and truth values alone")
    except InputError as error:
        raise InputError(f"{where}: {error}: {remedy}") from None
    return recipe, planned


def no_records() -> pd.DataFrame:
    """Return the records of an experiment without finished runs."""
    return pd.DataFrame({RUN_COLUMN: pd.Series(dtype=object)})


def _records(path: Path, planned: pd.DataFrame) -> pd.DataFrame:
    """Return the records of planned runs. The file repeats a run for each place that it fills; it is taken once."""
    if not path.exists():
        return no_records()
    table = read_table(path)
    if RUN_COLUMN not in table:
        raise InputError(f"{readable(path)} must have a column {RUN_COLUMN!r}, got none: {AGAIN}")
    table = table[table[RUN_COLUMN].isin(planned[RUN_COLUMN])]
    own = list(table.columns.intersection(planned.columns.drop(RUN_COLUMN), sort=False))
    copies = table.groupby([RUN_COLUMN, *own], dropna=False, sort=False).ngroup()
    table = table[copies == copies.groupby(table[RUN_COLUMN]).transform("first")]
    names = {f"{RESULT_PREFIX}{name}": name for name in own}
    return table.drop(columns=own).rename(columns=names).reset_index(drop=True)


def _failure(run: Path) -> str:
    """Return why a run failed, "" if it did not fail or is finished since."""
    if not (run / FAILED).is_file() or (run / DONE).exists():
        return ""
    try:
        return str(json.loads((run / FAILED).read_text(encoding="utf-8"))["error"]) or "no reason is given"
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return f"its {FAILED} cannot be read"
