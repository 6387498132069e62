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
        str | None,
        typer.Option("--precision", metavar="PRECISION", help="fp32, tf32 or bf16. Default: bf16 on a GPU, else fp32."),
    ] = None,
    captured: Annotated[bool, typer.Option("--captured/--eager", help="Capture steps in CUDA graphs on a GPU.")] = True,
    compiled: Annotated[
        bool | None,
        typer.Option(
            "--compiled/--not-compiled", help="Compile networks for images on a GPU. Default: compiled, if captured."
        ),
    ] = None,
    sweep: Annotated[
        bool, typer.Option("--sweep", help="Measure whole trainings on a GPU, one at a time and several at once.")
    ] = False,
    head: Annotated[bool, typer.Option("--head", help="Measure the transfer risk alone, at several sizes.")] = False,
    as_json: Json = None,
) -> None:
    """Measure the time of a training step of each algorithm, as a ratio to ERM in the same run.

    Example: trm bench --setting cmnist --algorithms erm,trm
    """
    from ..errors import InputError
    from ..experiments.bench import HeadCost, Measurement, head_costs, measure_all
    from ..experiments.bench_sweep import SweepMeasurement, measure_sweep
    from ..experiments.execute import provenance
    from ..reports import Cell, Table
    from ..reports.terminal import print_values, task_progress

    given = {"--setting": setting, "--eager": not captured, "--compiled": compiled}
    given |= {"--algorithms": algorithms, "--precision": precision, "--sweep": sweep} if head else {}
    useless = [option for option, value in given.items() if value not in (None, False)]
    if head and useless:
        raise InputError(
            f"--head must be given without {', '.join(useless)}: it measures the transfer risk alone, in fp32"
        )
    if sweep and useless:
        raise InputError(f"--sweep must be given without {', '.join(useless)}: it measures trainings of 10C-CMNIST")
    found: list[Measurement] | list[HeadCost] | list[SweepMeasurement]
    with task_progress() as advance:
        if head:
            found = head_costs(device, advance)
        elif sweep:
            found = measure_sweep(
                [name.strip() for name in (algorithms or "erm,trm").split(",")], device, precision, advance
            )
        else:
            found = measure_all(setting or "all", algorithms or "", device, precision, captured, compiled, advance)
    rows = [asdict(one) for one in found]
    if as_json and as_json.write(rows):
        return
    of = "of one at a time" if sweep else "of ERM"
    headings = {"ms": "ms a step", "seconds": "s a training", "ratio": of, "peak_mib": "peak MiB"}
    digits = {"ms": ".2f", "seconds": ".2f", "ratio": ".2f", "peak_mib": ".0f"}
    cells = [
        [v if isinstance(v, str) else Cell("" if v is None else format(v, digits.get(k, "")), v or 0.0)
         for k, v in row.items()]
        for row in rows
    ]  # fmt: skip
    about = ", ".join(f"{key}: {value}" for key, value in provenance(device).items())
    print_values(Table("", [headings.get(name, name) for name in rows[0]], cells), about)
