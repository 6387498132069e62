"""`trm experiment`."""

from __future__ import annotations

import shlex
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..settings import NonNegative, whole, within
from .options import MACHINE, DataRoot, Quiet

if TYPE_CHECKING:
    from ..experiments.sweep import Event

WIDE = 110  # width in letters from which a terminal has room for the column on the paper
option, machine, cluster = (partial(typer.Option, rich_help_panel=panel) for panel in (None, MACHINE, "A cluster"))

Name = Annotated[
    str | None,
    typer.Argument(metavar="NAME", help="Experiment, as in --list, or a recipe of your own, FILE.toml."),
]
List = Annotated[bool, option("--list", help="List the experiments and exit.")]
Fast = Annotated[bool, option("--fast", help="Run the small version, for a laptop.")]
Defaults = Annotated[bool, option("--defaults", help="Run every method with its default settings, without grids.")]
Only = Annotated[
    list[str] | None, option(metavar="WHAT", help="Run only METHOD, or only COLUMN=VALUE,VALUE. May be repeated.")
]
Seeds = Annotated[
    int | None, option(metavar="N", callback=whole(1, 10_000), help="Number of seeds. Default: the recipe's.")
]
Output = Annotated[str, option(metavar="FOLDER", help="Folder of the results, or an address such as s3://...")]
Reuse = Annotated[
    Path | None,
    option(metavar="FOLDER", help="Folder of results, such as published ones: trainings found there are not repeated."),
]
Dry = Annotated[bool, option("--dry-run", help="Print the number of runs and how long they take, and exit.")]
Workers = Annotated[
    int | None,
    machine(
        metavar="N",
        callback=whole(0, 1024),
        help="Number of processes for runs. Default: one for each GPU or core; with submitit, as many as SLURM allows.",
    ),
]
Threads = Annotated[
    int | None,
    machine(metavar="N", callback=whole(1, 1024), help="Number of threads of each run. Default: cores / workers."),
]
Device = Annotated[str, machine(metavar="DEVICES", help="Device: auto, cpu, cuda, or several such as cuda:0,cuda:1.")]
Precision = Annotated[
    str | None,
    machine(
        "--precision",
        metavar="PRECISION",
        help="Precision of runs whose recipe sets none: fp32, tf32 or bf16. Default: bf16 on a GPU, else fp32.",
    ),
]
RunsPerGpu = Annotated[
    int | None,
    machine(
        metavar="N",
        callback=whole(1, 64),
        help="Number of runs at once in a worker on a GPU, which take turns. Default: up to 8, as memory allows.",
    ),
]
Retries = Annotated[
    int,
    machine(
        metavar="N",
        callback=whole(0, 1000),
        help="Number of times a run is tried again after its worker died, or after it failed beside others.",
    ),
]
Chosen = Annotated[
    str, cluster("--executor", metavar="NAME", help="Executor of the runs: local, ray or submitit (SLURM).")
]
Address = Annotated[
    str | None,
    cluster(
        "--address",
        metavar="ADDRESS",
        help="Address of a Ray cluster, such as auto. Default: start a cluster on this machine.",
    ),
]
Gpus = Annotated[
    float | None,
    cluster(
        metavar="N",
        callback=within(NonNegative),
        help="Number of GPUs of each run; with Ray, 0.25 lets four runs share a GPU.",
    ),
]
Cpus = Annotated[
    float | None, cluster(metavar="N", callback=within(NonNegative), help="Number of cores of each run. Default: 1.")
]
Slurm = Annotated[
    list[str] | None,
    cluster(metavar="NAME=VALUE", help="Option of sbatch, such as partition=gpu or time=600. May be repeated."),
]


def experiment(
    name: Name = None,
    listed: List = False,
    fast: Fast = False,
    defaults: Defaults = False,
    only: Only = None,
    seeds: Seeds = None,
    output: Output = "results",
    reuse: Reuse = None,
    dry_run: Dry = False,
    data_root: DataRoot = None,
    quiet: Quiet = False,
    workers: Workers = None,
    threads: Threads = None,
    device: Device = "auto",
    precision: Precision = None,
    runs_per_gpu: RunsPerGpu = None,
    retries: Retries = 2,
    executor: Chosen = "local",
    address: Address = None,
    gpus_per_run: Gpus = None,
    cpus_per_run: Cpus = None,
    slurm: Slurm = None,
) -> None:
    """Run an experiment of the paper, or one of your own.

    Finished runs are not repeated: the same command continues where it was interrupted.

    Example: trm experiment cmnist --fast --only ERM --only TRM --output results
    """
    from ..errors import InputError
    from ..experiments.estimate import describe_plan
    from ..experiments.executors import make_executor, usual_precision
    from ..experiments.plan import absent_data, make_plan
    from ..experiments.recipe import load_recipe
    from ..experiments.reuse import find_runs, reuse_runs
    from ..experiments.store import Store
    from ..experiments.sweep import sweep_of
    from ..reports.report import check_recipe
    from ..reports.terminal import print_line, run_progress, task_progress
    from ..settings import as_json

    if listed:
        _print_recipes()
        return
    if name is None:
        raise InputError("NAME is missing: write trm experiment NAME with one of the names in trm experiment --list")
    recipe = load_recipe(name, fast, defaults)
    carrier = make_executor(
        executor, device=device, workers=workers, threads=threads, retries=retries, runs_per_gpu=runs_per_gpu,
        address=address, gpus_per_run=gpus_per_run, cpus_per_run=cpus_per_run, slurm=slurm or (), folder=output,
    )  # fmt: skip
    plan = make_plan(recipe, only or (), seeds, {"precision": precision or usual_precision(device)})
    cells = as_json([(cell.run.name, cell.columns) for cell in plan.cells])
    check_recipe(recipe.name, recipe.where, as_json(recipe), cells)  # before hours of work
    store = Store(output)
    found = {} if reuse is None else find_runs(reuse, store.missing(plan.runs))
    if reuse is not None:
        print_line(f"{len(found)} of {len(plan.runs)} runs are taken from {reuse}")
    if dry_run:
        plan = replace(plan, cells=tuple(cell for cell in plan.cells if cell.run.name not in found))
    elif found:
        reuse_runs(found, plan.runs, store)
    missing = store.missing(plan.runs)
    absent = absent_data(plan, missing, data_root) if executor == "local" else None
    if dry_run:
        with task_progress() as advance:
            lines = describe_plan(plan, store, carrier, advance)
        for line in filter(None, [*lines, absent]):
            print_line(line)
        return
    if absent:
        raise InputError(absent)

    def show(event: Event) -> None:
        label = sweep.plan.labels.get(event.name, event.name)
        if event.kind == "step":
            bars.step(label, event.step, event.total)
        else:
            ended, is_done = event.kind in ("done", "failed", "pruned"), event.kind == "done"
            bars.end(label, f"{label}: {event}", finished=ended, said=not is_done)

    sweep = sweep_of(plan, store, carrier, data_root, show)
    with run_progress(recipe.name, sweep.summary.total, sweep.summary.done, quiet) as bars:
        for event in sweep:
            show(event)
    for line in sweep.summary.failures():
        print_line(line, stderr=True)
    if not quiet:
        place = [output, "--output", "report"] if "://" in output.removeprefix("file://") else [output]
        print_line(f"{sweep.summary}: {shlex.join(['trm', 'report', *place])}")
    if sweep.failed:
        raise typer.Exit(1)


def _print_recipes() -> None:
    from ..experiments.plan import list_recipes
    from ..reports import Table
    from ..reports.terminal import print_values, width

    wide = width() >= WIDE
    rows = [
        [name, recipe.title, *([recipe.paper] if wide else []), runs, "" if fast is None else fast]
        for name, recipe, runs, fast in list_recipes()
    ]
    paper = ["In the paper"] if wide else []
    print_values(Table("", ["Experiment", "Title", *paper, "Runs", "Runs with --fast"], rows))
