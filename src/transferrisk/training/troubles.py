"""What ends a training that neither the user's input nor the mathematics is to blame for, in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ..errors import TransferRiskError

_MEMORY = ("out of memory", "not enough memory", "can't allocate memory", "unable to allocate")
_LOST = ("connection closed by peer", "connection reset by peer", "broken pipe", "gloo", "nccl")


@contextmanager
def in_one_line(standing: Callable[[], str] | str, batch_size: int | None = None) -> Iterator[None]:
    """Memory that is full, or another process that is gone, as a TransferRiskError; `standing` is said at its end."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        if isinstance(error, TransferRiskError):
            raise
        message = " ".join(str(error).split())
        stands = standing if isinstance(standing, str) else standing()
        if full := full_memory(error):
            now = "" if batch_size is None else f" (now {batch_size})"
            raise TransferRiskError(
                f"{full}: use a lower --batch-size{now}, a smaller --backbone or --lazy; {stands}"
            ) from None
        if torch.distributed.is_initialized() and _says(message, _LOST):
            raise TransferRiskError(
                f"another process of this run has ended: see what it says, then use --resume; {stands}"
            ) from None
        raise


def full_memory(error: BaseException) -> str | None:
    """Which memory is full, if that is what the error says."""
    message = " ".join(str(error).split())
    if not isinstance(error, (MemoryError, torch.OutOfMemoryError)) and not _says(message, _MEMORY):
        return None
    where = "the GPU's memory" if isinstance(error, torch.OutOfMemoryError) else "memory"
    return f"{where} is full{_amount(message)}"


def _says(message: str, words: tuple[str, ...]) -> bool:
    return any(word in message.lower() for word in words)


def _amount(message: str) -> str:
    """How much was asked for, where the message says so: " (tried to allocate 2.00 GiB)"."""
    _, found, rest = message.partition("ried to allocate ")
    amount = " ".join(rest.split()[:2]).rstrip(".")
    return f" (tried to allocate {amount})" if found else ""
