"""folder:PATH, the user's own images as <environment>/<class>/*, in a folder or in a tar or zip archive.

A folder that wraps all of them is looked through. Images elsewhere are left out with a warning; other files do not
count.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Sequence
from pathlib import Path

from ...errors import DataWarning, InputError
from ..catalogue import DataSet, register
from ..containers import Entry, entries
from ..environments import EnvironmentSet
from ..facts import Facts
from ..image_set import LabelledFile, image_set
from ..images import is_image
from ..options import Options

SIZE = 224


def load(path: Path | str, asked: Options | None = None) -> EnvironmentSet:
    path, asked = Path(path).expanduser(), asked or Options()
    images = [entry for entry in entries(path) if is_image(entry.name)]
    if not images:
        raise InputError(f"{path} holds no images: expected <environment>/<class>/<image>")
    depth = 1 if _wrapped(images) else 0
    placed = [entry for entry in images if len(entry.folders) >= depth + 2]
    if not placed:
        raise InputError(
            f"{path} holds images, but none as <environment>/<class>/<image>: the first is {images[0].name!r}"
        )
    if len(placed) < len(images):
        stray = next(entry for entry in images if len(entry.folders) < depth + 2)
        warnings.warn(
            f"{path}: {len(images) - len(placed)} images lie outside <environment>/<class>/ and are left out, such as "
            f"{stray.name!r}",
            DataWarning,
            stacklevel=2,
        )
    samples = [LabelledFile(entry, entry.folders[depth + 1], entry.folders[depth]) for entry in placed]
    environments = sorted({sample.environment for sample in samples})
    classes = sorted({sample.label for sample in samples})
    if path.is_dir():
        _refuse_empty_classes(path, depth, classes, asked.skip_bad)
    return image_set(samples, environments, classes, SIZE, asked)


def _wrapped(images: Sequence[Entry]) -> bool:
    """All lie in one folder that is not an environment, because environments are below it."""
    first = {entry.folders[:1] for entry in images}
    return len(first) == 1 and () not in first and all(len(entry.folders) >= 3 for entry in images)


def _refuse_empty_classes(path: Path, depth: int, classes: Sequence[str], skip_bad: bool) -> None:
    there = {
        parts[depth + 1]
        for parent, _, _ in os.walk(path)
        for parts in [Path(parent).relative_to(path).parts]
        if len(parts) == depth + 2 and not any(part.startswith(".") for part in parts)
    }
    empty = sorted(there - set(classes))
    if not empty:
        return
    line = f"{path}: class {', '.join(map(repr, empty))} has a folder and no image in any environment"
    if not skip_bad:
        raise InputError(f"{line}: add images, remove the folder, or go on without it with --skip-bad")
    warnings.warn(f"{line}; it is left out", DataWarning, stacklevel=3)


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
