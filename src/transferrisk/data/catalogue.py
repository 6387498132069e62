"""Data sets by name: the paper's, the user's own files, and those that installed packages add.

A name may carry an argument: `folder:PATH`, `table:FILE`, `10c-cmnist:FashionMNIST`. A set declares its facts, which
`trm data` shows and the loaders check, and which of the `Options` it takes; the others are refused by name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from ..errors import InputError, listed
from ..files import existing_file, expand_home
from ..registry import Registry
from ..settings import Bound, Seed, Settings
from .environments import EnvironmentSet
from .facts import Facts
from .shifts import Shift
from .splits import Splits, leave_out
from .table_files import PARQUET, SEPARATORS

ALWAYS = frozenset({"root", "seed", "verify", "skip_bad", "progress"})
"""Options that every set takes."""

Progress = Callable[[str, int, int], None]
"""progress(what, done, total): called now and then during long work."""


@dataclass(frozen=True)
class Options(Settings):
    """Options of data sets.

    Parameters
    ----------
    root
        Data root. Default: see `data_root`.
    seed
        Random seed.
    size
        Height and width of images, pixels.
    lazy
        Decode images when they are needed. Default: when the decoded ones would take more than 8 GiB.
    verify
        Read every image once, even if images are decoded lazily.
    skip_bad
        Leave out samples that cannot be read, with a warning that lists them; like `verify`, this changes nothing for
        sets without files.
    shift
        Difference between the environments of a synthetic set.
    oracle
        Train on data distributed like the test environment.
    label
        Column or array with the labels.
    environment
        Column or array with the environments.
    features
        Array or column with the features; columns, separated by commas.
    path
        Column with the paths of a manifest.
    categorical
        Columns of a table to take as categories: names, or one text in which commas separate them.
    numeric
        Columns of a table to take as numbers, in the same form.
    drop
        Columns of a table to leave out, in the same form.
    missing
        Values that mean missing in a table, besides empty cells, such as "unknown,-999"; "age=-999" is for the column
        age alone. A tuple of such texts, or one text in which commas separate them.
    dates
        Order of day and month in a table's dates such as 05/06/2024, in columns that do not tell it by a day after the
        twelfth: "day-first" or "month-first".
    schema
        File of JSON that declares a table's columns, see `data.infer`; the five options above win over it.
    missing_indicators
        Whether features say where a table's values are missing: "always", "never", or "auto", if that helps a linear
        model in held-out environments. Where nothing is fitted, "auto" keeps them.
    device
        Device on which a synthetic set is built.
    progress
        Called now and then during long work.

    Examples
    --------
    >>> from transferrisk.data import Options, Shift
    >>> Options(seed=1, shift=Shift("combined", (1.0, 0.8))).shift.kind
    'combined'
    """

    root: Path | str | None = None
    seed: Seed = 0
    size: Annotated[int, Bound(least=1, most=4096)] | None = None
    lazy: bool | None = None
    verify: bool = False
    skip_bad: bool = False
    shift: Shift | None = None
    oracle: bool = False
    label: str | None = None
    environment: str | None = None
    features: str | None = None
    path: str | None = None
    categorical: str | tuple[str, ...] | None = None
    numeric: str | tuple[str, ...] | None = None
    drop: str | tuple[str, ...] | None = None
    missing: str | tuple[str, ...] | None = None
    dates: Literal["day-first", "month-first"] | None = None
    schema: Path | str | None = None
    missing_indicators: Literal["auto", "always", "never"] = "auto"
    device: torch.device | str = "cpu"
    progress: Progress | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        try:
            torch.device(self.device)
        except RuntimeError:
            raise InputError(
                f"device must be one that PyTorch has, such as 'cpu' or 'cuda', got {self.device!r}"
            ) from None

    def refuse_all_but(self, taken: frozenset[str], name: str) -> None:
        """Raise an error if an option is set that would have no effect on a data set.

        Parameters
        ----------
        taken
            Names of options that have an effect.
        name
            Name of the data set.
        """
        device = torch.device(self.device).type
        for option in fields(self):
            value = device if option.name == "device" else getattr(self, option.name)
            if option.name not in taken | ALWAYS and value != option.default:
                others = ", ".join(sorted(taken)) or "none of its own"
                raise InputError(f"data set {name!r} does not take {option.name}: leave it out (its options: {others})")


@dataclass(frozen=True)
class DataSet:
    """A data set by name: its facts, and how it is loaded.

    Parameters
    ----------
    facts
        Facts about it.
    load
        (argument, options) -> the set; Splits where it has a test environment of its own.
    takes
        The options it takes, beyond those of every set.
    shift
        Default shift, of a synthetic set.
    locate
        Data root -> place of the set in it, or None; for sets that are got by hand.
    argument
        Placeholder for the argument after the colon, in capitals, as "[...]" if it may be left out; None: the name
        takes no argument.
    check
        Function of the options that raises, or warns with `skip_bad`, if something is missing; it reads no image.
    sources
        Facts about the sources that it may be built from.
    needs
        Argument -> the sources that it needs. Default: all.

    Examples
    --------
    >>> import torch
    >>> from transferrisk.data import DataSet, EnvironmentSet, Facts
    >>> def load(argument, options):
    ...     x = torch.randn(4, 3, generator=torch.Generator().manual_seed(options.seed))
    ...     return EnvironmentSet(x, torch.tensor([0, 1, 0, 1]), torch.tensor([0, 0, 1, 1]), ("a", "b"), ("no", "yes"))
    >>> facts = Facts("tiny", "Four samples", "none needed", "nobody", environments={"a": 2, "b": 2})
    >>> data_set = DataSet(facts, load)
    """

    facts: Facts
    load: Callable[[str, Options], EnvironmentSet | Splits]
    takes: frozenset[str] = frozenset()
    shift: Shift | None = None
    locate: Callable[[Path], Path | None] | None = None
    argument: str | None = None
    check: Callable[[Options], object] | None = None
    sources: tuple[Facts, ...] = ()
    needs: Callable[[str], tuple[Facts, ...]] | None = None

    @property
    def usage(self) -> str:
        """Name with the placeholder of its argument."""
        if self.argument is None:
            return self.facts.name
        return f"{self.facts.name}[:{self.argument[1:-1]}]" if self.optional else f"{self.facts.name}:{self.argument}"

    @property
    def optional(self) -> bool:
        """True if the argument may be left out."""
        return self.argument is not None and self.argument.startswith("[")

    def sources_of(self, argument: str = "") -> tuple[Facts, ...]:
        """Return facts of the sources that the set with this argument is built from.

        Parameters
        ----------
        argument
            What follows the colon in the name of the set.

        Returns
        -------
        tuple of Facts
            Facts of the sources.
        """
        return self.sources if self.needs is None else self.needs(argument)


def _check_set(name: str, value: Any) -> DataSet:
    if not isinstance(value, DataSet):
        raise InputError(f"a data set must be a DataSet, got a {type(value).__name__}")
    if value.facts.name != name:
        raise InputError(f"its facts call it {value.facts.name!r}: give the entry point that name")
    return value


DATA_SETS: Registry[DataSet] = Registry("data set", "transferrisk.data", _check_set, fill="transferrisk.data.sets")


def register(data_set: DataSet) -> DataSet:
    """Register a set under the name in its facts.

    Parameters
    ----------
    data_set
        The set.

    Returns
    -------
    DataSet
        The same set.

    Examples
    --------
    >>> from transferrisk.data import available, register
    >>> register(available()["gaussian"]) is available()["gaussian"]
    True
    """
    return DATA_SETS.add(data_set.facts.name, data_set)


def register_own_files(
    name: str,
    title: str,
    load: Callable[[str, Options], EnvironmentSet],
    takes: str,
    argument: str = "FILE",
    shape: tuple[int, ...] = (),
) -> None:
    """Register a set that reads the user's own files; `takes` are the names of its options, separated by spaces."""
    facts = Facts(name=name, title=title, licence="your own", citation="", shape=shape)
    register(DataSet(facts, load, takes=frozenset(takes.split()), argument=argument))


def available() -> dict[str, DataSet]:
    """Return all sets by name: those that are complete by themselves first, then those that read the user's files.

    Returns
    -------
    dict[str, DataSet]
        Name -> data set.

    Examples
    --------
    >>> from transferrisk.data import available
    >>> "10c-digits" in available()
    True
    """
    return dict(sorted(DATA_SETS.items(), key=lambda item: (not item[1].facts.environments, item[0])))


def available_sources() -> dict[str, Facts]:
    """Return the sources of data sets by name: they can be fetched, but have no environments themselves."""
    return {facts.name: facts for _, data_set in DATA_SETS.items() for facts in data_set.sources}


def find_set(name: str) -> tuple[DataSet, str]:
    """Return the set of a name, and the argument after the colon, "" if there is none."""
    base, colon, argument = name.partition(":")
    data_set = DATA_SETS.find(base)
    if data_set is None and base in available_sources():
        built = [repr(other) for other, data_set in available().items() if base in {s.name for s in data_set.sources}]
        raise InputError(f"{base!r} has no environments itself: use {' or '.join(built)}, which is built from it")
    if data_set is None and Path(name).exists():
        raise InputError(
            f"data set {name!r} is a path: write its kind before it, such as table:{name} or folder:{name}"
        )
    data_set = data_set or DATA_SETS.get(base)
    if (colon and (data_set.argument is None or not argument)) or (
        not colon and data_set.argument is not None and not data_set.optional
    ):
        why = "lacks its argument after the colon" if data_set.argument else "takes no argument after a colon"
        raise InputError(f"data set {name!r} {why}: write {data_set.usage}")
    return data_set, argument


def set_name(given: str, options: Options) -> str:
    """Return the name of the data set in `given`: the path of a file or folder, or the name of a set."""
    from .containers import is_archive
    from .sets.embeddings import has_lists

    base, colon, _ = given.partition(":")
    path = expand_home(given)
    a_word = "/" not in given and not path.suffix
    if (a_word and not path.exists()) or ((colon or not path.exists()) and base in DATA_SETS):
        find_set(given)
        return given
    lower = path.name.lower()
    if options.path is not None or lower.endswith((".jsonl", ".ndjson")):
        return f"manifest:{given}"
    if lower.endswith(".npz"):
        return f"npz:{given}"
    if lower.endswith(PARQUET):
        return f"{'parquet' if has_lists(existing_file(given), options.features) else 'table'}:{given}"
    if lower.endswith(tuple(SEPARATORS)):
        return f"table:{given}"
    if path.is_dir() or is_archive(path):
        return f"folder:{given}"
    existing_file(given)
    raise InputError(f"FILE must be .csv, .tsv, .parquet, .npz, .jsonl or a folder of images, got {given}")


def load_data(name: str, options: Options | None = None) -> EnvironmentSet | Splits:
    """Load a set by name.

    Parameters
    ----------
    name
        Name in `trm data list`, with its argument after a colon.
    options
        Options of the data set. Default: each at its default.

    Returns
    -------
    EnvironmentSet | Splits
        All its environments, or `Splits` where it has a test environment of its own.

    Examples
    --------
    >>> from transferrisk.data import load_data
    >>> type(load_data("gaussian")).__name__
    'Splits'
    """
    data_set, argument = find_set(name)
    options = options or Options()
    options.refuse_all_but(data_set.takes, name)
    return data_set.load(argument, options)


def load_splits(name: str, options: Options | None = None, test_environment: str | None = None) -> Splits:
    """Load a set by name, as samples to train, select and test on.

    Parameters
    ----------
    name
        Name in `trm data list`, with its argument after a colon.
    options
        Options of the data set. Default: each at its default.
    test_environment
        Environment to test on, for sets without one of their own.

    Returns
    -------
    Splits
        The four parts.

    Examples
    --------
    >>> from transferrisk.data import Options, load_splits
    >>> load_splits("gaussian", Options(seed=1)).test.environment_names
    ('far',)
    """
    options = options or Options()
    data = load_data(name, options)
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
