"""The number of torch's threads for a while: small problems are faster with one, above all on a busy machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def threads_set(count: int | None) -> Iterator[None]:
    """Set the number of torch's threads for the block; None: leave it.

    Parameters
    ----------
    count
        The number of threads.

    Returns
    -------
    Iterator[None]
        A context manager.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.solvers import threads_set
    >>> with threads_set(1):
    ...     torch.get_num_threads()
    1
    """
    before = torch.get_num_threads()
    torch.set_num_threads(before if count is None else count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
