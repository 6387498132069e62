"""`trm report`."""

from __future__ import annotations

import shlex
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from .options import Json


def report(
    results: Annotated[
        str,
        typer.Argument(
            metavar="RESULTS",
            help="Results, as named by trm experiment --output: a folder, or an address such as s3://...",
        ),
    ],
    experiments: Annotated[
        list[str] | None, typer.Argument(metavar="EXPERIMENT", help="Experiments to report on. Default: all.")
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Folder of the report. Default: RESULTS."),
    ] = None,
    as_json: Json = None,
) -> None:
    """Write tables and figures of experiments, with the paper's numbers beside ours, and a page of all of them.

    Tables are written as Markdown, LaTeX and CSV, figures as SVG and PNG, and the page as report.html.

    The page of named experiments is report-NAME.html. Experiments that cannot be read are left out.

    Example: trm report results cmnist pacs-resnet18
    """
    from ..reports.report import write_report
    from ..reports.terminal import print_line, print_values

    names = experiments or []
    command = shlex.join(["trm", "report", results, *names, *(["--output", str(output)] if output else [])])
    with _local(results, output) as root:
        written = write_report(root, names, output, command, results)
    for line in written.left_out:
        print_line(f"trm: {line.replace(str(root), results)}", stderr=True)
    if as_json and as_json.write(written.to_json()):
        return
    print_values(*written.chapters())
    print_line(f"Report: {written.files[0]}; {len(written.files) - 1} files of tables and figures beside it")


@contextmanager
def _local(results: str, output: Path | None) -> Iterator[Path]:
    """Yield the folder of results; of an address, a temporary copy of the files that a report reads."""
    from ..errors import InputError

    if "://" not in results or results.startswith("file://"):
        yield Path(results.removeprefix("file://"))
        return
    from ..experiments.store import Store
    from ..reports.report import READ

    if output is None:
        raise InputError(
            f"--output must name a folder for the report, since {results} is an address: add --output FOLDER"
        )
    with tempfile.TemporaryDirectory() as copy:
        Store(results).copy(READ, Path(copy))
        try:
            yield Path(copy)
        except InputError as error:
            raise InputError(str(error).replace(copy, results)) from None
