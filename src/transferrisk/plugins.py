"""Entry points, through which other packages add things by name; parts of this package are added the same way.

`registry` looks names up in them. A package is imported when one of its names is looked up, or when names are listed;
not before.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.metadata import EntryPoint, entry_points

from .errors import InputError, PluginWarning, warn

_TASKS = {
    "toy-2d": "Toy2D",
    "theorem-1": "Theorem1",
    "implicit-gradient": "ImplicitGradient",
    "convergence": "Convergence",
    "pictures": "Pictures",
    "time": "Time",
}
OWN: tuple[EntryPoint, ...] = (
    *(EntryPoint(name, f"transferrisk.paper.tasks:{task}", "transferrisk.tasks") for name, task in _TASKS.items()),
    EntryPoint("paper", "transferrisk.paper.recipes", "transferrisk.recipes"),
)
"""Entry points of this package: they work from a source tree that was not installed, and come before all others."""


@cache
def entries(group: str) -> dict[str, tuple[EntryPoint, ...]]:
    """The entry points of a group by name, those of this package first; nothing is imported."""
    found: dict[str, tuple[EntryPoint, ...]] = {}
    own = [entry for entry in OWN if entry.group == group]
    added = sorted(entry_points(group=group), key=lambda entry: (entry.name, package_of(entry)))
    for entry in [*own, *added]:
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
            f"mend, update or uninstall it; python -c 'import {entry.module}' may show more"
        ) from error


def is_own(entry: EntryPoint) -> bool:
    """Whether the entry point is one of this package's own."""
    return entry.dist is None and entry in OWN


def package_of(entry: EntryPoint) -> str:
    """Name and version of the package that an entry point comes with."""
    if is_own(entry):
        return "transferrisk"
    return "without a name" if entry.dist is None else f"{entry.dist.name} {entry.dist.version}"


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
    """Warn once in a process, since names are looked up again and again."""
    warn(message, PluginWarning)
