"""What `TransferRisk` can be asked for, and what is wrong with the rest."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

import torch
from torch import Tensor

from ..errors import InputError
from ..functional.checks import as_integer, check_count, check_from_zero, check_number, check_ridge

Weights = Literal["eg", "worst", "uniform"]
Query = Literal["all", "random"]


def check_values(
    ridge: float, gradient_matching: float, weights: str, weights_lr: float, query: str, bound: float | None
) -> None:
    check_ridge(ridge)
    if weights not in ("eg", "worst", "uniform"):
        raise InputError(f"weights={weights!r} is not known: use 'eg', 'worst' or 'uniform'")
    if query not in ("all", "random"):
        raise InputError(f"query={query!r} is not known: use 'all' or 'random'")
    check_from_zero("gradient_matching", gradient_matching)
    check_from_zero("weights_lr", weights_lr)
    if bound is not None and not check_number("bound", bound) >= 0:
        raise InputError(f"bound={bound} is negative: give the largest ratio of implicit to direct gradient, or None")


def check_classes(num_classes: int | None, environments: object, captured: bool, **only_captured: object) -> int | None:
    """The number of classes, where it is given; `only_captured` are arguments that stand for nothing otherwise."""
    if captured and (num_classes is None or environments is None):
        raise InputError("captured=True reads nothing from the first batch: give num_classes and environments")
    classes = None if num_classes is None else check_count("num_classes", num_classes)
    for name, given in only_captured.items():
        if given and not captured:
            raise InputError(f"{name}={given!r} is for captured=True only: leave it out, or set captured")
    return classes


def identifiers(environments: object) -> Tensor:
    """The ids (E,) that `environments=` stands for."""
    number = as_integer(environments)
    if number is not None:
        return torch.arange(max(number, 0))
    several = isinstance(environments, Iterable) and getattr(environments, "ndim", 1) > 0
    ids = [as_integer(i) for i in environments] if several else [None]  # type: ignore[attr-defined]  # is iterable
    if None in ids:
        raise InputError(f"environments={environments!r} are not integers: give their number, or integer ids")
    return torch.tensor(ids, dtype=torch.int64)
