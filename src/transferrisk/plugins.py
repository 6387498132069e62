"""What other packages add, through entry points.

A package is imported when one of its names is asked for, or when names are listed; not before. What is built in, or
registered by the program itself, comes before what a package adds under the same name, so that installing a package
never changes what a name means; a warning says that it is not used. A name that two packages add is an error.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any

from .errors import InputError, PluginWarning, warn


@dataclass(frozen=True)
class Plugins:
    """One kind of thing that packages add.

    group     of the entry points: the name of one is that of the thing
    noun      what such a thing is called in messages
    known     whether a name is taken
    register  (name, what the entry point leads to): makes it known, again and again; an error where it is nothing of
              the kind, or where another thing has the name
    """

    group: str
    noun: str
    known: Callable[[str], bool]
    register: Callable[[str, Any], object]

    def find(self, name: str) -> None:
        """Make a name known, if a package adds it; an error where that package is broken."""
        added = entries(self.group).get(name, ())
        if not added:
            return
        if self.known(name):
            for entry in added:
                if not self._is_known(entry):
                    warn_unused(entry, f"{self.noun} {name!r}")
        elif len(added) > 1:
            raise ambiguous(f"{self.noun} {name!r}", [package_of(entry) for entry in added])
        else:
            load(added[0], f"{self.noun} {name!r}", lambda found: self.register(name, found))

    def find_all(self) -> None:
        """Make known all that packages add; a broken one is left out with a warning."""
        for name in entries(self.group):
            try:
                self.find(name)
            except InputError as error:
                warn_left_out(error)

    def _is_known(self, entry: EntryPoint) -> bool:
        """Whether the thing under its name is its own: then its module is there, and registering changes nothing."""
        if entry.module not in sys.modules:
            return False
        try:
            self.register(entry.name, entry.load())
        except Exception:  # whatever is wrong with it, the other one is used
            return False
        return True


@cache
def entries(group: str) -> dict[str, tuple[EntryPoint, ...]]:
    """The entry points of a group by name; nothing is imported."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    for entry in sorted(entry_points(group=group), key=lambda entry: (entry.name, package_of(entry))):
        found[entry.name] = (*found.get(entry.name, ()), entry)
    return found


def load(entry: EntryPoint, what: str, use: Callable[[Any], Any]) -> Any:
    """`use` of what an entry point leads to; whatever goes wrong is an InputError that names the package."""
    try:
        return use(entry.load())
    except (Exception, SystemExit) as error:
        first = (str(error).splitlines() or [""])[0]
        kind = "" if isinstance(error, InputError) else type(error).__name__
        raise InputError(
            f"{what} of the package {package_of(entry)} cannot be used ({': '.join(filter(None, (kind, first)))}): "
            f"mend, update or uninstall it; python -c 'import {entry.module}' may show more"
        ) from error


def package_of(entry: EntryPoint) -> str:
    return "of no name" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


def ambiguous(what: str, packages: list[str]) -> InputError:
    return InputError(f"{what} comes with {' and with '.join(packages)}: uninstall all of them but one")


def warn_unused(entry: EntryPoint, what: str) -> None:
    _warn_once(
        f"{what} of the package {package_of(entry)} is not used, since the name was taken before: give it another"
    )


def warn_left_out(error: InputError) -> None:
    _warn_once(f"{error}; it is left out until then")


@cache
def _warn_once(message: str) -> None:
    """In a process: names are asked for again and again."""
    warn(message, PluginWarning)
