"""`trm train`."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..settings import NonNegative, Share, whole, within
from .options import (
    Biases,
    Categorical,
    DataRoot,
    Dates,
    Device,
    Drop,
    Environment,
    Features,
    Json,
    Label,
    Lazy,
    Missing,
    MissingIndicators,
    Numeric,
    Oracle,
    PathColumn,
    Precision,
    Quiet,
    Schema,
    Seed,
    ShiftKind,
    Size,
    SkipBad,
    machine_option,
    model_option,
    parse_biases,
    training_option,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from ..reports import Table
    from ..results import Record

PARTS = {
    "train": "train",
    "training_domain": "validation, like training",
    "test_domain": "validation, like the test",
    "test": "test",
}
"""Names of the parts of the data in the table."""
Data = Annotated[
    str, typer.Option("--data", metavar="NAME", help="A data set, as in trm data list, such as pacs or folder:PATH.")
]
Output = Annotated[Path, typer.Option(metavar="FOLDER", help="Folder of the run.")]
TestEnv = Annotated[
    str | None, typer.Option(metavar="NAME", help="Environment to test on, for sets without one of their own.")
]
HoldOut = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Training environment to leave out and test on, to select settings; --test-env is not used.",
    ),
]
Algorithm = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="Algorithm: erm, reweight, irm, vrex, groupdro, mldg, fish, coral, fishr, eqrm, sam, mixup, dfr, trm, "
        "trm-direct, or one of an installed package. Default: trm; erm with --finetune-samples.",
    ),
]
Set = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="NAME=VALUE", help="Setting of the algorithm, such as ridge=1e-2. May be repeated."),
]
Resume = Annotated[
    bool, typer.Option("--resume", help="Continue the run in the folder, or start one if there is none.")
]
Backbone = Annotated[
    str | None,
    model_option(
        metavar="NAME",
        help="Network: cnn, wrn-16-2, linear, mlp, or a model of timm or of an installed package. "
        "Default: by the data.",
    ),
]
Weights = Annotated[
    str | None,
    model_option(
        "--weights",
        metavar="WEIGHTS",
        help="Weights of the backbone: imagenet, none, or a file. Default: imagenet if any.",
    ),
]
Init = Annotated[Path | None, model_option(metavar="FOLDER", help="Folder of a saved model to start from.")]
Samples = Annotated[
    int | None,
    model_option(
        "--finetune-samples",
        metavar="N",
        callback=whole(2),
        help="Train on N samples of the test environment, and no others.",
    ),
]
Epochs = Annotated[
    int | None,
    training_option(metavar="N", callback=whole(1), help="Number of epochs. Default: the data set's protocol."),
]
Batch = Annotated[
    int | None,
    training_option(
        "--batch-size", metavar="N", callback=whole(1), help="Number of samples of each environment in a step."
    ),
]
Lr = Annotated[
    float | None, training_option("--lr", metavar="RATE", callback=within(NonNegative), help="Learning rate.")
]
Decay = Annotated[float | None, training_option(metavar="NUMBER", callback=within(NonNegative), help="Weight decay.")]
Momentum = Annotated[
    float | None,
    training_option(metavar="SHARE", callback=within(Share), help="Momentum of SGD, or first beta of Adam, 0 to 1."),
]
Optimiser = Annotated[str | None, training_option(metavar="NAME", help="Optimiser: sgd, adam or adamw. Default: sgd.")]
Dropout = Annotated[
    float | None,
    training_option(metavar="SHARE", callback=within(Share), help="Share of the features set to 0 in each step."),
]
Average = Annotated[
    str | None,
    training_option(metavar="NAME", help="Average of the weights to evaluate and save: ema or swad. Default: none."),
]
DecayAt = Annotated[
    float | None,
    training_option(
        metavar="SHARE",
        callback=within(Share),
        help="Share of the steps after which the learning rate falls; 1: never.",
    ),
]
Evaluations = Annotated[
    int | None,
    training_option(metavar="N", callback=whole(1), help="Number of evaluations; each saves the state."),
]
Augment = Annotated[
    bool | None,
    training_option("--augment/--no-augment", help="Vary images at random. Default: if the backbone is pretrained."),
]
Recorded = Annotated[
    list[str] | None,
    training_option(
        "--record",
        metavar="WHAT",
        help="Also record irm (penalties) or transfer (the transfer matrix). May be repeated.",
    ),
]
Trackers = Annotated[
    list[str] | None,
    training_option("--tracker", metavar="NAME", help="Also report to tensorboard, mlflow or wandb. May be repeated."),
]
Every = Annotated[
    int | None,
    training_option(
        metavar="N",
        callback=whole(1),
        help="Number of steps between checkpoints, besides evaluations and every five minutes.",
    ),
]
Devices = Annotated[int, machine_option(metavar="N", callback=whole(1), help="Number of devices that share a batch.")]
Loaders = Annotated[
    int,
    machine_option(metavar="N", callback=whole(0), help="Number of processes that read ahead if memory is short."),
]


def train(
    name: Data,
    output: Output,
    test_env: TestEnv = None,
    hold_out: HoldOut = None,
    algorithm: Algorithm = None,
    settings: Set = None,
    resume: Resume = False,
    backbone: Backbone = None,
    weights: Weights = None,
    init: Init = None,
    finetune_samples: Samples = None,
    epochs: Epochs = None,
    batch_size: Batch = None,
    lr: Lr = None,
    weight_decay: Decay = None,
    momentum: Momentum = None,
    optimiser: Optimiser = None,
    dropout: Dropout = None,
    average: Average = None,
    decay_at: DecayAt = None,
    evaluations: Evaluations = None,
    augment: Augment = None,
    record: Recorded = None,
    tracker: Trackers = None,
    checkpoint_every: Every = None,
    device: Device = "auto",
    devices: Devices = 1,
    precision: Precision = None,
    loaders: Loaders = 2,
    quiet: Quiet = False,
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
    shift: ShiftKind = None,
    biases: Biases = None,
    oracle: Oracle = False,
) -> None:
    """Train a model on all environments but one, and test it on that one.

    Example: trm train --data pacs --test-env sketch --algorithm trm --output runs/sketch
    """
    from ..algorithms import parse_settings
    from ..models.saved import WEIGHTS
    from ..reports.terminal import print_line, print_values, task_progress
    from ..results.records import RECORDS
    from ..training import Progress, RunFolder, TrainSpec, run_spec
    from ..training.processes import first_process_speaks
    from ..training.run_folder import LAST
    from ..training.trackers import make_trackers

    given: dict[str, Any] = {
        "epochs": epochs, "batch_size": batch_size, "lr": lr, "weight_decay": weight_decay, "momentum": momentum,
        "decay_at": decay_at, "evaluations": evaluations, "record": tuple(record) if record else None,
        "optimiser": optimiser, "dropout": dropout, "average": average,
    }  # fmt: skip
    training = dict[str, Any]()
    for key, value in given.items():
        if value is not None:
            training[key] = value
    chosen = algorithm or ("trm" if finetune_samples is None else "erm")
    with first_process_speaks() as speaks:
        quiet = quiet or not speaks
        spec = TrainSpec(
            data=name,
            algorithm=chosen,
            seed=seed,
            test_env=test_env,
            hold_out=hold_out,
            backbone=backbone,
            weights=weights,
            init=None if init is None else str(init),
            finetune_samples=finetune_samples,
            augment=augment,
            precision=precision,  # type: ignore[arg-type]  # checked there
            shift=shift,  # type: ignore[arg-type]
            biases=None if biases is None else parse_biases(biases),
            oracle=oracle,
            size=size,
            skip_bad=skip_bad,
            label=label,
            environment=environment,
            features=features,
            categorical=categorical,
            numeric=numeric,
            drop=drop,
            missing=missing,
            dates=dates,  # type: ignore[arg-type]  # TrainSpec refuses other words
            schema=None if schema is None else str(schema),
            missing_indicators=None if missing_indicators == "auto" else missing_indicators,  # type: ignore[arg-type]
            path=path,
            settings=parse_settings(chosen, settings or ()),
            training=training,
        )
        say = None if quiet else lambda text: print_line(f"trm: {text}", stderr=True)
        again = shlex.join(["trm", *sys.argv[1:], *([] if resume else ["--resume"])])
        with task_progress(quiet) as advance:
            watch = [
                RunFolder(output, resume=resume, every=checkpoint_every, say=say, again=again),
                *(make_trackers(tracker, output) if tracker else ()),
                *([] if quiet else [Progress(partial(advance, "training steps"))]),
            ]
            trained = run_spec(
                spec,
                device=device,
                devices=devices,
                loaders=loaders,
                data_root=data_root,
                lazy=lazy or None,
                watch=watch,
                progress=advance,
            )
    files = {"model": str(output / WEIGHTS), "last_checkpoint": str(output / LAST), "records": str(output / RECORDS)}
    if not speaks or (as_json and as_json.write(_summary(trained.history, trained.rule) | files)) or quiet:
        return
    print_values(_accuracies(trained.history, trained.rule))
    print_line(f"Selected model: {files['model']}; last state: {files['last_checkpoint']}; records: {files['records']}")


def _accuracies(records: Sequence[Record], rule: str) -> Table:
    """Return a table with a row for each part and environment, at the selected evaluation and at the last."""
    from ..reports import Table, percent
    from ..results import select
    from ..results.selection import RULE_WORDS

    chosen, last = select(records, rule), select(records, "last")
    final = {}
    for record in last:
        final[record["part"], record.get("environment")] = record.get("accuracy")
    rows = []
    for part, words in PARTS.items():
        for record in chosen:
            if record["part"] == part:
                scores = record["accuracy"], record.get("worst_group"), final.get((part, record["environment"]))
                rows.append([words, record["environment"], *map(percent, scores)])
                words = ""
    return Table(
        f"Accuracy, %: step {chosen[0]['step']} of {last[0]['step']}, selected {RULE_WORDS[rule]}",
        ["Part", "Environment", "Selected step", "Worst class", "Last step"],
        rows,
    )


def _summary(records: Sequence[Record], rule: str) -> dict[str, Any]:
    """Return the selected and the last records for --json."""
    from ..results import mean_score, select

    chosen = select(records, rule)
    worst = [r["worst_group"] for r in chosen if r["part"] == "test" and r.get("worst_group") is not None]
    return {
        "selection": rule,
        "step": chosen[0]["step"],
        "test_accuracy": mean_score(chosen, "test"),
        "test_worst_group": min(worst, default=None),
        "selected": chosen,
        "last": select(records, "last"),
    }
