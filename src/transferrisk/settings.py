"""Settings: frozen dataclasses whose annotations say what each field may hold, checked in this one place.

>>> @dataclass(frozen=True)
... class Ridge(Settings):
...     ridge: Positive = 1e-3
...     weights: Literal["eg", "worst"] = "eg"
>>> from_mapping(Ridge, {"ridge": 1})
Ridge(ridge=1.0, weights='eg')
>>> Ridge(ridge=-1)
InputError: ridge must be a finite number > 0, got -1

Values may come from Python, TOML, JSON or NumPy: a list becomes a tuple, 1 becomes 1.0 where a float belongs, and a
number of NumPy becomes one of Python. True is never taken for 1. A float that is not finite is refused.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
import types
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from .errors import InputError, choices

S = TypeVar("S")


@dataclass(frozen=True)
class Bound:
    """Limits of a number, for `Annotated`: `least` and `most` are allowed, `above` and `below` are not."""

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def holds(self, value: float) -> bool:
        return self.least <= value <= self.most and self.above < value < self.below

    def __str__(self) -> str:
        limits = ((">=", self.least), (">", self.above), ("<=", self.most), ("<", self.below))
        return " and ".join(f"{sign} {limit:g}" for sign, limit in limits if math.isfinite(limit))


@dataclass(frozen=True)
class Length:
    """Smallest number of values in a list, for `Annotated`."""

    least: int

    def holds(self, value: Sequence[Any]) -> bool:
        return len(value) >= self.least

    def __str__(self) -> str:
        return f"of {self.least} or more values"


Count = Annotated[int, Bound(least=1)]
Seed = Annotated[int, Bound(least=0, below=2**63)]
Positive = Annotated[float, Bound(above=0)]
NonNegative = Annotated[float, Bound(least=0)]
Share = Annotated[float, Bound(least=0, most=1)]


@dataclass(frozen=True)
class Settings:
    """Base of settings: every field is checked against its annotation and brought to its type."""

    def __post_init__(self) -> None:
        for name, kind in _kinds(type(self)).items():
            object.__setattr__(self, name, convert(name, getattr(self, name), kind))


def convert(name: str, value: Any, kind: Any) -> Any:
    """The value as the annotation `kind` has it; `name` is what an error calls it."""
    try:
        return _converted(value, kind)
    except _Unfit as unfit:
        where = f"{name}{unfit.place}"
        raise InputError(f"{where} must be {describe(unfit.kind)}, got {_shown(unfit.value)}") from None


def from_mapping(cls: type[S], values: Mapping[str, Any], owner: str = "") -> S:
    """Settings of this class from TOML, JSON or keywords; `owner` is what a message calls what they belong to."""
    checked = checked_values(cls, values, owner)
    try:
        return cls(**checked)
    except InputError as error:
        raise InputError(f"{_of(owner)}{error}") from None


def checked_values(cls: type[Any], values: Mapping[str, Any], owner: str = "") -> dict[str, Any]:
    """Values by which the class can be called: names are fields, none is missing, each value fits its annotation."""
    check_names(cls, values, owner)
    kinds = _kinds(cls)
    for field in dataclasses.fields(cls):
        if field.default is MISSING and field.default_factory is MISSING and field.name not in values:
            raise InputError(f"{_of(owner)}{field.name} is missing: add it")
    return {name: convert(f"{_of(owner)}{name}", value, kinds[name]) for name, value in values.items()}


def check_names(cls: type[Any], names: Mapping[str, Any] | Sequence[str], owner: str = "") -> None:
    """An unknown name is an error that proposes the nearest one."""
    known = list(_kinds(cls))
    for name in names:
        if name not in known:
            raise InputError(f"{_of(owner)}unknown setting {name!r}{choices(name, known)}")


def from_text(cls: type[Any], pairs: Sequence[str], owner: str = "") -> dict[str, Any]:
    """Values of "key=value" pairs by name, each typed by its field.

    Text is taken as JSON where the field is a list or a table, and "none" as None where the field may be None.
    """
    kinds = _kinds(cls)
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise InputError(f"{_of(owner)}a setting must be written NAME=VALUE, got {pair!r}")
        if name in found:
            raise InputError(f"{_of(owner)}{name} is given twice, last as {text!r}: give it once")
        check_names(cls, [name], owner)
        found[name] = _from_text(f"{_of(owner)}{name}", text, kinds[name])
    return found


def describe(kind: Any) -> str:
    """An annotation in words, such as "a finite number > 0 or None"."""
    origin = get_origin(kind)
    if origin is Annotated:
        base, *limits = get_args(kind)
        words = [str(limit) for limit in limits if isinstance(limit, Bound | Length)]
        return " ".join([describe(base), *words])
    if origin in (Union, types.UnionType):
        return " or ".join(describe(option) for option in get_args(kind))
    if origin is Literal:
        return ("one of " if len(get_args(kind)) > 1 else "") + ", ".join(map(repr, get_args(kind)))
    base = origin or kind
    if base in _WORDS:
        return _WORDS[base]
    if _is_sequence(base):
        return "a list"
    if isinstance(base, type) and issubclass(base, Mapping):
        return "a table"
    return f"a {getattr(base, '__name__', base)}"


def as_json(value: Any) -> Any:
    """The value in the types of JSON, however deep: nan and infinity become None, tuples lists, settings objects."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {field.name: as_json(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, Mapping):
        return {str(key): as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple | set | frozenset):
        return [as_json(item) for item in value]
    if isinstance(value, bool) or value is None:
        return value
    if isinstance(value, Integral):
        return int(value)
    if isinstance(value, Real):
        return float(value) if math.isfinite(value) else None
    return value


def dumps(value: Any, indent: int | None = None, sort_keys: bool = False) -> str:
    """JSON that every reader accepts: nan and infinity are null."""
    return json.dumps(as_json(value), allow_nan=False, indent=indent, sort_keys=sort_keys)


def digest(value: Any) -> str:
    """A short name for the value, as JSON has it, that no other has; a table's entry that is None does not count."""
    return hashlib.sha256(dumps(_without_none(as_json(value)), sort_keys=True).encode()).hexdigest()[:16]


def _without_none(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _without_none(item) for key, item in value.items() if item is not None}
    return [_without_none(item) for item in value] if isinstance(value, list) else value


class _Unfit(Exception):
    """A value that an annotation does not allow; `place` is where it is in the whole, such as [2] or .rate."""

    place = ""
    value: Any = None
    kind: Any = None


_WORDS = {
    bool: "True or False",
    int: "an integer",
    float: "a finite number",
    str: "text",
    type(None): "None",
}


_KINDS: dict[type[Any], dict[str, Any]] = {}


def _kinds(cls: type[Any]) -> dict[str, Any]:
    """Field -> its annotation, of a dataclass; evaluated once, since annotations are text."""
    if cls not in _KINDS:
        hints = get_type_hints(cls, include_extras=True)
        _KINDS[cls] = {field.name: hints[field.name] for field in dataclasses.fields(cls)}
    return _KINDS[cls]


def _converted(value: Any, kind: Any, place: str = "") -> Any:
    try:
        return _cast(value, kind)
    except _Unfit as unfit:
        if not unfit.place:
            unfit.value, unfit.kind = value, kind
        unfit.place = place + unfit.place
        raise


def _cast(value: Any, kind: Any) -> Any:
    origin, arguments = get_origin(kind), get_args(kind)
    if kind in (Any, Ellipsis):
        return value
    if origin is Annotated:
        found = _converted(value, arguments[0])
        if not all(limit.holds(found) for limit in arguments[1:] if isinstance(limit, Bound | Length)):
            raise _Unfit
        return found
    if origin in (Union, types.UnionType):
        return _first_fit(value, arguments)
    if origin is Literal:
        for choice in arguments:
            if type(value) is type(choice) and value == choice:
                return choice
        raise _Unfit
    base = origin or kind
    if base in (bool, int, float):
        return _number(value, base)
    if _is_sequence(base):
        return _sequence(value, base, arguments)
    if isinstance(base, type) and issubclass(base, Mapping):
        return _mapping(value, arguments)
    if not isinstance(base, type) or isinstance(value, base):
        return value
    raise _Unfit


def _first_fit(value: Any, kinds: Sequence[Any]) -> Any:
    """By the first of the types that takes the value; an integer stays one where a float is allowed before it."""
    own: Any = type(value)
    for kind in sorted(kinds, key=lambda kind: _plain(kind) != own):
        try:
            return _converted(value, kind)
        except _Unfit:
            continue
    raise _Unfit


def _number(value: Any, kind: Any) -> Any:
    if kind is bool:
        if isinstance(value, bool) or type(value).__name__ in ("bool", "bool_"):  # NumPy's
            return bool(value)
        raise _Unfit
    if isinstance(value, bool) or not isinstance(value, Integral if kind is int else Real):
        raise _Unfit
    try:
        found = kind(value)
    except OverflowError:
        raise _Unfit from None
    if not math.isfinite(found):
        raise _Unfit
    return found


def _is_sequence(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Sequence) and not issubclass(kind, str | bytes)


def _sequence(value: Any, base: Any, arguments: tuple[Any, ...]) -> Any:
    if not isinstance(value, list | tuple):
        raise _Unfit
    if base is tuple and arguments and Ellipsis not in arguments:
        if len(value) != len(arguments):
            raise _Unfit
        kinds = arguments
    else:
        kinds = (arguments[0] if arguments else Any,) * len(value)
    return tuple(_converted(one, kind, f"[{i}]") for i, (one, kind) in enumerate(zip(value, kinds, strict=True)))


def _mapping(value: Any, arguments: tuple[Any, ...]) -> dict[Any, Any]:
    if not isinstance(value, Mapping):
        raise _Unfit
    of_keys, of_values = arguments or (Any, Any)
    return {_converted(key, of_keys): _converted(item, of_values, f".{key}") for key, item in value.items()}


def _from_text(name: str, text: str, kind: Any) -> Any:
    options = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    if type(None) in options and text.lower() == "none":
        return None
    for option in options:
        read = _READERS.get(_plain(option), json.loads)
        try:
            return _converted(read(text), option)
        except (_Unfit, ValueError, RecursionError):
            continue
    for choice in (choice for option in options if get_origin(option) is Literal for choice in get_args(option)):
        if str(choice) == text:
            return choice
    raise InputError(f"{name} must be {describe(kind)}, got {text!r}")


def _plain(kind: Any) -> Any:
    """The type below its limits."""
    return get_args(kind)[0] if get_origin(kind) is Annotated else get_origin(kind) or kind


def _read_bool(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise _Unfit
    return text.lower() == "true"


_READERS: dict[Any, Any] = {bool: _read_bool, int: int, float: float, str: str}


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 100 else f"{text[:97]}..."


def _of(owner: str) -> str:
    return f"{owner}: " if owner else ""
