"""Algorithms by name: built-in ones, the user's own and those of installed packages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..errors import InputError
from ..registry import Registry
from ..settings import checked_fields, from_text
from .base import Algorithm, Config, Setting

A = TypeVar("A", bound=type[Algorithm[Any]])


def _algorithm(name: str, found: Any) -> type[Algorithm[Any]]:
    if not (isinstance(found, type) and issubclass(found, Algorithm)):
        called = getattr(found, "__name__", repr(found))
        raise InputError(f"algorithm {name!r} must be a class derived from Algorithm, got {called}")
    found.name = name
    return found


ALGORITHMS: Registry[type[Algorithm[Any]]] = Registry("algorithm", "transferrisk.algorithms", _algorithm)


def register(name: str) -> Callable[[A], A]:
    """Class decorator: registers an algorithm under a name."""
    return ALGORITHMS.register(name)


available = ALGORITHMS.names
get_algorithm = ALGORITHMS.get


def setting_names(name: str) -> list[str]:
    """Return the names of the settings of an algorithm."""
    return list(get_algorithm(name).config_type.__dataclass_fields__)


def configure(name: str, **settings: Any) -> Config:
    """Return the algorithm's config with these settings; an unknown setting is an error that proposes the nearest."""
    config_type: type[Config] = get_algorithm(name).config_type
    with checked_fields(config_type, settings, name):
        return config_type(**settings)


def parse_settings(name: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Return settings of the algorithm of this name, from "key=value" pairs, in the types that its config declares.

    >>> parse_settings("trm", ["ridge=1e-2", "bound=none"])
    {'ridge': 0.01, 'bound': None}
    """
    settings = from_text(get_algorithm(name).config_type, pairs, owner=name)
    configure(name, **settings)
    return settings


def create(name: str, setting: Setting, **settings: Any) -> Algorithm[Any]:
    """Return the algorithm of this name, ready to train; `settings` are fields of its config, defaults left out.

    >>> algorithm = create("trm", Setting(num_environments=2, num_classes=10), ridge=1e-2)
    >>> algorithm.step(model, Batch(images, labels, sites), optimiser, epoch=0.0)

    `available()` lists the names, and `configure(name)` shows the settings. The model is a
    `transferrisk.models.Classifier`: a featuriser with a linear head.
    """
    return get_algorithm(name)(setting, configure(name, **settings))


def describe_algorithm(name: str, **settings: Any) -> str:
    """Return the algorithm and all its settings in one line: "irm: penalty_weight=1, start_epoch=1, penalty=scale"."""
    words = []
    for key, value in dataclasses.asdict(configure(name, **settings)).items():
        words.append(f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}")
    return f"{name}: {', '.join(words) or 'no settings'}"
