"""In which precision the head is computed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from ..errors import InputError


def working_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 and float32 as they are; half precisions, as autocast regions give them, in float32."""
    if not dtype.is_floating_point:
        raise InputError(f"features of type {dtype} are not floating point: convert them with .float()")
    return dtype if dtype in (torch.float32, torch.float64) else torch.float32


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
