"""Jobs that take turns in one process: trainings on one GPU, each in a thread and on a stream of its own.

A small network uses a part of a large GPU. Several processes share a GPU in slices of time, which gains nothing; the
streams of one process run at the same moment.

Invariant: only the thread whose turn it is runs, and it finds what torch keeps for the whole process as it left it: the
generators, and how products are rounded. So a job computes what it would compute alone. The device does not idle
meanwhile: several steps are queued before a turn ends.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext

import torch

from ..solvers.protocols import GIVE_WAY
from ..training.engine import Rounding

STEPS = 4  # of a training in one turn: enough work for the device until the turn comes back


class Turns:
    """The turns of some threads on one device.

    device  name of the device, such as cuda:0
    """

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        if self.device.type == "cuda":
            torch.cuda.init()
        self._first = Surroundings(self.device)
        self._lock = threading.Lock()
        self._taken = False
        self._waiting: deque[threading.Lock] = deque()  # each is locked until its thread has its turn

    @contextmanager
    def taking_part(self) -> Iterator[None]:
        """Wait for a turn, and take part in the turns for the block, on a stream of its own."""
        stream = torch.cuda.Stream(self.device) if self.device.type == "cuda" else None
        self._take()
        try:
            self._first.restore(copied=True)
            with nullcontext() if stream is None else torch.cuda.stream(stream):
                before = GIVE_WAY.set(self.given_away)
                try:
                    yield
                finally:
                    GIVE_WAY.reset(before)
        finally:
            self._give()

    @contextmanager
    def given_away(self) -> Iterator[None]:
        """Give the turn away for the block, which only waits, and come back with the next one."""
        left = Surroundings(self.device)
        self._give()
        try:
            yield
        finally:
            self._take()
            left.restore()

    def pass_on(self) -> None:
        """Let the threads that wait have a turn each, in the order in which they came; return with the next one."""
        if self._waiting:
            left, mine = Surroundings(self.device), self._queue()
            self._give()
            mine.acquire()
            left.restore()

    def after_step(self, done: int, total: int) -> None:
        """Pass the turn on after some steps of a training, of which so many of all are done."""
        if done % STEPS == 0 or done == total:
            self.pass_on()

    def _take(self) -> None:
        with self._lock:
            mine = self._queue() if self._taken else None
            self._taken = True
        if mine is not None:
            mine.acquire()

    def _give(self) -> None:
        with self._lock:
            self._taken = bool(self._waiting)
            if self._waiting:
                self._waiting.popleft().release()

    def _queue(self) -> threading.Lock:
        mine = threading.Lock()
        mine.acquire()
        self._waiting.append(mine)
        return mine


class Surroundings:
    """What torch keeps for the whole process, and a training reads or changes, at one moment."""

    def __init__(self, device: torch.device) -> None:
        self._drawn, self._rounding = torch.get_rng_state(), Rounding()
        on_gpu = device.type == "cuda"
        self._of_gpu = torch.cuda.default_generators[device.index or 0] if on_gpu else None
        # Graphs read a generator's state at an address, so that each thread has a state of its own, not a copy.
        self._state = None if self._of_gpu is None else self._of_gpu.graphsafe_get_state()

    def restore(self, copied: bool = False) -> None:
        """Put it back; `copied` leaves this object as it is, whatever is drawn from now on."""
        torch.set_rng_state(self._drawn)
        self._rounding.restore()
        if self._of_gpu is not None and self._state is not None:
            self._of_gpu.graphsafe_set_state(self._state.clone_state() if copied else self._state)
