"""Settings as TOML, JSON or a program has them, against the dataclass that declares them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ...errors import InputError
from ...training.plain import dumps

_WORDS = {str: "text", int: "whole number", float: "number", bool: "truth value", Mapping: "table", list: "list"}


def options(kind: Any) -> tuple[Any, ...]:
    """The types of a union; another type is its own only one."""
    return get_args(kind) if get_origin(kind) in (Union, UnionType) else (kind,)


def check_types(settings: Mapping[str, Any], settings_type: type[Any]) -> None:
    """Text, numbers, truth values, tables and lists are what the fields declare; what else they may be, they check."""
    hints = get_type_hints(settings_type)
    for key, value in settings.items():
        kinds = {_plain_kind(kind) for kind in options(hints[key])}
        if not kinds & {None, _kind_of(value)} and not (float in kinds and _kind_of(value) is int):
            raise InputError(f"{key} = {_told(value)} is no {' or '.join(_WORDS[k] for k in _WORDS if k in kinds)}")


def _told(value: Any) -> str:
    """As the recipe has it."""
    try:
        return dumps(value)
    except (TypeError, ValueError):
        return repr(value)


def _kind_of(value: Any) -> Any:
    """Of `_WORDS`, whoever's numbers they are; NoneType for None."""
    if isinstance(value, bool):
        return bool
    for kind, known in ((Mapping, Mapping), (list | tuple, list), (Integral, int), (Real, float), (str, str)):
        if isinstance(value, kind):
            return known
    return type(value)


def _plain_kind(kind: Any) -> Any:
    """Of `_WORDS`, or NoneType; None for what is none of these."""
    origin = get_origin(kind) or kind
    if origin is Literal:
        return str if all(isinstance(word, str) for word in get_args(kind)) else None
    if isinstance(origin, type) and issubclass(origin, Sequence) and origin is not str:
        return list
    return origin if origin in (*_WORDS, type(None)) else None


def frozen(settings: Mapping[str, Any], settings_type: type[Any]) -> dict[str, Any]:
    """What TOML and JSON have as what frozen settings hold: tuples for lists, and 1.0 for 1 where a float belongs."""
    kinds = get_type_hints(settings_type)
    return {key: _frozen(value, options(kinds.get(key))) for key, value in settings.items()}


def _frozen(value: Any, kinds: tuple[Any, ...]) -> Any:
    if isinstance(value, list | tuple):
        inner = tuple(own for kind in kinds for of in get_args(kind) if of is not ... for own in options(of))
        return tuple(_frozen(one, inner) for one in value)
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    value = int(value) if isinstance(value, Integral) else float(value)  # numpy's too
    if float in kinds and int not in kinds:
        with suppress(OverflowError):  # who declares it refuses it
            return float(value)
    return value
