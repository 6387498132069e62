"""Things by name: built in, registered by the program, or added by installed packages.

Algorithms, backbones, data sets and tasks are each one `Registry`. A name that is built in, or registered by the
program itself, keeps its meaning when a package adds the same name; a warning says that the package's thing is not
used. A name that two packages add is an error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.metadata import EntryPoint
from typing import Any, Generic, TypeVar

from .errors import InputError, choices
from .plugins import ambiguous, entries, failures_named, is_own, package_of, warn_left_out, warn_unused

T = TypeVar("T")
U = TypeVar("U")


class Registry(Generic[T]):
    """
    noun   what messages call one of them, such as "algorithm"
    group  group of the entry points in which packages add more; the name of an entry point is the name of the thing
    check  (name, value) -> the value to keep under the name; raises InputError if it is not of the kind
    fill   module that registers the built-in ones; imported before the first look-up
    also   says whether a name is taken without being registered
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
        """The thing of this name, or None; a broken package that adds it is an error."""
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
        """The thing of this name; an unknown name is an error that proposes the nearest."""
        found = self.find(name)
        if found is None:
            raise InputError(f"unknown {self.noun} {name!r}{choices(name, self.names())}")
        return found

    def names(self) -> list[str]:
        """All names in the order of registration, with those of installed packages; a broken one is left out."""
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
        """Names that are registered within the block are forgotten after it, as tests need."""
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
