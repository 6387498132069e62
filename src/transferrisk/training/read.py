"""Values from a JSON file that someone may have edited: of the kind they should be, or a ValueError that says so."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


def text(value: Any, name: str) -> str:
    return _kind(value, str, name, "a text")


def whole(value: Any, name: str) -> int:
    return _kind(value, int, name, "a whole number")


def mapping(value: Any, name: str) -> dict[str, Any]:
    return _kind(value, dict, name, "an object")


def number(value: Any, name: str) -> float:
    """A finite one; null is nan."""
    if value is None:
        return math.nan
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) < math.inf:
        raise ValueError(f"{name} is {value!r:.40}, not a finite number")
    try:
        return float(value)
    except OverflowError as error:
        raise ValueError(f"{name}: {error}") from None


def each(read: Callable[[Any, str], T], value: Any, name: str) -> dict[str, T]:
    return {key: read(item, f"{name} of {key!r}") for key, item in mapping(value, name).items()}


def square(value: Any, name: str) -> list[list[float]]:
    rows = [
        [number(item, name) for item in _kind(row, list, name, "a list")] for row in _kind(value, list, name, "a list")
    ]
    if any(len(row) != len(rows) for row in rows):
        raise ValueError(f"{name} is not square")
    return rows


def _kind(value: Any, kind: type[T], name: str, wanted: str) -> T:
    if not isinstance(value, kind) or isinstance(value, bool):
        raise ValueError(f"{name} is {value!r:.40}, not {wanted}")
    return value
