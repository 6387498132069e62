"""Things by name: built in, registered by the program, or added by installed packages.

Algorithms, backbones, data sets and tasks are each one `Registry`. What is built in or registered by the program comes
before what a package adds under the same name, so that installing a package never changes what a name means.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any, Generic, TypeVar

from .errors import InputError, choices
from .plugins import Plugins

T = TypeVar("T")
U = TypeVar("U")


class Registry(Generic[T]):
    """
    noun   what one of them is called in messages, such as "algorithm"
    group  the group of entry points in which packages add more
    check  (name, value) -> what is kept under the name; raises InputError where the value is not of the kind
    fill   module that registers the built-in ones; imported before the first look-up
    also   names that are known besides, without being registered
    """

    def __init__(
        self,
        noun: str,
        group: str,
        check: Callable[[str, Any], T],
        fill: str | None = None,
        also: Callable[[str], bool] = lambda name: False,
    ) -> None:
        self.noun = noun
        self._check, self._fill, self._also = check, fill, also
        self._things: dict[str, T] = {}
        self._plugins = Plugins(group, noun, known=self._is_taken, register=self._add_from_package)

    def register(self, name: str) -> Callable[[U], U]:
        """Decorator: makes a class or function known under a name."""

        def decorate(value: U) -> U:
            self.add(name, value)
            return value

        return decorate

    def add(self, name: str, value: Any) -> T:
        """Make a value known under a name, which nothing else may have; the same value again changes nothing."""
        kept = self._check(name, value)
        known = self._things.get(name)
        if known is not None and not _is_same(known, kept):
            raise InputError(f"{self.noun} {name!r} is already registered, as {_home(known)}")
        self._things[name] = kept
        return kept

    def find(self, name: str) -> T | None:
        """What has this name, or None."""
        self._ensure_filled()
        self._plugins.find(name)
        return self._things.get(name)

    def get(self, name: str) -> T:
        """What has this name; an unknown one is an error that proposes the nearest."""
        found = self.find(name)
        if found is None:
            raise InputError(f"unknown {self.noun} {name!r}{choices(name, self.names())}")
        return found

    def names(self) -> list[str]:
        """All names, those of installed packages included, in the order of registration."""
        self._ensure_filled()
        self._plugins.find_all()
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

    def _is_taken(self, name: str) -> bool:
        return name in self._things or self._also(name)

    def _add_from_package(self, name: str, value: Any) -> None:
        if name not in self._things and self._also(name):
            raise InputError(f"the name {name!r} is taken")
        self.add(name, value)


def _is_same(known: Any, new: Any) -> bool:
    """Equal, or the same class or function of a module that was imported again."""
    if known == new:
        return True
    return hasattr(known, "__qualname__") and _home(known) == _home(new)


def _home(value: Any) -> str:
    named = value if hasattr(value, "__qualname__") else type(value)
    return f"{named.__module__}.{named.__qualname__}"
