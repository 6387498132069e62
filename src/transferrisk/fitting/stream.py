"""Samples to predict, in parts that fit into memory, whatever they are kept in."""

from __future__ import annotations

import zipfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor

from ..data import Options
from ..data.archives import DAMAGED, because
from ..data.checks import existing_file, known_name, listed
from ..data.columns import Categorical, Date
from ..data.root import expanded
from ..data.schema import Encoded, Schema
from ..data.sets.npz import array_of
from ..data.sets.parquet import vectors_of
from ..data.tabular import PARQUET, parquet_parts, read_frames, read_header
from ..data.values import as_name, blank
from ..errors import InputError
from .encoders import ImageEncoder, TableEncoder, VectorEncoder
from .model import Model

if TYPE_CHECKING:
    import pandas as pd

ROWS = 50_000  # of a table at a time
Names = Sequence[str | None]
"""Of classes or environments, a sample each; None: not given."""
Typed = Mapping[str, str]
"""Option -> the name the user gave with it: unlike the model's own, it has to be there."""


@dataclass(frozen=True)
class Part:
    """
    inputs        as the network takes them, (n, ...)
    kept          columns that go with the predictions
    labels        where the file has them, likewise the environments
    notes         what was met that the model's schema had not seen, by what is the same in each part of a file
    """

    inputs: Tensor
    kept: dict[str, Any] = field(default_factory=dict)
    labels: Names | None = None
    environments: Names | None = None
    notes: Mapping[str, str] = field(default_factory=dict)


def path_of(given: str) -> Path:
    """Of new.csv as of table:new.csv."""
    base, colon, argument = given.partition(":")
    return expanded(argument if colon and base in ("table", "npz", "parquet", "folder", "manifest") else given)


def parts(model: Model, given: str, asked: Options, identity: str | None, size: int = ROWS) -> Iterator[Part]:
    """Of a file or folder, `size` rows at a time; `identity` is the column to keep."""
    path = path_of(given)
    typed = {option: name for option in ("label", "environment") if (name := getattr(asked, option)) is not None}
    asked = replace(asked, **({"label": model.origin.label, "environment": model.origin.environment} | typed))
    encoder = model.encoder
    if isinstance(encoder, TableEncoder):
        return _table(encoder, existing_file(path), asked, typed, identity, size)
    if isinstance(encoder, VectorEncoder):
        file = existing_file(path)
        if file.name.lower().endswith(PARQUET):
            return _parquet(encoder, file, asked, typed, identity, size)
        return _npz(encoder, file, asked, typed, identity, size)
    from .pictures import parts_of_images

    assert isinstance(encoder, ImageEncoder)
    return parts_of_images(model, encoder, path, asked, typed, identity)


def _table(
    encoder: TableEncoder, path: Path, asked: Options, typed: Typed, identity: str | None, size: int
) -> Iterator[Part]:
    schema = encoder.schema
    header = read_header(path)
    wanted = [column.name for column in schema.columns]
    if not set(wanted) & set(header):
        raise InputError(
            f"{path} has none of the columns the model takes ({listed(map(repr, wanted))}), but "
            f"{listed(map(repr, header))}: name another file"
        )
    all_there(typed, identity, header, path, "column")
    texts = {column.name for column in schema.columns if isinstance(column, Categorical | Date)}
    texts |= {name for name in (asked.label, asked.environment, identity) if name and name not in wanted}
    aside = {name for name in (asked.label, asked.environment, identity) if name and name not in wanted}
    first = 1
    for frame in read_frames(path, size, texts & set(header)):
        try:
            encoded = encoder.encode(frame[[name for name in header if name not in aside]])
        except InputError as error:
            raise InputError(f"{beginning(path, first)}: {error}") from None
        kept = _kept(frame, identity)
        yield Part(encoded.features, kept, *_known(frame, asked), _notes(encoded, schema, path))
        first += len(frame)


def all_there(typed: Typed, identity: str | None, known: Sequence[str], path: Path, noun: str) -> None:
    """Refuses what the user named and a file does not have."""
    for option, name in (dict(typed) | ({} if identity is None else {"id": identity})).items():
        known_name(name, known, path, noun, option)


def _notes(encoded: Encoded, schema: Schema, path: Path) -> dict[str, str]:
    """Of a column, all that differs between parts is how many rows there are of a kind, and which values."""
    found = {}
    for note in encoded.notes:
        start = next((s for column in schema.columns if note.startswith(s := f"column {column.name!r} has ")), None)
        kind = note if start is None else start + note.removeprefix(start).split()[1].rstrip("s")  # "3 rows of ..."
        found[kind] = f"{path}: {note}"
    return found


def _parquet(
    encoder: VectorEncoder, path: Path, asked: Options, typed: Typed, identity: str | None, size: int
) -> Iterator[Part]:
    header = read_header(path)
    features = encoder.columns if asked.features is None else tuple(asked.features.split(","))
    for name in features:
        known_name(name, header, path, "column", "features")
    all_there(typed, identity, header, path, "column")
    others = [name for name in (asked.label, asked.environment, identity) if name in header and name not in features]
    first = 1
    for table in parquet_parts(path, [*features, *dict.fromkeys(map(str, others))], size):
        vectors = torch.from_numpy(vectors_of(table, features, path))
        _refuse_odd(vectors, path, first)
        frame = table.select(list(dict.fromkeys(map(str, others)))).to_pandas(ignore_metadata=True)
        kept = _kept(frame, identity)
        yield Part(_encoded(encoder, vectors, path, first), kept, *_known(frame, asked))
        first += len(vectors)


def _npz(
    encoder: VectorEncoder, path: Path, asked: Options, typed: Typed, identity: str | None, size: int
) -> Iterator[Part]:
    import pandas as pd

    if not zipfile.is_zipfile(path):
        raise InputError(f"{path} is no file of vectors: give .npz, written with numpy.savez, or .parquet")
    features = asked.features or (encoder.columns[0] if len(encoder.columns) == 1 else "features")
    try:
        with np.load(path, allow_pickle=False) as archive:
            known_name(features, archive.files, path, "array", "features")
            all_there(typed, identity, archive.files, path, "array")
            wanted = [n for n in (asked.label, asked.environment, identity) if n in archive.files]
            vectors = array_of(archive, features, path)
            others = {str(name): array_of(archive, str(name), path) for name in wanted}
    except InputError:
        raise
    except DAMAGED as error:
        raise InputError(f"{path} is damaged ({because(error)}): write it with numpy.savez") from None
    for name, values in others.items():
        if values.shape != vectors.shape[:1]:
            raise InputError(f"{path}: array {name!r} has shape {values.shape}, {features!r} {vectors.shape}")
    if vectors.ndim != 2 or not len(vectors) or vectors.dtype.kind not in "fiub":
        raise InputError(f"{path}: array {features!r} is {vectors.dtype} {vectors.shape}: numbers (n, d) are needed")
    for start in range(0, len(vectors), size):
        with np.errstate(over="ignore"):  # what is too large becomes infinite, and is refused
            part = torch.from_numpy(np.ascontiguousarray(vectors[start : start + size], dtype=np.float32))
        _refuse_odd(part, path, start + 1)
        frame = pd.DataFrame({name: values[start : start + size] for name, values in others.items()})
        kept = _kept(frame, identity)
        yield Part(_encoded(encoder, part, path, start + 1), kept, *_known(frame, asked))


def _kept(frame: pd.DataFrame, identity: str | None) -> dict[str, Any]:
    """The column to keep, by position; whole numbers stay so beside missing ones."""
    return {} if identity is None else {identity: frame[identity].reset_index(drop=True).convert_dtypes()}


def _encoded(encoder: VectorEncoder, vectors: Tensor, path: Path, first: int) -> Tensor:
    try:
        return encoder.encode(vectors)
    except InputError as error:
        raise InputError(f"{beginning(path, first)}: {error}") from None


def beginning(path: Path | str, first: int) -> str:
    """The part of a file in which a message counts rows from 1."""
    return f"{path}, from row {first} on" if first > 1 else str(path)


def _refuse_odd(vectors: Tensor, path: Path, first: int) -> None:
    whole = vectors.isfinite().all(1)
    if not whole.all():
        row = first + int(whole.int().argmin())
        raise InputError(f"{path}: a feature in row {row} is missing, infinite or too large for float32: correct it")


def _known(frame: pd.DataFrame, asked: Options) -> tuple[Names | None, Names | None]:
    """Labels and environments by name, where there are such columns."""
    found: list[Names | None] = []
    for name in (asked.label, asked.environment):
        if name not in frame.columns:
            found.append(None)
            continue
        missing = blank(frame[name])
        values = frame[name].astype(object)
        found.append([None if m else as_name(v) for v, m in zip(values, missing, strict=True)])
    return found[0], found[1]
