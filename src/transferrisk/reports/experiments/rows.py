"""The shows that take the rows as they are: rows, xy, pictures. Nothing is selected."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ...errors import InputError, did_you_mean
from ...files import readable
from ..sections import Curves
from ..tables import NAMES
from .grids import Entry, Grid, Published, published
from .load import RESULT, Experiment
from .made import mixed
from .methods import BAND, bands, stem
from .parts import Part, has_points, nothing_yet
from .shows import PicturesShow, RowsShow, XyShow
from .values import label, named, text

PICTURES = "pictures.npz"


def rows(experiment: Experiment, show: RowsShow) -> Part:
    """One line for each name, mean ± deviation over seeds; the paper's numbers under any of the recipe's rules."""
    found = _filtered(experiment, show.where, (*show.row, *show.values, *show.panels))
    planned = len({cell.seed for cell in experiment.cells})
    grids = list(_grids(experiment, show, found, planned))
    notes = [*filter(None, [show.caption, nothing_yet(grids, ())])]
    return Part(show.title, stem(show, ""), "", grids, notes=notes, mixed=_mixed(experiment, found))


def _grids(experiment: Experiment, show: RowsShow, found: pd.DataFrame, planned: int) -> Iterator[Grid]:
    if found.empty:
        yield _grid(show, (), _only_published(experiment, show, planned))
        return
    for panel, own in _split(found, show.panels):
        lines = {}
        for names, members in _split(own, show.row):
            key, done = ", ".join(map(text, names)), members["seed"].nunique(dropna=False)
            lines[_line_name(show, names)] = [
                Entry(_by_seed(members, value), planned, done, show.digits, _published(experiment, key, value, panel))
                for value in show.values
            ]
        yield _grid(show, panel, _counts(lines))


def _line_name(show: RowsShow, names: Sequence[Any]) -> str:
    """Of several numbers each says what it is; one alone is what the corner says."""
    if len(names) > 1:
        return ", ".join(map(named, show.row, names))
    return NAMES.get(text(names[0]), text(names[0]))


def _grid(show: RowsShow, panel: Sequence[Any], lines: Mapping[str, Sequence[Entry]]) -> Grid:
    title, corner = ", ".join(map(named, show.panels, panel)), ", ".join(map(label, show.row)).capitalize()
    return Grid(title, corner, show.values, [*map(label, show.values)], lines)


def _counts(lines: Mapping[str, Sequence[Entry]]) -> dict[str, list[Entry]]:
    """The same, the columns of whole numbers without decimals."""
    whole = [all(map(_is_whole, column)) for column in zip(*lines.values(), strict=True)]
    return {
        name: [replace(entry, digits=0) if count else entry for entry, count in zip(entries, whole, strict=True)]
        for name, entries in lines.items()
    }


def _is_whole(entry: Entry) -> bool:
    """Whether all that is printed of it is; seeds that differ have a deviation."""
    paper = (entry.published.mean, entry.published.deviation) if entry.published else ()
    numbers = {*entry.values.values()}
    return len(numbers) <= 1 and all(n.is_integer() or math.isnan(n) for n in (*numbers, *paper))


def _only_published(experiment: Experiment, show: RowsShow, planned: int) -> dict[str, list[Entry]]:
    """The lines that the paper has, each missing."""
    keys = dict.fromkeys(key for table in experiment.recipe.get("published", {}).values() for key in table)
    return {
        NAMES.get(key, key): [
            Entry({}, planned, 0, show.digits, _published(experiment, key, value, ())) for value in show.values
        ]
        for key in keys
    }


def xy(experiment: Experiment, show: XyShow) -> Part:
    """The mean at each x over the rows that are alike, seeds most of all, with the deviation as a band."""
    numbers = (show.x, *show.y, *show.reference)
    found = _filtered(experiment, show.where, (*numbers, *show.series, *show.panels))
    found = found.assign(**{name: pd.to_numeric(found[name], errors="coerce").astype(float) for name in numbers})
    drawn = [_panel(show, ", ".join(map(named, show.panels, panel)), own) for panel, own in _split(found, show.panels)]
    drawn = drawn or [Curves("", {}, label(show.x), label(show.y[0]))]
    notes = [*filter(None, [show.caption, nothing_yet((), drawn)])]
    drawn = [*filter(has_points, drawn)]
    return Part(show.title, stem(show, ""), "", curves=drawn, notes=notes, mixed=_mixed(experiment, found))


def _panel(show: XyShow, title: str, rows: pd.DataFrame) -> Curves:
    series, deviations = {}, {}
    for names, members in _split(rows, show.series):
        for y in show.y:
            own_name = [label(y)] if len(show.y) > 1 or not names else []
            line = ", ".join([*map(named, show.series, names), *own_name])
            series[line], deviations[line] = _line(members, show.x, y)
    for reference in show.reference:
        series[label(reference)], _ = _line(rows, show.x, reference)
    around = bands(series, deviations) if show.draw == "lines" else {}
    return Curves(
        title,
        series,
        show.x_label or label(show.x),
        show.y_label or (label(show.y[0]) if len(show.y) == 1 else ""),
        note=BAND if around else "",
        bands=around,
        marks=show.marks,
        x_log=show.scale == "log",
        y_log=show.y_scale == "log",
        joined=show.draw == "lines",
    )


def pictures(experiment: Experiment, show: PicturesShow) -> Part:
    """Of each cell of the plan; those that are not there are named."""
    shown: dict[str, dict[str, NDArray[np.uint8]]] = {}
    found = _filtered(experiment, {}, ("environment", "number"))
    several = [axis for axis, values in experiment.axes.items() if len(values) > 1]
    missing = []
    for cell in experiment.cells:
        name = ", ".join(text(cell.columns.get(axis)) for axis in several)
        archive = _archive(experiment.runs / cell.run / PICTURES) if cell.run in experiment.done else {}
        own = found[found["run"] == cell.run].drop_duplicates("number")
        numbered = zip(own["environment"], map(text, own["number"]), strict=True)
        environments = {str(environment): archive[number] for environment, number in numbered if number in archive}
        if environments:
            shown[name] = environments
        else:
            missing.append(name or experiment.name)
    notes = [show.caption, f"Without pictures: {'; '.join(missing)}." if missing else ""]
    return Part(show.title, stem(show, ""), "", pictures=shown, notes=[*filter(None, notes)])


def _mixed(experiment: Experiment, rows: pd.DataFrame) -> str:
    return mixed(experiment.made, rows["run"].unique(), "differences between rows")


def _filtered(experiment: Experiment, where: Mapping[str, Sequence[Any]], used: Iterable[str]) -> pd.DataFrame:
    """Rows with the columns of their cells, one copy for each cell; an unknown column is an error."""
    cells = pd.DataFrame([{"seed": None, **cell.columns, "run": cell.run} for cell in experiment.cells])
    if cells.empty or experiment.rows.empty:
        return pd.DataFrame(columns=list(dict.fromkeys(["run", "seed", *where, *used])))
    own = [name for name in experiment.rows if name == "run" or name not in cells]
    found = cells.merge(experiment.rows[own], on="run", how="inner", sort=False)
    hidden = {name: name.removeprefix(RESULT) for name in found if name.startswith(RESULT)}
    found = found.drop(columns=[name for name in hidden.values() if name in found]).rename(columns=hidden)
    for name in (*where, *used):
        if name not in found:
            known = list(map(str, found))
            raise InputError(
                f"recipe {experiment.name}, [show]: its rows have no column {name!r}: {did_you_mean(name, known)}"
                f"choose from {', '.join(known)}"
            )
    for name, wanted in where.items():
        found = found[found[name].isin(wanted)]
    return found


def _split(rows: pd.DataFrame, by: Sequence[str]) -> Iterator[tuple[tuple[Any, ...], pd.DataFrame]]:
    """By the values of these columns, in the order in which they come."""
    if not by:
        yield (), rows
        return
    yield from rows.groupby(list(by), sort=False, dropna=False)


def _by_seed(rows: pd.DataFrame, value: str) -> dict[Any, float]:
    numbers = pd.to_numeric(rows[value], errors="coerce").astype(float)
    means = numbers.groupby(rows["seed"], dropna=False).mean()
    return {seed: float(number) for seed, number in means.items() if math.isfinite(number)}


def _line(rows: pd.DataFrame, x: str, y: str) -> tuple[tuple[list[float], list[float]], list[float]]:
    """(x, mean of y) in the order of x, and the deviations of y, nan where there is one value."""
    groups = rows[y].groupby(rows[x])
    mean = groups.mean()
    return (mean.index.tolist(), mean.tolist()), groups.std().tolist()


def _published(experiment: Experiment, line: str, value: str, panel: Sequence[Any]) -> Published | None:
    keys = [", ".join([*map(text, panel), value]), value]
    table = experiment.recipe.get("published", {})
    found = (published(table, rule, line, keys, experiment.name) for rule in table)
    return next((number for number in found if number), None)


def _archive(path: Path) -> dict[str, NDArray[np.uint8]]:
    """What is there of a run's pictures; a file that is not there is missing, a damaged one an error."""
    if not path.exists():
        return {}
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}
    except Exception as error:  # zipfile, zlib and numpy each have their own
        raise InputError(f"{readable(path)} cannot be read ({error}): remove its folder and run it again") from None
    if any(images.ndim != 5 or images.shape[-1] != 3 or images.dtype != np.uint8 for images in found.values()):
        raise InputError(f"{readable(path)} holds no pictures by class: remove its folder and run it again")
    return found
