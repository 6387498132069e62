"""`trm audit`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ..data import Options
from .options import Json, data_options

Data = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="An .npz, .csv, .tsv or .parquet file, or a data set of trm data list; with --model also a folder of "
        "images.",
    ),
]
Model = Annotated[
    Path | None,
    typer.Option(
        help="A checkpoint of trm train or a folder of trm fit, whose features to audit in place of the data's own, on "
        "rows that it was not trained on. Images need one."
    ),
]
Output = Annotated[Path, typer.Option(metavar="FILE", help="The page to write, .html.")]
Ridge = Annotated[float | None, typer.Option(help="Of every predictor; by cross-validation when not given.")]
Folds = Annotated[int, typer.Option(min=2, max=100, help="Parts, of which each is held out once.")]
Draws = Annotated[int, typer.Option("--bootstrap", min=1, max=100_000, help="Draws behind each interval.")]
Confidence = Annotated[float, typer.Option(help="Share of the draws that an interval holds.")]
Standardise = Annotated[bool, typer.Option("--standardise/--raw", help="Bring features to mean 0 and deviation 1.")]


@data_options()
def audit(
    name: Data,
    options: Options,
    output: Output = Path("audit.html"),
    model: Model = None,
    ridge: Ridge = None,
    folds: Folds = 5,
    bootstrap: Draws = 200,
    confidence: Confidence = 0.95,
    standardise: Standardise = True,
    as_json: Json = None,
) -> None:
    """Tell whether predictors fitted on features in one environment work in the others.

    Example: trm audit embeddings.npz --label y --environment site --output audit.html
    """
    from ..auditing import audit as audit_features
    from ..auditing.page import accuracy_table
    from ..errors import InputError
    from ..files import check_target, expand_home, readable
    from ..reports.progress import task_progress
    from ..reports.terminal import print_line, print_values
    from .audit_data import data_name, read

    target = expand_home(output)
    if target.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--output must end in .html, got {target}")
    check_target(target)
    with task_progress() as advance:
        data = read(data_name(name, options), replace(options, progress=advance), model)
        found = audit_features(
            data.features,
            data.labels,
            data.environments,
            ridge=ridge,
            folds=folds,
            bootstrap=bootstrap,
            seed=options.seed,
            confidence=confidence,
            standardise=standardise,
            progress=advance,
        )
    found.to_html(target, shlex.join(["trm", *sys.argv[1:]]), readable(name))
    if as_json and as_json.write(found.to_dict() | {"page": str(target)}):
        return
    print_values(accuracy_table(found), *found.sentences)
    print_line(f"Report: {readable(target)}")
