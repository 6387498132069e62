"""Algorithms by name, built-in ones, the user's own and those of installed packages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from difflib import get_close_matches
from typing import Any, TypeVar, get_type_hints

from ..errors import InputError
from ..plugins import Plugins
from .base import Algorithm, Config, Setting
from .fields import choices, is_one_of

_REGISTRY: dict[str, type[Algorithm[Any]]] = {}

A = TypeVar("A", bound=type[Algorithm[Any]])


def register(name: str) -> Callable[[A], A]:
    """Class decorator: makes an algorithm known under a name."""

    def decorate(algorithm: A) -> A:
        if not (isinstance(algorithm, type) and issubclass(algorithm, Algorithm)):
            called = getattr(algorithm, "__name__", repr(algorithm))
            raise InputError(f"{called} is no algorithm to register as {name!r}: derive a class from Algorithm")
        known = _REGISTRY.get(name)
        if known is not None and (known.__module__, known.__qualname__) != (
            algorithm.__module__,
            algorithm.__qualname__,
        ):
            raise InputError(f"algorithm {name!r} is registered already, as {known.__module__}.{known.__qualname__}")
        algorithm.name = name
        _REGISTRY[name] = algorithm
        return algorithm

    return decorate


_PLUGINS = Plugins(
    "transferrisk.algorithms",
    "algorithm",
    known=lambda name: name in _REGISTRY,
    register=lambda name, found: register(name)(found),
)


def available() -> list[str]:
    """Names of all algorithms."""
    _PLUGINS.find_all()
    return list(_REGISTRY)


def get(name: str) -> type[Algorithm[Any]]:
    """The class of the algorithm of this name; an unknown one is an error that names the nearest."""
    _PLUGINS.find(name)
    if name not in _REGISTRY:
        raise InputError(f"algorithm {name!r} is not known{_nearest(name, available())}")
    return _REGISTRY[name]


def setting_names(name: str) -> list[str]:
    """What can be set of the algorithm of this name."""
    return [field.name for field in dataclasses.fields(get(name).config_type)]


def configure(name: str, **settings: Any) -> Config:
    """The algorithm's config with these settings; one that it does not have is an error that names the nearest."""
    config_type = get(name).config_type
    known = setting_names(name)
    kinds = get_type_hints(config_type)
    for key, value in settings.items():
        if key not in known:
            raise InputError(f"{name} has no setting {key!r}{_nearest(key, known)}")
        allowed = choices(kinds[key])
        if allowed and not is_one_of(value, allowed):
            raise InputError(f"{name} has no {key}={value!r}: choose from {', '.join(map(repr, allowed))}")
    try:
        return config_type(**settings)
    except InputError as error:
        raise InputError(f"{name}: {error}") from None


def create(name: str, setting: Setting, **settings: Any) -> Algorithm[Any]:
    """The algorithm of this name, ready to train; `settings` are those fields of its config that are not the defaults.

    >>> algorithm = create("trm", Setting(num_environments=2, num_classes=10), ridge=1e-2)
    >>> algorithm.step(model, Batch(images, labels, sites), optimiser, epoch=0.0)

    `available()` lists the names, and `configure(name)` shows the settings. The model is a
    `transferrisk.models.Classifier`: a featuriser with a linear head.
    """
    return get(name)(setting, configure(name, **settings))


def describe(name: str, **settings: Any) -> str:
    """The algorithm and all its settings in one line: "irm: penalty_weight=1, start_epoch=1, penalty=scale"."""
    values = dataclasses.asdict(configure(name, **settings)).items()
    shown = ", ".join(f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}" for key, value in values)
    return f"{name}: {shown or 'no settings'}"


def _nearest(word: str, known: list[str]) -> str:
    close = get_close_matches(word, known, n=1)
    choices = f"choose from {', '.join(known)}" if known else "it has none"
    return f": did you mean {close[0]!r}? ({choices})" if close else f": {choices}"
