"""`trm predict`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .asking import AsJson
from .demo import folder

if TYPE_CHECKING:
    from rich.table import Table

    from ..fitting.predict import Predicted

ModelFolder = Annotated[Path, typer.Argument(parser=folder, metavar="MODEL", help="A folder that trm fit has written.")]
New = Annotated[str, typer.Argument(metavar="FILE", help="A table, embeddings, a manifest, or a folder of images.")]
Output = Annotated[
    str, typer.Option(help="Where predictions go: .parquet, .csv or .tsv; - for CSV on standard output.")
]
Identity = Annotated[str | None, typer.Option("--id", help="A column to keep beside the predictions.")]
Label = Annotated[str | None, typer.Option(help="Column with the true labels; the model's own when not given.")]
Environment = Annotated[str | None, typer.Option(help="Column with the environments, likewise.")]
Features = Annotated[str | None, typer.Option(help="Array or columns with embeddings; the model's own when not given.")]
PathColumn = Annotated[str | None, typer.Option("--path", help="Column of a manifest with the images' paths.")]
SkipBad = Annotated[bool, typer.Option("--skip-bad", help="Leave out images that cannot be read, and list them.")]
Size = Annotated[int, typer.Option("--chunk-rows", min=1, help="Rows that are read and predicted at a time.")]


def predict(
    model: ModelFolder,
    file: New,
    output: Output,
    identity: Identity = None,
    label: Label = None,
    environment: Environment = None,
    features: Features = None,
    path: PathColumn = None,
    skip_bad: SkipBad = False,
    chunk_rows: Size = 50_000,
    as_json: AsJson = False,
) -> None:
    """Predict new samples with a fitted model; where they have labels, say how it did.

    Example: trm predict model new.parquet --output predictions.parquet
    """
    from ..data import Options
    from ..errors import InputError
    from ..files import keep_apart
    from ..fitting import load
    from ..fitting.folder import FILES
    from ..fitting.predict import predict as predict_samples
    from .show import task_progress

    if output == "-" and as_json:
        raise InputError("--json and --output - would both write to standard output: name a file")
    fitted = load(model)
    keep_apart(Path(output), *(model / name for name in FILES))
    asked = Options(
        label=label,
        environment=environment,
        features=features,
        path=path or fitted.origin.names.get("path"),
        skip_bad=skip_bad,
    )
    with task_progress() as advance:
        done = predict_samples(
            fitted, file, None if output == "-" else Path(output), asked, identity, chunk_rows,
            lambda rows: advance("rows predicted", rows, 0),
        )  # fmt: skip
    if as_json:
        print(json.dumps(_summary(done, output), indent=2))
        return
    from rich.console import Console

    where = Console(stderr=output == "-")
    if done.right:
        where.print(_accuracy(done))
    print(f"{done.rows} predictions{'' if output == '-' else f': {output}'}", file=where.file)


def _accuracy(done: Predicted) -> Table:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(title="Accuracy by environment", title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    table.add_column("Environment")
    table.add_column("Rows", justify="right")
    table.add_column("Accuracy, %", justify="right")
    for name, (right, count) in done.right.items():
        table.add_row(Text(name), str(count), f"{100 * right / count:.1f}")
    return table


def _summary(done: Predicted, output: str) -> dict[str, object]:
    accuracy = {name: right / count for name, (right, count) in done.right.items()}
    rows = {name: count for name, (_, count) in done.right.items()}
    return {"rows": done.rows, "accuracy": accuracy, "labelled_rows": rows, "output": output}
