"""A worker process that does several jobs at once on one GPU, in threads that take turns (`turns`).

The main thread asks for jobs and starts them: one at first, and the next when those that run have shown how much of the
GPU's memory they take. A job that fails beside others may have failed because of them, so that it is tried again alone.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from multiprocessing.connection import Connection
from types import FrameType
from typing import Any, NoReturn

import torch

from ..errors import TransferRiskError, cause_of
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
    """The jobs of a worker, and how they are doing. `executors` has its messages.

    room     largest number of jobs at once
    running  position of a job -> whether its memory has settled
    most     largest number of jobs that ran at once
    broken   a job has failed in a way that may have left the process unusable: no job begins any more
    """

    def __init__(self, connection: Connection, device: str, threads: int, room: int) -> None:
        self.connection, self.device, self.room = connection, torch.device(device), room
        self.threads = max(1, threads // room)  # each thread has a pool of its own, which also costs while it is idle
        self.turns, self._lock = Turns(device), threading.Lock()
        self.running: dict[int, bool] = {}
        self.most = 1
        self.broken = False

    def work(self) -> None:
        """Do jobs until the other end of the connection is closed, or a signal asks to stop, or one is broken."""
        asked = False
        try:
            signal.signal(signal.SIGTERM, _ask)
            while not self.broken or self.running:
                if not asked and self._can_begin():
                    asked = True
                    self._send("free", -1, None)
                if self.connection.poll(LOOK_EVERY):
                    asked = False
                    self._begin(*self.connection.recv())
        except (_Asked, EOFError, OSError):
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            pass_signal(signal.SIGTERM)
            while trainings_in_threads():
                time.sleep(LOOK_EVERY)
                pass_signal(signal.SIGTERM)  # also to those that have begun since
            os._exit(0)  # other jobs have nothing to save

    def _can_begin(self) -> bool:
        running = list(self.running.values())
        if self.broken or len(running) >= self.room or not all(running):
            return False
        if not running or self.device.type != "cuda":
            return True
        each = torch.cuda.max_memory_reserved(self.device) / self.most
        return torch.cuda.mem_get_info(self.device)[0] > SPARE * each

    def _begin(self, position: int, job: Job[Any]) -> None:
        with self._lock:
            if self.broken:  # the parent takes the job back
                return
            self.running[position] = False
            self.most = max(self.most, len(self.running))
            self._tell("begun", position, None)
        threading.Thread(target=self._do, args=(position, job), daemon=True).start()

    def _do(self, position: int, job: Job[Any]) -> None:
        """Do a job in a thread of its own."""
        torch.set_num_threads(self.threads)  # holds for a thread
        told = time.monotonic()

        def on_step(done: int, total: int) -> None:
            nonlocal told
            slot.at_once = max(slot.at_once, len(self.running))
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
        except Stopped:  # the process is about to end
            return
        except BaseException as error:  # such as SystemExit, which would end this thread alone
            kind, content = "raised", TransferRiskError(f"a job ended with {type(error).__name__}: {cause_of(error)}")
        with self._lock:
            beside = self.broken or len(self.running) > 1
            if kind == "last":
                self.broken = True
                kind = "again" if beside else "last"
            elif kind == "done" and self.broken:
                kind = "last"
            self._tell(kind, position, content)
            del self.running[position]

    def _send(self, kind: str, position: int, content: Any) -> None:
        with self._lock:
            self._tell(kind, position, content)

    def _tell(self, kind: str, position: int, content: Any) -> None:
        """Send a message; the lock is held."""
        try:
            self.connection.send((kind, position, content))
        except OSError:  # the parent process is gone: stop as it would have asked
            os.kill(os.getpid(), signal.SIGTERM)
        except Exception as error:
            why = f"the result of a job cannot be sent to another process ({cause_of(error)})"
            self.connection.send(("raised", position, TransferRiskError(why)))


def _ask(signum: int, frame: FrameType | None) -> NoReturn:
    raise _Asked
