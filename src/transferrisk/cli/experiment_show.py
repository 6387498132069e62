"""What `trm experiment` prints."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ..reports import Table
from ..reports.progress import run_progress
from ..reports.terminal import print_line, print_values, width

if TYPE_CHECKING:
    from ..experiments.plan import Plan
    from ..experiments.store import Store
    from ..experiments.sweep import Event, OnEvent, Summary

SHOWN = 5  # kinds of failure that are printed
WIDE = 110  # letters of a terminal that has room for where in the paper an experiment is


def show_recipes() -> None:
    from ..experiments.plan import count_runs
    from ..experiments.recipe import load_recipe, recipe_names

    paper = ["In the paper"] if width() >= WIDE else []
    rows = []
    for name in recipe_names():
        recipe = load_recipe(name)
        rows.append([name, recipe.title, *([recipe.paper] if paper else []), count_runs(recipe), _fast(name)])
    print_values(Table("", ["Experiment", "What it shows", *paper, "Runs", "--fast"], rows))


def _fast(name: str) -> int | str:
    """How many runs the small version has, "" where there is none."""
    from ..errors import InputError
    from ..experiments.plan import count_runs
    from ..experiments.recipe import load_recipe

    try:
        return count_runs(load_recipe(name, fast=True))
    except InputError:
        return ""


@contextmanager
def events(plan: Plan, store: Store, quiet: bool) -> Iterator[OnEvent]:
    """A bar for all runs and one for each at work, or a line a run where stderr is no terminal."""
    runs = plan.runs
    ended = len(runs) - len(store.missing(runs))
    names = {run.name: _needed(run.settings) for run in runs}
    names |= {cell.run.name: _label(cell.columns) for cell in reversed(plan.cells)}
    with run_progress(plan.recipe.name, len(runs), ended, quiet) as bars:

        def on_event(event: Event) -> None:
            label = names.get(event.name, event.name)
            if event.kind == "step":
                bars.step(label, event.step, event.total)
            elif event.kind == "done":
                bars.end(label, f"{label}: {_told(event)}")
            else:
                bars.end(label, f"{label}: {_told(event)}", finished=event.kind == "failed", said=True)

        yield on_event


def _told(event: Event) -> str:
    if event.kind != "done":
        return f"{event.kind}, {event.message}"
    return f"done, {event.seconds:.1f} s" if event.seconds else "done by another process"


def show_summary(plan: Plan, summary: Summary, output: str, quiet: bool) -> None:
    """What failed is told in any case."""
    alike: dict[str, list[str]] = {}
    for name, error in summary.failed.items():
        alike.setdefault(error, []).append(name)
    for error, names in list(alike.items())[:SHOWN]:
        which = f"run {names[0]}" if len(names) == 1 else f"{len(names)} runs, {names[0]} the first of them,"
        print_line(f"{which} failed: {error}", stderr=True)
    if len(alike) > SHOWN:
        print_line(f"and {sum(map(len, list(alike.values())[SHOWN:]))} more failed", stderr=True)
    if not quiet:
        failed = f", {len(summary.failed)} failed" if summary.failed else ""
        where = [output, "--output", "report"] if "://" in output.removeprefix("file://") else [output]
        told = f"{summary.done} of {summary.total} runs are done ({summary.ran} now{failed})"
        print_line(f"{told}: {shlex.join(['trm', 'report', *where])}")


def _needed(settings: Mapping[str, Any]) -> str:
    """Of a run that others need."""
    known = (str(settings[name]) for name in ("data", "algorithm", "shift") if settings.get(name))
    return ", ".join((*known, f"seed {settings['seed']}", "which others need"))


def _label(columns: Any) -> str:
    shown = (f"{name} {value}" if name == "seed" else str(value) for name, value in columns.items() if value != "")
    return ", ".join(shown)
