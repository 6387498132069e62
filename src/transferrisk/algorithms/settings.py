"""Settings of an algorithm as text, such as `ridge=1e-2`, typed by its config."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, get_type_hints

from ..errors import InputError
from .fields import choices, options
from .registry import configure, get


def parse_settings(name: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Each "key=value" of the algorithm of this name as the type that its config says.

    >>> parse_settings("trm", ["ridge=1e-2", "bound=none"])
    {'ridge': 0.01, 'bound': None}
    """
    kinds = get_type_hints(get(name).config_type)
    settings: dict[str, Any] = {}
    for pair in pairs:
        key, equals, text = pair.partition("=")
        if not equals or not key:
            raise InputError(f"{pair!r} is no setting: write key=value")
        if key in settings:
            raise InputError(f"{key} is set more than once, last to {text!r}: give it once")
        settings[key] = _typed(name, key, text, kinds[key]) if key in kinds else text
    configure(name, **settings)
    return settings


def _typed(name: str, key: str, text: str, kind: Any) -> Any:
    if allowed := choices(kind):
        return next((choice for choice in allowed if str(choice) == text), text)  # `configure` lists the choices
    kinds = options(kind)
    if type(None) in kinds and text.lower() == "none":
        return None
    for option in kinds:
        if option is bool and text.lower() in ("true", "false"):
            return text.lower() == "true"
        if option in (int, float, str):
            try:
                return option(text)
            except ValueError:
                continue
    wanted = " or ".join("none" if option is type(None) else option.__name__ for option in kinds)
    raise InputError(f"{name} takes no {key}={text!r}: give {wanted}")
