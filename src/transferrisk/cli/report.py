"""`trm report`."""

from __future__ import annotations

import shlex
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from .demo import folder


def report(
    results: Annotated[
        str, typer.Argument(metavar="RESULTS", help="What trm experiment had as --output: a folder, or s3://...")
    ],
    experiments: Annotated[
        list[str] | None, typer.Argument(metavar="EXPERIMENT", help="Names of experiments; all when not given.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(parser=folder, metavar="FOLDER", help="Where the report goes; into that folder when not given."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the numbers as JSON, for a program to read.")] = False,
) -> None:
    """Tables and figures of experiments, with the paper's numbers beside ours, and one page of all of them.

    Tables are written as Markdown, LaTeX and CSV, figures as SVG and PNG, the page as report.html, or report-NAME.html
    beside it where only some experiments are named. One whose files cannot be read is left out, with a line that says
    why.

    Example: trm report results cmnist pacs-resnet18
    """
    from ..reports.experiments import report as write_report
    from ..training.plain import dumps
    from .report_show import show_report
    from .show import provenance

    names = experiments or []
    command = shlex.join(["trm", "report", results, *names, *(["--output", str(output)] if output else [])])
    made = provenance()  # of the page alone: what the runs were made on, their records say
    drawn = {"Page drawn by": ", commit ".join(made[key] for key in ("Version", "Commit") if key in made)}
    with _brought(results, output) as root:
        written = write_report(root, names, output, command, drawn, where=results)
    for line in written.left_out:
        print(f"trm: {' '.join(line.replace(str(root), results).split())}", file=sys.stderr)
    if as_json:
        print(dumps(written.to_json(), indent=2))
    else:
        show_report(written)


@contextmanager
def _brought(results: str, output: Path | None) -> Iterator[Path]:
    """The folder of results; of those at an address, a copy of what a report reads, for the time being."""
    from ..errors import InputError
    from ..experiments.store import Store
    from ..reports.experiments import READ

    if "://" not in results or results.startswith("file://"):
        yield folder(results.removeprefix("file://"))
        return
    if output is None:
        raise InputError(f"{results} is no folder that a report can be written to: add --output FOLDER")
    with tempfile.TemporaryDirectory() as copy:
        Store(results).copy(READ, Path(copy))
        try:
            yield Path(copy)
        except InputError as error:
            raise InputError(str(error).replace(copy, results)) from None
