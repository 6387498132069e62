"""`trm demo`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..settings import whole
from .options import Json

Output = Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the records and report.html.")]
Seeds = Annotated[int, typer.Option(metavar="N", callback=whole(1, 100), help="Number of seeds to average over.")]
Epochs = Annotated[int, typer.Option(metavar="N", callback=whole(1), help="Number of epochs of each run.")]
Workers = Annotated[
    int | None,
    typer.Option(metavar="N", callback=whole(1), help="Number of processes at once. Default: one for each core."),
]


def demo(
    output: Output = Path("runs/demo"),
    seeds: Seeds = 3,
    epochs: Epochs = 10,
    workers: Workers = None,
    as_json: Json = None,
) -> None:
    """Train ERM, IRM, GroupDRO and TRM on coloured digits, where colour gives the label away in training only.

    Example: trm demo --seeds 3 --output runs/demo
    """
    from ..experiments.demo import REPORT, SAMPLES, Demo, read_pictures
    from ..experiments.execute import provenance
    from ..experiments.executors import count_cores
    from ..files import prepare_folder
    from ..reports import write_page
    from ..reports.demo_page import comparison_page, comparison_table, summarise, verdict
    from ..reports.terminal import print_line, print_values, run_progress
    from ..results.records import RECORDS

    prepare_folder(output, RECORDS, REPORT, SAMPLES)
    plan = Demo(seeds=range(seeds), training={"epochs": epochs}, workers=workers or count_cores())
    with run_progress("all runs", len(plan.runs)) as bars:

        def on_step(algorithm: str, seed: int, done: int, total: int) -> None:
            bars.step(f"{algorithm}, seed {seed}", done, total)
            if done == total:
                bars.end(f"{algorithm}, seed {seed}")

        runs = plan.run(output, on_step)
    rows = summarise(runs)
    page, settings = output / REPORT, plan.describe() | provenance()
    title = "Coloured digits: which model still works without the colours?"
    command = f"trm demo --seeds {seeds} --epochs {epochs} --output {output}"
    write_page(page, comparison_page(title, runs, read_pictures(output), settings, command))
    numbers = {
        row.algorithm: {
            "test_accuracy": row.test.mean,
            "test_std": row.test.std,
            "transfer_risk": row.transfer_risk.mean,
            "train_accuracy": {name: accuracy.mean for name, accuracy in row.train.items()},
        }
        for row in rows
    }
    if as_json and as_json.write(numbers):
        return
    print_values(comparison_table(rows), verdict(rows))
    print_line(f"Report: {page}")
