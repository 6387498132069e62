"""folder:PATH, the user's own images as <environment>/<class>/*, in a folder or in a tar or zip archive.

A folder that wraps all of them is looked through. Images elsewhere, and files that seem to be images of a kind that is
not decoded, are left out with a warning; other files do not count.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePosixPath

from ...errors import DataWarning, InputError, warn
from ...files import readable
from ..catalogue import DataSet, register
from ..checks import listed
from ..containers import Entry, entries, folders, is_archive
from ..environments import EnvironmentSet
from ..facts import Facts
from ..image_set import SIZE, LabelledFile, image_set
from ..images import RELATIVES, is_image
from ..options import SKIP_BAD, Options
from ..root import expanded


def load(path: Path | str, asked: Options | None = None) -> EnvironmentSet:
    path, asked = expanded(path), asked or Options()
    files = entries(path)
    images = [entry for entry in files if is_image(entry.name)]
    if not images:
        raise InputError(f"{path} holds no images{_instead(files)}: expected <environment>/<class>/<image>")
    depth = 1 if _wrapped(images) else 0
    placed = [entry for entry in images if len(entry.folders) >= depth + 2]
    if not placed:
        raise InputError(
            f"{path} holds images, but none as <environment>/<class>/<image>: the first is {images[0].name!r}"
        )
    if len(placed) < len(images):
        stray = next(entry for entry in images if len(entry.folders) < depth + 2)
        warn(
            f"{path}: {len(images) - len(placed)} images lie outside <environment>/<class>/ and are left out, such as "
            f"{stray.name!r}",
            DataWarning,
        )
    others = _like_images([entry for entry in files if len(entry.folders) >= depth + 2])
    if others:
        warn(f"{path}: files of a kind that is not decoded are left out: {others}", DataWarning)
    samples = [
        LabelledFile(entry, readable(entry.folders[depth + 1]), readable(entry.folders[depth])) for entry in placed
    ]
    environments = sorted({sample.environment for sample in samples})
    classes = sorted({sample.label for sample in samples})
    if path.is_dir():
        _refuse_empty_classes(path, depth, classes, asked.skip_bad)
    return image_set(samples, environments, classes, SIZE, asked, path)


def _wrapped(images: Sequence[Entry]) -> bool:
    """All lie in one folder that is not an environment, because environments are below it."""
    first = {entry.folders[:1] for entry in images}
    return len(first) == 1 and () not in first and all(len(entry.folders) >= 3 for entry in images)


def _like_images(files: Sequence[Entry]) -> str:
    """How many files there are of each kind that is akin to images, and without a kind in their name."""
    suffixes = (PurePosixPath(entry.name).suffix.lower() for entry in files)
    counts = Counter(suffix for suffix in suffixes if suffix in RELATIVES or not suffix)
    return listed(f"{count} {suffix or 'without a suffix'}" for suffix, count in counts.most_common())


def _instead(files: Sequence[Entry]) -> str:
    archive = next((entry.name for entry in files if is_archive(Path(entry.name))), None)
    if archive is not None:
        return f", but archives such as {archive!r}, which have to be unpacked first"
    others = _like_images(files)
    return f" of a kind that is decoded, but {others}" if others else ""


def _refuse_empty_classes(path: Path, depth: int, classes: Sequence[str], skip_bad: bool) -> None:
    there = {
        readable(parts[depth + 1])
        for parent, _ in folders(path)
        for parts in [parent.relative_to(path).parts]
        if len(parts) == depth + 2
    }
    empty = sorted(there - set(classes))
    if not empty:
        return
    line = f"{path}: class {', '.join(map(repr, empty))} has a folder and no image in any environment"
    if not skip_bad:
        raise InputError(f"{line}: add images, remove the folder, or go on without it with {SKIP_BAD}")
    warn(f"{line}; it is left out", DataWarning)


register(
    DataSet(
        Facts(
            name="folder",
            title="your images, as <environment>/<class>/* in a folder or archive",
            licence="your own",
            citation="",
            shape=(3, SIZE, SIZE),
        ),
        load,
        takes=frozenset({"size", "lazy"}),
        argument="PATH",
    )
)
