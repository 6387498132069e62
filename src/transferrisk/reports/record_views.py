"""Views that show records as they are, without a selection: rows, xy and pictures."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from ..errors import InputError, choices
from ..files import readable
from ..results.records import PICTURES, RESULT_PREFIX, RUN_COLUMN
from ..settings import Bound, convert
from .comparison_views import BAND, Scale, View, bands
from .elements import Curves, Mark, method_name
from .experiment import Experiment, mixed_words
from .tables import Grid, Part, Published, Score, axis_text, axis_words, column_label, find_published


@dataclass(frozen=True, kw_only=True)
class RowView(View):
    """Base of views of records.

    where  column -> value or values; only records that have them are shown
    """

    selects: ClassVar[bool] = False
    where: Mapping[str, Any] = field(default_factory=dict)

    def check(self, experiment: Experiment) -> None:
        """Accept every plan, since columns are known only from records."""

    def found(self, experiment: Experiment, used: Iterable[str]) -> pd.DataFrame:
        """Return records with the columns of their places, a copy for each place; an unknown column is an error."""
        planned = experiment.planned if "seed" in experiment.planned else experiment.planned.assign(seed=None)
        if planned.empty or experiment.records.empty:
            return pd.DataFrame(columns=list(dict.fromkeys([RUN_COLUMN, "seed", *self.where, *used])))
        own = [name for name in experiment.records if name == RUN_COLUMN or name not in planned]
        found = planned.merge(experiment.records[own], on=RUN_COLUMN, how="inner", sort=False)
        hidden = {name: name.removeprefix(RESULT_PREFIX) for name in found if name.startswith(RESULT_PREFIX)}
        found = found.drop(columns=[name for name in hidden.values() if name in found]).rename(columns=hidden)
        for name in (*self.where, *used):
            if name not in found:
                raise InputError(f"the records have no column {name!r}{choices(name, map(str, found))}")
        for name, wanted in self.where.items():
            found = found[found[name].isin(wanted if isinstance(wanted, list | tuple) else [wanted])]
        return found

    def rest(self, experiment: Experiment, found: pd.DataFrame) -> dict[str, Any]:
        """Return the arguments of `Part` that these views share: the caption and the warning about machines."""
        mixed = mixed_words(experiment.origins, found[RUN_COLUMN].unique(), "differences between rows")
        return {"notes": [*filter(None, [self.caption])], "mixed": mixed}


@dataclass(frozen=True, kw_only=True)
class RowsView(RowView):
    """Table with a line for each record, or for each group of records with the same name: mean ± deviation over seeds.

    row     columns whose values name a line
    values  columns of numbers
    digits  number of decimals; a column of whole numbers has none
    """

    row: tuple[str, ...]
    values: tuple[str, ...]
    digits: Annotated[int, Bound(least=0, most=9)] = 2

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("row", "values"):
            if not getattr(self, name):
                raise InputError(f"{name} must name at least one column, got none")

    def part(self, experiment: Experiment, rule: str) -> Part:
        """Return the tables. The paper's numbers may stand under any of the recipe's rules."""
        found = self.found(experiment, (*self.row, *self.values, *self.panels))
        planned = experiment.places["seed"].nunique(dropna=False)
        grids = list(self._grids(experiment, found, planned))
        return Part(self.title, rule, grids, **self.rest(experiment, found))

    def _grids(self, experiment: Experiment, found: pd.DataFrame, planned: int) -> Iterator[Grid]:
        if found.empty:
            yield self._grid({}, self._only_published(experiment, planned))
            return
        for panel, own in _split(found, self.panels):
            lines = {}
            for names, members in _split(own, self.row):
                key, done = ", ".join(map(axis_text, names.values())), members["seed"].nunique(dropna=False)
                lines[self._line_name(names)] = [
                    Score(
                        _by_seed(members, value), planned, done, self.digits,
                        _published(experiment, key, value, panel),
                    )
                    for value in self.values
                ]  # fmt: skip
            yield self._grid(panel, _without_decimals(lines))

    def _line_name(self, names: Mapping[str, Any]) -> str:
        """Return the name of a line: several numbers after the names of their columns, a single one as it is."""
        if len(names) > 1:
            return axis_words(names)
        (name,) = map(axis_text, names.values())
        return method_name(name)

    def _grid(self, panel: Mapping[str, Any], lines: Mapping[str, Sequence[Score]]) -> Grid:
        corner = ", ".join(map(column_label, self.row)).capitalize()
        return Grid(axis_words(panel), corner, self.values, [*map(column_label, self.values)], lines)

    def _only_published(self, experiment: Experiment, planned: int) -> dict[str, list[Score]]:
        """Return the lines that the paper has, with scores that are missing."""
        keys = dict.fromkeys(key for table in experiment.recipe.published.values() for key in table)
        return {
            method_name(key): [
                Score({}, planned, 0, self.digits, _published(experiment, key, value, {})) for value in self.values
            ]
            for key in keys
        }


@dataclass(frozen=True, kw_only=True)
class XyView(RowView):
    """A column against another: the mean at each x over records of a series, with the deviation as a band.

    y          columns, with a line for each
    series     columns whose values tell the lines apart
    reference  columns drawn as one line for all series, the mean at each x
    marks      thin lines at a y or an x, such as { y = 0.5, text = "chance" }
    draw       lines or points
    """

    x: str
    y: tuple[str, ...]
    series: tuple[str, ...] = ()
    reference: tuple[str, ...] = ()
    marks: tuple[Any, ...] = ()
    draw: Literal["lines", "points"] = "lines"
    scale: Scale = "linear"
    y_scale: Scale = "linear"
    x_label: str = ""
    y_label: str = ""

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "marks", tuple(map(_mark, self.marks)))

    def part(self, experiment: Experiment, rule: str) -> Part:
        numbers = (self.x, *self.y, *self.reference)
        found = self.found(experiment, (*numbers, *self.series, *self.panels))
        found = found.assign(**{name: pd.to_numeric(found[name], errors="coerce").astype(float) for name in numbers})
        drawn = [self._panel(axis_words(panel), own) for panel, own in _split(found, self.panels)]
        drawn = drawn or [Curves("", {}, column_label(self.x), column_label(self.y[0]))]
        return Part(self.title, rule, curves=drawn, **self.rest(experiment, found))

    def _panel(self, title: str, records: pd.DataFrame) -> Curves:
        series, deviations = {}, {}
        for names, members in _split(records, self.series):
            for y in self.y:
                own_name = [column_label(y)] if len(self.y) > 1 or not names else []
                line = ", ".join([*filter(None, [axis_words(names)]), *own_name])
                series[line], deviations[line] = _line(members, self.x, y)
        for reference in self.reference:
            series[column_label(reference)], _ = _line(records, self.x, reference)
        around = bands(series, deviations) if self.draw == "lines" else {}
        y_label = self.y_label or (column_label(self.y[0]) if len(self.y) == 1 else "")
        return Curves(
            title, series, self.x_label or column_label(self.x), y_label, note=BAND if around else "", bands=around,
            marks=self.marks, x_log=self.scale == "log", y_log=self.y_scale == "log", joined=self.draw == "lines",
        )  # fmt: skip


def _mark(given: Any) -> Mark:
    """Return a mark from a table of a recipe."""
    if isinstance(given, Mark):
        return given
    if not isinstance(given, Mapping) or set(given) - {"x", "y", "text"} or len(set(given) & {"x", "y"}) != 1:
        raise InputError(f'marks must be tables such as {{ y = 0.5, text = "chance" }} or {{ x = 3 }}, got {given!r}')
    at = {key: convert(f"marks: {key}", given[key], float) for key in ("x", "y") if key in given}
    return Mark(str(given.get("text", "")), **at)


@dataclass(frozen=True, kw_only=True)
class PicturesView(RowView):
    """Samples of the environments of every planned run; a note names runs without pictures."""

    def part(self, experiment: Experiment, rule: str) -> Part:
        shown: dict[str, dict[str, NDArray[np.uint8]]] = {}
        found = self.found(experiment, ("environment", "number"))
        several = [axis for axis, values in experiment.axes.items() if len(values) > 1]
        missing = []
        done = set(experiment.finished[RUN_COLUMN])
        for place in experiment.places.to_dict("records"):
            name, run = ", ".join(axis_text(place[axis]) for axis in several), place[RUN_COLUMN]
            archive = _archive(experiment.runs / run / PICTURES) if run in done else {}
            own = found[found[RUN_COLUMN] == run].drop_duplicates("number")
            numbered = zip(own["environment"], map(axis_text, own["number"]), strict=True)
            environments = {str(environment): archive[number] for environment, number in numbered if number in archive}
            if environments:
                shown[name] = environments
            else:
                missing.append(name or experiment.name)
        without = f"Without pictures: {'; '.join(missing)}." if missing else ""
        return Part(self.title, rule, pictures=shown, notes=[*filter(None, [self.caption, without])])


def _split(records: pd.DataFrame, by: Sequence[str]) -> Iterator[tuple[dict[str, Any], pd.DataFrame]]:
    """Yield records by the values of these columns, in the order of their first records."""
    if not by:
        yield {}, records
        return
    for values, own in records.groupby(list(by), sort=False, dropna=False):
        yield dict(zip(by, values, strict=True)), own


def _without_decimals(lines: Mapping[str, Sequence[Score]]) -> dict[str, list[Score]]:
    """Return the lines without decimals in columns of whole numbers, unless seeds differ and so have a deviation."""

    def is_whole(score: Score) -> bool:
        paper = (score.published.mean, score.published.deviation) if score.published else ()
        found = {*score.values.values()}
        return len(found) <= 1 and all(n.is_integer() or math.isnan(n) for n in (*found, *paper))

    whole = [all(map(is_whole, column)) for column in zip(*lines.values(), strict=True)]
    return {
        name: [replace(score, digits=0) if count else score for score, count in zip(scores, whole, strict=True)]
        for name, scores in lines.items()
    }


def _by_seed(records: pd.DataFrame, value: str) -> dict[Any, float]:
    numbers = pd.to_numeric(records[value], errors="coerce").astype(float)
    means = numbers.groupby(records["seed"], dropna=False).mean()
    return {seed: float(number) for seed, number in means.items() if math.isfinite(number)}


def _line(records: pd.DataFrame, x: str, y: str) -> tuple[tuple[list[float], list[float]], list[float]]:
    """Return x with the mean of y at each, in order of x, and the deviations of y, nan for a single value."""
    groups = records[y].groupby(records[x])
    mean = groups.mean()
    return (mean.index.tolist(), mean.tolist()), groups.std().tolist()


def _published(experiment: Experiment, line: str, value: str, panel: Mapping[str, Any]) -> Published | None:
    keys = [", ".join([*map(axis_text, panel.values()), value]), value]
    table = experiment.recipe.published
    found = (find_published(table, rule, line, keys) for rule in table)
    return next((number for number in found if number), None)


def _archive(path: Path) -> dict[str, NDArray[np.uint8]]:
    """Return the pictures of a run, {} if the file does not exist."""
    if not path.exists():
        return {}
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as archive:
            found = {name: archive[name] for name in archive.files}
    except Exception as error:  # zipfile, zlib and numpy each have their own
        raise InputError(
            f"{readable(path)} cannot be read ({error}): remove its folder and run the experiment again"
        ) from None
    if any(images.ndim != 5 or images.shape[-1] != 3 or images.dtype != np.uint8 for images in found.values()):
        raise InputError(
            f"{readable(path)} must hold pictures by class: remove its folder and run the experiment again"
        )
    return found
