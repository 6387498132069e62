"""A worker process that does several jobs at once on one GPU, in threads that take turns (`turns`).

The main thread receives jobs and starts them, one at first, and the next when those that run have shown how much of the
GPU's memory they take. A job that fails beside others may have failed because of them: it is tried again alone.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import deque
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, NoReturn

import torch

from ..training import Stopped
from ..training.run_folder import pass_signal, trainings_in_threads
from .executors import Job, Slot, work_on
from .turns import Turns

SETTLED = 60  # steps after which a training takes as much memory as it will
SPARE = 1.3  # memory that must be free for another job, as a multiple of what one takes
LOOK_EVERY = 0.02  # seconds between two looks whether another job can start
TELL_EVERY = 0.5  # seconds between two reports of the steps of a job


class _Asked(BaseException):
    """A request to stop, raised in the main thread. Like KeyboardInterrupt, it is not an error of a job."""


class SideBySide:
    """The jobs of a worker, and how they are doing.

    waiting  jobs that have not begun: position, job, and whether it is to run alone
    running  position of a job -> whether its memory has settled
    alone    a job runs that has to be alone
    broken   a job has failed in a way that may have left the process unusable: no job begins any more
    """

    def __init__(self, connection: Connection, device: str, threads: int, room: int) -> None:
        self.connection, self.device = connection, torch.device(device)
        self.threads = max(1, threads // room)
        self.turns, self._sending = Turns(device), threading.Lock()
        self.waiting: deque[tuple[int, Job[Any], bool]] = deque()
        self.running: dict[int, bool] = {}
        self.most = 1  # jobs that have run at once
        self.alone = self.broken = False

    def work(self) -> None:
        """Do jobs until the other end of the connection is closed, or a signal asks to stop, or one is broken."""
        try:
            signal.signal(signal.SIGTERM, _ask)
            self._send("begun", -1, None)
            while not self.broken or self.running:
                if self.connection.poll(LOOK_EVERY):
                    self.waiting.append(self.connection.recv())
                while self.waiting and self._can_begin(alone=self.waiting[0][2]):
                    self._begin(*self.waiting.popleft())
        except (_Asked, EOFError, OSError):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            pass_signal(signal.SIGTERM)
            while trainings_in_threads():
                time.sleep(LOOK_EVERY)
            os._exit(0)  # other jobs have nothing to save
        while self.connection.poll(LOOK_EVERY):
            self.waiting.append(self.connection.recv())
        for position, _, _ in self.waiting:
            self._send("again", position, None)

    def _can_begin(self, alone: bool) -> bool:
        if not self.running:
            return not self.broken
        if self.broken or self.alone or alone or not all(self.running.values()):
            return False
        if self.device.type != "cuda":
            return True
        each = torch.cuda.max_memory_reserved(self.device) / self.most
        return torch.cuda.mem_get_info(self.device)[0] > SPARE * each

    def _begin(self, position: int, job: Job[Any], alone: bool) -> None:
        self.running[position], self.alone = False, alone
        self.most = max(self.most, len(self.running))
        threading.Thread(target=self._do, args=(position, job, alone), daemon=True).start()

    def _do(self, position: int, job: Job[Any], alone: bool) -> None:
        """Do a job in a thread of its own."""
        torch.set_num_threads(self.threads)  # holds for a thread
        told = time.monotonic()

        def on_step(done: int, total: int) -> None:
            nonlocal told
            if done >= min(SETTLED, total):
                self.running[position] = True
            if done == total or time.monotonic() - told > TELL_EVERY:
                told = time.monotonic()
                self._send("step", position, (done, total))
            self.turns.after_step(done, total)

        slot = Slot(str(self.device), self.threads, on_step)
        try:
            with self.turns.taking_part():
                kind, content = work_on(job, slot)
        except Stopped:
            return
        shared = not alone and (self.broken or len(self.running) > 1)
        self.broken = self.broken or kind == "last"
        self._send("again" if shared and kind == "last" else "last" if self.broken else kind, position, content)
        del self.running[position]

    def _send(self, kind: str, position: int, content: Any) -> None:
        try:
            with self._sending:
                self.connection.send((kind, position, content))
        except OSError:  # the parent process is gone: stop as it would have asked
            os.kill(os.getpid(), signal.SIGTERM)


def _ask(signum: int, frame: FrameType | None) -> NoReturn:
    raise _Asked
