"""pacs and office-home: published sets of image folders, found in the layouts people have them in, and counted.

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

from ...errors import SKIP_BAD, DataWarning, InputError, warn
from ..catalogue import DataSet, Options, register
from ..containers import ARCHIVES, Entry, entries, is_archive
from ..environments import EnvironmentSet
from ..facts import Facts
from ..image_set import SIZE, LabelledFile, image_set
from ..images import is_image
from ..roots import data_root


@dataclass(frozen=True)
class Published:
    """
    folders  names under which it is found below the data root, as a folder or archive
    aliases  other names of environments
    """

    facts: Facts
    folders: tuple[str, ...]
    aliases: Mapping[str, str] = field(default_factory=dict)

    def load(self, _: str, options: Options) -> EnvironmentSet:
        samples = self.samples(options)
        place = self.locate(data_root(options.root)) or self.facts.name
        return image_set(samples, tuple(self.facts.environments), self.facts.classes, SIZE, options, place)

    def samples(self, options: Options) -> list[LabelledFile]:
        """Return all images, environment by environment; a number other than the published one is an error."""
        root = data_root(options.root)
        place = self.locate(root)
        if place is None:
            raise InputError(f"{self.facts.name} is not in {root}: {self.facts.by_hand}")
        found = list(self._labelled(images_among(place, entries(place))))
        compare_counts(self.facts, Counter(sample.environment for sample in found), place, options.skip_bad)
        order = list(self.facts.environments)
        return sorted(found, key=lambda s: (order.index(s.environment), s.label, s.file.name))

    def locate(self, root: Path) -> Path | None:
        """Return the first folder below the root named like it that is not empty, else an archive."""
        names = {letters(name) for name in self.folders}
        below = sorted(root.iterdir()) if root.is_dir() else []
        folders = [path for path in below if path.is_dir() and letters(path.name) in names and any(path.iterdir())]
        archives = [path for path in below if path.is_file() and is_archive(path) and letters(stem(path)) in names]
        return next(iter(folders + archives), None)

    def _labelled(self, files: Sequence[Entry]) -> Iterator[LabelledFile]:
        classes = {letters(name): name for name in self.facts.classes}
        environments = {letters(name): name for name in self.facts.environments} | dict(self.aliases)
        outer = {path: (stem(path),) if path.is_file() else () for path in {file.container for file in files}}
        for file in files:
            *above, label = ("", *map(letters, (*outer[file.container], *file.folders)))
            environment = next((name for name in reversed(above) if name in environments), None)
            if label in classes and environment is not None:
                yield LabelledFile(file, classes[label], environments[environment])

    def register(self) -> None:
        register(
            DataSet(self.facts, self.load, takes=frozenset({"size", "lazy"}), locate=self.locate, check=self.samples)
        )


def compare_counts(facts: Facts, counts: Mapping[str, int], place: Path, skip_bad: bool) -> None:
    """Refuse environments without the published number of images; with `skip_bad` it is a warning, if any has some."""
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
        raise InputError(f"{line}; get it again, or go on with those there are with {SKIP_BAD}")
    warn(line, DataWarning)


def images_among(place: Path, files: Sequence[Entry]) -> list[Entry]:
    """Return the images among the files of a folder or archive, else those in the archives in a folder."""
    loose = [entry for entry in files if is_image(entry.name)]
    archives = [entry.name for entry in files if is_archive(Path(entry.name))]
    if archives and not loose and not place.is_dir():
        raise InputError(f"{place} holds no images, but archives such as {archives[0]!r}: unpack it into a folder")
    return loose or [entry for name in archives for entry in entries(place / name) if is_image(entry.name)]


def letters(name: str) -> str:
    """Return the letters and digits of a name, in lower case."""
    return "".join(character for character in name.lower() if character.isalnum())


def stem(path: Path) -> str:
    """Return the name of an archive without its suffix."""
    for suffix in sorted(ARCHIVES, key=len, reverse=True):
        if path.name.lower().endswith(suffix):
            return path.name[: -len(suffix)]
    return path.name


PACS = Published(
    Facts(
        name="pacs",
        title="PACS: photos, art paintings, cartoons and sketches of seven things",
        licence="not stated by its makers; images from several sources, for research",
        citation="Li, Yang, Song & Hospedales (2017), Deeper, Broader and Artier Domain Generalization",
        homepage="https://domaingeneralization.github.io",
        environments={"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929},
        classes=("dog", "elephant", "giraffe", "guitar", "horse", "house", "person"),
        shape=(3, SIZE, SIZE),
        folder="PACS",
        by_hand="download PACS.zip from Google Drive (file 1JFr8f805nMUelQWWmfnJR3y4_SYoN5Pd, linked from "
        "https://domaingeneralization.github.io), then run: trm data fetch pacs --from PACS.zip",
    ),
    folders=("PACS", "pacs_data", "kfold"),
    aliases={"art": "art_painting", "artpaintings": "art_painting", "cartoons": "cartoon", "photos": "photo",
             "sketches": "sketch"},
)  # fmt: skip
PACS.register()

OFFICE_HOME = Published(
    Facts(
        name="office-home",
        title="Office-Home: 65 things as art, clip art, product pictures and photographs",
        licence="for non-commercial research and education, see the home page",
        citation="Venkateswara, Eusebio, Chakraborty & Panchanathan (2017), Deep Hashing Network for Unsupervised "
        "Domain Adaptation",
        homepage="https://www.hemanthdv.org/officeHomeDataset.html",
        environments={"art": 2427, "clipart": 4365, "product": 4439, "real_world": 4357},
        classes=(
            "Alarm_Clock", "Backpack", "Batteries", "Bed", "Bike", "Bottle", "Bucket", "Calculator", "Calendar",
            "Candles", "Chair", "Clipboards", "Computer", "Couch", "Curtains", "Desk_Lamp", "Drill", "Eraser",
            "Exit_Sign", "Fan", "File_Cabinet", "Flipflops", "Flowers", "Folder", "Fork", "Glasses", "Hammer",
            "Helmet", "Kettle", "Keyboard", "Knives", "Lamp_Shade", "Laptop", "Marker", "Monitor", "Mop", "Mouse",
            "Mug", "Notebook", "Oven", "Pan", "Paper_Clip", "Pen", "Pencil", "Postit_Notes", "Printer", "Push_Pin",
            "Radio", "Refrigerator", "Ruler", "Scissors", "Screwdriver", "Shelf", "Sink", "Sneakers", "Soda",
            "Speaker", "Spoon", "TV", "Table", "Telephone", "ToothBrush", "Toys", "Trash_Can", "Webcam",
        ),
        shape=(3, SIZE, SIZE),
        folder="OfficeHome",
        by_hand="its makers ask for agreement to their terms: follow the download link on "
        "https://www.hemanthdv.org/officeHomeDataset.html to OfficeHomeDataset_10072016.zip, then run: trm data fetch "
        "office-home --from OfficeHomeDataset_10072016.zip",
    ),
    folders=("OfficeHome", "office_home_dg", "OfficeHomeDataset_10072016"),
    aliases={"real": "real_world", "clip": "clipart"},
)  # fmt: skip
OFFICE_HOME.register()
