"""`trm audit`."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from ..data import Options
from .asking import AsJson, reads_data

if TYPE_CHECKING:
    from rich.table import Table

    from ..auditing import Audit

_MOST_COLUMNS = 8  # environments beside each other on a terminal

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


@reads_data
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
    as_json: AsJson = False,
) -> None:
    """Tell whether predictors fitted on features in one environment work in the others.

    Example: trm audit embeddings.npz --label y --environment site --output audit.html
    """
    from ..auditing import audit as audit_features
    from ..auditing.report import NOT_JUDGED
    from ..errors import InputError
    from ..files import check_target, expand_home, readable
    from .audit_data import data_name, read
    from .show import console, task_progress

    target = expand_home(output)
    if target.suffix.lower() not in (".html", ".htm"):
        raise InputError(f"{target} does not end in .html, which is what is written: name it so")
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
            progress=lambda _, done, total: advance("auditing", done, total),
        )
    found.to_html(target, shlex.join(["trm", *sys.argv[1:]]), readable(name))
    if as_json:
        print(json.dumps(found.to_dict() | {"page": str(target)}, indent=2, allow_nan=False))
        return
    console.print(_table(found))
    if not found.judged.all():
        console.print(f"{NOT_JUDGED}\n", highlight=False)
    for sentence in found.sentences:
        console.print(sentence, highlight=False, markup=False)
    console.print(f"\nReport: {readable(target)}", highlight=False, markup=False, soft_wrap=True)


def _table(found: Audit) -> Table:
    """Accuracy by where a predictor was fitted and tested; of many environments, the worst of each.

    The share of the most frequent class is what guessing it would give.
    """
    from rich import box
    from rich.table import Table
    from rich.text import Text

    from ..auditing.report import MAJORITY

    few = len(found.environments) <= _MOST_COLUMNS
    title = "Accuracy on held-out samples, %" + ("; rows: fitted on, columns: tested on" if few else "")
    table = Table(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD, padding=(0, 1, 0, 0))
    names, values = found.marked_names, found.accuracy.value
    table.add_column("Fitted on" if few else "Environment")
    if few:
        for name in names:
            table.add_column(Text(name), justify="right")
        rows = [*zip(names, values, strict=True), ("all of them", found.pooled_accuracy.value)]
        rows += [("all others", found.left_out_accuracy.value), (MAJORITY, found.majority)]
        for name, row in rows:
            table.add_row(Text(name), *map(_percent, row))
        return table
    for heading in ("Fitted there", "On all", "On all others", "Worst other", "Most frequent"):
        table.add_column(heading, justify="right")
    majority = found.majority
    for p, name in enumerate(names):
        others = [(values[q, p], q) for q in range(len(names)) if q != p and found.judged[q]]
        worst, q = min(others, default=(float("nan"), p))
        row = (values[p, p], found.pooled_accuracy.value[p], found.left_out_accuracy.value[p])
        table.add_row(Text(name), *map(_percent, row), Text(f"{_percent(worst)} ({names[q]})"), _percent(majority[p]))
    return table


def _percent(share: float) -> str:
    return f"{100 * share:.1f}" if share == share else "-"
