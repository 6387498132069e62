"""`trm predict`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import Json, parse_folder

if TYPE_CHECKING:
    from ..fitting.predict import Predicted
    from ..reports import Table

ModelFolder = Annotated[
    Path, typer.Argument(parser=parse_folder, metavar="MODEL", help="A folder that trm fit has written.")
]
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
    as_json: Json = None,
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
    from ..reports.progress import task_progress
    from ..reports.terminal import print_line, print_values

    if output == "-" and as_json and as_json.path is None:
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
    if as_json and as_json.write(_summary(done, output)):
        return
    to_stderr = output == "-"
    if done.right:
        print_values(_accuracy(done), stderr=to_stderr)
    print_line(f"{done.rows} predictions{'' if to_stderr else f': {output}'}", stderr=to_stderr)


def _accuracy(done: Predicted) -> Table:
    from ..reports import Table, percent

    return Table(
        "Accuracy by environment",
        ["Environment", "Rows", "Accuracy, %"],
        [[name, count, percent(right / count)] for name, (right, count) in done.right.items()],
    )


def _summary(done: Predicted, output: str) -> dict[str, object]:
    accuracy = {name: right / count for name, (right, count) in done.right.items()}
    rows = {name: count for name, (_, count) in done.right.items()}
    return {"rows": done.rows, "accuracy": accuracy, "labelled_rows": rows, "output": output}
