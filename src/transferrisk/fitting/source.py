"""What a model is fitted on: samples with labels and environments, whose encoding is learnt from some of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor

from ..data import EnvironmentSet, Options, Splits, load_data
from ..data.catalogue import DATA_SETS, find_set
from ..data.containers import is_archive
from ..data.environments import Rows, concatenate
from ..data.sets.embeddings import find_columns, has_lists
from ..data.sets.tables import Table, read_table
from ..data.tabular import PARQUET, SEPARATORS
from ..errors import DataWarning, InputError, counted, listed, warn
from ..files import existing_file, expand_home
from .encoders import Encoder, ImageEncoder, TableEncoder, VectorEncoder

Kind = Literal["table", "vectors", "images"]
FEWEST = 10  # rows of an environment that can be trained or tested on


@dataclass(frozen=True)
class Source:
    """
    name         the data set, as in `trm data list`
    samples      labels and environments; the inputs are vectors or images as they are, of a table the rows' places
    table        of a table, its rows; None: there is no table
    label        what the label is called, likewise the environment
    columns      of a file of vectors: the columns or the array that hold them
    """

    name: str
    kind: Kind
    samples: EnvironmentSet
    table: Table | None
    label: str
    environment: str
    columns: tuple[str, ...] = ()

    def learn(self, rows: Tensor) -> Encoder:
        """The encoding that these rows, and no others, suggest."""
        if self.table is not None:
            return TableEncoder(self.table.select(rows).schema)
        if self.kind == "vectors":
            return VectorEncoder.of(self.samples.inputs[rows], self.columns)
        return ImageEncoder(*self.samples.inputs[:1].shape[1:])

    def take(self, encoder: Encoder, rows: Tensor) -> EnvironmentSet:
        """These rows as a network takes them; the environments keep their numbers."""
        chosen = self.samples.select(rows)
        if isinstance(encoder, TableEncoder):
            assert self.table is not None
            return replace(chosen, inputs=self.table.select(rows).encode(encoder.schema).inputs)
        if isinstance(encoder, VectorEncoder):
            return replace(chosen, inputs=encoder.encode(self.samples.inputs[rows]))
        return chosen

    def only(self, environments: Sequence[str]) -> Source:
        """The samples of these environments."""
        samples = self.samples.only(environments)
        if self.table is None:
            return replace(self, samples=samples)
        assert isinstance(samples.inputs, Rows)
        table = self.table.select(samples.inputs.positions)
        return replace(self, samples=replace(samples, inputs=torch.arange(len(table))), table=table)

    @property
    def sizes(self) -> dict[str, int]:
        """Rows of each environment."""
        counts = self.samples.group_counts().sum(1).tolist()
        return dict(zip(self.samples.environment_names, counts, strict=True))


def set_name(given: str, options: Options) -> str:
    """The data set that is meant: a bare path is taken by its kind."""
    base, colon, _ = given.partition(":")
    path = expand_home(given)
    if DATA_SETS.find(base) is not None and (colon or not path.exists()):
        find_set(given)
        return given
    lower = path.name.lower()
    if options.path is not None or lower.endswith((".jsonl", ".ndjson")):
        return f"manifest:{given}"
    if lower.endswith(".npz"):
        return f"npz:{given}"
    if lower.endswith(PARQUET):
        return f"{'parquet' if has_lists(existing_file(given), options.features) else 'table'}:{given}"
    if lower.endswith(tuple(SEPARATORS)):
        return f"table:{given}"
    if path.is_dir() or is_archive(path):
        return f"folder:{given}"
    existing_file(given)
    raise InputError(
        f"{given} is no kind of data that is known: give .csv, .tsv, .parquet, .npz, .jsonl or a folder of images"
    )


def read(given: str, options: Options, drop_small: bool = False) -> Source:
    """The data of a path or a name. Environments with few rows are an error, or left out with `drop_small`."""
    name = set_name(given, options)
    base, _, argument = name.partition(":")
    data_set, _ = find_set(name)
    options.refuse_all_but(data_set.takes, name)
    if base == "table":
        source = _table(name, argument, options)
    else:
        data = load_data(name, options)
        if isinstance(data, Splits):
            warn(f"{name}: its training environments are used, and its test environment is not touched", DataWarning)
            data = concatenate([data.train, _plain(data.training_domain)])
        kind: Kind = "images" if data.inputs[:1].dim() == 4 else "vectors"
        columns: tuple[str, ...] = ()
        label, environment = options.label or "label", options.environment or "environment"
        if base == "npz":
            columns = (options.features or "features",)
            label, environment = options.label or "labels", options.environment or "environments"
        elif base == "parquet":
            found = find_columns(existing_file(argument), options)
            columns, label, environment = found.features, found.label, found.environment
        source = Source(name, kind, data, None, label, environment, columns)
    return _large_enough(source, drop_small)


def _table(name: str, file: str, options: Options) -> Source:
    table = read_table(expand_home(file), options)
    samples = replace(table.reviewed(), inputs=torch.arange(len(table)))
    return Source(name, "table", samples, table, table.label, table.environment)


def _large_enough(source: Source, drop_small: bool) -> Source:
    small = [f"{name!r} ({counted(size, 'row')})" for name, size in source.sizes.items() if size < FEWEST]
    if not small:
        return source
    line = f"{source.name}: environments with fewer than {FEWEST} rows: {listed(small)}"
    if not drop_small:
        raise InputError(f"{line}: merge them with others, or go on without them with drop_small (--drop-small)")
    left = [name for name, size in source.sizes.items() if size >= FEWEST]
    if len(left) < 2:
        raise InputError(f"{line}; without them {len(left)} would be left, and two are needed: merge some")
    warn(f"{line}; they are left out", DataWarning)
    return source.only(left)


def _plain(data: EnvironmentSet) -> EnvironmentSet:
    return EnvironmentSet(
        data.inputs, data.labels, data.environments, data.environment_names, data.class_names, data.sources
    )
