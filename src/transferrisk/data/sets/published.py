"""Published sets of image folders: found in the layouts people have them in, and counted against what was published.

    <folder>/<environment>/<class>/*                    the usual one, and DomainBed's
    <folder>/images/<environment>/<class>/*             Dassl's PACS
    <folder>/<environment>/{train,val}/<class>/*        Dassl's Office-Home
    any of these inside one archive, or in one archive for each environment

The class is the folder an image lies in, the environment the nearest folder (or archive) above it that is named like
one; case, spaces, dashes and underscores do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ...errors import DataWarning, InputError, warn
from ..containers import ARCHIVES, Entry, entries, is_archive
from ..environments import EnvironmentSet
from ..facts import Facts
from ..image_set import SIZE, LabelledFile, image_set
from ..images import is_image
from ..options import SKIP_BAD, Options
from ..root import data_root


@dataclass(frozen=True)
class Published:
    """
    folders  names under which it is found below the data root, as a folder or archive
    aliases  other names of environments
    """

    facts: Facts
    folders: tuple[str, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)

    def load(self, _: str, asked: Options) -> EnvironmentSet:
        samples = self.samples(asked)
        place = self.locate(data_root(asked.root)) or self.facts.name
        return image_set(samples, tuple(self.facts.environments), self.facts.classes, SIZE, asked, place)

    def samples(self, asked: Options) -> list[LabelledFile]:
        """All its images, environment after environment; an error where their number is not the published one."""
        place, files = self._find(data_root(asked.root))
        found = list(self._placed(files))
        compare(self.facts, Counter(sample.environment for sample in found), place, asked.skip_bad)
        order = list(self.facts.environments)
        return sorted(found, key=lambda s: (order.index(s.environment), s.label, s.file.name))

    def locate(self, root: Path) -> Path | None:
        """The first folder below the root named like it that is not empty, else an archive."""
        known = {plain(name) for name in self.folders}
        there = sorted(root.iterdir()) if root.is_dir() else []
        folders = [path for path in there if path.is_dir() and plain(path.name) in known and any(path.iterdir())]
        archives = [path for path in there if path.is_file() and is_archive(path) and plain(stem(path)) in known]
        return next(iter(folders + archives), None)

    def _find(self, root: Path) -> tuple[Path, list[Entry]]:
        """Where it is, and its images."""
        place = self.locate(root)
        if place is None:
            raise InputError(f"{self.facts.name} is not in {root}: {self.facts.by_hand}")
        return place, images_among(place, entries(place))

    def _placed(self, files: Sequence[Entry]) -> Iterator[LabelledFile]:
        classes = {plain(name): name for name in self.facts.classes}
        environments = {plain(name): name for name in self.facts.environments} | dict(self.aliases)
        outer = {path: (stem(path),) if path.is_file() else () for path in {file.container for file in files}}
        for file in files:
            *above, label = ("", *map(plain, (*outer[file.container], *file.folders)))
            environment = next((name for name in reversed(above) if name in environments), None)
            if label in classes and environment is not None:
                yield LabelledFile(file, classes[label], environments[environment])


def compare(facts: Facts, counts: Mapping[str, int], place: Path, skip_bad: bool) -> None:
    """An error where environments do not have as many images as published; with `skip_bad` a warning, if any has."""
    wrong = [
        f"{name} {counts.get(name, 0)} of {published}"
        for name, published in facts.environments.items()
        if counts.get(name, 0) != published
    ]
    if not wrong:
        return
    line = f"{place} does not hold all of {facts.name} or holds more: {', '.join(wrong)} images"
    if not any(counts.values()):
        raise InputError(f"{line}; get it again")
    if not skip_bad:
        raise InputError(f"{line}; get it again, or go on with what there is with {SKIP_BAD}")
    warn(line, DataWarning)


def images_among(place: Path, files: Sequence[Entry]) -> list[Entry]:
    """Images that lie about in a folder or archive with these files, else those in the archives in a folder."""
    loose = [entry for entry in files if is_image(entry.name)]
    archives = [entry.name for entry in files if is_archive(Path(entry.name))]
    if archives and not loose and not place.is_dir():
        raise InputError(f"{place} holds no images, but archives such as {archives[0]!r}: unpack it into a folder")
    return loose or [entry for name in archives for entry in entries(place / name) if is_image(entry.name)]


def plain(name: str) -> str:
    return "".join(character for character in name.lower() if character.isalnum())


def stem(path: Path) -> str:
    """A file's name without what makes it an archive."""
    for suffix in sorted(ARCHIVES, key=len, reverse=True):
        if path.name.lower().endswith(suffix):
            return path.name[: -len(suffix)]
    return path.name
