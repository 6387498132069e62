"""Things by name: built in, registered by the program, or added by installed packages through entry points.

Algorithms, backbones, data sets and tasks are each one `Registry`. A name that is built in, or registered by the
program itself, keeps its meaning when a package adds the same name; a warning says that the package's thing is not
used. A name that two packages add is an error. A package is imported when one of its names is looked up, or when names
are listed; not before. `paper` is added in the same way.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from traceback import walk_tb
from typing import Any, Generic, TypeVar

from .errors import InputError, PluginWarning, cause_of, choices, warn

T = TypeVar("T")
U = TypeVar("U")

_TASKS = {
    "toy-2d": "Toy2D",
    "theorem-1": "Theorem1",
    "implicit-gradient": "ImplicitGradient",
    "convergence": "Convergence",
    "pictures": "Pictures",
    "time": "Time",
}
OWN: dict[str, tuple[EntryPoint, ...]] = {
    "transferrisk.algorithms": (
        EntryPoint("trm-public", "transferrisk.paper.public_trm:PublicTRM", "transferrisk.algorithms"),
    ),
    "transferrisk.tasks": tuple(
        EntryPoint(name, f"transferrisk.paper.tasks:{task}", "transferrisk.tasks") for name, task in _TASKS.items()
    ),
    "transferrisk.recipes": (EntryPoint("paper", "transferrisk.paper.recipes", "transferrisk.recipes"),),
}
"""Entry points of this package by group: they work from a source tree that was not installed, and come first."""


class Registry(Generic[T]):
    """Things of one kind by name.

    noun   the word for one of them in messages, such as "algorithm"
    group  group of the entry points in which packages add more; the name of an entry point is the name of the thing
    check  (name, value) -> the value to keep under the name; raises InputError if it is not of the kind
    fill   module that registers the built-in ones; imported before the first look-up
    also   tells whether a name is taken without being registered
    """

    def __init__(
        self,
        noun: str,
        group: str,
        check: Callable[[str, Any], T],
        fill: str | None = None,
        also: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self.noun, self._group = noun, group
        self._check, self._fill, self._also = check, fill, also
        self._things: dict[str, T] = {}

    def register(self, name: str) -> Callable[[U], U]:
        """Decorator: registers a class or function under a name."""

        def decorate(value: U) -> U:
            self.add(name, value)
            return value

        return decorate

    def add(self, name: str, value: Any) -> T:
        """Register a value under a name, which nothing else may have; the same value again changes nothing."""
        kept = self._check(name, value)
        before = self._things.get(name)
        if before is not None and not _is_same(before, kept):
            raise InputError(f"{self.noun} {name!r} is already registered, as {_home(before)}")
        self._things[name] = kept
        return kept

    def find(self, name: str) -> T | None:
        """Return the thing of this name, or None; a broken package that adds it is an error."""
        self._ensure_filled()
        if added := entries(self._group).get(name, ()):
            self._find_in_packages(name, added)
        return self._things.get(name)

    def _find_in_packages(self, name: str, added: tuple[EntryPoint, ...]) -> None:
        what = f"{self.noun} {name!r}"
        if name in self._things or self._also(name):
            unused = [entry for entry in added if not self._is_registered(entry)]
        elif len(added) > 1 and not is_own(added[0]):
            raise ambiguous(what, [package_of(entry) for entry in added])
        else:
            with failures_named(added[0], what):
                self.add(name, added[0].load())
            unused = list(added[1:])
        for entry in unused:
            warn_unused(entry, what)

    def get(self, name: str) -> T:
        """Return the thing of this name; an unknown name is an error that proposes the nearest."""
        found = self.find(name)
        if found is None:
            raise InputError(f"unknown {self.noun} {name!r}{choices(name, self.names())}")
        return found

    def names(self) -> list[str]:
        """Return all names in the order of registration, with those of installed packages; a broken one is left out."""
        self._ensure_filled()
        for name in entries(self._group):
            try:
                self.find(name)
            except InputError as error:
                warn_left_out(error)
        return list(self._things)

    def items(self) -> Iterator[tuple[str, T]]:
        return ((name, self._things[name]) for name in self.names())

    @contextmanager
    def temporary(self) -> Iterator[None]:
        """Forget after the block the names that were registered within it, as tests need."""
        self._ensure_filled()
        before = dict(self._things)
        try:
            yield
        finally:
            self._things = before

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and self.find(name) is not None

    def _ensure_filled(self) -> None:
        if self._fill is not None:
            module, self._fill = self._fill, None
            import_module(module)

    def _is_registered(self, entry: EntryPoint) -> bool:
        """Whether the name of an entry point stands for the thing that it leads to."""
        if entry.module not in sys.modules or entry.name not in self._things:
            return False
        try:
            return _is_same(self._things[entry.name], self._check(entry.name, entry.load()))
        except Exception:  # whatever is wrong with it, the name stands for another thing
            return False


def _is_same(one: Any, other: Any) -> bool:
    """Whether two things are equal, or the same class or function of a module that was imported again."""
    return bool(one == other) or (hasattr(one, "__qualname__") and _home(one) == _home(other))


def _home(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"


@cache
def entries(group: str) -> dict[str, tuple[EntryPoint, ...]]:
    """Return the entry points of a group by name, those of this package first; nothing is imported."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    added = sorted(entry_points(group=group), key=lambda entry: (entry.name, package_of(entry)))
    for entry in (*OWN.get(group, ()), *added):
        found[entry.name] = (*found.get(entry.name, ()), entry)
    return found


def forget_packages() -> None:
    """Look for packages anew, as after one was installed; warnings that were given are given again."""
    entries.cache_clear()
    _warn_once.cache_clear()


@contextmanager
def failures_named(entry: EntryPoint, what: str) -> Iterator[None]:
    """Turn any failure in this block, which uses an entry point, into an InputError that names the package."""
    try:
        yield
    except (Exception, SystemExit) as error:
        first = (str(error).splitlines() or [""])[0]
        kind = "" if isinstance(error, InputError) else type(error).__name__
        raise InputError(
            f"{what} of the package {package_of(entry)} cannot be used ({': '.join(filter(None, (kind, first)))}): "
            f"fix, update or uninstall it; python -c 'import {entry.module}' may show more"
        ) from error


TRACEBACK = "TRANSFERRISK_TRACEBACK"
"""The environment variable with which an error in an installed package is a traceback."""


def failure_in_package(error: BaseException) -> str | None:
    """Return a message if an error was raised in the code of an installed package that adds to this one; else None."""
    installed, packages = entry_points(), {}
    for group in installed.groups:
        if group.startswith("transferrisk."):
            for entry in installed.select(group=group):
                packages[entry.module.partition(".")[0]] = package_of(entry)
    for frame, line in reversed(list(walk_tb(error.__traceback__))):
        package = packages.get(frame.f_globals.get("__name__", "").partition(".")[0])
        if package is not None:
            return (
                f"the package {package} failed ({type(error).__name__}: {cause_of(error)}) in {frame.f_code.co_name}, "
                f"{frame.f_code.co_filename}:{line}: fix, update or uninstall it; {TRACEBACK}=1 in the environment "
                "shows the whole traceback"
            )
    return None


def is_own(entry: EntryPoint) -> bool:
    """Whether the entry point is one of this package's own."""
    return entry in OWN.get(entry.group, ()) and entry.dist is None


def package_of(entry: EntryPoint) -> str:
    """Return the name and version of the package that an entry point comes with."""
    if entry.dist is None:
        return "transferrisk" if is_own(entry) else "without a name"
    return f"{entry.dist.name} {entry.dist.version}"


def ambiguous(what: str, packages: list[str]) -> InputError:
    return InputError(f"{what} comes with {' and with '.join(packages)}: uninstall all of them but one")


def warn_unused(entry: EntryPoint, what: str) -> None:
    package = package_of(entry)
    _warn_once(f"{what} of the package {package} is not used, since the name was taken before: give it another")


def warn_left_out(error: InputError) -> None:
    _warn_once(f"{error}; it is left out until then")


@cache
def _warn_once(message: str) -> None:
    """Warn once in a process, since names are looked up again and again."""
    warn(message, PluginWarning)
