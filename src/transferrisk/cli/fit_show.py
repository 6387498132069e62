"""What `trm fit` prints."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from rich import box
from rich.table import Table
from rich.text import Text

from ..fitting import Fitted, Plan
from ..fitting.defaults import ON_VECTORS
from ..fitting.facts import columns_of, how_compared, ranked
from ..fitting.folder import CARD, COMPARISON, REPORT, SCHEMA, WEIGHTS
from ..fitting.source import Source
from .show import console

MOST = 20  # columns that are printed


def _table(title: str) -> Table:
    return Table(title=Text(title), title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))


def show_columns(source: Source, folder: Path) -> None:
    """How each column is taken; of many, those first that there is something to say about."""
    table = _table(f"{source.name}: {len(source.samples)} rows, {len(source.sizes)} environments")
    for heading, side in (("Column", "left"), ("Taken as", "left"), ("Features", "right"), ("Remark", "left")):
        table.add_column(heading, justify=side)  # type: ignore[arg-type]  # rich's own words
    table.add_row(Text(source.label), "label", "", f"{len(source.samples.class_names)} classes")
    sizes = source.sizes
    table.add_row(Text(source.environment), "environment", "", f"{min(sizes.values())} to {max(sizes.values())} rows")
    found = columns_of(source.learn(torch.arange(len(source.samples))))
    if len(found) > MOST:
        found.sort(key=lambda column: not column[-1])
    for name, kind, number, remark in found[:MOST]:
        table.add_row(Text(name), kind, str(number), Text(remark), style="dim" if not number else None)
    console.print(table)
    if len(found) > MOST:
        console.print(Text(f"and {len(found) - MOST} more columns: see {folder / CARD}\n"), soft_wrap=True)


def show_network(source: Source, plan: Plan) -> None:
    """Of a pretrained backbone, whether it is trained and how to have it otherwise."""
    if plan.frozen:
        line = f"{plan.backbone} is taken as it is (frozen), and {plan.on_top} trained on its features; "
        line += "--tuned trains all of it, which takes far longer."
    elif source.kind == "images" and plan.weights not in (None, "none"):
        line = f"All of {plan.backbone} is trained; --frozen takes it as it is and trains {ON_VECTORS} on its features."
    else:
        return
    console.print(Text(line))


def explain(fitted: Fitted, folder: Path) -> None:
    if fitted.comparison is not None:
        console.print(comparison(fitted))
        console.print(Text(how_compared(fitted.comparison)))
    console.print(Text(f"Chosen: {fitted.choice.algorithm}, {fitted.choice.why}."))
    where = f"Model: {folder / WEIGHTS}, {SCHEMA}; card: {folder / CARD}; report: {folder / REPORT}"
    console.print(Text(where), soft_wrap=True)


def comparison(fitted: Fitted) -> Table:
    assert fitted.comparison is not None
    held = fitted.comparison.held == "environments"
    table = _table("Accuracy, %, in environments not trained on" if held else "Accuracy, %, on held-out rows")
    table.add_column("Algorithm")
    for heading in (*fitted.comparison.environments, "Mean", "Worst"):
        table.add_column(Text(heading), justify="right")
    for name, values, mean, worst in ranked(fitted.comparison):
        cells = [f"{100 * value:.1f}" for value in (*values, mean, worst)]
        table.add_row(name, *cells, style="bold" if name == fitted.choice.algorithm else None)
    return table


def summary(fitted: Fitted, folder: Path) -> dict[str, Any]:
    """The same for a program, with where everything lies."""
    return {
        "algorithm": fitted.choice.algorithm,
        "why": fitted.choice.why,
        "comparison": None if fitted.comparison is None else fitted.comparison.to_dict(),
        "rows": len(fitted.source.samples),
        "environments": fitted.source.sizes,
        "network": {
            "backbone": fitted.plan.backbone,
            "weights": fitted.plan.weights,
            "frozen": bool(fitted.plan.frozen),
            "on_top": fitted.plan.on_top,
        },
        "classes": list(fitted.source.samples.class_names),
        "features": [
            {"column": name, "taken_as": kind, "features": number, "remark": remark}
            for name, kind, number, remark in columns_of(fitted.model.encoder)
        ],
        "model": str(folder),
        "card": str(folder / CARD),
        "report": str(folder / REPORT),
        "comparison_file": str(folder / COMPARISON),
    }
