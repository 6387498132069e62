"""`trm train`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..data import Options
from .options import Json, data_options, parse_folder

if TYPE_CHECKING:
    from ..training import Record, Request

Data = Annotated[str, typer.Option("--data", help="A data set, as in trm data list, such as pacs or folder:PATH.")]
Output = Annotated[Path, typer.Option(parser=parse_folder, metavar="FOLDER", help="Where checkpoints and records go.")]
TestEnv = Annotated[str | None, typer.Option(help="The environment to test on, for sets that do not say.")]
HoldOut = Annotated[
    str | None, typer.Option(help="Test on this one instead, without --test-env's: to select settings.")
]
Algorithm = Annotated[
    str | None,
    typer.Option(
        help="erm, reweight, irm, vrex, groupdro, mldg, fish, trm, trm-direct, or one of an installed package."
    ),
]
Set = Annotated[list[str] | None, typer.Option("--set", help="A setting of the algorithm, such as ridge=1e-2.")]
Backbone = Annotated[
    str | None,
    typer.Option(help="cnn, wrn-16-2, linear, mlp, one of timm or of an installed package; by the data if not given."),
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


@data_options(synthetic=True)
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
    as_json: Json = None,
) -> None:
    """Train a model on all environments but one, and see how it does in that one.

    Example: trm train --data pacs --test-env sketch --algorithm trm --output runs/sketch
    """
    from ..training import Request
    from ..training.world import one_speaks

    asked: dict[str, Any] = {
        "epochs": epochs, "batch_size": batch_size, "lr": lr, "weight_decay": weight_decay, "momentum": momentum,
        "decay_at": decay_at, "evaluations": evaluations, "record": tuple(record) if record else None,
    }  # fmt: skip
    with one_speaks() as speaks:
        request = Request(
            data=name,
            options=options,
            test_env=test_env,
            hold_out=hold_out,
            algorithm=algorithm,
            settings=tuple(settings or ()),
            backbone=backbone,
            weights=weights,
            training={key: value for key, value in asked.items() if value is not None},
            augment=augment,
            init=init,
            finetune_samples=finetune_samples,
            device=device,
            devices=devices,
            precision=precision,  # type: ignore[arg-type]  # checked by the engine
            workers=workers,
        )
        trackers = tuple(tracker or ()) if speaks else ()
        records = _train(request, output, resume, checkpoint_every, trackers, quiet or not speaks)
        if speaks:
            _tell(records, output, quiet, as_json)


def _train(
    request: Request, folder: Path, resume: bool, every: int | None, trackers: tuple[str, ...], quiet: bool
) -> list[Record]:
    from ..files import new_folders
    from ..reports.progress import task_progress
    from ..training import Output, Stopped
    from ..training import train as train_model
    from ..training.trackers import check_trackers, followed
    from ..training.troubles import in_one_line
    from .train_show import note, training_progress

    check_trackers(trackers)
    output = Output(folder, resume, every, say=(lambda _: None) if quiet else note)
    with task_progress(quiet) as advance, in_one_line("nothing has been written"):
        run = replace(request, options=replace(request.options, progress=advance)).run()
    try:
        with (
            in_one_line(lambda: output.standing, run.config.batch_size),
            new_folders(folder) if trackers else nullcontext(),
            training_progress(run, quiet) as watch,
            followed(watch, trackers, folder, run.describe()) as all_,
        ):
            return train_model(run, watch.step, output=output, on_loss=all_.loss, on_record=all_.record)
    except Stopped as stopped:
        raise Stopped(stopped.signum, stopped.step, stopped.total, _again()) from None


def _tell(records: Sequence[Record], folder: Path, quiet: bool, as_json: Json) -> None:
    from ..reports.terminal import print_line, print_values
    from ..training.output import BEST, LAST, RECORDS
    from .train_show import accuracies, summary

    if not (as_json and as_json.write(summary(records, folder))) and not quiet:
        print_values(accuracies(records))
        print_line(f"Selected model: {folder / BEST}; the last one: {folder / LAST}; records: {folder / RECORDS}")


def _again() -> str:
    """The command that goes on with this one."""
    given = [argument for argument in sys.argv[1:] if argument != "--resume"]
    return shlex.join(["trm", *given, "--resume"])
