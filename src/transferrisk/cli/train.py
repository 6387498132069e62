"""`trm train`."""

from __future__ import annotations

import json
import os
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..data import Options
from .asking import AsJson, reads_data
from .demo import folder

if TYPE_CHECKING:
    from ..training.request import Request

Data = Annotated[str, typer.Option("--data", help="A data set, as in trm data list, such as pacs or folder:PATH.")]
Output = Annotated[Path, typer.Option(parser=folder, metavar="FOLDER", help="Where checkpoints and records go.")]
TestEnv = Annotated[str | None, typer.Option(help="The environment to test on, for sets that do not say.")]
HoldOut = Annotated[
    str | None, typer.Option(help="Test on this one instead, without --test-env's: to select settings.")
]
Algorithm = Annotated[str | None, typer.Option(help="erm, reweight, irm, vrex, groupdro, mldg, fish, trm, trm-direct.")]
Set = Annotated[list[str] | None, typer.Option("--set", help="A setting of the algorithm, such as ridge=1e-2.")]
Backbone = Annotated[
    str | None, typer.Option(help="cnn, wrn-16-2, linear, mlp or one of timm; by the data if not given.")
]
Weights = Annotated[str | None, typer.Option(help="imagenet, none, or a file of weights for the backbone.")]
Resume = Annotated[bool, typer.Option("--resume", help="Go on with the run in the folder.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="The protocol's for the data when not given, as what follows.")]
Batch = Annotated[int | None, typer.Option("--batch-size", min=1, help="Samples of each environment in a step.")]
Lr = Annotated[float | None, typer.Option("--lr", min=0, help="Learning rate.")]
Decay = Annotated[float | None, typer.Option(min=0, help="Weight decay.")]
Momentum = Annotated[float | None, typer.Option(min=0, max=1)]
DecayAt = Annotated[
    float | None, typer.Option(min=0, max=1, help="Share of the steps before the rate falls; 1: never.")
]
Evaluations = Annotated[int | None, typer.Option(min=1, help="How often to evaluate, and save.")]
Augment = Annotated[bool | None, typer.Option("--augment/--no-augment", help="Vary images; on where pretrained.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda or cuda:1.")]
Devices = Annotated[int, typer.Option(min=1, help="How many devices share a batch.")]
Precision = Annotated[str | None, typer.Option(help="fp32, tf32 or bf16; bf16 on a GPU when not given, else fp32.")]
Workers = Annotated[int, typer.Option(min=0, help="Processes that read ahead what does not fit in memory.")]
Every = Annotated[int | None, typer.Option(min=1, help="Save every so many steps too, besides every five minutes.")]
Recorded = Annotated[list[str] | None, typer.Option("--record", help="Measure irm or transfer as well.")]
Trackers = Annotated[list[str] | None, typer.Option("--tracker", help="Report to tensorboard or mlflow as well.")]
Init = Annotated[Path | None, typer.Option(help="A checkpoint whose weights to begin with.")]
Samples = Annotated[
    int | None, typer.Option("--finetune-samples", min=2, help="Train on so many of the test's samples.")
]
Quiet = Annotated[bool, typer.Option("--quiet", help="Print nothing on the way.")]


@reads_data
def train(
    name: Data,
    output: Output,
    options: Options,
    test_env: TestEnv = None,
    hold_out: HoldOut = None,
    algorithm: Algorithm = None,
    settings: Set = None,
    backbone: Backbone = None,
    weights: Weights = None,
    resume: Resume = False,
    epochs: Epochs = None,
    batch_size: Batch = None,
    lr: Lr = None,
    weight_decay: Decay = None,
    momentum: Momentum = None,
    decay_at: DecayAt = None,
    evaluations: Evaluations = None,
    augment: Augment = None,
    device: Device = "auto",
    devices: Devices = 1,
    precision: Precision = None,
    workers: Workers = 2,
    checkpoint_every: Every = None,
    record: Recorded = None,
    tracker: Trackers = None,
    init: Init = None,
    finetune_samples: Samples = None,
    quiet: Quiet = False,
    as_json: AsJson = False,
) -> None:
    """Train a model on all environments but one, and see how it does in that one.

    Example: trm train --data pacs --test-env sketch --algorithm trm --output runs/sketch
    """
    from ..training.request import Request

    asked: dict[str, Any] = {
        "epochs": epochs, "batch_size": batch_size, "lr": lr, "weight_decay": weight_decay, "momentum": momentum,
        "decay_at": decay_at, "evaluations": evaluations, "record": tuple(record) if record else None,
    }  # fmt: skip
    request = Request(
        name, options, test_env, hold_out, algorithm, tuple(settings or ()), backbone, weights,
        {key: value for key, value in asked.items() if value is not None},
        augment, init, finetune_samples, device, devices, precision, workers,  # type: ignore[arg-type]  # checked by the engine
    )  # fmt: skip
    _train(request, output, resume, checkpoint_every, tuple(tracker or ()), quiet, as_json)


def _train(
    request: Request,
    folder: Path,
    resume: bool,
    every: int | None,
    trackers: tuple[str, ...],
    quiet: bool,
    as_json: bool,
) -> None:
    from ..training import Output, Stopped
    from ..training import train as train_model
    from ..training.trackers import check_trackers, followed
    from .show import task_progress
    from .train_show import note, summary, training_progress

    place = os.environ.get("RANK", os.environ.get("LOCAL_RANK", "0")) if "WORLD_SIZE" in os.environ else "0"
    follows = place.isdecimal() and int(place) > 0
    if follows:  # one of several processes, of which the first speaks
        quiet, as_json, trackers = True, False, ()
    check_trackers(trackers)
    output = Output(folder, resume, every, say=(lambda _: None) if quiet else note)
    with task_progress(quiet) as advance:
        run = replace(request, options=replace(request.options, progress=advance)).run()
    try:
        with (
            training_progress(run.algorithm, quiet) as watch,
            followed(watch, trackers, folder, run.describe()) as all_,
        ):
            records = train_model(
                run,
                watch.step,
                output=output,
                on_loss=all_.loss,
                on_record=all_.record,
            )
    except Stopped as stopped:
        if follows:
            raise typer.Exit(stopped.exit_code) from None
        raise Stopped(stopped.signum, stopped.step, stopped.total, _again()) from None
    if as_json:
        print(json.dumps(summary(records, folder), indent=2))
    elif not quiet:
        from ..training.output import BEST, LAST, RECORDS
        from .show import console
        from .train_show import accuracies

        console.print(accuracies(records))
        where = f"Selected model: {folder / BEST}; the last one: {folder / LAST}; records: {folder / RECORDS}"
        console.print(where, highlight=False, markup=False, soft_wrap=True)


def _again() -> str:
    """The command that goes on with this one."""
    given = [argument for argument in sys.argv[1:] if argument != "--resume"]
    return shlex.join(["trm", *given, "--resume"])
