"""Algorithms by name: built-in ones, the user's own and those of installed packages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from ..errors import InputError
from ..registry import Registry
from ..settings import from_mapping, from_text
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
    """Class decorator: makes an algorithm known under a name."""
    return ALGORITHMS.register(name)


def available() -> list[str]:
    """Names of all algorithms."""
    return ALGORITHMS.names()


def get_algorithm(name: str) -> type[Algorithm[Any]]:
    """The class of the algorithm of this name; an unknown name is an error that proposes the nearest."""
    return ALGORITHMS.get(name)


def setting_names(name: str) -> list[str]:
    """The names of the settings of an algorithm."""
    return [field.name for field in dataclasses.fields(get_algorithm(name).config_type)]


def configure(name: str, **settings: Any) -> Config:
    """The algorithm's config with these settings; an unknown setting is an error that proposes the nearest."""
    return from_mapping(get_algorithm(name).config_type, settings, owner=name)


def parse_settings(name: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Settings of the algorithm of this name, from "key=value" pairs, in the types that its config declares.

    >>> parse_settings("trm", ["ridge=1e-2", "bound=none"])
    {'ridge': 0.01, 'bound': None}
    """
    settings = from_text(get_algorithm(name).config_type, pairs, owner=name)
    configure(name, **settings)
    return settings


def create(name: str, setting: Setting, **settings: Any) -> Algorithm[Any]:
    """The algorithm of this name, ready to train; `settings` are those fields of its config that are not the defaults.

    >>> algorithm = create("trm", Setting(num_environments=2, num_classes=10), ridge=1e-2)
    >>> algorithm.step(model, Batch(images, labels, sites), optimiser, epoch=0.0)

    `available()` lists the names, and `configure(name)` shows the settings. The model is a
    `transferrisk.models.Classifier`: a featuriser with a linear head.
    """
    return get_algorithm(name)(setting, configure(name, **settings))


def describe_algorithm(name: str, **settings: Any) -> str:
    """The algorithm and all its settings in one line: "irm: penalty_weight=1, start_epoch=1, penalty=scale"."""
    values = dataclasses.asdict(configure(name, **settings)).items()
    words = ", ".join(f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in values)
    return f"{name}: {words or 'no settings'}"
