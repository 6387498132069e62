"""What the settings of these experiments may hold, and how they report progress."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ...errors import InputError
from ...functional.checks import as_integer, check_count, check_from_zero, check_number

OnStep = Callable[[int, int], None]
"""(steps done, steps in all)"""

Check = Callable[[str, object], Any]


def silent(done: int, total: int) -> None:
    """Reports to nobody."""


def finite(name: str, value: object) -> float:
    number = check_number(name, value)
    if abs(number) == float("inf") or number != number:
        raise InputError(f"{name}={number} is not finite: give a finite number")
    return number


def above_zero(name: str, value: object) -> float:
    return check_from_zero(name, value, above=True)


def from_zero(name: str, value: object) -> float:
    return check_from_zero(name, value)


def at_least(least: int) -> Check:
    """A count that is not smaller."""

    def check(name: str, value: object) -> int:
        count = check_count(name, value)
        if count < least:
            raise InputError(f"{name}={count} is too few: give at least {least}")
        return count

    return check


def seed(name: str, value: object) -> int:
    number = as_integer(value)
    if number is None or number < 0:
        raise InputError(f"{name}={value!r} is no seed: give an integer from 0 up")
    return number


def one_of(*choices: str) -> Check:
    def check(name: str, value: object) -> str:
        if not isinstance(value, str) or value not in choices:
            raise InputError(f"{name}={value!r} is not known: choose from {', '.join(map(repr, choices))}")
        return value

    return check


def several(check: Check, least: int = 1) -> Check:
    """A list of such values, as a tuple."""

    def check_all(name: str, values: object) -> tuple[Any, ...]:
        if not isinstance(values, list | tuple) or len(values) < least:
            raise InputError(f"{name}={values!r} is no list of at least {least}: give one, such as in brackets")
        return tuple(check(name, value) for value in values)

    return check_all


def check_settings(settings: Any, **checks: Check) -> None:
    """Every field named here by its check; what that returns, such as a tuple for a list, takes the value's place."""
    for name, check in checks.items():
        object.__setattr__(settings, name, check(name, getattr(settings, name)))
