"""Carrying out a plan: what is missing is run, what failed is tried again, what is done is left alone."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any, Protocol

from ..errors import TransferRiskError
from ..training import Stopped
from ..training.signals import Stop
from .execute import Event, OnEvent, Outcome
from .plan import Plan
from .records import Records
from .store import RUNS, Store
from .tasks import PlannedRun
from .tasks.base import needs_of

WRITE_EVERY = 60.0  # seconds between two writings of the records
LOOK_EVERY = (0.2, 5.0)  # seconds between two looks at runs of other processes, at first and at most
SEEN_WITHIN = 120.0  # seconds after which a network file system has shown what another machine wrote


class Executor(Protocol):
    def map(self, runs: Sequence[PlannedRun], store: Store, on_event: OnEvent) -> Iterator[Outcome]:
        """The outcome of each run, as they come; runs do not need one another."""

    def close(self) -> None:
        """End what was started for several calls of `map`."""


@dataclass(frozen=True)
class Summary:
    """
    total   runs of the experiment
    done    those that are, by now
    ran     those that were done here, this time
    failed  name -> why
    """

    total: int
    done: int
    ran: int
    failed: dict[str, str] = field(default_factory=dict)


class Interrupted(TransferRiskError):
    """A signal ended it; what was done is kept."""

    def __init__(self, signum: int, done: int, total: int) -> None:
        super().__init__(
            f"interrupted: {done} of {total} runs are done, and what others had is kept; the same command goes on"
        )
        self.exit_code = 128 + signum


def run_experiment(
    plan: Plan,
    store: Store,
    executor: Executor,
    on_event: OnEvent = lambda event: None,
    whole: Plan | None = None,
) -> Summary:
    """Until every run is done, or has failed here; then all that is done is in the experiment's records.

    Several of these at once share the work: each waits for runs that another has, and takes over those that another
    left. A run that failed is tried again by the next one. SIGINT and SIGTERM end the work as `executor` does, and
    raise `Interrupted`.

    whole  of which the plan is a part: the records are of all its runs that are done
    """
    whole = whole or plan
    sweep = _Sweep(plan, store, on_event, Records(whole, store))
    if sweep.records.replaces:
        where = store.where(plan.recipe.name)
        on_event(Event(plan.recipe.name, "changed", message=f"{where} is of another recipe of that name until now"))
    for name, why in sweep.records.write().items():
        on_event(Event(name, "lost", message=why))
    with closing(executor):
        stop = Stop()
        try:
            with _signals_raised(stop):
                while (free := sweep.free()) is not None:
                    with closing(executor.map(free, store, on_event)) as outcomes:  # type: ignore[type-var]  # a generator
                        for outcome in outcomes:
                            sweep.note(outcome)
        except (KeyboardInterrupt, Stopped) as asked:
            signum = asked.signum if isinstance(asked, Stopped) else stop.signum or signal.SIGINT
            sweep.collect()
            raise Interrupted(signum, len(sweep.runs) - len(sweep.missing()), len(sweep.runs)) from None
    sweep.collect()
    return Summary(len(sweep.runs), len(sweep.runs) - len(sweep.missing()), sweep.ran, sweep.failed)


class _Sweep:
    """What is known of the runs while they are done."""

    def __init__(self, plan: Plan, store: Store, on_event: OnEvent, records: Records) -> None:
        self.store, self.on_event, self.records = store, on_event, records
        self.runs = plan.runs
        self.needs = {run.name: [need.name for need in needs_of(run)] for run in self.runs}
        self.failed: dict[str, str] = {}
        self.ran = 0
        self._waited_for: set[str] = set()
        self._reported: dict[str, float] = {}  # runs that a worker says are done, and when it did
        self._written = -math.inf  # the first run that is done is in the records at once

    def missing(self) -> list[PlannedRun]:
        return self.store.missing(self.runs)

    def free(self) -> list[PlannedRun] | None:
        """Runs that can be done now, waited for where other processes have them all; None: nothing is left to do."""
        pause, longest = LOOK_EVERY
        while True:
            missing = {run.name: run for run in self.missing()}
            for name in self._waited_for - missing.keys():
                self._end(Event(name, "done"))
            for name in missing:
                self._fail_unseen(name)
                self._fail_for_need(name)
            ready = [
                run
                for name, run in missing.items()
                if name not in self.failed and not any(need in missing for need in self.needs[name])
            ]
            if not ready:
                return None
            others = [run for run in ready if run.name not in self._reported]
            free = [run for run in others if not self.store.taken(run.name)]
            if free:
                return free
            for run in others:
                self._tell_busy(run.name)
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def note(self, outcome: Outcome) -> None:
        if outcome.state == "busy":
            self._tell_busy(outcome.name)
            return
        if outcome.state == "failed":
            self.failed[outcome.name] = outcome.error or ""
        else:
            self._reported[outcome.name] = time.monotonic()
            self.ran += outcome.seconds > 0
        self._end(Event(outcome.name, outcome.state, seconds=outcome.seconds, message=outcome.error or ""))
        if time.monotonic() - self._written > WRITE_EVERY:
            self.collect()
            self._written = time.monotonic()

    def collect(self) -> None:
        """What is done, in the records; a run that was and is lost has failed, so that the next sweep does it again."""
        for name, why in self.records.write().items():
            self.on_event(Event(name, "lost", message=why))
            if name in self.needs:
                self.failed[name] = why

    def _fail_unseen(self, name: str) -> None:
        """Without this, it would be done again and again."""
        if name not in self.failed and time.monotonic() - self._reported.get(name, math.inf) > SEEN_WITHIN:
            self.failed[name] = (
                f"a worker has done it, and {self.store.where(f'{RUNS}/{name}')} does not show it: use a folder or an "
                "address that all workers share"
            )
            self._end(Event(name, "failed", message=self.failed[name]))

    def _fail_for_need(self, name: str) -> None:
        """Runs come after those they need, so that this reaches the last of a chain."""
        broken = next((need for need in self.needs[name] if need in self.failed), None)
        if broken is not None and name not in self.failed:
            self.failed[name] = f"it needs run {broken}, which failed: {self.failed[broken]}"
            self._end(Event(name, "failed", message=self.failed[name]))

    def _end(self, event: Event) -> None:
        """Of a run that nobody waits for any longer."""
        self._waited_for.discard(event.name)
        self.on_event(event)

    def _tell_busy(self, name: str) -> None:
        if name not in self._waited_for:
            self._waited_for.add(name)
            self.on_event(Event(name, "busy", message="another process has it"))


@contextmanager
def _signals_raised(stop: Stop) -> Iterator[None]:
    """SIGINT and SIGTERM raise KeyboardInterrupt, each time; a training in this process takes the first for itself.

    In a thread other than the main one nothing is changed, because Python allows it there alone.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def act(signum: int, frame: FrameType | None) -> None:
        stop.signum = signum
        raise KeyboardInterrupt

    before: dict[signal.Signals, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.getsignal(number) or signal.SIG_DFL
            if before[number] is not signal.SIG_IGN:
                signal.signal(number, act)
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
