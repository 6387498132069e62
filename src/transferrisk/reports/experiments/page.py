"""The page of all experiments."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ..page import Page
from ..sections import Chapter, Group, Pictures, Section, Sentences, Shown, Table
from ..sections import Entry as Shape
from . import reproduce
from .formats import about, against_caption, caption
from .grids import Entry, Grid
from .load import Experiment
from .parts import SHORT, Part


def page_of(
    found: Sequence[tuple[Experiment, Sequence[Part]]],
    left_out: Sequence[str],
    command: str,
    settings: Mapping[str, str | Sequence[str]],
    root: str,
) -> Page:
    planned = sum(len({cell.run for cell in experiment.cells}) for experiment, _ in found)
    missing = sum(experiment.missing for experiment, _ in found)
    failed = sum(len(experiment.failed) for experiment, _ in found)
    lead = [f"{len(found)} {'experiment' if len(found) == 1 else 'experiments'}, {planned} runs, of which "
            f"{f'{missing} are missing' if missing else 'none is missing'}"
            f"{f' and {failed} of these failed' if failed else ''}."]  # fmt: skip
    chapters = tuple(_chapter(experiment, parts) for experiment, parts in found)
    before = {reproduce.command(experiment, root): reproduce.circumstances(experiment) for experiment, _ in found}
    return Page("Results of the experiments", (*lead, *left_out), chapters, settings, command, before)


def _chapter(experiment: Experiment, parts: Sequence[Part]) -> Chapter:
    sections = [section for part in parts for section in _sections(part)]
    return Chapter(experiment.title, sections, about(experiment))


def _sections(part: Part) -> list[Section]:
    """All that has to be said of a part stands at the first of its sections; the rule is in the titles of all."""
    rule = SHORT[part.rule]
    found: list[Section] = []
    if part.curves:
        note = " ".join([*part.words, *dict.fromkeys(curves.note for curves in part.curves if curves.note)])
        panels = [replace(curves, note="") for curves in part.curves]
        found.append(Group(_joined(part.title or "Figure", rule), panels, note))
    for grid in part.tables:
        title = grid.title or part.title
        words = [part.mixed] if found else part.words
        found.append(_table(_joined(title or "Table", rule), grid, words))
        if grid.notes:
            found.append(Sentences("Points of the grids that were chosen", grid.notes, folded=True))
        if grid.has_against:
            found.append(_against(_joined(title, "against ERM", rule), grid, part))
    for name, environments in part.pictures.items():
        found.append(Pictures(name or part.title, environments))
    if part.words and (part.pictures or not found):
        found.append(Sentences("" if found else _joined(part.title, rule), [" ".join(part.words)]))
    return found


def _joined(*words: str) -> str:
    text = ", ".join(filter(None, words))
    return text[:1].upper() + text[1:]


def _table(title: str, grid: Grid, words: Sequence[str]) -> Table:
    rows: list[list[Shape]] = [
        [name, *(_shown(entry, grid.lacks(entry), (name, column) in grid.best) for column, entry in enumerate(entries))]
        for name, entries in grid.shown.items()
    ]
    note = " ".join(filter(None, [caption(grid), *words]))
    return Table(title, [grid.corner, *grid.columns], rows, note=note)


def _shown(entry: Entry, lacks: str, best: bool) -> Shown:
    """Ours, and in small print what lacks and the paper's."""
    paper = f"paper {entry.paper}" if entry.published else ""
    difference = f"difference {entry.difference_text}" if entry.published and entry.values else ""
    below = "\n".join(filter(None, [lacks, paper, difference]))
    return Shown(entry.summary.mean, entry.ours, below, instead=entry.ours, bold=best)


def _against(title: str, grid: Grid, part: Part) -> Table:
    rows: list[list[Shape]] = [
        [name, *map(_difference, entries)]
        for name, entries in grid.lines.items()
        if any(entry.against for entry in entries)
    ]
    note = " ".join(filter(None, [against_caption(grid), part.mixed]))
    return Table(title, [grid.corner, *grid.columns], rows, note=note)


def _difference(entry: Entry) -> Shown | None:
    if entry.against is None:
        return None
    difference, _, interval = entry.against_text.partition(" ")
    return Shown(entry.against.mean, difference, below=interval.strip("()"))
