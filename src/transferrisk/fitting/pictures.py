"""Images to predict: all of a folder or archive, or those a manifest lists, a few at a time."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from ..data import Options
from ..data.catalogue import SKIP_BAD
from ..data.containers import Entry, contents, entries, is_archive
from ..data.images import BadImageError, decode_all, is_image
from ..data.tabular import read_frames, read_header
from ..data.values import as_name, is_blank
from ..errors import DataWarning, InputError, did_you_mean, listed, warn
from ..files import readable
from .encoders import ImageEncoder
from .model import Model
from .stream import ROWS, Part, Typed, all_there

BYTES = 1 << 26  # of decoded images at a time


@dataclass(frozen=True)
class Picture:
    """A file, and what is known of it."""

    file: Entry
    name: str
    label: str | None
    environment: str | None


def parts_of_images(
    model: Model, encoder: ImageEncoder, path: Path, asked: Options, typed: Typed, identity: str | None
) -> Iterator[Part]:
    """The column `path` goes with the predictions in any case."""
    if identity not in (None, "path"):
        raise InputError(
            f"identity={identity!r} (--id): predictions of images are told apart by their path; leave it out"
        )
    whole = path.is_dir() or is_archive(path)
    if whole and typed:
        option, name = next(iter(typed.items()))
        raise InputError(f"{option}={name!r} (--{option}): {path} has folders and no columns; leave it out")
    pictures = _in_folder(path, model.class_names) if whole else list(_listed(path, asked, typed))
    size = max(1, BYTES // (3 * encoder.height * encoder.width))
    for start in range(0, len(pictures), size):
        yield _decoded(pictures[start : start + size], encoder.height, path, asked.skip_bad)


def _in_folder(path: Path, classes: Sequence[str]) -> list[Picture]:
    """Folders are classes, and those above them environments, where those of all images could be."""
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


def _listed(path: Path, asked: Options, typed: Typed) -> Iterator[Picture]:
    """Those of a table or of JSON lines, whose column of paths has to be there."""
    column = asked.path or "path"
    known: dict[str, None] = {}  # a JSON line may lack what others have
    for row, record in enumerate(_records(path, column), start=1):
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
        yield Picture(entry, name, record.get(str(asked.label)), record.get(str(asked.environment)))
    all_there(typed, None, list(known), path, "column")


def _records(path: Path, column: str) -> Iterator[dict[str, str | None]]:
    """Rows with what is given in them, as texts."""
    if path.name.lower().endswith((".jsonl", ".ndjson")):
        with path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                try:
                    record = json.loads(line) if line.strip() else None
                except ValueError:
                    record = 0
                if record is not None and not isinstance(record, dict):
                    raise InputError(f"{path}, line {number}, is no JSON object: write one object a line")
                if record is not None:
                    yield {key: None if value is None else as_name(value) for key, value in record.items()}
        return
    known = read_header(path)
    if column not in known:
        hint = did_you_mean(column, known)
        raise InputError(
            f"{path} has no column {column!r}: {hint}choose from {listed(map(repr, known))} with path (--path)"
        )
    for frame in read_frames(path, ROWS, known):
        missing = {name: is_blank(frame[name]) for name in known}
        for i, values in enumerate(frame.astype(object).itertuples(index=False)):
            named = zip(known, values, strict=True)
            yield {name: None if missing[name][i] else as_name(value) for name, value in named}


def _decoded(pictures: Sequence[Picture], size: int, where: Path, skip_bad: bool) -> Part:
    images, good = torch.empty(len(pictures), 3, size, size, dtype=torch.uint8), []
    for i, image in decode_all(contents([picture.file for picture in pictures]), size):
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
