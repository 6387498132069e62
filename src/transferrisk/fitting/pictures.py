"""Images to predict, in parts that fit into memory: those of a folder or an archive, or those that a manifest lists."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..data.containers import Entry, contents, entries, is_archive
from ..data.images import decode_all, is_image
from ..data.table_files import read_frames, read_header
from ..data.values import as_name, is_blank
from ..errors import SKIP_BAD, BadImageError, DataWarning, InputError, require_name, warn
from ..files import readable
from .model import Model
from .predict import ROWS, Names, Part, Required

BYTES = 1 << 26  # of decoded images at a time


@dataclass(frozen=True)
class Picture:
    """An image file, with the names of its class and its environment where they are given."""

    file: Entry
    name: str
    label: str | None
    environment: str | None


def image_parts(
    model: Model, path: Path, names: Names, column: str, required: Required, skip_bad: bool
) -> Iterator[Part]:
    """Yield the images of a folder or an archive, or those of a manifest, whose `column` has the paths.

    Their paths are written beside the predictions.
    """
    required = dict(required)
    identity = required.pop("id", "path")
    if identity != "path":
        raise InputError(f"identity (--id) must be 'path' for images, got {identity!r}: leave it out")
    if path.is_dir() or is_archive(path):
        for option, name in required.items():
            raise InputError(f"{option}={name!r} (--{option}): {path} has folders and no columns; leave it out")
        pictures = _in_folder(path, model.classes)
    else:
        pictures = list(_in_manifest(path, column, names, required))
    side = model.input_shape[-1]
    size = max(1, BYTES // (3 * side * side))
    for start in range(0, len(pictures), size):
        yield _decoded(pictures[start : start + size], side, path, skip_bad)


def _in_folder(path: Path, classes: Sequence[str]) -> list[Picture]:
    """Return the images of a folder or an archive.

    Their folders are their classes if all are classes of the model; the folders above are then the environments.
    """
    if not path.exists():
        raise InputError(f"{path} does not exist: check the path")
    files = [entry for entry in entries(path) if is_image(entry.name)]
    if not files:
        raise InputError(f"{path} holds no images: name another folder")
    labelled = all(file.folders and readable(file.folders[-1]) in classes for file in files)
    return [
        Picture(
            file,
            readable(file.name),
            readable(file.folders[-1]) if labelled else None,
            readable(file.folders[-2]) if labelled and len(file.folders) > 1 else None,
        )
        for file in files
    ]


def _in_manifest(path: Path, column: str, names: Names, required: Required) -> Iterator[Picture]:
    """Yield the images of a table or of JSON lines, which must have the column of paths."""
    label, environment = names
    known: dict[str, None] = {}  # a JSON line may lack what others have
    for row, record in enumerate(_manifest_rows(path, column), start=1):
        known |= dict.fromkeys(record)
        name = record.get(column)
        if not name:
            raise InputError(f"{path}: row {row} has no {column}: write one")
        file = path.parent / name
        try:
            status = file.stat()
        except (OSError, ValueError):
            raise InputError(f"{path}: row {row}: {name[:100]} does not exist: correct the path") from None
        entry = Entry(path.parent, name, status.st_size, status.st_mtime_ns)
        yield Picture(entry, name, record.get(label), record.get(environment))
    for option, name in required.items():
        require_name(name, list(known), path, "column", option)


def _manifest_rows(path: Path, column: str) -> Iterator[dict[str, str | None]]:
    """Yield the rows as texts by column; None is a missing value."""
    if path.name.lower().endswith((".jsonl", ".ndjson")):
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    record = json.loads(line) if line.strip() else None
                except ValueError:
                    record = 0
                if record is not None and not isinstance(record, dict):
                    raise InputError(f"{path}, line {number}, must be a JSON object: write one object a line")
                if record is not None:
                    yield {key: None if value is None else as_name(value) for key, value in record.items()}
        return
    known = read_header(path)
    require_name(column, known, path, "column", "path")
    for frame in read_frames(path, ROWS, known):
        missing = {name: is_blank(frame[name]) for name in known}
        for i, values in enumerate(frame.astype(object).itertuples(index=False)):
            pairs = zip(known, values, strict=True)
            yield {name: None if missing[name][i] else as_name(value) for name, value in pairs}


def _decoded(pictures: Sequence[Picture], side: int, where: Path, skip_bad: bool) -> Part:
    """Return the images with their labels; those that cannot be decoded are an error, or left out with a warning."""
    images, good = torch.empty(len(pictures), 3, side, side, dtype=torch.uint8), []
    for i, image in decode_all(contents([picture.file for picture in pictures]), side):
        if not isinstance(image, BadImageError):
            images[i] = torch.from_numpy(image)
            good.append(i)
        elif skip_bad:
            warn(f"{where}: {pictures[i].name} is left out ({image})", DataWarning)
        else:
            raise InputError(
                f"{where}: {pictures[i].name} cannot be used ({image}): correct or remove it, or go on without it with "
                f"{SKIP_BAD}"
            )
    good.sort()
    chosen = [pictures[i] for i in good]
    labels, environments = [picture.label for picture in chosen], [picture.environment for picture in chosen]
    return Part(
        images[good],
        {"path": [picture.name for picture in chosen]},
        labels if any(labels) else None,
        environments if any(labels) and any(environments) else None,
    )
