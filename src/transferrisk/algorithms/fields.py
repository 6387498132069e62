"""What the fields of a config may hold, by the types it declares."""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Collection
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..errors import InputError
from ..functional.checks import check_from_zero


def choices(kind: Any) -> tuple[Any, ...]:
    """The values of a Literal; none for other types."""
    return get_args(kind) if get_origin(kind) is Literal else ()


def options(kind: Any) -> tuple[Any, ...]:
    """The types of a union; a type that is none stands for itself."""
    return get_args(kind) if get_origin(kind) in (Union, types.UnionType) else (kind,)


def is_one_of(value: object, allowed: tuple[Any, ...]) -> bool:
    """Equal to one of these and of its type: True is not 1."""
    return any(type(value) is type(choice) and value == choice for choice in allowed)


def check_fields(config: Any, above_zero: Collection[str] = ()) -> None:
    """A number is finite and from 0 up, or above 0 where it is named here; a choice is one of those listed.

    A config that holds such fields calls this in its `__post_init__`.
    """
    kinds = get_type_hints(type(config))
    for field in dataclasses.fields(config):
        name, value, kind = field.name, getattr(config, field.name), kinds[field.name]
        allowed, kept = choices(kind), options(kind)
        if allowed and not is_one_of(value, allowed):
            raise InputError(f"{name}={value!r} is not known: choose from {', '.join(map(repr, allowed))}")
        if float in kept and not (value is None and type(None) in kept):
            check_from_zero(name, value, above=name in above_zero)
