"""`trm export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Json


def export(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a model.")],
    output: Annotated[Path, typer.Option(metavar="FILE", help="File to write, such as model.onnx.")],
    json: Json = None,
) -> None:
    """Write a fitted model as ONNX, for runtimes without Python.

    The graph of a trm fit model takes the columns of a table; that of a trm train model takes encoded features.

    Example: trm export model --output model.onnx
    """
    from ..files import check_target
    from ..fitting.export import PROBABILITIES, export_onnx
    from ..fitting.model import FILES, load_model
    from ..fitting.report import names_in_text
    from ..reports import Table
    from ..reports.terminal import print_line, print_values

    loaded = load_model(model)
    check_target(output, *map(model.joinpath, FILES))
    inputs = export_onnx(loaded, output)
    described = [{"name": name, "type": kind, "meaning": meaning} for name, kind, meaning in inputs]
    threshold = loaded.decision.threshold
    classes = {"output": PROBABILITIES, "classes": list(loaded.classes), "threshold": threshold}
    if json is None or not json.write({"file": str(output), "inputs": described, **classes}):
        print_values(Table("Inputs", ["Name", "Type", "Value"], inputs))
        named = names_in_text(loaded.classes)
        print_values(f"Output: {PROBABILITIES}, float32 (n, {len(loaded.classes)}), of {named}")
        if threshold is not None:
            print_values(
                f"Predict {loaded.classes[1]!r} where its probability is above {threshold:.3f}, the file's property "
                "threshold; the graph gives probabilities alone."
            )
        print_line(f"Model: {output}")
