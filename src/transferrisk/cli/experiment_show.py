"""What `trm experiment` prints."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from rich import box
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from .show import console, task_progress

if TYPE_CHECKING:
    from ..experiments.execute import Event, OnEvent
    from ..experiments.plan import Plan
    from ..experiments.run import Summary
    from ..experiments.store import Store

SHOWN = 5  # failures that are printed


def show_recipes() -> None:
    from ..experiments.plan import count
    from ..experiments.recipe import load, names

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    table.add_column("Experiment", no_wrap=True)
    table.add_column("What it shows")
    table.add_column("In the paper")
    table.add_column("Runs", justify="right")
    table.add_column("--fast", justify="right")
    for name in names():
        recipe = load(name)
        table.add_row(name, recipe.title, recipe.paper, f"{count(recipe)}", _fast(name))
    console.print(table)


def _fast(name: str) -> str:
    """How many runs the small version has, where there is one."""
    from ..errors import InputError
    from ..experiments.plan import count
    from ..experiments.recipe import load

    try:
        return f"{count(load(name, fast=True))}"
    except InputError:
        return ""


def show_plan(plan: Plan, store: Store, device: str, workers: int | None, threads: int | None) -> None:
    """How many runs are done and missing, and how long the missing ones take."""
    from ..experiments.estimate import estimate, seconds_by_kind
    from ..experiments.executors import threads_set
    from ..experiments.local import shared_out

    devices, workers, threads = shared_out(None if device == "auto" else device.split(","), workers, threads)
    runs, missing = plan.runs, store.missing(plan.runs)
    left = {run.name for run in missing}
    seconds = seconds_by_kind((run, store.seconds(run.name)) for run in runs if run.name not in left)
    with threads_set(threads), task_progress() as advance:
        found = estimate(missing, devices[0], seconds, advance)
    console.print(f"{plan.recipe.name}: {plan.recipe.title}", highlight=False)
    console.print(f"{len(runs)} runs: {len(runs) - len(missing)} done, {len(missing)} missing", highlight=False)
    if len(missing) > found.unknown:
        each = f"{workers} at once with {threads} thread{'s' * (threads > 1)} each on {', '.join(devices)}"
        whole = found.seconds / max(1, workers)
        console.print(
            f"about {_duration(whole)} ({each}), from measured steps: {_rest(found.unknown)}", highlight=False
        )


def _rest(unknown: int) -> str:
    left_out = "reading data, evaluations and start-up come on top"
    return left_out + (f", and {unknown} runs whose time is not known" if unknown else "")


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{minutes} min" if minutes < 90 else f"{minutes // 60} h {minutes % 60} min"


@contextmanager
def events(plan: Plan, quiet: bool) -> Iterator[OnEvent]:
    """A bar for all runs and one for each at work, or a line a run where stderr is no terminal."""
    runs = plan.runs
    names = {run.name: _needed(run.settings) for run in runs}
    names |= {cell.run.name: _label(cell.columns) for cell in reversed(plan.cells)}
    where = Console(stderr=True, quiet=quiet)
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=where, disable=quiet or not where.is_terminal) as bars:
        everything = bars.add_task(plan.recipe.name, total=len(runs))
        working: dict[str, TaskID] = {}
        ended = 0

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
                told = f"{event.seconds:.1f} s" if event.kind == "done" else event.message
                where.print(f"{label}: {event.kind}, {told}", highlight=False, markup=False)

        yield on_event


def show_summary(plan: Plan, summary: Summary, output: str, quiet: bool) -> None:
    """What failed is told in any case."""
    problems = Console(stderr=True)
    for name, error in list(summary.failed.items())[:SHOWN]:
        problems.print(f"run {name} failed: {error}", highlight=False, markup=False)
    if len(summary.failed) > SHOWN:
        problems.print(f"and {len(summary.failed) - SHOWN} more failed", highlight=False)
    if not quiet:
        failed = f", {len(summary.failed)} failed" if summary.failed else ""
        console.print(
            f"{summary.done} of {summary.total} runs are done ({summary.ran} now{failed}): trm report {output}",
            highlight=False, markup=False, soft_wrap=True,
        )  # fmt: skip


def _needed(settings: Mapping[str, Any]) -> str:
    """Of a run that others need."""
    known = (str(settings[name]) for name in ("data", "algorithm", "shift") if settings.get(name))
    return ", ".join((*known, f"seed {settings['seed']}", "which others need"))


def _label(columns: Any) -> str:
    shown = (f"{name} {value}" if name == "seed" else str(value) for name, value in columns.items() if value != "")
    return ", ".join(shown)
