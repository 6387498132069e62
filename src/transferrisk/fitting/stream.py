"""Samples to predict, in parts that fit into memory, whatever file or folder holds them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..data import Options
from ..data.catalogue import SKIP_BAD
from ..data.checks import require_name
from ..data.containers import Entry, contents, entries, is_archive
from ..data.images import BadImageError, decode_all, is_image
from ..data.schema import Categorical, Date, Note, Schema
from ..data.sets.embeddings import as_vectors, read_arrays, vectors_of
from ..data.table_files import PARQUET, parquet_parts, read_frames, read_header
from ..data.values import as_name, is_blank
from ..errors import DataWarning, InputError, listed, warn
from ..files import existing_file, expand_home, readable

if TYPE_CHECKING:
    import pandas as pd

    from .model import Model

ROWS = 50_000  # of a table at a time
BYTES = 1 << 26  # of decoded images at a time
Names = Sequence[str | None]
"""Names of classes or environments, one for each sample; None: not given"""
Given = Mapping[str, str]
"""Option -> the name the user gave with it: unlike the model's own, it has to be in the file"""


@dataclass(frozen=True)
class Part:
    """
    inputs        as the network takes them, (n, ...)
    kept          columns that go with the predictions
    labels        where the file has them, likewise the environments
    notes         what the model's schema had not seen
    """

    inputs: Tensor
    kept: dict[str, Any] = field(default_factory=dict)
    labels: Names | None = None
    environments: Names | None = None
    notes: Sequence[Note] = ()


def path_of(given: str) -> Path:
    """The path in new.csv as in table:new.csv."""
    base, colon, argument = given.partition(":")
    return expand_home(argument if colon and base in ("table", "npz", "parquet", "folder", "manifest") else given)


def read_parts(model: Model, given: str, asked: Options, identity: str | None, size: int = ROWS) -> Iterator[Part]:
    """The samples of a file or folder, `size` rows at a time; `identity` is the column to keep."""
    path, origin = path_of(given), model.origin
    given_names = (("label", asked.label), ("environment", asked.environment), ("id", identity))
    named = {option: name for option, name in given_names if name is not None}
    asked = replace(
        asked,
        label=named.get("label", origin.label),
        environment=named.get("environment", origin.environment),
        path=asked.path or origin.names.get("path"),
    )
    if model.schema is not None:
        return _table_parts(model, model.schema, existing_file(path), asked, named, size)
    if origin.kind == "images":
        return _image_parts(model, path, asked, named)
    file = existing_file(path)
    vectors = _parquet_vectors if file.name.lower().endswith(PARQUET) else _npz_vectors
    return vectors(origin.columns, file, asked, named, size)


def beginning(path: Path | str, first: int) -> str:
    """The part of a file in which a message counts rows from 1."""
    return f"{path}, from row {first} on" if first > 1 else str(path)


def _table_parts(model: Model, schema: Schema, path: Path, asked: Options, named: Given, size: int) -> Iterator[Part]:
    header = read_header(path)
    wanted = [column.name for column in schema.columns]
    if not set(wanted) & set(header):
        raise InputError(
            f"{path} must have columns of the model ({listed(map(repr, wanted))}), got {listed(map(repr, header))}: "
            "name another file"
        )
    for option, name in named.items():
        require_name(name, header, path, "column", option)
    aside = {str(asked.label), str(asked.environment), *named.values()}.difference(wanted).intersection(header)
    texts = {column.name for column in schema.columns if isinstance(column, Categorical | Date)}
    first = 1
    for frame in read_frames(path, size, texts.intersection(header) | aside):
        try:
            encoded = schema.encode(frame.drop(columns=[*aside]), model.form)
        except InputError as error:
            raise InputError(f"{beginning(path, first)}: {error}") from None
        yield _part(encoded.features, frame, asked, named, encoded.notes)
        first += len(frame)


def _parquet_vectors(columns: Sequence[str], path: Path, asked: Options, named: Given, size: int) -> Iterator[Part]:
    header = read_header(path)
    features = columns if asked.features is None else tuple(asked.features.split(","))
    for option, name in (*(("features", name) for name in features), *named.items()):
        require_name(name, header, path, "column", option)
    others = {str(asked.label), str(asked.environment), *named.values()}.intersection(header).difference(features)
    first = 1
    for table in parquet_parts(path, [*features, *others], size):
        vectors = torch.from_numpy(vectors_of(table, features, path))
        _refuse_odd(vectors, path, first)
        yield _part(vectors, table.select([*others]).to_pandas(ignore_metadata=True), asked, named)
        first += len(vectors)


def _npz_vectors(columns: Sequence[str], path: Path, asked: Options, named: Given, size: int) -> Iterator[Part]:
    import pandas as pd

    features = asked.features or (columns[0] if len(columns) == 1 else "features")
    required = {"features": features, **named}
    optional = [str(name) for name in (asked.label, asked.environment) if name not in required.values()]
    others = read_arrays(path, required, optional)
    vectors = torch.from_numpy(as_vectors(others.pop(features), features, path))
    for name, values in others.items():
        if values.shape != vectors.shape[:1]:
            raise InputError(f"{path}: array {name!r} must have shape ({len(vectors)},), got {values.shape}")
    for start in range(0, len(vectors), size):
        part = vectors[start : start + size]
        _refuse_odd(part, path, start + 1)
        frame = pd.DataFrame({name: values[start : start + size] for name, values in others.items()})
        yield _part(part, frame, asked, named)


def _part(inputs: Tensor, frame: pd.DataFrame, asked: Options, named: Given, notes: Sequence[Note] = ()) -> Part:
    """The inputs, with the column to keep, labels and environments of a frame that has them."""
    kept: dict[str, Any] = {}
    if "id" in named:  # whole numbers stay so beside missing ones
        kept = {named["id"]: frame[named["id"]].reset_index(drop=True).convert_dtypes()}
    groups: list[Names | None] = [None, None]
    for i, name in enumerate((asked.label, asked.environment)):
        if name in frame:
            pairs = zip(frame[name].astype(object), is_blank(frame[name]), strict=True)
            groups[i] = [None if blank else as_name(value) for value, blank in pairs]
    return Part(inputs, kept, groups[0], groups[1], notes)


def _refuse_odd(vectors: Tensor, path: Path, first: int) -> None:
    finite = vectors.isfinite().all(1)
    if not finite.all():
        row = first + int(finite.int().argmin())
        raise InputError(f"{path}: features must be finite numbers of float32, got another in row {row}: correct it")


@dataclass(frozen=True)
class Picture:
    """A file, and the class and environment it is known to have."""

    file: Entry
    name: str
    label: str | None
    environment: str | None


def _image_parts(model: Model, path: Path, asked: Options, named: Given) -> Iterator[Part]:
    """All images of a folder or archive, or those a manifest lists; the column `path` goes with the predictions."""
    named = dict(named)
    identity = named.pop("id", "path")
    if identity != "path":
        raise InputError(f"identity (--id) must be 'path' for images, got {identity!r}: leave it out")
    in_folders = path.is_dir() or is_archive(path)
    if in_folders and named:
        option, name = next(iter(named.items()))
        raise InputError(f"{option}={name!r} (--{option}): {path} has folders and no columns; leave it out")
    pictures = _in_folder(path, model.classes) if in_folders else list(_in_manifest(path, asked, named))
    side = model.input_shape[-1]
    size = max(1, BYTES // (3 * side * side))
    for start in range(0, len(pictures), size):
        yield _decoded(pictures[start : start + size], side, path, asked.skip_bad)


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


def _in_manifest(path: Path, asked: Options, named: Given) -> Iterator[Picture]:
    """The images of a table or of JSON lines, whose column of paths has to be there."""
    column = asked.path or "path"
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
        yield Picture(entry, name, record.get(str(asked.label)), record.get(str(asked.environment)))
    for option, name in named.items():
        require_name(name, list(known), path, "column", option)


def _manifest_rows(path: Path, column: str) -> Iterator[dict[str, str | None]]:
    """Rows with what is given in them, as texts."""
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
