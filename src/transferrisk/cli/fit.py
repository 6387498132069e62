"""`trm fit`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any, cast

import typer

from ..settings import whole
from .options import (
    Categorical,
    DataRoot,
    Dates,
    Device,
    Drop,
    DropSmall,
    Environment,
    Features,
    Force,
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
    image_option,
    machine_option,
    model_option,
    training_option,
)

Name = Annotated[
    str, typer.Argument(metavar="FILE", help="A table, embeddings, a folder of images, or a data set of trm data list.")
]
Output = Annotated[Path, typer.Option(metavar="FOLDER", help="Folder to write the model to.")]
DropUnstable = Annotated[
    bool,
    typer.Option(
        "--drop-unstable",
        help="Leave out a table's columns whose effect on the label differs between environments.",
    ),
]
Algorithms = Annotated[
    str | None,
    model_option(
        metavar="NAMES",
        help="Candidates to compare, separated by commas: majority, linear; trees: boosting (scikit-learn's), "
        "lightgbm, boosting-weighted (small, environments weighted), trm-leaves (transfer risk on leaves); networks: "
        "erm (empirical risk), groupdro (worst environment), trm (transfer risk) and every other algorithm; blend, a "
        "weighted average of the others. Default: all named here that are installed; no trees for vectors and images; "
        "networks alone for images with a backbone that is trained.",
    ),
]
Algorithm = Annotated[
    str | None,
    model_option(
        metavar="NAME", help="Candidate to take, whatever the comparison says. Default: the comparison's choice."
    ),
]
Metric = Annotated[
    str,
    model_option(
        "--metric",
        metavar="METRIC",
        help="Metric in held-out environments that the choice goes by: log_loss, brier, auroc, accuracy, "
        "balanced_accuracy or f1. The last three also set the threshold between two classes.",
    ),
]
Compare = Annotated[
    bool, model_option("--compare/--no-compare", help="Compare candidates in held-out environments first.")
]
Set = Annotated[
    list[str] | None,
    model_option(
        "--set",
        metavar="NAME=VALUE",
        help="Setting of each algorithm that has it, ridge=1e-2, or of one, trm.ridge=1e-2.",
    ),
]
Backbone = Annotated[
    str | None, model_option(metavar="NAME", help="Network. Default: mlp:64 for vectors, by size for images.")
]
Weights = Annotated[
    str | None,
    image_option("--weights", metavar="WEIGHTS", help="imagenet, none, or a file of weights for the backbone."),
]
Frozen = Annotated[
    bool | None,
    image_option(
        "--frozen/--tuned", help="Keep a pretrained backbone as it is, or train all of it. Default: frozen on a CPU."
    ),
]
OnTop = Annotated[str | None, image_option(metavar="NAME", help="Network on a frozen backbone. Default: mlp:64.")]
Epochs = Annotated[
    int | None,
    training_option(
        metavar="N", callback=whole(1), help="Number of passes over all rows. Default: by the number of rows."
    ),
]
Repeats = Annotated[
    int, training_option(metavar="N", callback=whole(1, 100), help="Number of seeds of the comparison, at most 100.")
]
Folds = Annotated[
    int, training_option(metavar="N", callback=whole(1), help="Largest number of trainings of each candidate.")
]
Ordered = Annotated[
    bool,
    training_option(
        "--ordered", help="Environments are times, such as years: hold out the future only, after training on the past."
    ),
]
Workers = Annotated[
    int | None,
    machine_option(
        metavar="N", callback=whole(1), help="Number of processes that train at once. Default: by the number of rows."
    ),
]


def fit(
    name: Name,
    output: Output,
    force: Force = False,
    drop_small: DropSmall = False,
    drop_unstable: DropUnstable = False,
    skip_bad: SkipBad = False,
    json: Json = None,
    data_root: DataRoot = None,
    seed: Seed = 0,
    label: Label = None,
    environment: Environment = None,
    features: Features = None,
    drop: Drop = None,
    categorical: Categorical = None,
    numeric: Numeric = None,
    missing: Missing = None,
    dates: Dates = None,
    schema: Schema = None,
    missing_indicators: MissingIndicators = "auto",
    algorithms: Algorithms = None,
    algorithm: Algorithm = None,
    metric: Metric = "log_loss",
    compare: Compare = True,
    set_: Set = None,
    backbone: Backbone = None,
    ordered: Ordered = False,
    folds: Folds = 10,
    repeats: Repeats = 1,
    epochs: Epochs = None,
    workers: Workers = None,
    device: Device = "auto",
    weights: Weights = None,
    frozen: Frozen = None,
    on_top: OnTop = None,
    path: PathColumn = None,
    size: Size = None,
    lazy: Lazy = False,
) -> None:
    """Compare candidates in held-out environments, fit one to all rows, and save the model.

    Example: trm fit visits.csv --label outcome --environment hospital --output model
    """
    from ..data import Options
    from ..fitting.fitted import fit_source
    from ..fitting.folder import check_output, kept_beside, save_fit
    from ..fitting.plan import Plan, settle
    from ..fitting.report import columns_table, fit_sections, frozen_note, summarise_fit
    from ..fitting.source import read_source
    from ..reports.terminal import print_line, print_values, task_progress, width

    options = Options(
        root=data_root, seed=seed, label=label, environment=environment, features=features, path=path, size=size,
        lazy=lazy or None, skip_bad=skip_bad, categorical=categorical, numeric=numeric, drop=drop, schema=schema,
        missing=missing, dates=cast(Any, dates), missing_indicators=cast(Any, missing_indicators),
    )  # fmt: skip
    names = None if algorithms is None else tuple(filter(None, map(str.strip, algorithms.split(","))))
    plan = Plan(
        algorithms=names, algorithm=algorithm, metric=cast(Any, metric),
        compared=compare, settings=tuple(set_ or ()), backbone=backbone, weights=weights, epochs=epochs,
        seed=seed, repeats=repeats, folds=folds, ordered=ordered, device=device,
        workers=workers, drop_small=drop_small, drop_unstable=drop_unstable, frozen=frozen, on_top=on_top,
    )  # fmt: skip
    check_output(output, force)
    quiet = json is not None and json.path is None
    with task_progress() as advance:
        source = read_source(name, replace(options, progress=advance), drop_small)
    plan = settle(source, plan)
    if not quiet:
        print_values(columns_table(source, output))
    if frozen is None and not quiet:
        print_values(frozen_note(source, plan))
    with task_progress() as advance:
        say = partial(print_line, stderr=True)
        fitted = fit_source(source, plan, options, advance, kept_beside(output), say)
        advance("writing the model", 1, 1)
        save_fit(fitted, output, shlex.join(["trm", *sys.argv[1:]]), force)
    if json is None or not json.write(summarise_fit(fitted, output)):
        print_line("")
        print_values(*fit_sections(fitted, width()))
        print_line(f"Model: {output}; card: {output / 'card.md'}; report: {output / 'report.html'}")
