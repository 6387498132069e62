"""`trm experiment`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

Name = Annotated[str | None, typer.Argument(help="As --list shows them, or a recipe of your own, FILE.toml.")]
List = Annotated[bool, typer.Option("--list", help="Show the experiments, and stop.")]
Dry = Annotated[bool, typer.Option("--dry-run", help="Say how many runs there are and how long they take, and stop.")]
Only = Annotated[
    list[str] | None,
    typer.Option(help="Leave others out: a method, or COLUMN=VALUE,VALUE such as bias=0.9; may be repeated."),
]
Seeds = Annotated[int | None, typer.Option(min=1, max=100_000, help="How many, in place of the recipe's.")]
Fast = Annotated[bool, typer.Option("--fast", help="A small version of the same shape, for a laptop.")]
Defaults = Annotated[bool, typer.Option("--defaults", help="Every method with its default settings, without grids.")]
Output = Annotated[str, typer.Option(metavar="FOLDER", help="Where results go: a folder, or storage such as s3://...")]
Chosen = Annotated[str, typer.Option("--executor", help="local, or ray.")]
Workers = Annotated[
    int | None, typer.Option(min=0, max=1024, help="local: processes; one a GPU, or a core, if not given.")
]
Threads = Annotated[
    int | None, typer.Option(min=1, max=1024, help="Of each run; cores divided among the workers, if not given.")
]
Device = Annotated[str, typer.Option(help="local: auto, cpu, cuda, or several such as cuda:0,cuda:1.")]
Precision = Annotated[
    str | None, typer.Option(help="fp32, tf32 or bf16, unless the recipe says it; bf16 where this machine has a GPU.")
]
Address = Annotated[str | None, typer.Option(help="ray: of a cluster, such as auto; one is started here if not given.")]
Gpus = Annotated[float | None, typer.Option("--gpus-per-run", min=0, help="ray: 0.25 lets four runs share one.")]
Cpus = Annotated[float | None, typer.Option("--cpus-per-run", min=0, help="ray: cores of each run; 1 if not given.")]
Retries = Annotated[int, typer.Option(min=0, max=1000, help="How often a run is tried again after its worker died.")]
Root = Annotated[Path | None, typer.Option("--data-root", help="Where data sets are kept.")]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing on the way.")]


def experiment(
    name: Name = None,
    listed: List = False,
    dry_run: Dry = False,
    only: Only = None,
    seeds: Seeds = None,
    fast: Fast = False,
    defaults: Defaults = False,
    output: Output = "results",
    executor: Chosen = "local",
    workers: Workers = None,
    threads: Threads = None,
    device: Device = "auto",
    precision: Precision = None,
    address: Address = None,
    gpus_per_run: Gpus = None,
    cpus_per_run: Cpus = None,
    retries: Retries = 2,
    data_root: Root = None,
    quiet: Quiet = False,
) -> None:
    """Run an experiment of the paper, or one of your own: what is done already is not done again.

    Example: trm experiment cmnist --fast --only ERM --only TRM --output results
    """
    from ..errors import InputError
    from ..experiments.estimate import describe_plan
    from ..experiments.executors import make_executor, usual_precision
    from ..experiments.local_executor import LocalExecutor
    from ..experiments.plan import absent_data, make_plan
    from ..experiments.recipe import load_recipe
    from ..experiments.store import Store
    from ..experiments.sweep import Sweep
    from ..reports.progress import task_progress
    from ..reports.report import check_recipe
    from ..reports.terminal import print_line
    from ..settings import as_json
    from .experiment_show import events, show_recipes, show_summary

    if listed:
        show_recipes()
        return
    if name is None:
        raise InputError("no experiment is named: write trm experiment NAME, with a name that --list shows")
    recipe = load_recipe(name, fast, defaults)
    if not output.strip():
        raise InputError("--output must be a folder, or storage such as s3://..., got nothing")
    carrier = make_executor(
        executor, device=device, workers=workers, threads=threads, retries=retries, address=address,
        gpus_per_run=gpus_per_run, cpus_per_run=cpus_per_run,
    )  # fmt: skip
    plan = make_plan(recipe, only or (), seeds, {"precision": precision or usual_precision(device)})
    store = Store(output)
    cells = [(cell.run.name, cell.columns) for cell in plan.cells]
    check_recipe(recipe.name, recipe.where, as_json(recipe), as_json(cells))  # before hours of work
    missing_data = absent_data(plan, store.missing(plan.runs), data_root) if executor == "local" else None
    if dry_run:
        local = carrier if isinstance(carrier, LocalExecutor) else LocalExecutor(1, threads=threads)
        with task_progress() as advance:
            lines = describe_plan(plan, store, local, advance)
        for line in (*lines, *filter(None, [missing_data])):
            print_line(line)
        return
    if missing_data:
        raise InputError(missing_data)
    with events(plan, store, quiet) as on_event:
        sweep = Sweep(plan, store, carrier, data_root, on_event)
        for event in sweep:
            on_event(event)
    show_summary(plan, sweep.summary, output, quiet)
    if sweep.failed:
        raise typer.Exit(1)
