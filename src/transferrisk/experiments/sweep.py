"""Sweeps: missing runs of a plan are done, failed runs are tried again, finished runs are left alone."""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType, MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from ..errors import TransferRiskError
from ..results import Record
from ..results.records import RUNS
from ..training import Stopped
from .execute import Judge, Outcome, RunJob
from .executors import Executor, LocalExecutor
from .experiment_table import ExperimentTable
from .plan import Plan
from .store import Store
from .tasks import TASKS, PlannedRun, needs_of, worth_compiling

if TYPE_CHECKING:
    from .learn import LearningSweep

WRITE_EVERY = 60.0  # seconds between two writings of the records
LOOK_EVERY = (0.2, 5.0)  # seconds between two looks at runs of other processes, at first and at most
SEEN_WITHIN = 120.0  # seconds after which a network file system has shown what another machine wrote


@dataclass(frozen=True)
class Event:
    """An event in the life of a run.

    name     name of the run, or of the experiment if it is changed
    kind     step: `step` of `total` is done; retried: its worker died, or it failed beside others, and it is tried
             again; lost: it was finished, but its files cannot be read; busy: another process works on it; changed: the
             experiment of this name belonged to another recipe; done, failed and pruned (given up by a search): how it
             ended
    seconds  duration, 0 if another process did the run
    message  reason
    """

    name: str
    kind: Literal["step", "retried", "lost", "changed", "done", "failed", "busy", "pruned"]
    step: int = 0
    total: int = 0
    seconds: float = 0.0
    message: str = ""

    def __str__(self) -> str:
        if self.kind != "done":
            return f"{self.kind}, {self.message}"
        return f"done, {self.seconds:.1f} s" if self.seconds else "done by another process"


OnEvent = Callable[[Event], None]


def ignore_event(event: Event) -> None:
    """Report events to nobody."""


@dataclass(frozen=True)
class Summary:
    """State of an experiment's runs.

    total   number of runs of the experiment
    done    number of finished runs
    ran     number of runs that were done by this sweep
    failed  name of a run -> reason
    """

    total: int
    done: int
    ran: int
    failed: dict[str, str] = field(default_factory=dict)

    def __str__(self) -> str:
        failed = f", {len(self.failed)} failed" if self.failed else ""
        return f"{self.done} of {self.total} runs are finished ({self.ran} now{failed})"

    def failures(self, most: int = 5) -> list[str]:
        """Return a line for each of the first reasons for which runs failed."""
        alike: dict[str, list[str]] = {}
        for name, error in self.failed.items():
            alike.setdefault(error, []).append(name)
        lines = []
        for error, names in list(alike.items())[:most]:
            which = f"run {names[0]}" if len(names) == 1 else f"{len(names)} runs, {names[0]} the first of them,"
            lines.append(f"{which} failed: {error}")
        left = sum(map(len, list(alike.values())[most:]))
        return [*lines, f"and {left} more failed"] if left else lines


class Interrupted(TransferRiskError):
    """Raised when a signal ends the sweep; finished runs are kept."""

    def __init__(self, signum: int, done: int, total: int) -> None:
        super().__init__(
            f"interrupted: {done} of {total} runs are finished; the same command continues with the others"
        )
        self.signum, self.exit_code = signum, 128 + signum


def sweep_of(
    plan: Plan, store: Store, executor: Executor, data_root: Path | None = None, on_step: OnEvent = ignore_event
) -> Sweep | LearningSweep:
    """Return the sweep of a plan; with optuna it is one that finds its points on the way."""
    if plan.studies:
        from .learn import LearningSweep

        return LearningSweep(plan, store, executor, data_root, on_step)
    return Sweep(plan, store, executor, data_root, on_step)


def run_experiment(
    plan: Plan, store: Store, executor: Executor, on_event: OnEvent = ignore_event, data_root: Path | None = None
) -> Summary:
    """Do all missing runs of a plan, and write the table of its experiment.

    Finished runs are not repeated, and failed runs are tried again. Several processes can run the same plan at once:
    they share the work.

    Parameters
    ----------
    plan
        The plan.
    store
        Store of the results.
    executor
        Executor that does the runs, such as `LocalExecutor`.
    on_event
        Function that is called with each event, such as a step, the end of a run or a failure.
    data_root
        Folder of the data sets. None: the usual folder.

    Returns
    -------
    Summary
        Numbers of runs in `total`, `done` and `ran` (by this call), and the reasons of failures by run in `failed`.

    Examples
    --------
    >>> import tempfile
    >>> from pathlib import Path
    >>> from transferrisk.experiments import LocalExecutor, Store, load_recipe, make_plan, run_experiment
    >>> folder = Path(tempfile.mkdtemp())
    >>> text = '''
    ... settings = { data = "gaussian", training = { steps = 2, evaluations = 1 } }
    ... methods = { ERM = { algorithm = "erm" }, V-REx = { algorithm = "vrex" } }
    ... '''
    >>> _ = (folder / "mine.toml").write_text(text)
    >>> plan = make_plan(load_recipe(folder / "mine.toml"))
    >>> print(run_experiment(plan, Store(folder / "results"), LocalExecutor(workers=0)))
    2 of 2 runs are finished (2 now)
    >>> print(run_experiment(plan, Store(folder / "results"), LocalExecutor(workers=0)))
    2 of 2 runs are finished (0 now)
    """
    sweep = sweep_of(plan, store, executor, data_root, on_event)
    for event in sweep:
        on_event(event)
    return sweep.summary


class Sweep:
    """An iterator over events. After it, every run has been done or has failed, and the experiment's table is written.

    Several sweeps at once share the work: each waits for runs that another works on, and takes over those that another
    left. The next sweep tries failed runs again. SIGINT and SIGTERM end the work in the way of the executor and raise
    `Interrupted`.

    data_root  folder of the data sets. Default: the usual folder
    on_step    called with steps of runs in this process, during which the iterator cannot yield anything
    judges     name of a run -> judge that may give it up; the records of such a run are in `pruned`
    """

    def __init__(
        self, plan: Plan, store: Store, executor: Executor, data_root: Path | None = None,
        on_step: OnEvent = ignore_event, judges: Mapping[str, Judge] = MappingProxyType({}),
    ) -> None:  # fmt: skip
        self.plan, self.judges = plan, judges
        self.pruned: dict[str, Sequence[Record]] = {}
        self.store, self.executor, self.on_step = store, executor, on_step
        self.data_root = None if data_root is None else data_root.absolute()
        self.runs = plan.runs
        self.table = ExperimentTable(plan, store)
        self.failed: dict[str, str] = {}
        self.ran = 0
        self._name = plan.recipe.name
        self._needs: dict[str, set[str]] = {}
        for run in self.runs:
            self._needs[run.name] = {need.name for need in needs_of(run)}
        self._waited_for: set[str] = set()
        self._reported: dict[str, float] = {}  # run that a worker reported as done -> time of the report
        self._written = -math.inf  # so that the first finished run is written at once

    @property
    def summary(self) -> Summary:
        done = len(self.runs) - len(self.store.missing(self.runs))
        return Summary(len(self.runs), done, self.ran, self.failed)

    def __iter__(self) -> Iterator[Event]:
        yield from self._write_table()
        self.failed.clear()  # lost runs are done again now
        if self.table.replaced:
            where = self.store.where(self._name)
            yield Event(
                self._name,
                "changed",
                message=f"{where} held the results of another recipe of this name, which stay only below {RUNS}",
            )
        with closing(self.executor), _signals_raised() as signals:
            try:
                for event in self._events():
                    with signals.held_back():
                        yield event
            except (KeyboardInterrupt, Stopped) as stopped:
                signum = stopped.signum if isinstance(stopped, Stopped) else signals.number or signal.SIGINT
                self.table.write()
                raise Interrupted(signum, self.summary.done, len(self.runs)) from None
        yield from self._write_table()

    def _events(self) -> Iterator[Event]:
        while True:
            ready = yield from self._ready()
            if ready is None:
                return
            jobs, compiled_runs = [], frozenset[str]()
            # What is compiled is shared by the runs of a process. Other executors start one for each run, and a search
            # starts new ones in each of its rounds.
            if isinstance(self.executor, LocalExecutor):
                compiled_runs = worth_compiling(ready, len(self.executor.seats()[0]))
            for run in ready:
                module, judge = TASKS.get(run.task).__module__, self.judges.get(run.name)
                compiled = True if run.name in compiled_runs else None
                jobs.append(RunJob(run, module, self.store, self.data_root, judge, compiled))

            def on_step(position: int, done: int, total: int, ready: list[PlannedRun] = ready) -> None:
                self.on_step(Event(ready[position].name, "step", done, total))

            with closing(self.executor.map(jobs, on_step)) as messages:
                for message in messages:
                    run, content = ready[message.position], message.content
                    if message.kind == "step":
                        yield Event(run.name, "step", *content)
                    elif message.kind == "retried":
                        yield Event(run.name, "retried", message=content)
                    elif message.kind == "lost":
                        with suppress(TransferRiskError), self.store.claim(run.name) as folder:
                            if folder is not None and not self.store.done(run.name):
                                self.store.fail(run.name, content)
                        yield from self._ended(Outcome(run.name, "failed", error=content))
                    else:
                        yield from self._ended(content)

    def _ready(self) -> Generator[Event, None, list[PlannedRun] | None]:
        """Return runs that can be done now, after waiting if other processes work on all of them; None at the end."""
        pause, longest = LOOK_EVERY
        while True:
            missing = {run.name: run for run in self.store.missing(self.runs)}
            for name in self._waited_for - missing.keys():
                self._waited_for.discard(name)
                yield Event(name, "done")
            for name in missing:
                if why := self._why_given_up(name):
                    yield from self._ended(Outcome(name, "failed", error=why))
            left = missing.keys() - self.failed.keys() - self.pruned.keys()
            ready = [run for name, run in missing.items() if name in left and self._needs[name].isdisjoint(missing)]
            if not ready:
                return None
            others = [run for run in ready if run.name not in self._reported]
            free = [run for run in others if not self.store.taken(run.name)]
            if free:
                return free
            for run in others:
                yield from self._tell_busy(run.name)
            time.sleep(pause)
            pause = min(2 * pause, longest)

    def _why_given_up(self, name: str) -> str | None:
        """Return the reason not to do a missing run here: it needs a failed run, or was done and cannot be seen.

        Runs come after those that they need, so that a failure reaches the last of a chain.
        """
        if name in self.failed or name in self.pruned:
            return None
        if time.monotonic() - self._reported.get(name, math.inf) > SEEN_WITHIN:
            return (
                f"a worker has done it, but {self.store.where(f'{RUNS}/{name}')} does not show it: use a folder or an "
                "address that all workers share"
            )
        broken = next(iter(self._needs[name] & self.failed.keys()), None)
        return None if broken is None else f"it needs run {broken}, which failed: {self.failed[broken]}"

    def _ended(self, outcome: Outcome) -> Iterator[Event]:
        if outcome.state == "busy":
            yield from self._tell_busy(outcome.name)
            return
        if outcome.state == "failed":
            self.failed[outcome.name] = outcome.error or ""
        elif outcome.state == "pruned":
            self.pruned[outcome.name] = outcome.records
        else:
            self._reported[outcome.name] = time.monotonic()
            self.ran += outcome.seconds > 0
        self._waited_for.discard(outcome.name)
        yield Event(outcome.name, outcome.state, seconds=outcome.seconds, message=outcome.error or "")
        if time.monotonic() - self._written > WRITE_EVERY:
            yield from self._write_table()
            self._written = time.monotonic()

    def _write_table(self) -> Iterator[Event]:
        """Write the finished runs. A run whose files cannot be read counts as failed; the next sweep does it again."""
        for name, why in self.table.write().items():
            if name in self._needs:
                self.failed[name] = why
            yield Event(name, "lost", message=why)

    def _tell_busy(self, name: str) -> Iterator[Event]:
        if name not in self._waited_for:
            self._waited_for.add(name)
            yield Event(name, "busy", message="another process works on it")


@dataclass
class _Signals:
    """The last signal, and whether a signal is raised as soon as it arrives."""

    number: int | None = None
    raises: bool = True

    def act(self, signum: int, frame: FrameType | None) -> None:
        self.number = signum
        if self.raises:
            raise KeyboardInterrupt

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Hold signals back within this block; one that arrived is raised at the end of the block."""
        self.raises = False
        try:
            yield
        finally:
            self.raises = True
        if self.number is not None:
            raise KeyboardInterrupt


@contextmanager
def _signals_raised() -> Iterator[_Signals]:
    """Let SIGINT and SIGTERM raise KeyboardInterrupt; a training in this process handles the first one itself.

    Outside the main thread nothing is changed, since Python handles signals only there.
    """
    signals = _Signals()
    if threading.current_thread() is not threading.main_thread():
        yield signals
        return
    before: dict[signal.Signals, Any] = {}
    try:
        for number in (signal.SIGINT, signal.SIGTERM):
            before[number] = signal.getsignal(number) or signal.SIG_DFL
            if before[number] is not signal.SIG_IGN:
                signal.signal(number, signals.act)
        yield signals
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
