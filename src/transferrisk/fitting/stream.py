"""Samples to predict, in parts that fit into memory, whatever they are kept in."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..data import Options
from ..data.checks import require_name
from ..data.columns import Categorical, Date, Note
from ..data.sets.embeddings import as_vectors, read_arrays, vectors_of
from ..data.tabular import PARQUET, parquet_parts, read_frames, read_header
from ..data.values import as_name, is_blank
from ..errors import InputError, listed
from ..files import existing_file, expand_home
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
    notes         what was met that the model's schema had not seen
    """

    inputs: Tensor
    kept: dict[str, Any] = field(default_factory=dict)
    labels: Names | None = None
    environments: Names | None = None
    notes: tuple[Note, ...] = ()


def path_of(given: str) -> Path:
    """Of new.csv as of table:new.csv."""
    base, colon, argument = given.partition(":")
    return expand_home(argument if colon and base in ("table", "npz", "parquet", "folder", "manifest") else given)


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
        yield Part(encoded.features, kept, *_known(frame, asked), encoded.notes)
        first += len(frame)


def all_there(typed: Typed, identity: str | None, known: Sequence[str], path: Path, noun: str) -> None:
    """Refuses what the user named and a file does not have."""
    for option, name in (dict(typed) | ({} if identity is None else {"id": identity})).items():
        require_name(name, known, path, noun, option)


def _parquet(
    encoder: VectorEncoder, path: Path, asked: Options, typed: Typed, identity: str | None, size: int
) -> Iterator[Part]:
    header = read_header(path)
    features = encoder.columns if asked.features is None else tuple(asked.features.split(","))
    for name in features:
        require_name(name, header, path, "column", "features")
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

    features = asked.features or (encoder.columns[0] if len(encoder.columns) == 1 else "features")
    keys = {"features": features} | dict(typed) | ({} if identity is None else {"id": identity})
    arrays = read_arrays(path, keys, [name for name in (asked.label, asked.environment) if name])
    vectors = arrays[features]
    others = {name: values for name, values in arrays.items() if name in (asked.label, asked.environment, identity)}
    for name, values in others.items():
        if values.shape != vectors.shape[:1]:
            raise InputError(f"{path}: array {name!r} has shape {values.shape}, {features!r} {vectors.shape}")
    for start in range(0, max(len(vectors), 1), size):
        part = torch.from_numpy(as_vectors(vectors[start : start + size], features, path))
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
        missing = is_blank(frame[name])
        values = frame[name].astype(object)
        found.append([None if m else as_name(v) for v, m in zip(values, missing, strict=True)])
    return found[0], found[1]
