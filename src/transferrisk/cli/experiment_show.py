"""What `trm experiment` prints."""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from .show import console

if TYPE_CHECKING:
    from ..experiments.plan import Plan
    from ..experiments.store import Store
    from ..experiments.sweep import Event, OnEvent, Summary

SHOWN = 5  # kinds of failure that are printed
WIDE = 110  # letters of a terminal that has room for where in the paper an experiment is


def show_recipes() -> None:
    from ..experiments.plan import count_runs
    from ..experiments.recipe import load_recipe, recipe_names

    is_wide = console.width >= WIDE
    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("Experiment", no_wrap=True)
    table.add_column("What it shows", overflow="fold")
    if is_wide:
        table.add_column("In the paper", overflow="fold")
    table.add_column("Runs", justify="right", no_wrap=True)
    table.add_column("--fast", justify="right", no_wrap=True)
    for name in recipe_names():
        recipe = load_recipe(name)
        paper = [recipe.paper] if is_wide else []
        table.add_row(name, recipe.title, *paper, f"{count_runs(recipe)}", _fast(name))
    console.print(table)


def _fast(name: str) -> str:
    """How many runs the small version has, where there is one."""
    from ..errors import InputError
    from ..experiments.plan import count_runs
    from ..experiments.recipe import load_recipe

    try:
        return f"{count_runs(load_recipe(name, fast=True))}"
    except InputError:
        return ""


@contextmanager
def events(plan: Plan, store: Store, quiet: bool) -> Iterator[OnEvent]:
    """A bar for all runs and one for each at work, or a line a run where stderr is no terminal."""
    runs = plan.runs
    ended = len(runs) - len(store.missing(runs))
    names = {run.name: _needed(run.settings) for run in runs}
    names |= {cell.run.name: _label(cell.columns) for cell in reversed(plan.cells)}
    where = Console(stderr=True, quiet=quiet)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=where, disable=quiet or not where.is_terminal) as bars:
        everything = bars.add_task(plan.recipe.name, completed=ended, total=len(runs))
        working: dict[str, TaskID] = {}

        def on_event(event: Event) -> None:
            nonlocal ended
            label = names.get(event.name, event.name)
            if event.kind == "step":
                if event.name not in working:
                    working[event.name] = bars.add_task(label, total=event.total)
                bars.update(working[event.name], completed=event.step, total=event.total)
                return
            if event.name in working:
                bars.remove_task(working.pop(event.name))
            if event.kind in ("done", "failed"):
                ended += 1
                bars.update(everything, completed=ended)
            if event.kind != "done" or not where.is_terminal:
                where.print(f"{label}: {_told(event)}", highlight=False, markup=False, soft_wrap=True)

        yield on_event


def _told(event: Event) -> str:
    if event.kind != "done":
        return f"{event.kind}, {event.message}"
    return f"done, {event.seconds:.1f} s" if event.seconds else "done by another process"


def show_summary(plan: Plan, summary: Summary, output: str, quiet: bool) -> None:
    """What failed is told in any case."""
    problems = Console(stderr=True)
    alike: dict[str, list[str]] = {}
    for name, error in summary.failed.items():
        alike.setdefault(error, []).append(name)
    for error, names in list(alike.items())[:SHOWN]:
        which = f"run {names[0]}" if len(names) == 1 else f"{len(names)} runs, {names[0]} the first of them,"
        problems.print(f"{which} failed: {error}", highlight=False, markup=False, soft_wrap=True)
    if len(alike) > SHOWN:
        problems.print(f"and {sum(map(len, list(alike.values())[SHOWN:]))} more failed", highlight=False)
    if not quiet:
        failed = f", {len(summary.failed)} failed" if summary.failed else ""
        where = [output, "--output", "report"] if "://" in output.removeprefix("file://") else [output]
        told = f"{summary.done} of {summary.total} runs are done ({summary.ran} now{failed})"
        console.print(f"{told}: {shlex.join(['trm', 'report', *where])}", highlight=False, markup=False, soft_wrap=True)


def _needed(settings: Mapping[str, Any]) -> str:
    """Of a run that others need."""
    known = (str(settings[name]) for name in ("data", "algorithm", "shift") if settings.get(name))
    return ", ".join((*known, f"seed {settings['seed']}", "which others need"))


def _label(columns: Any) -> str:
    shown = (f"{name} {value}" if name == "seed" else str(value) for name, value in columns.items() if value != "")
    return ", ".join(shown)
