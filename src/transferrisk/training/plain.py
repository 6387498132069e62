"""JSON as every reader of it takes it: a number that is none (nan, infinite) is null."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any


def plain(value: Any) -> Any:
    """The same with None for every such number, however deep it lies."""
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value


def dumps(value: Any, indent: int | None = None, sort_keys: bool = False) -> str:
    return json.dumps(plain(value), allow_nan=False, indent=indent, sort_keys=sort_keys)
