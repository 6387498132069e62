"""Runs and tasks: a run is a task's name with settings, and is named by a digest of both."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from ..errors import InputError
from ..registry import Registry
from ..results import Record
from ..results.selection import RULES
from ..settings import Settings, as_json, checked_values, digest

if TYPE_CHECKING:
    from .bench import Cost

S = TypeVar("S", bound=Settings)
OnStep = Callable[[int, int], None]
"""(steps done, steps in all)"""


def ignore_steps(done: int, total: int) -> None:
    """Report steps to nobody."""


@dataclass(frozen=True)
class PlannedRun:
    """
    settings  resolved: all that decides the result
    keep      the model is kept too, for a run that needs it; it does not change what the run is
    """

    task: str
    settings: Mapping[str, Any]
    keep: bool = False

    @cached_property
    def name(self) -> str:
        """A digest of the task and its settings; one that is None does not count, so that new ones rename no run."""
        return digest([self.task, self.settings])


@dataclass(frozen=True)
class Place:
    """Where a run works. Nothing here changes a number on a CPU, as long as the number of threads is the same.

    folder  the run's own; files that it leaves there let it go on after it was cut off
    keep    leave the model there
    other   name of a finished run -> its folder
    """

    folder: Path
    device: str = "auto"
    data_root: Path | None = None
    keep: bool = False
    on_step: OnStep = ignore_steps
    other: Callable[[str], Path] = Path


class Task(ABC, Generic[S]):
    """Something to run with settings.

    settings_type  a frozen dataclass derived from `Settings`, one of whose fields is `seed`
    rules          by which its records can be selected
    """

    name: ClassVar[str]
    settings_type: ClassVar[type[Any]]
    rules: ClassVar[tuple[str, ...]] = RULES

    def resolve(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        """The settings with defaults written out, in the types of JSON; an unknown one is an error."""
        resolved: dict[str, Any] = as_json(self.complete(self.read(settings)))
        return resolved

    def read(self, settings: Mapping[str, Any]) -> S:
        found: S = self.settings_type(**checked_values(self.settings_type, settings, f"task {self.name!r}"))
        return found

    def complete(self, settings: S) -> S:
        """Write out what stands for a default, such as a data set's protocol, as far as it is known beforehand.

        The seed decides nothing here.
        """
        return settings

    def needs(self, settings: S) -> list[PlannedRun]:
        """Runs that have to be done before."""
        return []

    @abstractmethod
    def run(self, settings: S, place: Place) -> list[Record]:
        """Do it all, or go on with what the folder holds."""

    def cost(self, settings: S) -> Cost | None:
        """The steps that it trains, where they are known before the data is read."""
        return None

    def tidy(self, place: Place) -> None:
        """Remove what was needed to go on; called when the records are kept."""


def _check_task(name: str, task: Any) -> type[Task[Any]]:
    if not (isinstance(task, type) and issubclass(task, Task)):
        raise InputError(f"task {name!r} must be a class derived from Task, got {getattr(task, '__name__', task)!r}")
    if not issubclass(getattr(task, "settings_type", object), Settings):
        raise InputError(
            f"settings_type of task {name!r} must be a dataclass derived from transferrisk.settings.Settings"
        )
    task.name = name
    return task


TASKS: Registry[type[Task[Any]]] = Registry(
    "task", "transferrisk.tasks", _check_task, fill="transferrisk.experiments.trainings"
)
register = TASKS.register
available = TASKS.names


def get_task(name: str) -> Task[Any]:
    return TASKS.get(name)()


def plan_run(task: str, settings: Mapping[str, Any], keep: bool = False) -> PlannedRun:
    return PlannedRun(task, get_task(task).resolve(settings), keep)


def needs_of(run: PlannedRun) -> list[PlannedRun]:
    """Runs that have to be done before it."""
    task = get_task(run.task)
    return task.needs(task.read(run.settings)) if has_needs(task) else []


def has_needs(task: Task[Any]) -> bool:
    return type(task).needs is not Task.needs
