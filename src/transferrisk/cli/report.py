"""`trm report`."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

from .demo import folder


def report(
    results: Annotated[Path, typer.Argument(parser=folder, metavar="RESULTS", help="A folder of trm experiment.")],
    experiments: Annotated[
        list[str] | None, typer.Argument(metavar="EXPERIMENT", help="Names of experiments; all when not given.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(parser=folder, metavar="FOLDER", help="Where the report goes; beside the results when not given."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON, for a program to read.")] = False,
) -> None:
    """Tables and figures of experiments, with the paper's numbers beside ours, and one page of all of them.

    Tables are written as Markdown, LaTeX and CSV, figures as SVG and PNG, the page as report.html. An experiment whose
    files cannot be read is left out, with a line that says why.

    Example: trm report results cmnist pacs-resnet18
    """
    from ..reports.experiments import report as write_report
    from ..training.plain import dumps
    from .report_show import show_report
    from .show import provenance

    names = experiments or []
    command = shlex.join(["trm", "report", str(results), *names, *(["--output", str(output)] if output else [])])
    written = write_report(results, names, output, command, provenance())
    for line in written.left_out:
        print(f"trm: {' '.join(line.split())}", file=sys.stderr)
    if as_json:
        print(dumps(written.to_json(), indent=2))
    else:
        show_report(written)
