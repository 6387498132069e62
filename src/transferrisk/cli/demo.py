"""`trm demo`."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer


def folder(text: str | Path) -> Path:
    """A path as it is given on the command line, where an empty one is a slip and not the current folder."""
    if not str(text).strip():
        raise typer.BadParameter("it is empty; name a folder, or . for the current one")
    return Path(text)


def demo(
    output: Annotated[
        Path, typer.Option(parser=folder, metavar="FOLDER", help="Where records and report.html go.")
    ] = Path("runs/demo"),
    seeds: Annotated[int, typer.Option(min=1, max=100, help="How many seeds to average over.")] = 3,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of each run; fewer are faster and tell less.")] = 10,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that train at the same time; as many as cores when not given.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the table as JSON, for a program to read.")] = False,
) -> None:
    """Train ERM, IRM, GroupDRO and TRM on coloured digits, where colour gives the label away in training only.

    Example: trm demo --seeds 3 --output runs/demo
    """
    from ..experiments.demo import RECORDS, REPORT, SAMPLES, Demo
    from ..experiments.executors import count_cores
    from ..files import prepare_folder
    from ..reports import demo_page, summarise, verdict, write_page
    from ..training.plain import dumps
    from .show import console, load_pictures, progress, provenance, results_table

    prepare_folder(output, RECORDS, REPORT, SAMPLES)
    plan = Demo(seeds=tuple(range(seeds)), workers=workers or count_cores())
    plan = replace(plan, training=replace(plan.training, epochs=epochs))
    command = f"trm demo --seeds {seeds} --epochs {epochs} --output {output}"
    with progress(len(plan.seeds) * len(plan.algorithms)) as advance:
        records = plan.run(output, advance)
    rows = summarise(records)
    page = output / REPORT
    settings = {"Data": "10c-digits, bias 100 % / 90 %, unbiased test"} | plan.describe() | provenance()
    title = "Coloured digits: which model still works without the colours?"
    write_page(page, demo_page(title, records, load_pictures(output / SAMPLES), settings, command))
    if as_json:
        print(dumps({row.algorithm: {"test_accuracy": row.test.mean, "test_std": row.test.std,
                                     "transfer_risk": row.transfer_risk.mean,
                                     "train_accuracy": {name: s.mean for name, s in row.train.items()}}
                     for row in rows}, indent=2))  # fmt: skip
        return
    console.print(results_table(rows))
    console.print(verdict(rows), width=100)
    console.print(f"\nReport: [bold]{page}[/bold]", highlight=False)
