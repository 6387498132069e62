"""`trm bench`."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from .options import Device, Json

if TYPE_CHECKING:
    from ..experiments.bench import HeadCost, Measurement
    from ..reports import Table


def bench(
    setting: Annotated[
        str | None, typer.Option(help="cmnist, scenecoco, pacs, officehome, or all, as when not given.")
    ] = None,
    algorithms: Annotated[str | None, typer.Option(help="Names separated by commas; all when not given.")] = None,
    device: Device = "auto",
    precision: Annotated[str | None, typer.Option(help="fp32, tf32 or bf16; bf16 on a GPU when not given.")] = None,
    captured: Annotated[bool, typer.Option("--captured/--eager", help="Steps as CUDA graphs, on a GPU.")] = True,
    head: Annotated[bool, typer.Option("--head", help="How the head's cost grows with its sizes, instead.")] = False,
    as_json: Json = None,
) -> None:
    """Measure what a step of each algorithm costs, as a ratio to ERM in the same run.

    Example: trm bench --setting cmnist --algorithms erm,trm
    """
    from ..algorithms import available, get_algorithm
    from ..errors import InputError
    from ..experiments.bench import SETTINGS, head_costs, measure
    from ..reports.progress import task_progress
    from ..reports.terminal import print_values

    if head:
        asked = {"--setting": setting, "--algorithms": algorithms, "--precision": precision, "--eager": not captured}
        useless = [option for option, value in asked.items() if value not in (None, False)]
        if useless:
            raise InputError(f"--head measures the transfer risk alone, in fp32: leave out {', '.join(useless)}")
    names = [name.strip() for name in (algorithms or "").split(",") if name.strip()] or available()
    for name in names:
        get_algorithm(name)
    if setting not in (None, "all") and setting not in SETTINGS:
        raise InputError(f"setting {setting!r} is not known: choose from {', '.join(SETTINGS)}, all")
    found: list[Measurement] | list[HeadCost]
    with task_progress() as advance:
        if head:
            found = head_costs(device, advance)
        else:
            chosen = SETTINGS if setting in (None, "all") else (setting,)
            found = [
                m for s in chosen
                for m in measure(s, names, device, precision, captured, advance)  # type: ignore[arg-type]  # checked there
            ]  # fmt: skip
    rows = [asdict(row) for row in found]
    if as_json and as_json.write(rows):
        return
    print_values(_table(rows), _hardware(device))


def _table(rows: list[dict[str, Any]]) -> Table:
    from ..reports import Cell, Table

    headings = {"ms": "ms a step", "ratio": "of ERM", "peak_mib": "peak MiB"}
    digits = {"ms": ".2f", "ratio": ".2f", "peak_mib": ".0f"}
    cells = [
        [v if isinstance(v, str) else Cell("" if v is None else format(v, digits.get(k, "")), v or 0.0)
         for k, v in row.items()]
        for row in rows
    ]  # fmt: skip
    return Table("", [headings.get(name, name) for name in rows[0]], cells)


def _hardware(device: str) -> str:
    import torch

    from .demo import provenance

    about = provenance()
    if device != "cpu" and torch.cuda.is_available():
        about["Hardware"] = torch.cuda.get_device_name()
    return ", ".join(f"{key}: {value}" for key, value in about.items())
