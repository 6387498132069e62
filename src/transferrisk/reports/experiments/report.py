"""The report of a folder of results: tables and figures beside the records, and one page for all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ...errors import InputError
from ...files import prepare_folder, readable, write_atomically
from ..page import write_page
from . import methods, rows
from .figures import Looks, draw, draw_pictures
from .formats import COLUMNS, POINTS, about, as_csv, latex, markdown, numbers, points
from .load import FAILED, RECIPE, RECORDS, RUNS, Experiment, folders, load, no_rows, planned
from .page import page_of
from .parts import Part
from .shows import CurvesShow, LinesShow, PicturesShow, RowsShow, Show, TableShow, XyShow, read

PAGE = "report.html"
READ = (f"*/{RECIPE}", f"*/{RECORDS}", f"{RUNS}/*/{FAILED}", f"{RUNS}/*/{rows.PICTURES}")
"""What a report reads of a folder of results."""


@dataclass(frozen=True, eq=False)
class Report:
    """
    files     that were written, the page first
    left_out  why, of each experiment that could not be read
    """

    found: Sequence[tuple[Experiment, Sequence[Part]]]
    files: Sequence[Path]
    left_out: Sequence[str] = ()

    def to_json(self) -> dict[str, Any]:
        """Every number of every table, and on what it was made, by experiment."""
        return {
            "page": str(self.files[0]),
            "experiments": {
                experiment.name: {
                    "missing_runs": experiment.missing,
                    "failed_runs": experiment.failed,
                    "made": [asdict(made) for made in dict.fromkeys(experiment.made.values())],
                    "numbers": [line for part in parts for line in numbers(experiment, part)],
                }
                for experiment, parts in self.found
            },
            "left_out": list(self.left_out),
        }


def report(
    root: Path,
    names: Sequence[str] = (),
    output: Path | None = None,
    command: str = "",
    settings: Mapping[str, str | Sequence[str]] | None = None,
    where: str = "",
) -> Report:
    """Of these experiments, or all; nothing is written before all of them have been read.

    One that cannot be read is an error where it was named, and where there is no other; else it is left out.

    where  as the page calls the folder of results
    """
    output = root if output is None else output
    found: list[tuple[Experiment, Sequence[Part]]] = []
    left_out = []
    for folder in folders(root, names):
        try:
            experiment = load(folder)
            found.append((experiment, list(parts_of(experiment))))
        except InputError as error:
            if names:
                raise
            left_out.append(f"{folder.name} is left out: {error}")
    if not found:
        raise InputError("; ".join(left_out))
    page = (
        PAGE if not names or output.resolve() != root.resolve() else f"report-{'-'.join(names)[:100]}.html"
    )  # that of all stays
    prepare_folder(output, page)
    written = []
    for experiment, parts in found:
        looks = Looks([name for part in parts for curves in part.curves for name in curves.series])
        for part in parts:
            for name, content in _files(experiment, part, looks):
                path = output / experiment.name / name
                write_atomically(path, content)
                written.append(path)
    write_page(output / page, page_of(found, left_out, command, settings or {}, where or readable(root)))
    return Report(found, [output / page, *written], left_out)


def check(name: str, where: str, recipe: Mapping[str, Any], cells: Sequence[tuple[str, Mapping[str, Any]]]) -> None:
    """Refuse what a report of such results would: shows of what is not varied, published numbers that are none."""
    found = {"recipe": recipe, "cells": [[run, dict(columns)] for run, columns in cells]}
    for _ in parts_of(Experiment(name, *planned(found, f"recipe {where}", "mend it"), no_rows(), Path())):
        pass


def parts_of(experiment: Experiment) -> Iterator[Part]:
    """Its shows, each under every rule that applies to it."""
    for show in read(experiment.recipe.get("show", {}), experiment.name):
        yield from _parts(experiment, show)


def _parts(experiment: Experiment, show: Show) -> Iterator[Part]:
    match show:
        case TableShow():
            yield from (methods.table(experiment, show, rule) for rule in experiment.rules)
        case LinesShow():
            yield from (methods.lines(experiment, show, rule) for rule in experiment.rules)
        case CurvesShow():
            yield from (methods.curves(experiment, show, rule) for rule in experiment.rules)
        case RowsShow():
            yield rows.rows(experiment, show)
        case XyShow():
            yield rows.xy(experiment, show)
        case PicturesShow():
            yield rows.pictures(experiment, show)


def _files(experiment: Experiment, part: Part, looks: Looks) -> Iterator[tuple[str, str | bytes]]:
    if part.grids:
        yield f"{part.stem}.md", markdown(experiment, part)
        yield f"{part.stem}.tex", latex(experiment, part)
        yield f"{part.stem}.csv", as_csv(COLUMNS, numbers(experiment, part))
    title = part.title or experiment.title  # which experiment it is of stands below
    words = [*about(experiment), *part.words]
    drawn: dict[str, bytes] = {}
    if part.curves:
        yield f"{part.stem}-curves.csv", as_csv(POINTS, points(experiment, part))
        notes = dict.fromkeys(curves.note for curves in part.curves if curves.note)
        drawn = draw(part.curves, title, [*words, *notes], looks)
    elif part.pictures:
        drawn = draw_pictures(part.pictures, title, words)
    for suffix, content in drawn.items():
        yield f"{part.stem}.{suffix}", content
