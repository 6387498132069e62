"""Reading values from a device, on which other threads may have work of their own meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar

import torch
from torch import Tensor

MEANWHILE: ContextVar[Callable[[], None] | None] = ContextVar("meanwhile", default=None)
"""What a thread does, again and again, until its device has finished. None: nothing."""


def wait_for(device: torch.device) -> None:
    """Wait until a device has finished what this thread asked for; the CPU has."""
    if device.type != "cuda":
        return
    stream, meanwhile = torch.cuda.current_stream(device), MEANWHILE.get()
    while meanwhile is not None and not stream.query():
        meanwhile()
    stream.synchronize()


def holds(condition: Tensor) -> bool:
    """Return the value of a condition, a scalar."""
    if MEANWHILE.get() is not None:
        wait_for(condition.device)
    return bool(condition)
