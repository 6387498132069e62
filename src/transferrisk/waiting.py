"""Reading values from a device on which other threads may have work of their own."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar

import torch
from torch import Tensor

GIVE_WAY: ContextVar[Callable[[], AbstractContextManager[None]] | None] = ContextVar("give_way", default=None)
"""A context in which this thread waits and others may run. None: there are no others."""


def wait_for(device: torch.device) -> None:
    """Wait until a device has finished what this thread asked for; the CPU has."""
    if device.type != "cuda":
        return
    stream, give_way = torch.cuda.current_stream(device), GIVE_WAY.get()
    if give_way is None:
        stream.synchronize()
    elif not stream.query():
        reached = torch.cuda.Event(blocking=True)  # leaves the core to others
        reached.record(stream)
        with give_way():
            reached.synchronize()


def holds(condition: Tensor) -> bool:
    """Return the value of a condition, a scalar."""
    if GIVE_WAY.get() is not None:
        wait_for(condition.device)
    return bool(condition)
