"""`trm train`."""

from __future__ import annotations

import shlex
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from ..data import Options
from .options import (
    Device,
    Json,
    Precision,
    Quiet,
    data_options,
    machine_option,
    model_option,
    parse_folder,
    training_option,
)

Data = Annotated[str, typer.Option("--data", help="A data set, as in trm data list, such as pacs or folder:PATH.")]
Output = Annotated[Path, typer.Option(parser=parse_folder, metavar="FOLDER", help="Folder of the run.")]
TestEnv = Annotated[str | None, typer.Option(help="Environment to test on, for sets without one of their own.")]
HoldOut = Annotated[
    str | None,
    typer.Option(help="Training environment to leave out and test on, to select settings; --test-env is left out too."),
]
Algorithm = Annotated[
    str | None,
    typer.Option(
        help="erm, reweight, irm, vrex, groupdro, mldg, fish, trm, trm-direct, or one of an installed package. "
        "Default: trm."
    ),
]
Set = Annotated[
    list[str] | None, typer.Option("--set", metavar="NAME=VALUE", help="Setting of the algorithm, such as ridge=1e-2.")
]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")]
Backbone = Annotated[
    str | None,
    model_option(help="cnn, wrn-16-2, linear, mlp, a model of timm or of an installed package. Default: by the data."),
]
Weights = Annotated[str | None, model_option(help="imagenet, none, or a file of weights for the backbone.")]
Init = Annotated[Path | None, model_option(help="Folder of a trained model whose weights to begin with.")]
Samples = Annotated[
    int | None, model_option("--finetune-samples", min=2, help="Train on this many samples of the test environment.")
]
Epochs = Annotated[int | None, training_option(min=1, help="Number of epochs. Default: the data set's protocol.")]
Batch = Annotated[int | None, training_option("--batch-size", min=1, help="Samples of each environment in a step.")]
Lr = Annotated[float | None, training_option("--lr", min=0, help="Learning rate.")]
Decay = Annotated[float | None, training_option(min=0, help="Weight decay.")]
Momentum = Annotated[float | None, training_option(min=0, max=1, help="Momentum of SGD.")]
DecayAt = Annotated[
    float | None, training_option(min=0, max=1, help="Share of the steps after which the rate falls; 1: never.")
]
Evaluations = Annotated[int | None, training_option(min=1, help="Number of evaluations, each of which is saved.")]
Augment = Annotated[
    bool | None, training_option("--augment/--no-augment", help="Vary images. Default: where pretrained.")
]
Recorded = Annotated[list[str] | None, training_option("--record", help="Measure irm or transfer as well.")]
Trackers = Annotated[list[str] | None, training_option("--tracker", help="Report to tensorboard or mlflow as well.")]
Every = Annotated[
    int | None, training_option(min=1, help="Save every so many steps, besides evaluations and every five minutes.")
]
Devices = Annotated[int, machine_option(min=1, help="Number of devices that share a batch.")]
Loaders = Annotated[int, machine_option(min=0, help="Processes that read data ahead where memory does not hold it.")]


@data_options(synthetic=True)
def train(
    name: Data,
    output: Output,
    options: Options,
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
) -> None:
    """Train a model on all environments but one, and see how it does in that one.

    Example: trm train --data pacs --test-env sketch --algorithm trm --output runs/sketch
    """
    from ..algorithms import parse_settings
    from ..models.saved import WEIGHTS
    from ..reports.comparison import run_summary, run_table
    from ..reports.terminal import print_line, print_values, task_progress
    from ..results.records import RECORDS
    from ..training import Progress, RunFolder, TrainSpec, run_spec
    from ..training.processes import first_process_speaks
    from ..training.run_folder import LAST
    from ..training.trackers import make_trackers

    given: dict[str, Any] = {
        "epochs": epochs, "batch_size": batch_size, "lr": lr, "weight_decay": weight_decay, "momentum": momentum,
        "decay_at": decay_at, "evaluations": evaluations, "record": tuple(record) if record else None,
    }  # fmt: skip
    shift = options.shift
    chosen = algorithm or ("trm" if finetune_samples is None else "erm")
    with first_process_speaks() as speaks:
        quiet = quiet or not speaks
        spec = TrainSpec(
            data=name,
            algorithm=chosen,
            seed=options.seed,
            test_env=test_env,
            hold_out=hold_out,
            backbone=backbone,
            weights=weights,
            init=None if init is None else str(init),
            finetune_samples=finetune_samples,
            augment=augment,
            precision=precision,  # type: ignore[arg-type]  # checked there
            shift=None if shift is None else shift.kind,
            biases=None if shift is None else shift.biases,
            oracle=options.oracle,
            size=options.size,
            skip_bad=options.skip_bad,
            label=options.label,
            environment=options.environment,
            features=options.features,
            path=options.path,
            settings=parse_settings(chosen, settings or ()),
            training={key: value for key, value in given.items() if value is not None},
        )
        say = None if quiet else partial(print, "trm:", file=sys.stderr)
        again = shlex.join(["trm", *(word for word in sys.argv[1:] if word != "--resume"), "--resume"])
        watch = [
            RunFolder(output, resume=resume, every=checkpoint_every, say=say, again=again),
            *(make_trackers(tracker, output) if tracker else ()),
            *([] if quiet else [Progress()]),
        ]
        with task_progress(quiet) as advance:
            trained = run_spec(
                spec,
                device=device,
                devices=devices,
                loaders=loaders,
                data_root=options.root,
                lazy=options.lazy,
                watch=watch,
                progress=advance,
            )
    files = {"model": str(output / WEIGHTS), "last_checkpoint": str(output / LAST), "records": str(output / RECORDS)}
    if not speaks or (as_json and as_json.write(run_summary(trained.history, trained.rule) | files)) or quiet:
        return
    print_values(run_table(trained.history, trained.rule))
    print_line(f"Selected model: {files['model']}; last state: {files['last_checkpoint']}; records: {files['records']}")
