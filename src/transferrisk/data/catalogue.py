"""Data sets by name: those of the paper, the user's own files, and what installed packages add.

A name may carry an argument: `folder:PATH`, `table:FILE`, `10c-cmnist:FashionMNIST`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from ..errors import InputError
from ..plugins import Plugins
from .checks import listed
from .environments import EnvironmentSet, Splits
from .facts import Facts
from .options import Options
from .shifts import Shift
from .splits import leave_out


@dataclass(frozen=True)
class DataSet:
    """
    facts     what is known of it
    load      (argument, options) -> the set; Splits where it has a test environment of its own
    takes     the options it understands, beyond those of every set
    shift     of a synthetic set, where none is asked for
    locate    data root -> where in it the set lies, None where it does not; for sets that are got by hand
    check     raises, or warns with `skip_bad`, where not all of it is there; cheap, since it reads no image
    needs     argument -> names of the sources it needs, where those are not always what its facts say
    argument  what stands after the colon of its name, in capitals; None: nothing may, "[...]": something may
    """

    facts: Facts
    load: Callable[[str, Options], EnvironmentSet | Splits]
    takes: frozenset[str] = frozenset()
    shift: Shift | None = None
    locate: Callable[[Path], Path | None] | None = None
    argument: str | None = None
    check: Callable[[Options], object] | None = None
    needs: Callable[[str], tuple[str, ...]] | None = None

    @property
    def usage(self) -> str:
        """The name as it is to be written."""
        if self.argument is None:
            return self.facts.name
        return f"{self.facts.name}[:{self.argument[1:-1]}]" if self.optional else f"{self.facts.name}:{self.argument}"

    @property
    def optional(self) -> bool:
        return self.argument is not None and self.argument.startswith("[")


_SETS: dict[str, DataSet] = {}
_SOURCES: dict[str, Facts] = {}


def register(data_set: DataSet) -> DataSet:
    """Make a set known under the name in its facts."""
    if data_set.facts.name in _SETS and _SETS[data_set.facts.name] != data_set:
        raise InputError(f"data set {data_set.facts.name!r} is registered already")
    _SETS[data_set.facts.name] = data_set
    return data_set


def register_source(facts: Facts) -> Facts:
    """Make known what sets are built from: it can be fetched and checked, and is no set of environments itself."""
    _SOURCES[facts.name] = facts
    return facts


def _add(name: str, data_set: object) -> None:
    """The set of an entry point, which stands under its own name."""
    if not isinstance(data_set, DataSet):
        raise InputError(f"a {type(data_set).__name__} is no data set: its entry point must lead to a DataSet")
    if data_set.facts.name != name:
        raise InputError(f"its facts call it {data_set.facts.name!r}: give the entry point that name")
    register(data_set)


_PLUGINS = Plugins("transferrisk.data", "data set", known=lambda name: name in _SETS, register=_add)


def available() -> dict[str, DataSet]:
    """All sets by name: those that are complete by themselves first, then those that are the user's files."""
    _fill()
    _PLUGINS.find_all()
    return dict(sorted(_SETS.items(), key=lambda item: (not item[1].facts.environments, item[0])))


def look_up(name: str) -> DataSet | None:
    """The set of a name without its argument; None where there is none."""
    _fill()
    _PLUGINS.find(name)
    return _SETS.get(name)


def sources() -> dict[str, Facts]:
    """What sets are built from; a package's own are among them once one of its sets was asked for."""
    _fill()
    return dict(_SOURCES)


def find(name: str) -> tuple[DataSet, str]:
    """The set of a name, and the argument after the colon ("" where there is none)."""
    base, colon, argument = name.partition(":")
    data_set = look_up(base)
    if data_set is None:
        if base in _SOURCES:
            built = [s.facts.name for s in _SETS.values() if base in s.facts.needs]
            raise InputError(
                f"{base!r} has no environments itself: use {' or '.join(map(repr, built))}, which is built from it"
            )
        raise InputError(f"data set {name!r} is not known{nearest(base, (s.usage for s in available().values()))}")
    if (colon and (data_set.argument is None or not argument)) or (
        not colon and data_set.argument is not None and not data_set.optional
    ):
        why = "lacks what comes after the colon" if data_set.argument else "takes nothing after a colon"
        raise InputError(f"data set {name!r} {why}: write {data_set.usage}")
    return data_set, argument


def load(name: str, options: Options | None = None) -> EnvironmentSet | Splits:
    """The set of a name: all its environments, or Splits where it has a test environment of its own."""
    data_set, argument = find(name)
    options = options or Options()
    options.refuse_all_but(data_set.takes, name)
    return data_set.load(argument, options)


def load_splits(name: str, options: Options | None = None, test_environment: str | None = None) -> Splits:
    """What to train, select and test on. Sets without a test environment of their own need one named."""
    options = options or Options()
    data = load(name, options)
    if isinstance(data, Splits):
        if test_environment is not None:
            raise InputError(
                f"data set {name!r} has a test environment of its own "
                f"({', '.join(data.test.environment_names)}): leave --test-env out"
            )
        return data
    if test_environment is None:
        raise InputError(
            f"data set {name!r} needs a test environment: choose from {listed(map(repr, data.environment_names), 30)} "
            "with --test-env"
        )
    return leave_out(data, test_environment, options.seed)


def nearest(word: str, known: Iterable[str]) -> str:
    known = list(known)
    names = {usage.split(":")[0].split("[")[0]: usage for usage in known}
    close = get_close_matches(word.lower(), names, n=1)
    choices = f"choose from {', '.join(known)}"
    return f": did you mean {names[close[0]]!r}? ({choices})" if close else f": {choices}"


def _fill() -> None:
    """Import the built-in sets, each of which registers itself."""
    from . import sets  # noqa: F401  # imported for what it does
