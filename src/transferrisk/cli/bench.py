"""`trm bench`."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

    from ..experiments.bench import HeadCost, Measurement


def bench(
    setting: Annotated[
        str | None, typer.Option(help="cmnist, scenecoco, pacs, officehome, or all, as when not given.")
    ] = None,
    algorithms: Annotated[str | None, typer.Option(help="Names separated by commas; all when not given.")] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    precision: Annotated[str | None, typer.Option(help="fp32, tf32 or bf16; bf16 on a GPU when not given.")] = None,
    captured: Annotated[bool, typer.Option("--captured/--eager", help="Steps as CUDA graphs, on a GPU.")] = True,
    head: Annotated[bool, typer.Option("--head", help="How the head's cost grows with its sizes, instead.")] = False,
    target: Annotated[Path | None, typer.Option("--json", help="A file for the measurements.")] = None,
) -> None:
    """Measure what a step of each algorithm costs, as a ratio to ERM in the same run.

    Example: trm bench --setting cmnist --algorithms erm,trm
    """
    from ..algorithms import available, get_algorithm
    from ..errors import InputError
    from ..experiments.bench import SETTINGS, head_costs, measure
    from ..files import prepare_folder, write_atomically
    from .show import console, task_progress

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
    if target is not None:
        prepare_folder(target.parent, target.name)
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
    rows = [_numbers(asdict(row)) for row in found]
    if target is not None:
        write_atomically(target, json.dumps(rows, indent=2, allow_nan=False) + "\n")
    console.print(_table(rows))
    console.print(_hardware(device), highlight=False, style="dim")


def _numbers(row: dict[str, Any]) -> dict[str, Any]:
    """The same with None for what is no number, which JSON has no word for."""
    return {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in row.items()}


def _table(rows: list[dict[str, Any]]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    headings = {"ms": "ms a step", "ratio": "of ERM", "peak_mib": "peak MiB"}
    for name, value in rows[0].items():
        table.add_column(headings.get(name, name), justify="left" if isinstance(value, str) else "right")
    shown = {"ms": ".2f", "ratio": ".2f", "peak_mib": ".0f"}
    for row in rows:
        table.add_row(*("" if v is None else format(v, shown.get(k, "")) for k, v in row.items()))
    return table


def _hardware(device: str) -> str:
    import torch

    from .show import provenance

    about = provenance()
    if device != "cpu" and torch.cuda.is_available():
        about["Hardware"] = torch.cuda.get_device_name()
    return ", ".join(f"{key}: {value}" for key, value in about.items())
