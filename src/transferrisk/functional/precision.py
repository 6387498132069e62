"""In which precision the head is computed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol, Self, TypeVar

import torch
from torch import Tensor

from ..errors import InputError


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 and float32 as they are; half precisions, as autocast regions give them, in float32."""
    if not dtype.is_floating_point:
        raise InputError(f"features of type {dtype} are not floating point: convert them with .float()")
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


class Castable(Protocol):
    def to(self, dtype: torch.dtype, /) -> Self: ...


R = TypeVar("R", bound=Castable)


def in_enough_precision(solve: Callable[[Tensor], R], features: Tensor, arrived: Callable[[R], bool]) -> R:
    """solve(features), once more in float64 where that has not arrived; always of the working type of the features."""
    result = solve(features)
    if features.dtype == torch.float64 or arrived(result):
        return result
    return solve(features.double()).to(working_dtype(features.dtype))


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """No autocast and no TF32: Newton's method cannot correct what a rounded product does to its gradient."""
    with torch.autocast(device.type, enabled=False), _ieee_products(device):
        yield


@contextmanager
def _ieee_products(device: torch.device) -> Iterator[None]:
    matmul = torch.backends.cuda.matmul
    before = matmul.fp32_precision
    if device.type != "cuda" or before == "ieee":  # nothing to change, and so nothing to pin by restoring it
        yield
        return
    matmul.fp32_precision = "ieee"
    try:
        yield
    finally:
        matmul.fp32_precision = before
