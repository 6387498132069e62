"""`trm train`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..data import Options
from .options import Json, data_options, parse_folder

if TYPE_CHECKING:
    from ..results import Record

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
Init = Annotated[Path | None, typer.Option(help="The folder of a trained model whose weights to begin with.")]
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
    from ..algorithms import parse_settings
    from ..reports.progress import task_progress
    from ..training import RunFolder, TrainSpec, run_spec
    from ..training.processes import first_process_speaks
    from ..training.trackers import make_trackers
    from ..training.watches import Progress

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
        say = (lambda _: None) if quiet else partial(print, "trm:", file=sys.stderr)
        watch = [
            RunFolder(output, resume=resume, every=checkpoint_every, say=say, again=_again()),
            *make_trackers(tracker or (), output),
            *([] if quiet else [Progress()]),
        ]
        with task_progress(quiet) as advance:
            trained = run_spec(
                spec,
                device=device,
                devices=devices,
                loaders=workers,
                data_root=options.root,
                lazy=options.lazy,
                watch=watch,
                progress=advance,
            )
        if speaks:
            _tell(trained.history, output, quiet, as_json)


def _tell(history: Sequence[Record], folder: Path, quiet: bool, as_json: Json) -> None:
    from ..models.saved import WEIGHTS
    from ..reports.terminal import print_line, print_values
    from ..results.records import RECORDS
    from ..training.run_folder import LAST
    from .train_show import accuracies, summary

    if not (as_json and as_json.write(summary(history, folder))) and not quiet:
        print_values(accuracies(history))
        print_line(f"Selected model: {folder / WEIGHTS}; last state: {folder / LAST}; records: {folder / RECORDS}")


def _again() -> str:
    """The command that goes on with this one."""
    given = [argument for argument in sys.argv[1:] if argument != "--resume"]
    return shlex.join(["trm", *given, "--resume"])
