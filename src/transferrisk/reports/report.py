"""Report on a folder of results: tables and figures beside the records, and one page of all experiments."""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from ..errors import InputError, choices, counted
from ..files import prepare_folder, readable, write_atomically
from ..results.records import FAILED, PICTURES, RECIPE, RUN_COLUMN, RUNS, TABLE
from ..results.selection import RULE_WORDS
from ..settings import checked_fields
from .charts import figure_files, looks
from .comparison_views import CurvesView, LinesView, TableView, View
from .elements import Chapter, Group, Page, Pictures, Section, Text
from .experiment import Experiment, experiment_folders, load_experiment, no_records, origin_words, planned_runs
from .record_views import PicturesView, RowsView, XyView
from .render import csv_table, latex, latex_text, markdown, write_page
from .tables import Part

PAGE = "report.html"
READ = (f"*/{RECIPE}", f"*/{TABLE}", f"{RUNS}/*/{FAILED}", f"{RUNS}/*/{PICTURES}")
"""Patterns of the files that a report reads in a folder of results."""
VIEWS: dict[str, type[View]] = {
    "table": TableView,
    "lines": LinesView,
    "curves": CurvesView,
    "rows": RowsView,
    "xy": XyView,
    "pictures": PicturesView,
}
"""Kind of a [show] in a recipe -> its view."""
NUMBERS = (
    "experiment", "selection", "panel", "line", "column", "mean", "std", "seeds", "planned_seeds", "paper_mean",
    "paper_std", "difference", "against_erm", "against_erm_low", "against_erm_high", "shared_seeds", "point",
    "rival", "against_rival", "against_rival_low", "against_rival_high",
)  # fmt: skip
POINTS = ("experiment", "selection", "panel", "series", "x", "y", "low", "high")
"""Columns of the CSV file of a drawing's points; `NUMBERS` are those of a table's scores."""


def read_views(show: Mapping[str, Any], owner: str) -> dict[str, View]:
    """Return the views of a recipe by name; a single view is called "". Without [show] it is a table of accuracies.

    A single view is [show] itself, with its `kind`; several views are tables [show.NAME].
    """
    if not show:
        return {"": TableView()}
    if "kind" in show or not all(isinstance(inner, Mapping) for inner in show.values()):
        return {"": _read_view(show, f"{owner}, [show]")}
    stems: dict[str, str] = {}
    for name in show:
        if (other := stems.setdefault(file_stem(name).lower(), name)) != name:
            raise InputError(f"{owner}, [show]: {other!r} and {name!r} give files of the same name: rename one")
    return {name: _read_view(inner, f"{owner}, [show.{name}]") for name, inner in show.items()}


def _read_view(table: Mapping[str, Any], owner: str) -> View:
    kind = table.get("kind")
    if kind not in VIEWS:
        raise InputError(f"{owner}: kind must be a kind of view, got {kind!r}{choices(str(kind), VIEWS)}")
    view, values = VIEWS[kind], dict(table)
    del values["kind"]
    for entry in fields(view):
        if str(entry.type).startswith("tuple") and isinstance(values.get(entry.name), str | Mapping):
            values[entry.name] = [values[entry.name]]
    with checked_fields(view, values, owner):
        return view(**values)


def file_stem(*names: str) -> str:
    """Return a name for files, with _ in place of characters that they may not have."""
    return re.sub(r"[^\w-]", "_", "-".join(filter(None, names))) or "results"


def parts_of(experiment: Experiment) -> dict[str, Part]:
    """Return the content of each view under every rule that applies to it, by the stem of its files."""
    found = {}
    for name, view in checked_views(experiment).items():
        for rule in experiment.recipe.select if view.selects else ("",):
            try:
                found[file_stem(name, rule)] = view.part(experiment, rule)
            except InputError as error:
                raise InputError(f"recipe {experiment.name}: {error}") from None
    return found


def checked_views(experiment: Experiment) -> dict[str, View]:
    """Return the views of the experiment's recipe, after checking that each has something to show."""
    views = read_views(experiment.recipe.show, f"recipe {experiment.name}")
    for view in views.values():
        try:
            view.check(experiment)
        except InputError as error:
            raise InputError(f"recipe {experiment.name}: {error}") from None
    return views


@dataclass(frozen=True, eq=False)
class Report:
    """A report that was written.

    found     experiments, each with its parts by the stem of their files
    files     files that were written, the page first
    left_out  a reason for each experiment that could not be read
    """

    found: Sequence[tuple[Experiment, Mapping[str, Part]]]
    files: Sequence[Path]
    left_out: Sequence[str] = ()

    def chapters(self) -> list[Chapter]:
        """Return a chapter for each experiment."""
        return list(itertools.starmap(_chapter, self.found))

    def to_json(self) -> dict[str, Any]:
        """Return every number of every table, and the origins of runs, by experiment."""
        return {
            "page": str(self.files[0]),
            "experiments": {
                experiment.name: {
                    "missing_runs": len(experiment.missing),
                    "failed_runs": experiment.failed,
                    "origins": experiment.origins.drop_duplicates().to_dict("records"),
                    "numbers": [line for part in parts.values() for line in _numbers(experiment, part)],
                }
                for experiment, parts in self.found
            },
            "left_out": list(self.left_out),
        }


def write_report(
    root: Path,
    names: Sequence[str] = (),
    output: Path | None = None,
    command: str = "",
    where: str = "",
) -> Report:
    """Write a report on all experiments, or on those of these names, after all of them have been read.

    An experiment that cannot be read is left out; it is an error if it was named, or if there is no other.

    output   folder of the report. Default: `root`
    command  command to show on the page
    where    name of the folder of results on the page. Default: its path
    """
    output = root if output is None else output
    found: list[tuple[Experiment, Mapping[str, Part]]] = []
    left_out = []
    for folder in experiment_folders(root, names):
        try:
            experiment = load_experiment(folder)
            found.append((experiment, parts_of(experiment)))
        except InputError as error:
            if names:
                raise
            left_out.append(f"{folder.name} is left out: {error}")
    if not found:
        several = f"none of {len(left_out)} experiments can be read: " if len(left_out) > 1 else ""
        raise InputError(several + left_out[0])
    is_whole = not names or output.resolve() != root.resolve()  # else the page of all experiments must stay
    page = PAGE if is_whole else f"report-{'-'.join(names)[:100]}.html"
    prepare_folder(output, page)
    written = [output / page]
    for experiment, parts in found:
        for name, content in _files(experiment, parts):
            written.append(output / experiment.name / name)
            write_atomically(written[-1], content)
    report = Report(found, written, left_out)
    write_page(written[0], _page(report, command, where or readable(root)))
    return report


def check_recipe(
    name: str, where: str, recipe: Mapping[str, Any], cells: Sequence[tuple[str, Mapping[str, Any]]]
) -> None:
    """Raise the errors that a report on such results would raise, such as an unknown axis of a view."""
    found = {"recipe": recipe, "cells": cells}
    checked_views(Experiment(name, *planned_runs(found, f"recipe {where}", "correct it"), no_records(), Path()))


def _page(report: Report, command: str, root: str) -> Page:
    before, planned, missing, failed = {}, 0, 0, 0
    for experiment, _ in report.found:
        planned += experiment.planned[RUN_COLUMN].nunique()
        missing += len(experiment.missing)
        failed += len(experiment.failed)
        before[experiment.command(root)] = experiment.circumstances()
    state = f"{missing} of which are missing" if missing else "all of which are finished"
    state += f" ({failed} of these failed)" if failed else ""
    lead = f"{counted(len(report.found), 'experiment')} with {counted(planned, 'run')}, {state}."
    return Page("Results of the experiments", (lead, *report.left_out), report.chapters(), {}, command, before)


def _chapter(experiment: Experiment, parts: Mapping[str, Part]) -> Chapter:
    return Chapter(experiment.title, list(map(_part_chapter, parts.values())), experiment.about())


def _part_chapter(part: Part) -> Chapter:
    title = ", ".join(filter(None, [part.title, RULE_WORDS.get(part.rule)]))
    sections: list[Section] = []
    if part.drawn:
        sections.append(Group("", [replace(curves, note="") for curves in part.drawn], _curve_notes(part)))
    for grid in part.tables:
        sections.append(grid.table())
        differences = filter(None, [grid.against_table(), grid.runner_up_table()])
        sections += [replace(one, note=" ".join(filter(None, [one.note, part.mixed]))) for one in differences]
        if grid.notes:
            edge = ", some at the edge of their grid" if grid.has_edges else ""
            sections.append(Text(f"Points chosen from the grids{edge}", grid.notes, folded=True))
    for name, environments in part.pictures.items():
        sections.append(Pictures(name, environments))
    return Chapter(title[:1].upper() + title[1:], sections, part.words)


def _curve_notes(part: Part) -> str:
    return " ".join(dict.fromkeys([curves.note for curves in part.drawn if curves.note]))


def _files(experiment: Experiment, parts: Mapping[str, Part]) -> Iterator[tuple[str, str | bytes]]:
    """Yield name and content of each file beside the records."""
    names: list[str] = []
    for part in parts.values():
        for curves in part.drawn:
            names += curves.series
    styles = looks(names)
    for stem, part in parts.items():
        if part.grids:
            yield f"{stem}.md", markdown(_chapter(experiment, {stem: part}))
            yield f"{stem}.tex", _latex(experiment, stem, part)
            yield f"{stem}.csv", csv_table(NUMBERS, _numbers(experiment, part))
        title, words = part.title or experiment.title, [*experiment.about(), *part.words]
        drawn: dict[str, bytes] = {}
        if part.drawn:
            yield f"{stem}-curves.csv", csv_table(POINTS, _points(experiment, part))
            drawn = figure_files(part.drawn, title, [*words, _curve_notes(part)], styles)
        elif part.pictures:
            from .pictures import picture_files

            drawn = picture_files(part.pictures, title, words)
        for suffix, content in drawn.items():
            yield f"{stem}.{suffix}", content


def _latex(experiment: Experiment, stem: str, part: Part) -> str:
    r"""Return a table environment for each grid; they need \usepackage{booktabs}."""
    origins = origin_words(experiment.origins)
    out = [r"% \usepackage{booktabs}", *([f"% {latex_text(origins)}"] if origins else [])]
    for place, grid in enumerate(part.tables):
        titles = [one[:1].upper() + one[1:] for one in (experiment.title.rstrip("."), part.title, grid.title) if one]
        first, last = [f"{'. '.join(titles)}.", experiment.data()], [part.selection, part.mixed]
        label = f"{experiment.name}-{stem}" + (f"-{place + 1}" if len(part.tables) > 1 else "")
        words = [*first, *part.notes, part.nothing_yet, grid.caption(), *last, experiment.missing_words()]
        out.append(latex(grid.table(), " ".join(filter(None, words)), label, " ".join(grid.notes)))
        for end, against in (("erm", grid.against_table()), ("runner-up", grid.runner_up_table())):
            if against:
                out.append(latex(against, " ".join(filter(None, [*first, against.note, *last])), f"{label}-{end}"))
    return "\n".join(out) + "\n"


def _numbers(experiment: Experiment, part: Part) -> list[dict[str, Any]]:
    """Return a line for each score of the tables, nan if it is missing."""
    about = {"experiment": experiment.name, "selection": part.rule or "none"}
    return [about | line for grid in part.grids for line in grid.numbers()]


def _points(experiment: Experiment, part: Part) -> list[dict[str, Any]]:
    """Return a line for each point of the drawings."""
    found = []
    for curves in part.drawn:
        for name, (xs, ys) in curves.series.items():
            lows, highs = curves.bands.get(name, ([math.nan] * len(xs), [math.nan] * len(xs)))
            for values in zip(xs, ys, lows, highs, strict=True):
                line = (experiment.name, part.rule or "none", curves.title, name, *values)
                found.append(dict(zip(POINTS, line, strict=True)))
    return found
