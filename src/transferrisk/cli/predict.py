"""`trm predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from .options import Json, PathColumn, SkipBad, column_option

ModelFolder = Annotated[Path, typer.Argument(metavar="MODEL", help="Folder of a model.")]
New = Annotated[str, typer.Argument(metavar="FILE", help="Table, embeddings, manifest, or folder of images.")]
Output = Annotated[
    str, typer.Option(metavar="FILE", help="File to write: .csv, .tsv or .parquet; - writes CSV to standard output.")
]
Identity = Annotated[str | None, typer.Option("--id", metavar="COLUMN", help="Column to keep beside the predictions.")]
Size = Annotated[int, typer.Option("--chunk-rows", metavar="N", help="Number of rows to read and predict at a time.")]
Label = Annotated[
    str | None, column_option(metavar="COLUMN", help="Column with the true labels. Default: the model's.")
]
Environment = Annotated[
    str | None, column_option(metavar="COLUMN", help="Column with the environments. Default: the model's.")
]
Features = Annotated[
    str | None, column_option(metavar="COLUMNS", help="Array or columns with the embeddings. Default: the model's.")
]

Sets = Annotated[
    bool,
    typer.Option("--sets", help="Add a column with each row's prediction set, the classes that are likely enough."),
]
Coverage = Annotated[
    float | None,
    typer.Option(
        metavar="SHARE", help="Share of rows whose set should hold the true class, 0.5 to 0.99. Default: 0.9."
    ),
]
Neutralise = Annotated[
    bool, typer.Option("--neutralise", help="Write ' before CSV cells that a spreadsheet would take for formulas.")
]


def predict(
    model: ModelFolder,
    file: New,
    output: Output,
    identity: Identity = None,
    chunk_rows: Size = 50_000,
    label: Label = None,
    environment: Environment = None,
    features: Features = None,
    path: PathColumn = None,
    skip_bad: SkipBad = False,
    sets: Sets = False,
    coverage: Coverage = None,
    neutralise: Neutralise = False,
    json: Json = None,
) -> None:
    """Predict new samples with a fitted model; if they have labels, print how good the predictions are.

    Example: trm predict model new.parquet --output predictions.parquet
    """
    from ..errors import InputError
    from ..files import check_target, standard_output
    from ..fitting.model import FILES, load_model
    from ..fitting.predict import predict_file
    from ..reports.terminal import print_line, print_values, task_progress

    to_stdout = output == "-"
    if to_stdout:
        standard_output()  # before the work
    if to_stdout and json is not None and json.path is None:
        raise InputError("--json and --output - both write to standard output: name a file")
    if coverage is not None and not sets:
        raise InputError(f"--coverage needs --sets, got {coverage} without it: add --sets")
    level = (0.9 if coverage is None else coverage) if sets else None
    loaded = load_model(model)
    if not to_stdout:
        check_target(Path(output), *map(model.joinpath, FILES))
    with task_progress() as advance:
        done = predict_file(
            loaded,
            file,
            None if to_stdout else Path(output),
            label=label,
            environment=environment,
            features=features,
            path=path,
            identity=identity,
            skip_bad=skip_bad,
            size=chunk_rows,
            on_progress=advance,
            coverage=level,
            neutralise=neutralise,
        )
    if json is None or not json.write({**done.to_dict(), "output": output}):
        print_values(*done.sections(), stderr=to_stdout)
        print_line(f"{done.rows} predictions{'' if to_stdout else f': {output}'}", stderr=to_stdout)
