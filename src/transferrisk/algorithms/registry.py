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
    """Register an algorithm under a name, as a class decorator.

    Parameters
    ----------
    name
        Name for `create` and `trm train --algorithm`.

    Returns
    -------
    Callable[[A], A]
        The decorator.

    Examples
    --------
    >>> from transferrisk.algorithms import ALGORITHMS, ERM, Setting, create, register
    >>> with ALGORITHMS.temporary():
    ...     @register("mine")
    ...     class Mine(ERM):
    ...         "Empirical risk under another name."
    ...     type(create("mine", Setting(2, 2))).__name__
    'Mine'
    """
    return ALGORITHMS.register(name)


available = ALGORITHMS.names
get_algorithm = ALGORITHMS.get


def setting_names(name: str) -> list[str]:
    """Return the names of the settings of an algorithm.

    Parameters
    ----------
    name
        Name of the algorithm.

    Returns
    -------
    list[str]
        The names.

    Examples
    --------
    >>> from transferrisk.algorithms import setting_names
    >>> "ridge" in setting_names("trm")
    True
    """
    return list(get_algorithm(name).config_type.__dataclass_fields__)


def configure(name: str, **settings: Any) -> Config:
    """Return the config of an algorithm with these settings; the error for an unknown one proposes the nearest.

    Parameters
    ----------
    name
        Name of the algorithm.
    **settings
        Settings that differ from the defaults.

    Returns
    -------
    Config
        All settings, checked.

    Examples
    --------
    >>> from transferrisk.algorithms import configure
    >>> configure("trm", ridge=0.01).ridge
    0.01
    """
    config_type: type[Config] = get_algorithm(name).config_type
    with checked_fields(config_type, settings, f"algorithm {name}"):
        return config_type(**settings)


def parse_settings(name: str, pairs: Sequence[str]) -> dict[str, Any]:
    """Return settings of an algorithm from texts such as "ridge=1e-2", in the types that its config declares.

    Parameters
    ----------
    name
        Name of the algorithm.
    pairs
        Texts of the form NAME=VALUE.

    Returns
    -------
    dict[str, Any]
        Settings that `create` takes.

    Examples
    --------
    >>> from transferrisk.algorithms import parse_settings
    >>> parse_settings("trm", ["ridge=1e-2", "bound=none"])
    {'ridge': 0.01, 'bound': None}
    """
    settings = from_text(get_algorithm(name).config_type, pairs, owner=f"algorithm {name}")
    configure(name, **settings)
    return settings


def create(name: str, setting: Setting, **settings: Any) -> Algorithm[Any]:
    """Return an algorithm, ready to train a `transferrisk.models.Classifier`.

    `available()` lists the names, and `help(get_algorithm(name))` explains the settings.

    Parameters
    ----------
    name
        Name of the algorithm.
    setting
        Facts about the training data.
    **settings
        Settings that differ from the defaults.

    Returns
    -------
    Algorithm[Any]
        The algorithm.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from transferrisk.algorithms import Batch, Setting, create
    >>> from transferrisk.models import Classifier
    >>> model = Classifier(nn.Identity(), num_features=5, num_classes=2)
    >>> optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    >>> algorithm = create("groupdro", Setting(num_environments=3, num_classes=2))
    >>> batch = Batch(torch.randn(60, 5), torch.randint(2, (60,)), torch.arange(60) % 3)
    >>> "loss" in algorithm.step(model, batch, optimiser, epoch=0.0)
    True
    """
    return get_algorithm(name)(setting, configure(name, **settings))


def describe_algorithm(name: str, **settings: Any) -> str:
    """Return the name of an algorithm and all its settings in one line.

    Parameters
    ----------
    name
        Name of the algorithm.
    **settings
        Settings that differ from the defaults.

    Returns
    -------
    str
        One line.

    Examples
    --------
    >>> from transferrisk.algorithms import describe_algorithm
    >>> describe_algorithm("vrex")  # doctest: +ELLIPSIS
    'vrex: penalty_weight=...'
    """
    words = []
    for key, value in dataclasses.asdict(configure(name, **settings)).items():
        words.append(f"{key}={value:g}" if isinstance(value, float) else f"{key}={value}")
    return f"{name}: {', '.join(words) or 'no settings'}"
