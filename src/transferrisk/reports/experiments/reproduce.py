"""How to make the runs of an experiment again: the command, as far as records show it, and what it was run on."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from typing import Any

from .load import Cell, Experiment
from .made import told
from .values import text


def command(experiment: Experiment, root: str) -> str:
    """`trm experiment` with the options that ask for what is done, or for all where nothing is."""
    done = [cell for cell in experiment.cells if cell.run in experiment.done]
    options = [
        *(_only(experiment, done) if done else ()),
        *_seeds(experiment, done),
        *_precision(experiment),
        *_threads(experiment),
    ]
    return shlex.join(["trm", "experiment", *experiment.given, *options, "--output", root])


def circumstances(experiment: Experiment) -> str:
    """ "Seeds 0 to 2. Made on NVIDIA H200 (bf16) at commit 1a2b3c4. Done from 2026-01-30 to 2026-02-01." """
    done = [cell for cell in experiment.cells if cell.run in experiment.done]
    if not done:
        return "No run is done."
    days = sorted({date[:10] for date in experiment.dates})
    when = f"Done {' to '.join(dict.fromkeys((days[0], days[-1])))}." if days else ""
    return " ".join(filter(None, [_seeds_told(done), told(experiment.made), when]))


def _only(experiment: Experiment, done: Sequence[Cell]) -> Iterator[str]:
    """The methods, and the values of an axis, that have any run, where others have none."""
    for column in (*experiment.axes, "method"):
        there = dict.fromkeys(text(cell.columns.get(column)) for cell in done)
        if len(there) < len({text(cell.columns.get(column)) for cell in experiment.cells}):
            whole = [",".join(there)] if not any("," in value for value in there) else list(there)
            for values in whole:
                yield from ("--only", values if column == "method" else f"{column}={values}")


def _seeds(experiment: Experiment, done: Sequence[Cell]) -> Iterator[str]:
    """So many that all of these are among them, where they are not the recipe's: its own first, then those after."""
    there = {cell.seed for cell in done}
    planned = experiment.recipe.get("seeds")
    if not there or not isinstance(planned, list) or not all(isinstance(seed, int) for seed in (*there, *planned)):
        return
    places = [planned.index(s) + 1 if s in planned else len(planned) + s - max(planned) for s in there]
    reached = all(s in planned or s > max(planned) for s in there)  # else they are of an earlier form of the recipe
    if reached and max(places) != len(planned):
        yield from ("--seeds", str(max(places)))


def _precision(experiment: Experiment) -> Iterator[str]:
    """Where all runs have the same and the recipe does not say it."""
    found = {made.precision for made in experiment.made.values()}
    if len(found) == 1 and "" not in found and "precision" not in experiment.recipe.get("settings", {}):
        yield from ("--precision", *found)


def _threads(experiment: Experiment) -> Iterator[str]:
    """Where all runs have the same: on a CPU the numbers depend on it."""
    found = {made.threads for made in experiment.made.values()}
    if len(found) == 1 and "" not in found:
        yield from ("--threads", *found)


def _seeds_told(done: Sequence[Cell]) -> str:
    seeds: list[Any] = sorted({cell.seed for cell in done if isinstance(cell.seed, int)})
    if len(seeds) < 2:
        return f"Seed {seeds[0]}." if seeds else ""
    if seeds == list(range(seeds[0], seeds[-1] + 1)):
        return f"Seeds {seeds[0]} to {seeds[-1]}."
    return f"Seeds {', '.join(map(str, seeds))}."
