"""`trm audit`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from ..settings import Bound, Positive, whole, within
from .options import (
    Categorical,
    DataRoot,
    Dates,
    Drop,
    DropSmall,
    Environment,
    Features,
    Json,
    Label,
    Lazy,
    Missing,
    MissingIndicators,
    Numeric,
    PathColumn,
    Schema,
    Seed,
    Size,
    SkipBad,
)

if TYPE_CHECKING:
    from torch import Tensor

    from ..data import EnvironmentSet

Data = Annotated[
    str,
    typer.Argument(
        metavar="FILE",
        help="An .npz, .csv, .tsv or .parquet file, a folder of images, or a data set of trm data list.",
    ),
]
Output = Annotated[Path, typer.Option(metavar="FILE", help="HTML page to write.")]
Model = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER",
        help="Folder of trm train or trm fit. The features of its model are audited in place of the data's own, on "
        "rows that it was not trained on. Default for images: features of a pretrained backbone.",
    ),
]
Ridge = Annotated[
    float | None,
    typer.Option(
        "--ridge",
        metavar="RIDGE",
        callback=within(Positive),
        help="Ridge of every predictor, > 0. Default: chosen by cross-validation.",
    ),
]
Folds = Annotated[
    int, typer.Option(metavar="N", callback=whole(2, 100), help="Number of folds; each is held out once.")
]
Draws = Annotated[
    int,
    typer.Option(
        "--bootstrap", metavar="N", callback=whole(1, 100_000), help="Number of bootstrap draws for each interval."
    ),
]
Confidence = Annotated[
    float,
    typer.Option(
        metavar="SHARE",
        callback=within(Annotated[float, Bound(above=0, below=1)]),
        help="Confidence level of the intervals, such as 0.9.",
    ),
]
Standardise = Annotated[
    bool, typer.Option("--standardise/--raw", help="Bring features to mean 0 and standard deviation 1.")
]


def audit(
    name: Data,
    output: Output = Path("audit.html"),
    model: Model = None,
    ridge: Ridge = None,
    folds: Folds = 5,
    bootstrap: Draws = 200,
    confidence: Confidence = 0.95,
    standardise: Standardise = True,
    drop_small: DropSmall = False,
    as_json: Json = None,
    data_root: DataRoot = None,
    seed: Seed = 0,
    label: Label = None,
    environment: Environment = None,
    features: Features = None,
    categorical: Categorical = None,
    numeric: Numeric = None,
    drop: Drop = None,
    missing: Missing = None,
    dates: Dates = None,
    schema: Schema = None,
    missing_indicators: MissingIndicators = "auto",
    path: PathColumn = None,
    size: Size = None,
    lazy: Lazy = False,
    skip_bad: SkipBad = False,
) -> None:
    """Test whether predictors fitted on features in one environment work in the others.

    Example: trm audit embeddings.npz --label y --environment site --output audit.html
    """
    from ..auditing import audit as audit_features
    from ..auditing.columns import column_effects
    from ..auditing.page import accuracy_table, findings_of, verdict_of
    from ..auditing.samples import read_features
    from ..auditing.shift import shift_sentences
    from ..data import Options
    from ..errors import InputError
    from ..files import check_target, expand_home, readable
    from ..reports.terminal import print_line, print_values, task_progress

    target = expand_home(output)
    if target.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"--output must end in .html, got {target}")
    check_target(target)
    backbone = ""
    with task_progress() as advance:

        def tell(what: str, done: int, total: int) -> None:
            nonlocal backbone
            backbone = what
            advance(what, done, total)

        options = Options(
            root=data_root, seed=seed, label=label, environment=environment, features=features, path=path, size=size,
            lazy=lazy or None, skip_bad=skip_bad, progress=advance, categorical=categorical, numeric=numeric, drop=drop,
            schema=schema, missing=missing, dates=cast(Any, dates), missing_indicators=cast(Any, missing_indicators),
        )  # fmt: skip
        if model is None:

            def of_images(images: EnvironmentSet) -> Tensor | None:
                from ..fitting.audited import pretrained_features

                return pretrained_features(images, tell)

            rows = read_features(name, options, of_images, drop_small)
        else:
            from ..fitting.audited import read_model_features

            rows = read_model_features(expand_home(model), name, options, drop_small)
        found = audit_features(
            *rows[:3],
            ridge=ridge,
            folds=folds,
            bootstrap=bootstrap,
            seed=seed,
            confidence=confidence,
            standardise=standardise,
            progress=advance,
        )
        if rows.groups:
            advance("auditing columns", 0, 1)
            columns = column_effects(
                *(rows.whole, rows.groups, *rows[1:3]),
                missing=rows.missing,
                suspects=rows.suspects,
                confidence=confidence,
                seed=seed,
            )
            found = replace(found, columns=columns)
    found.to_html(target, shlex.join(["trm", *sys.argv[1:]]), readable(name))
    if as_json and as_json.write(found.to_dict() | {"page": str(target)}):
        return
    if backbone:
        print_line(f"Audited: {backbone}, pretrained on ImageNet. --model audits features of your own model.")
    by_column = found.columns.sentences if found.columns else ()
    shifts = shift_sentences(found.shifts) if found.shifts else ()
    print_values(*verdict_of(found), accuracy_table(found), *findings_of(found), *shifts, *by_column)
    print_line(f"Report: {readable(target)}")
