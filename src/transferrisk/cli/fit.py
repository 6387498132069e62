"""`trm fit`."""

from __future__ import annotations

import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from ..data import Options
from .options import MACHINE, Device, Force, Json, data_options, parse_folder

Name = Annotated[
    str, typer.Argument(metavar="FILE", help="A table, embeddings, a folder of images, or a name of trm data list.")
]
Output = Annotated[Path, typer.Option(parser=parse_folder, metavar="FOLDER", help="Where the model goes.")]
Algorithms = Annotated[str, typer.Option(help="Which to compare, separated by commas.")]
Algorithm = Annotated[str | None, typer.Option(help="Take this one, whatever the comparison says.")]
Compare = Annotated[bool, typer.Option("--compare/--no-compare", help="Compare on environments held out first.")]
Setting = Annotated[
    list[str] | None, typer.Option("--setting", help="Of an algorithm, such as ridge=1e-2 or trm.ridge=1e-2.")
]
Backbone = Annotated[str | None, typer.Option(help="mlp:64 for vectors and by size for images, when not given.")]
Weights = Annotated[str | None, typer.Option(help="imagenet, none, or a file of weights for the backbone.")]
Frozen = Annotated[
    bool | None,
    typer.Option("--frozen/--tuned", help="Take a pretrained backbone as it is, or train all of it; frozen on a CPU."),
]
OnTop = Annotated[str | None, typer.Option(help="On a frozen backbone: mlp:64 when not given, or linear.")]
Epochs = Annotated[int | None, typer.Option(min=1, help="Passes over all rows; by their number when not given.")]
Repeats = Annotated[int, typer.Option(min=1, max=100, help="Seeds of the comparison.")]
HeldOut = Annotated[int, typer.Option("--held-out-environments", min=1, help="How many to hold out at most.")]
Workers = Annotated[
    int | None, typer.Option(min=1, help="Processes that compare. Default: by the data.", rich_help_panel=MACHINE)
]
DropSmall = Annotated[bool, typer.Option("--drop-small", help="Leave out environments with fewer than 10 rows.")]


@data_options()
def fit(
    name: Name,
    output: Output,
    options: Options,
    algorithms: Algorithms = "erm,groupdro,trm",
    algorithm: Algorithm = None,
    compare: Compare = True,
    setting: Setting = None,
    backbone: Backbone = None,
    weights: Weights = None,
    frozen: Frozen = None,
    on_top: OnTop = None,
    epochs: Epochs = None,
    repeats: Repeats = 1,
    held_out: HeldOut = 10,
    device: Device = "auto",
    workers: Workers = None,
    drop_small: DropSmall = False,
    force: Force = False,
    as_json: Json = None,
) -> None:
    """Fit a model that is to work in new environments, and keep it with all it needs.

    Example: trm fit visits.csv --label outcome --environment hospital --output model
    """
    from ..fitting.fitted import Plan, fit_source, settled
    from ..fitting.folder import CARD, REPORT, SCHEMA, WEIGHTS, check_output
    from ..fitting.page import columns_table, comparison_table, network_line, summary
    from ..fitting.source import read
    from ..fitting.write import save
    from ..reports.progress import task_progress
    from ..reports.terminal import print_line, print_values

    names = tuple(part.strip() for part in algorithms.split(",") if part.strip())
    plan = Plan(
        names, algorithm, compare, tuple(setting or ()), backbone, weights, epochs, options.seed, repeats, held_out,
        device, workers, drop_small, frozen, on_top,
    )  # fmt: skip
    check_output(output, force)
    with task_progress() as advance:
        source = read(name, replace(options, progress=advance), drop_small)
    silent = as_json is not None and as_json.path is None
    if not silent:
        print_values(columns_table(source, str(output / CARD)))
    plan = settled(source, plan)
    if frozen is None and not silent:
        print_values(*network_line(source, plan))
    with task_progress() as advance:
        fitted = fit_source(source, plan, options, advance)
        advance("writing the model", 1, 1)
        save(fitted, output, shlex.join(["trm", *sys.argv[1:]]), force)
    if as_json and as_json.write(summary(fitted, output)):
        return
    print_values(*comparison_table(fitted), f"Chosen: {fitted.choice.algorithm}, {fitted.choice.why}.")
    files = f"Model: {output / WEIGHTS}, {SCHEMA}; card: {output / CARD}; report: {output / REPORT}"
    print_line(files)
