"""`trm export`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from .asking import AsJson
from .demo import folder


def export(
    model: Annotated[Path, typer.Argument(parser=folder, metavar="MODEL", help="A folder that trm fit has written.")],
    output: Annotated[Path, typer.Option(metavar="FILE", help="Where the model goes, such as model.onnx.")],
    as_json: AsJson = False,
) -> None:
    """Write a fitted model as ONNX, with its preprocessing, for runtimes without Python.

    Example: trm export model --output model.onnx
    """
    from ..files import keep_apart
    from ..fitting import load
    from ..fitting.export import PROBABILITIES
    from ..fitting.export import export as export_model
    from ..fitting.folder import FILES

    fitted = load(model)
    keep_apart(output, *(model / name for name in FILES))
    inputs = export_model(fitted, output)
    if as_json:
        told = [{"name": name, "type": kind, "meaning": meaning} for name, kind, meaning in inputs]
        outputs = {"output": PROBABILITIES, "classes": list(fitted.class_names)}
        print(json.dumps({"file": str(output), "inputs": told, **outputs}, indent=2))
        return
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from ..fitting.facts import named
    from .show import console

    table = Table(title="Inputs", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    for heading in ("Name", "Type", "Value"):
        table.add_column(heading)
    for row in inputs:
        table.add_row(*map(Text, row))
    console.print(table)
    classes = named(fitted.class_names)
    console.print(Text(f"Output: {PROBABILITIES}, float32 (n, {len(fitted.class_names)}), of {classes}"))
    console.print(Text(f"Model: {output}"), soft_wrap=True)
