"""`trm export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Json, parse_folder


def export(
    model: Annotated[
        Path, typer.Argument(parser=parse_folder, metavar="MODEL", help="A folder that trm fit has written.")
    ],
    output: Annotated[Path, typer.Option(metavar="FILE", help="Where the model goes, such as model.onnx.")],
    as_json: Json = None,
) -> None:
    """Write a fitted model as ONNX, with its preprocessing, for runtimes without Python.

    Example: trm export model --output model.onnx
    """
    from ..files import keep_apart
    from ..fitting import load
    from ..fitting.export import PROBABILITIES
    from ..fitting.export import export as export_model
    from ..fitting.facts import named
    from ..fitting.folder import FILES
    from ..reports import Table
    from ..reports.terminal import print_line, print_values

    fitted = load(model)
    keep_apart(output, *(model / name for name in FILES))
    inputs = export_model(fitted, output)
    told = [{"name": name, "type": kind, "meaning": meaning} for name, kind, meaning in inputs]
    outputs = {"output": PROBABILITIES, "classes": list(fitted.class_names)}
    if as_json and as_json.write({"file": str(output), "inputs": told, **outputs}):
        return
    print_values(Table("Inputs", ["Name", "Type", "Value"], inputs))
    print_values(f"Output: {PROBABILITIES}, float32 (n, {len(fitted.class_names)}), of {named(fitted.class_names)}")
    print_line(f"Model: {output}")
