"""The classifier's parameters, checked when it is fitted, as scikit-learn wants it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state

from ..algorithms import configure, get_algorithm
from ..errors import InputError
from ..functional.checks import as_integer, check_count
from ..settings import convert
from .table import Integers
from .training import Options

REPRESENTATIONS = ("linear", "mlp")


def check_options(parameters: Mapping[str, Any], algorithm: str) -> Options:
    """The parameters of `get_params`, for training with this algorithm."""
    parameters = {name: _plain(value) for name, value in parameters.items()}
    settings = parameters["algorithm_params"]
    if settings is not None and not isinstance(settings, Mapping):
        raise InputError(f"algorithm_params={settings!r} is no dict: give settings by name, or None")
    settings = {name: _plain(value) for name, value in (settings or {}).items()}
    configure(parameters["algorithm"], **settings)
    if parameters["representation"] not in REPRESENTATIONS:
        known = " or ".join(map(repr, REPRESENTATIONS))
        raise InputError(f"representation={parameters['representation']!r} is not known: use {known}")
    for name in ("batch_size", "max_epochs"):
        if not (isinstance(parameters[name], str) and parameters[name] == "auto"):
            if name == "batch_size" and parameters[name] is None:
                continue
            check_count(name, parameters[name])
    for name, least in (("learning_rate", "above 0"), ("weight_decay", "from 0 up")):
        value = convert(name, parameters[name], float)
        if not math.isfinite(value) or value < 0 or (value == 0 and least == "above 0"):
            raise InputError(f"{name}={value} is not a number {least}: give one")
    for name in ("early_stopping", "standardise"):
        if not isinstance(parameters[name], bool | np.bool_):
            raise InputError(f"{name}={parameters[name]!r} is neither True nor False: give one of them")
    return Options(
        algorithm=algorithm,
        settings=settings if algorithm == parameters["algorithm"] else {},
        representation=parameters["representation"],
        width=check_count("width", parameters["width"]),
        learning_rate=float(parameters["learning_rate"]),
        weight_decay=float(parameters["weight_decay"]),
        standardise=bool(parameters["standardise"]),
        seed=draw_seed(parameters["random_state"]),
        device=check_device(parameters["device"]),
        patience=check_count("n_iter_no_change", parameters["n_iter_no_change"]),
        verbose=int(parameters["verbose"]),
    )


def check_algorithm(name: object) -> str:
    if not isinstance(name, str):
        raise InputError(f"algorithm={name!r} is no name: give one such as 'trm'")
    get_algorithm(name)
    return name


def check_device(name: object) -> str:
    if not isinstance(name, str):
        raise InputError(f"device={name!r} is no name of a device: give 'cpu', 'cuda', 'cuda:1' or 'auto'")
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    if name.partition(":")[0] == "cuda" and not torch.cuda.is_available():
        raise InputError(f"device={name!r} is not there, as PyTorch finds no GPU: use 'cpu' or 'auto'")
    return name


def draw_seed(random_state: Any) -> int:
    """From whatever scikit-learn takes, and from NumPy's newer generators."""
    if isinstance(random_state, np.random.Generator):
        return int(random_state.integers(2**31 - 1))
    return int(check_random_state(random_state).randint(2**31 - 1))


def _plain(value: Any) -> Any:
    """A value of NumPy as Python's, which is told as it was written."""
    return value.item() if isinstance(value, np.generic) else value


def choose_held_out(asked: Any, names: NDArray[Any], seed: int) -> Integers:
    """Numbers of the environments to hold out: so many, a share of them, or those that are named."""
    E = len(names)
    asked = asked.tolist() if isinstance(asked, np.ndarray) else _plain(asked)
    count = as_integer(asked)
    if isinstance(asked, float | np.floating) and 0 < asked < 1:
        count = max(1, round(asked * E))
    if count is not None:
        if not 1 <= count <= E - 2:
            most = "1" if E == 3 else f"1 to {E - 2}"
            raise InputError(
                f"validation_environments={asked!r} would hold {count} of {E} environments out: give {most}, so that "
                "two are left to train on"
            )
        return np.sort(np.random.default_rng(seed).permutation(E)[:count])
    if isinstance(asked, str) or not isinstance(asked, Sequence) or not len(asked):
        raise InputError(
            f"validation_environments={asked!r} names no environments: give their number, a share between 0 and 1, or "
            "a list of them"
        )
    values = names.tolist()
    asked = [_plain(value) for value in asked]
    unknown = [value for value in asked if value not in values]
    if unknown:
        raise InputError(f"validation_environments has {unknown[0]!r}, which is not among environments: {values[:10]}")
    chosen = np.unique([values.index(value) for value in asked])
    if len(chosen) > E - 2:
        raise InputError(
            f"validation_environments holds {len(chosen)} of {E} environments out: leave two or more to train on"
        )
    return chosen
