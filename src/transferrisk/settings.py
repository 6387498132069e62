"""Settings: frozen dataclasses whose annotations say what each field may hold, checked in this one place.

>>> @dataclass(frozen=True)
... class Ridge(Settings):
...     ridge: Positive = 1e-3
...     weights: Literal["eg", "worst"] = "eg"
>>> Ridge(ridge=1)
Ridge(ridge=1.0, weights='eg')
>>> Ridge(ridge=-1)
InputError: ridge must be a finite number > 0, got -1

Values may come from Python, TOML, JSON or NumPy: a list becomes a tuple, 1 becomes 1.0 where a float belongs, and a
number of NumPy becomes one of Python. True is never taken for 1. A float that is not finite is refused.
"""

from __future__ import annotations

import hashlib
import json
import math
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import MISSING, dataclass, fields, is_dataclass
from numbers import Integral, Real
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from .errors import InputError, UnfitError, choices


@dataclass(frozen=True)
class Bound:
    """Limits of a number, for `Annotated`: `least` and `most` are allowed, `above` and `below` are not."""

    least: float = -math.inf
    most: float = math.inf
    above: float = -math.inf
    below: float = math.inf

    def __str__(self) -> str:
        limits = ((">=", self.least), (">", self.above), ("<=", self.most), ("<", self.below))
        return " and ".join(f"{sign} {limit:g}" for sign, limit in limits if math.isfinite(limit))


class Length(Bound):
    """Smallest number of values in a list, for `Annotated`."""

    def __str__(self) -> str:
        return f"of {self.least} or more values"


@dataclass(frozen=True)
class NullIsNan:
    """For `Annotated`: a number that may be nan, which JSON writes as null."""


Count = Annotated[int, Bound(least=1)]
Seed = Annotated[int, Bound(least=0, below=2**63)]
Positive = Annotated[float, Bound(above=0)]
NonNegative = Annotated[float, Bound(least=0)]
Share = Annotated[float, Bound(least=0, most=1)]
Measured = Annotated[float, NullIsNan()]


@dataclass(frozen=True)
class Settings:
    """Base of settings: every field is checked against its annotation and brought to its type."""

    def __post_init__(self) -> None:
        for name, kind in field_kinds(type(self)).items():
            object.__setattr__(self, name, convert(name, getattr(self, name), kind))


_KINDS: dict[type[Any], dict[str, Any]] = {}


def field_kinds(cls: type[Any]) -> dict[str, Any]:
    """Return the annotation of each field of a dataclass; evaluated once, since annotations are text."""
    if cls not in _KINDS:
        hints, kinds = get_type_hints(cls, include_extras=True), {}
        for field in fields(cls):
            kinds[field.name] = hints[field.name]
        _KINDS[cls] = kinds
    return _KINDS[cls]


def convert(name: str, value: Any, kind: Any) -> Any:
    """Return the value in the type that the annotation `kind` asks for; an error calls it `name`.

    A table becomes a dataclass where `kind` is one, with fields of the types that its annotations ask for. The text
    "none", by which TOML says what it has no word for, becomes None where no other type fits it.
    """
    bare, *limits = get_args(kind) if get_origin(kind) is Annotated else (kind,)
    base, inner = get_origin(bare) or bare, get_args(bare)
    if value is None and types.NoneType in inner and base in (Union, types.UnionType):
        return None
    unfit = UnfitError(name, value, kind)
    found = value
    if NullIsNan() in limits and (value is None or value != value):
        return math.nan
    if base in (Union, types.UnionType):
        fits = []
        for option in inner:
            with suppress(UnfitError):
                fits.append(convert(name, value, option))
        if not fits and value == "none" and types.NoneType in inner:
            return None
        if not fits:
            raise unfit
        found = fits[0]
        for fit in fits:
            if type(fit) is type(value):  # 1 stays an integer where a float is allowed before it
                found = fit
                break
    elif base is Literal:
        if (type(value), value) not in zip(map(type, inner), inner, strict=True):
            raise unfit
    elif base is bool:
        if type(value).__name__ not in ("bool", "bool_"):  # NumPy's is bool_
            raise unfit
        found = bool(value)
    elif base in (int, float):
        if isinstance(value, bool) or not isinstance(value, Integral if base is int else Real):
            raise unfit
        try:
            found = base(value)
        except OverflowError:
            raise unfit from None
        if base is float and not math.isfinite(found):
            raise unfit
    elif base in (tuple, list, Sequence):
        fixed = base is tuple and bool(inner) and Ellipsis not in inner
        if not isinstance(value, list | tuple) or (fixed and len(value) != len(inner)):
            raise unfit
        kinds = inner if fixed else (inner or (Any,))[:1] * len(value)
        items = list(value)
        for i, item_kind in enumerate(kinds):
            items[i] = convert(f"{name}[{i}]", items[i], item_kind)
        found = tuple(items)
    elif base in (dict, Mapping):
        if not isinstance(value, Mapping):
            raise unfit
        of_keys, of_values = inner or (Any, Any)
        found = {}
        for key, item in value.items():
            found[convert(f"a key of {name}", key, of_keys)] = convert(f"{name}.{key}", item, of_values)
    elif isinstance(base, type) and is_dataclass(base) and isinstance(value, Mapping):
        with checked_fields(base, value, name):
            if not issubclass(base, Settings):  # which convert their own fields
                of_fields, value = field_kinds(base), dict(value)
                for key in value:
                    value[key] = convert(key, value[key], of_fields[key])
            found = base(**value)
    elif base is not Any and isinstance(base, type) and not isinstance(value, base):
        raise unfit
    for limit in limits:
        if found is not None and isinstance(limit, Bound):
            measured = len(found) if isinstance(limit, Length) else found
            if not (limit.least <= measured <= limit.most and limit.above < measured < limit.below):
                raise unfit
    return found


def within(kind: Any) -> Callable[[Any, Any, Any], Any]:
    """Return the callback of a command's option whose value must be of this kind, such as `Count`.

    Limits of typer would be printed behind the metavar in the help.
    """

    def check(context: Any, option: Any, value: Any) -> Any:  # typer takes them in this order
        return None if value is None else convert(option.opts[0], value, kind)

    return check


def whole(least: int, most: float = math.inf) -> Callable[[Any, Any, Any], Any]:
    """Return the callback of a command's option whose value must be a whole number within these limits."""
    return within(Annotated[int, Bound(least=least, most=most)])


@contextmanager
def checked_fields(cls: type[Any], values: Mapping[str, Any], owner: str = "") -> Iterator[None]:
    """Refuse names that are not fields of the class, and missing ones; begin messages of the block with the owner.

    >>> with checked_fields(Ridge, table, "algorithm trm"):
    ...     ridge = Ridge(**table)
    """
    prefix, kinds = f"{owner}: " if owner else "", field_kinds(cls)
    for name in values:
        if name not in kinds:
            raise InputError(f"{prefix}unknown setting {name!r}{choices(name, kinds)}")
    for field in fields(cls):
        if field.default is MISSING and field.default_factory is MISSING and field.name not in values:
            raise InputError(f"{prefix}{field.name} is missing: add it")
    try:
        yield
    except InputError as error:
        raise InputError(f"{prefix}{error}") from None


def from_text(cls: type[Any], pairs: Sequence[str], owner: str = "") -> dict[str, Any]:
    """Return the values of "key=value" pairs by name, each in the type of its field.

    Text is read as JSON where the field is a list or a table, and "none" as None where the field may be None.
    """
    prefix, kinds = f"{owner}: " if owner else "", field_kinds(cls)
    found: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals or not name:
            raise InputError(f"{prefix}a setting must be written NAME=VALUE, got {pair!r}")
        if name in found:
            raise InputError(f"{prefix}{name} is given twice, last as {text!r}: give it once")
        if name not in kinds:
            raise InputError(f"{prefix}unknown setting {name!r}{choices(name, kinds)}")
        found[name] = _value_of_text(f"{prefix}{name}", text, kinds[name])
    return found


def _value_of_text(name: str, text: str, kind: Any) -> Any:
    options = get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)
    if type(None) in options and text.lower() == "none":
        return None
    for option in options:
        bare = get_args(option)[0] if get_origin(option) is Annotated else option
        for choice in get_args(bare) if get_origin(bare) is Literal else ():
            if str(choice) == text:
                return choice
        with suppress(UnfitError, ValueError, RecursionError):
            return convert(name, _READERS.get(bare, json.loads)(text), option)
    raise UnfitError(name, text, kind)


_READERS: dict[Any, Any] = {bool: lambda text: json.loads(text.lower()), int: int, float: float, str: str}


def describe(kind: Any) -> str:
    """Return an annotation in words, such as "a finite number > 0 or None"."""
    base, inner = get_origin(kind) or kind, get_args(kind)
    if base is Annotated:
        limits = [str(limit) for limit in inner[1:] if isinstance(limit, Bound)]
        return " ".join([describe(inner[0]), *limits])
    if base in (Union, types.UnionType):
        return " or ".join(map(describe, inner))
    if base is Literal:
        return ("one of " if len(inner) > 1 else "") + ", ".join(map(repr, inner))
    return _WORDS.get(base, f"a {getattr(base, '__name__', base)}")


_WORDS: dict[Any, str] = {
    bool: "True or False",
    int: "an integer",
    float: "a finite number",
    str: "text",
    type(None): "None",
    **dict.fromkeys((tuple, list, Sequence), "a list"),
    **dict.fromkeys((dict, Mapping), "a table"),
}


def as_json(value: Any) -> Any:
    """Return the value in the types of JSON: nan and infinity become None, tuples lists, and settings objects."""
    if is_dataclass(value) and not isinstance(value, type):
        value = {field.name: getattr(value, field.name) for field in fields(value)}
    if isinstance(value, Mapping):
        return dict(zip(map(str, value), map(as_json, value.values()), strict=True))
    if isinstance(value, list | tuple | set | frozenset):
        return list(map(as_json, value))
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    if isinstance(value, Integral):
        return int(value)
    return float(value) if math.isfinite(value) else None


def dumps(value: Any, indent: int | None = None, sort_keys: bool = False) -> str:
    """Return JSON that every reader accepts: nan and infinity are null."""
    return json.dumps(as_json(value), allow_nan=False, indent=indent, sort_keys=sort_keys)


def digest(value: Any) -> str:
    """Return a short hash of the value's JSON; entries of tables that are None do not count."""
    value = json.loads(dumps(value), object_hook=_without_none)
    return hashlib.sha256(dumps(value, sort_keys=True).encode()).hexdigest()[:16]


def _without_none(table: dict[str, Any]) -> dict[str, Any]:
    return {key: item for key, item in table.items() if item is not None}
