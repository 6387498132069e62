"""The [show] table of a recipe: how its results are shown.

One show is the table itself, with its `kind`; several are tables in it, [show.NAME], each with its own.

table     methods against the values of an axis, or against several values of the result
lines     a value against an axis, a line for each method
curves    values against the step of training, a line for each method
rows      one line for each row of the result, or each group of rows with the same name
xy        any column of the rows against another
pictures  samples of the environments
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from typing import Any

from ...errors import InputError, did_you_mean
from ..sections import Mark
from .values import VALUES

Reader = Callable[[str, Any], Any]
"""(where, what the recipe says) -> the value; InputError where it is none."""


def _names(where: str, given: Any) -> tuple[str, ...]:
    """One name or a list of them."""
    found = [given] if isinstance(given, str) else given
    if not isinstance(found, list) or not found or not all(isinstance(name, str) and name for name in found):
        raise InputError(f"{where} = {given!r} is neither a name nor a list of names")
    return tuple(found)


def _name(where: str, given: Any) -> str:
    if not isinstance(given, str) or not given:
        raise InputError(f"{where} = {given!r} is no name")
    return given


def _caption(where: str, given: Any) -> str:
    return " ".join(_name(where, given).split())


def _values(where: str, given: Any) -> tuple[str, ...]:
    found = _names(where, given)
    for name in found:
        if name not in VALUES:
            raise InputError(
                f"{where}: {name!r} is not known: {did_you_mean(name, VALUES)}choose from {', '.join(VALUES)}"
            )
    return found


def _truth(where: str, given: Any) -> bool:
    if not isinstance(given, bool):
        raise InputError(f"{where} = {given!r} is neither true nor false")
    return given


def _digits(where: str, given: Any) -> int:
    if not isinstance(given, int) or isinstance(given, bool) or not 0 <= given <= 9:
        raise InputError(f"{where} = {given!r} is no number of decimals: use 0 to 9")
    return given


def _one_of(*choices: str) -> Reader:
    def read(where: str, given: Any) -> str:
        if given not in choices:
            near = did_you_mean(str(given), choices)
            raise InputError(f"{where} = {given!r} is not known: {near}choose from {', '.join(choices)}")
        return str(given)

    return read


def _where(where: str, given: Any) -> dict[str, tuple[Any, ...]]:
    """Column -> the values that count."""
    if not isinstance(given, Mapping):
        raise InputError(f"{where} = {given!r} is no table of columns and values")
    return {column: tuple(wanted) if isinstance(wanted, list) else (wanted,) for column, wanted in given.items()}


def _marks(where: str, given: Any) -> tuple[Mark, ...]:
    return tuple(_mark(where, one) for one in (given if isinstance(given, list) else [given]))


def _mark(where: str, given: Any) -> Mark:
    if not isinstance(given, Mapping) or set(given) - {"x", "y", "text"} or len(set(given) & {"x", "y"}) != 1:
        raise InputError(f'{where}: {given!r} is no mark: write {{ y = 0.5, text = "chance" }}, or x in place of y')
    at = given.get("x", given.get("y"))
    if not isinstance(at, int | float) or isinstance(at, bool):
        raise InputError(f"{where}: {at!r} is no number to mark")
    return Mark(str(given.get("text", "")), **{key: float(at) for key in ("x", "y") if key in given})


_scale = _one_of("linear", "log")


def _as(read: Reader, **options: Any) -> Any:
    return field(metadata={"read": read}, **options)


@dataclass(frozen=True, kw_only=True)
class Show:
    """
    name     of the show, "" where it is the only one; names its files
    title    over it, where the recipe's is not enough
    caption  under it: what its terms mean
    panels   axes, or for rows and xy columns, of which every combination has a table or a drawing of its own
    """

    name: str = ""
    title: str = _as(_name, default="")
    caption: str = _as(_caption, default="")
    panels: tuple[str, ...] = _as(_names, default=())


@dataclass(frozen=True, kw_only=True)
class TableShow(Show):
    """columns  an axis; without one, the values are the columns
    average  a column more, the mean of the others
    value    of `values.VALUES`
    """

    columns: str = _as(_name, default="")
    average: bool = _as(_truth, default=False)
    value: tuple[str, ...] = _as(_values, default=("accuracy",))


@dataclass(frozen=True, kw_only=True)
class LinesShow(Show):
    """x  an axis; `scale` is its own, `y_scale` that of the value"""

    x: str = _as(_name)
    value: tuple[str, ...] = _as(_values, default=("accuracy",))
    scale: str = _as(_scale, default="linear")
    y_scale: str = _as(_scale, default="linear")
    x_label: str = _as(_name, default="")


@dataclass(frozen=True, kw_only=True)
class CurvesShow(Show):
    """x  step or epoch"""

    x: str = _as(_one_of("step", "epoch"), default="step")
    values: tuple[str, ...] = _as(_values, default=("accuracy",))
    scale: str = _as(_scale, default="linear")
    y_scale: str = _as(_scale, default="linear")


@dataclass(frozen=True, kw_only=True)
class RowsShow(Show):
    """row     columns that name a line
    values  columns of numbers
    where   column -> the value or values of the rows that count
    """

    row: tuple[str, ...] = _as(_names)
    values: tuple[str, ...] = _as(_names)
    where: Mapping[str, tuple[Any, ...]] = _as(_where, default_factory=dict)
    digits: int = _as(_digits, default=2)


@dataclass(frozen=True, kw_only=True)
class XyShow(Show):
    """y          columns, each a line of its own where there are several
    series     columns that tell the lines apart
    reference  columns drawn as one line for all series, the mean at each x
    marks      thin lines at a height or an x
    draw       lines or points
    """

    x: str = _as(_name)
    y: tuple[str, ...] = _as(_names)
    series: tuple[str, ...] = _as(_names, default=())
    where: Mapping[str, tuple[Any, ...]] = _as(_where, default_factory=dict)
    reference: tuple[str, ...] = _as(_names, default=())
    marks: tuple[Mark, ...] = _as(_marks, default=())
    draw: str = _as(_one_of("lines", "points"), default="lines")
    scale: str = _as(_scale, default="linear")
    y_scale: str = _as(_scale, default="linear")
    x_label: str = _as(_name, default="")
    y_label: str = _as(_name, default="")


@dataclass(frozen=True, kw_only=True)
class PicturesShow(Show):
    pass


KINDS: dict[str, type[Show]] = {
    "table": TableShow,
    "lines": LinesShow,
    "curves": CurvesShow,
    "rows": RowsShow,
    "xy": XyShow,
    "pictures": PicturesShow,
}


def read(show: Mapping[str, Any], recipe: str) -> tuple[Show, ...]:
    """The shows of a recipe; a table of accuracies where it says nothing."""
    if not show:
        return (TableShow(),)
    if "kind" in show or not all(isinstance(inner, Mapping) for inner in show.values()):
        return (_show("", show, f"recipe {recipe}, [show]"),)
    stems: dict[str, str] = {}
    for name in show:
        if (other := stems.setdefault(stem(name).lower(), name)) != name:
            raise InputError(f"recipe {recipe}, [show]: {other!r} and {name!r} would be files of one name: rename one")
    return tuple(_show(name, inner, f"recipe {recipe}, [show.{name}]") for name, inner in show.items())


def stem(name: str) -> str:
    """Of a file: letters that its name may not have become _."""
    return "".join(letter if letter.isalnum() or letter in "-_" else "_" for letter in name)


def _show(name: str, table: Mapping[str, Any], where: str) -> Show:
    kind = KINDS[_one_of(*KINDS)(f"{where}: kind", table.get("kind"))]
    known = {field.name: field for field in fields(kind) if "read" in field.metadata}
    _check_keys(where, [key for key in table if key != "kind"], list(known))
    for key, field_ in known.items():
        if key not in table and field_.default is MISSING and field_.default_factory is MISSING:
            raise InputError(f"{where}: a show of the kind {table['kind']!r} needs {key}: add it")
    read = {key: known[key].metadata["read"](f"{where}: {key}", table[key]) for key in known if key in table}
    return kind(name=name, **read)


def _check_keys(where: str, given: Sequence[str], known: Sequence[str]) -> None:
    for key in given:
        if key not in known:
            raise InputError(
                f"{where} has an unknown key {key!r}: {did_you_mean(key, known)}choose from kind, {', '.join(known)}"
            )
