"""Runs and tasks: a run is a task's name with settings, and is known by a digest of both."""

from __future__ import annotations

import dataclasses
import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, asdict, dataclass
from functools import cached_property
from numbers import Integral, Real
from pathlib import Path
from typing import Any, ClassVar, Generic, Literal, TypeVar, get_args, get_origin, get_type_hints

from ...algorithms.fields import options
from ...data.checks import did_you_mean
from ...errors import InputError
from ...plugins import Plugins
from ...training import OnStep
from ...training.config import Precision
from ...training.plain import dumps, plain
from ...training.selection import Selection
from ..bench import Workload

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


_WORDS = {str: "text", int: "whole number", float: "number", bool: "truth value", Mapping: "table", list: "list"}


def check_types(settings: Mapping[str, Any], settings_type: type[Any]) -> None:
    """Text, numbers, truth values, tables and lists are what the fields declare; what else they may be, they check."""
    hints = get_type_hints(settings_type)
    for key, value in settings.items():
        kinds = {_plain_kind(kind) for kind in options(hints[key])}
        if not kinds & {None, _kind_of(value)} and not (float in kinds and _kind_of(value) is int):
            raise InputError(f"{key} = {_told(value)} is no {' or '.join(_WORDS[k] for k in _WORDS if k in kinds)}")


def _told(value: Any) -> str:
    """As the recipe has it."""
    try:
        return dumps(value)
    except (TypeError, ValueError):
        return repr(value)


def _kind_of(value: Any) -> Any:
    """Of `_WORDS`, whoever's numbers they are; NoneType for None."""
    if isinstance(value, bool):
        return bool
    for kind, known in ((Mapping, Mapping), (list | tuple, list), (Integral, int), (Real, float), (str, str)):
        if isinstance(value, kind):
            return known
    return type(value)


def _plain_kind(kind: Any) -> Any:
    """Of `_WORDS`, or NoneType; None for what is none of these."""
    origin = get_origin(kind) or kind
    if origin is Literal:
        return str if all(isinstance(word, str) for word in get_args(kind)) else None
    if isinstance(origin, type) and issubclass(origin, Sequence) and origin is not str:
        return list
    return origin if origin in (*_WORDS, type(None)) else None


def frozen(settings: Mapping[str, Any], settings_type: type[Any]) -> dict[str, Any]:
    """What TOML and JSON have as what frozen settings hold: tuples for lists, and 1.0 for 1 where a float belongs."""
    kinds = get_type_hints(settings_type)
    return {key: _frozen(value, options(kinds.get(key))) for key, value in settings.items()}


def _frozen(value: Any, kinds: tuple[Any, ...]) -> Any:
    if isinstance(value, list | tuple):
        inner = tuple(own for kind in kinds for of in get_args(kind) if of is not ... for own in options(of))
        return tuple(_frozen(one, inner) for one in value)
    if isinstance(value, bool) or not isinstance(value, Real):
        return value
    value = int(value) if isinstance(value, Integral) else float(value)  # numpy's too
    if float in kinds and int not in kinds:
        with suppress(OverflowError):  # who declares it refuses it
            return float(value)
    return value


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
