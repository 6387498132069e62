"""`trm bench`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated

import typer

from .options import Device, Json


def bench(
    setting: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Workload: cmnist, scenecoco, pacs, officehome or all. Default: all."),
    ] = None,
    algorithms: Annotated[
        str | None, typer.Option(metavar="NAMES", help="Algorithms, separated by commas. Default: all.")
    ] = None,
    device: Device = "auto",
    precision: Annotated[
        str | None, typer.Option(metavar="PRECISION", help="fp32, tf32 or bf16. Default: bf16 on a GPU, else fp32.")
    ] = None,
    captured: Annotated[bool, typer.Option("--captured/--eager", help="Capture steps in CUDA graphs on a GPU.")] = True,
    head: Annotated[bool, typer.Option("--head", help="Measure the transfer risk alone, at several sizes.")] = False,
    as_json: Json = None,
) -> None:
    """Measure the time of a training step of each algorithm, as a ratio to ERM in the same run.

    Example: trm bench --setting cmnist --algorithms erm,trm
    """
    from ..errors import InputError
    from ..experiments.bench import HeadCost, Measurement, head_costs, measure_all
    from ..experiments.execute import provenance
    from ..reports import Cell, Table
    from ..reports.terminal import print_values, task_progress

    asked = {"--setting": setting, "--algorithms": algorithms, "--precision": precision, "--eager": not captured}
    useless = [option for option, value in asked.items() if value not in (None, False)]
    if head and useless:
        raise InputError(
            f"--head must be given without {', '.join(useless)}: it measures the transfer risk alone, in fp32"
        )
    found: list[Measurement] | list[HeadCost]
    with task_progress() as advance:
        if head:
            found = head_costs(device, advance)
        else:
            found = measure_all(setting or "all", algorithms or "", device, precision, captured, advance)
    rows = [asdict(one) for one in found]
    if as_json and as_json.write(rows):
        return
    headings = {"ms": "ms a step", "ratio": "of ERM", "peak_mib": "peak MiB"}
    digits = {"ms": ".2f", "ratio": ".2f", "peak_mib": ".0f"}
    cells = [
        [v if isinstance(v, str) else Cell("" if v is None else format(v, digits.get(k, "")), v or 0.0)
         for k, v in row.items()]
        for row in rows
    ]  # fmt: skip
    about = ", ".join(f"{key}: {value}" for key, value in provenance(device).items())
    print_values(Table("", [headings.get(name, name) for name in rows[0]], cells), about)
