"""Being asked to stop: the step at hand is finished first."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import Any

from ..errors import TransferRiskError


class Stopped(TransferRiskError):
    """A training was asked to stop by a signal, and has been saved; `how` is what goes on with it."""

    def __init__(self, signum: int, step: int, total: int, how: str = "train with resume=True") -> None:
        super().__init__(f"interrupted at step {step} of {total}; go on with: {how}")
        self.signum, self.step, self.total = signum, step, total
        self.exit_code = 128 + signum


@dataclass
class Stop:
    signum: int | None = None


@contextmanager
def stop_asked() -> Iterator[Stop]:
    """Says whether SIGINT or SIGTERM came; the second one acts at once, as if this were not here.

    A signal after which the block ended as if none had come acts then: what comes next is not to begin. In a thread
    other than the main one nothing is caught, because Python allows it there alone.
    """
    stop = Stop()
    if threading.current_thread() is not threading.main_thread():
        yield stop
        return
    before: dict[signal.Signals, Any] = {}

    def note(signum: int, frame: FrameType | None) -> None:
        stop.signum = signum
        for number, handler in before.items():
            signal.signal(number, handler)

    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.getsignal(number) or signal.SIG_DFL
            if before[number] is not signal.SIG_IGN:
                signal.signal(number, note)
        yield stop
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if stop.signum is not None:
        signal.raise_signal(stop.signum)
