"""Runs and tasks: a run is a task's name with settings, and is known by a digest of both."""

from __future__ import annotations

import dataclasses
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar, Generic, TypeVar, get_args

from ...data.checks import did_you_mean
from ...errors import InputError
from ...plugins import Plugins
from ...training import OnStep
from ...training.config import Precision
from ...training.plain import dumps, plain
from ...training.selection import Selection
from ..bench import Workload
from .declared import check_types, frozen

Row = dict[str, Any]
"""One line of a result: names to texts, numbers or None."""

S = TypeVar("S")
T = TypeVar("T", bound="type[Task[Any]]")


@dataclass(frozen=True)
class PlannedRun:
    """
    name      a digest of what was asked for; a setting that is None is not, so that new ones rename no run
    settings  resolved: all that decides the result
    keep      the model is kept too, for a run that needs it; no part of what the run is
    """

    task: str
    settings: Mapping[str, Any]
    keep: bool = False

    @cached_property
    def name(self) -> str:
        return hashlib.sha256(dumps([self.task, _asked(self.settings)], sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True)
class Place:
    """Where a run works. Nothing here changes a number on a CPU, as long as the number of threads is the same.

    folder  the run's own; what it leaves there lets it go on after it was cut off
    keep    leave the model there
    other   name of a finished run -> its folder
    """

    folder: Path
    device: str = "auto"
    data_root: Path | None = None
    keep: bool = False
    on_step: OnStep = lambda done, total: None
    other: Callable[[str], Path] = lambda name: Path(name)


@dataclass(frozen=True)
class Cost:
    """So many steps of an algorithm.

    evaluated  about how many samples all evaluations look at
    """

    workload: Workload
    algorithm: str
    settings: Mapping[str, Any]
    precision: Precision | None
    steps: int
    evaluated: int = 0


class Task(ABC, Generic[S]):
    """Something to run with settings of a dataclass, whose `__post_init__` refuses what makes no sense.

    settings_type  the dataclass, one of whose fields is `seed`
    rules          by which its results can be selected
    """

    name: ClassVar[str]
    settings_type: ClassVar[type[Any]]
    rules: ClassVar[tuple[Selection, ...]] = get_args(Selection)

    def resolve(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings with defaults written out, as JSON has them; an unknown one is an error."""
        completed: Any = self.complete(self.read(settings))
        resolved: dict[str, Any] = plain(asdict(completed))
        return resolved

    def read(self, settings: Mapping[str, Any]) -> S:
        fields = {field.name: field for field in dataclasses.fields(self.settings_type)}
        for key in settings:
            if key not in fields:
                raise InputError(
                    f"task {self.name!r} has no setting {key!r}: {did_you_mean(key, fields)}choose from "
                    f"{', '.join(fields)}"
                )
        for key, field in fields.items():
            if field.default is MISSING and field.default_factory is MISSING and key not in settings:
                raise InputError(
                    f"task {self.name!r} needs the setting {key!r}: add it to [settings], or to each of "
                    "[problems] or [methods]"
                )
        check_types(settings, self.settings_type)
        try:
            return self.settings_type(**frozen(settings, self.settings_type))  # type: ignore[no-any-return]  # is an S
        except TypeError as error:
            raise InputError(f"task {self.name!r}: its settings have types it cannot use ({error})") from None

    def complete(self, settings: S) -> S:
        """What stands for a default, such as a data set's protocol, written out, as far as it is known beforehand.

        The seed decides nothing here.
        """
        return settings

    def needs(self, settings: S) -> list[PlannedRun]:
        """Runs that have to be done before."""
        return []

    @abstractmethod
    def run(self, settings: S, place: Place) -> list[Row]:
        """Do it all, or go on with what the folder holds."""

    def cost(self, settings: S) -> Cost | None:
        """What it trains, where that is known before the data is read."""
        return None

    def tidy(self, place: Place) -> None:
        """Remove what was needed to go on; called when the rows are kept."""


def _asked(value: Any) -> Any:
    """The same without what is None, however deep it lies."""
    if isinstance(value, Mapping):
        return {key: _asked(item) for key, item in value.items() if item is not None}
    return value


_TASKS: dict[str, Task[Any]] = {}


def register(name: str) -> Callable[[T], T]:
    """Class decorator: makes a task known under a name."""

    def decorate(task: T) -> T:
        if not (isinstance(task, type) and issubclass(task, Task)):
            called = getattr(task, "__name__", repr(task))
            raise InputError(f"{called} is no task to register as {name!r}: derive a class from Task")
        known = _TASKS.get(name)
        if known is not None and (type(known).__module__, type(known).__qualname__) != (
            task.__module__,
            task.__qualname__,
        ):
            raise InputError(f"task {name!r} is registered already, as {type(known).__module__}")
        task.name = name
        _TASKS[name] = task()
        return task

    return decorate


_PLUGINS = Plugins(
    "transferrisk.tasks",
    "task",
    known=lambda name: name in _TASKS,
    register=lambda name, found: register(name)(found),
)


def available() -> list[str]:
    _PLUGINS.find_all()
    return list(_TASKS)


def get(name: str) -> Task[Any]:
    _PLUGINS.find(name)
    if name not in _TASKS:
        known = available()
        raise InputError(f"task {name!r} is not known: {did_you_mean(name, known)}choose from {', '.join(known)}")
    return _TASKS[name]


def plan(task: str, settings: Mapping[str, Any], keep: bool = False) -> PlannedRun:
    return PlannedRun(task, get(task).resolve(settings), keep)


def needs_of(run: PlannedRun) -> list[PlannedRun]:
    """Runs that have to be done before it."""
    task = get(run.task)
    return task.needs(task.read(run.settings)) if has_needs(task) else []


def has_needs(task: Task[Any]) -> bool:
    return type(task).needs is not Task.needs
