"""`trm demo`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from .options import Json, parse_folder


def demo(
    output: Annotated[
        Path, typer.Option(parser=parse_folder, metavar="FOLDER", help="Where records and report.html go.")
    ] = Path("runs/demo"),
    seeds: Annotated[int, typer.Option(min=1, max=100, help="How many seeds to average over.")] = 3,
    epochs: Annotated[int, typer.Option(min=1, help="Epochs of each run; fewer are faster and tell less.")] = 10,
    workers: Annotated[
        int | None, typer.Option(min=1, help="Processes that train at the same time; as many as cores when not given.")
    ] = None,
    as_json: Json = None,
) -> None:
    """Train ERM, IRM, GroupDRO and TRM on coloured digits, where colour gives the label away in training only.

    Example: trm demo --seeds 3 --output runs/demo
    """
    from ..experiments.demo import REPORT, SAMPLES, Demo
    from ..experiments.executors import count_cores
    from ..files import prepare_folder
    from ..reports import write_page
    from ..reports.comparison import comparison_page, comparison_table, summarise, verdict
    from ..reports.progress import run_progress
    from ..reports.terminal import print_line, print_values
    from ..results.records import RECORDS

    prepare_folder(output, RECORDS, REPORT, SAMPLES)
    plan = Demo(seeds=tuple(range(seeds)), workers=workers or count_cores())
    plan = replace(plan, training=replace(plan.training, epochs=epochs))
    command = f"trm demo --seeds {seeds} --epochs {epochs} --output {output}"
    with run_progress("all runs", len(plan.seeds) * len(plan.algorithms)) as bars:

        def on_step(algorithm: str, seed: int, done: int, total: int) -> None:
            bars.step(f"{algorithm}, seed {seed}", done, total)
            if done == total:
                bars.end(f"{algorithm}, seed {seed}")

        runs = plan.run(output, on_step)
    rows = summarise(runs)
    page = output / REPORT
    settings = {"Data": "10c-digits, bias 100 % / 90 %, unbiased test"} | plan.describe() | provenance()
    title = "Coloured digits: which model still works without the colours?"
    write_page(page, comparison_page(title, runs, _pictures(output / SAMPLES), settings, command))
    if as_json and as_json.write(
        {row.algorithm: {"test_accuracy": row.test.mean, "test_std": row.test.std,
                         "transfer_risk": row.transfer_risk.mean,
                         "train_accuracy": {name: s.mean for name, s in row.train.items()}}
         for row in rows}
    ):  # fmt: skip
        return
    print_values(comparison_table(rows), verdict(rows))
    print_line(f"Report: {page}")


def _pictures(path: Path) -> Mapping[str, Any]:
    import numpy as np

    with np.load(path, allow_pickle=False) as archive:
        return {name: archive[name] for name in archive.files}


def provenance() -> dict[str, str]:
    """What a result comes from: version, commit, torch, hardware."""
    import torch

    from .. import __version__
    from ..experiments.execute import commit, hardware

    found = {"Version": f"transferrisk {__version__}", "PyTorch": torch.__version__}
    if revision := commit():
        found["Commit"] = revision
    found["Hardware"] = hardware()
    return found
