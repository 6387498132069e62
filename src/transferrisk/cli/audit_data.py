"""What `trm audit` looks at: a file by its ending, or a data set by its name, through a trained model or as it is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ..data import EnvironmentSet, Options, Splits

_KINDS = {"table": "tables", "vectors": "vectors", "images": "images"}


class Audited(NamedTuple):
    features: Tensor  # (n, d)
    labels: list[str]
    environments: list[str]


def data_name(given: str, options: Options) -> str:
    """The data set of what was given, as `trm fit` takes it; a word that is no file is for the catalogue to answer."""
    from ..files import expand_home
    from ..fitting.source import set_name

    if "/" not in given and not Path(given).suffix and not expand_home(given).exists():
        return given
    return set_name(given, options)


def read(name: str, options: Options, model: Path | None) -> Audited:
    """Features, and the names of label and environment of each sample."""
    from ..data import load_data
    from ..errors import InputError
    from ..models.saved import describe_folder

    if model is not None:
        trained = "spec" in describe_folder(model)["about"]
        return (_through if trained else _through_fitted)(model, name, options)
    if name.partition(":")[0] == "folder":
        options = replace(options, lazy=True)  # of pictures that are refused below, one is enough to decode
    parts = _untrained(load_data(name, options))
    if parts[0].inputs[:1].dim() != 2:
        raise InputError(f"{name} holds images, not features: add --model with a checkpoint or a folder of trm fit")
    return _audited(parts, [part.inputs[:] for part in parts])


def _through(model: Path, name: str, options: Options) -> Audited:
    """Features of samples that a model of `trm train` was not trained on."""
    from ..data import load_data
    from ..errors import InputError
    from ..models import features_of, load_model_folder
    from .audit_split import data_of, same_set, split_of

    saved = load_model_folder(model)
    asked = saved.about.get("spec", {})
    same = same_set(name, data_of(asked))
    if options.size is None:
        options = replace(options, size=asked.get("size"))
    if same:
        options = replace(options, seed=asked.get("seed", options.seed))
    data = load_data(name, options)
    split = split_of(data, asked, saved.about.get("digests", {}), same)
    if split is None and same:
        raise InputError(
            f"{model} was trained on {name}, and what of it cannot be told: give the options that it was trained with, "
            "or data that is new to it"
        )
    parts = _untrained(data if split is None else split)
    return _audited(parts, [features_of(saved.network, part.batch, len(part)) for part in parts])


def _through_fitted(folder: Path, name: str, options: Options) -> Audited:
    """The features of a model of `trm fit`, which was trained on every row of its data."""
    from ..errors import InputError
    from ..fitting import load_model
    from ..fitting.source import read_source
    from ..models import features_of
    from ..training.digests import inputs_digest
    from .audit_split import same_set

    model = load_model(folder)
    origin = model.origin
    base, _, argument = name.partition(":")
    if base == "table" and origin.data.startswith("parquet:") and options.features is None:
        name = data_name(argument, replace(options, features=origin.names.get("features")))
    known_rows = f"{folder} was fitted on all rows of {name}: audit rows that are new to it, in another file"
    if same_set(name, origin.data):
        raise InputError(known_rows)
    if origin.kind == "images":
        options = replace(options, size=options.size or model.shape[-1])
    elif name.partition(":")[0] == origin.data.partition(":")[0]:
        known = {"label": origin.label, "environment": origin.environment, **origin.names}
        filled: dict[str, Any] = {key: getattr(options, key) or value for key, value in known.items()}
        options = replace(options, **filled)
    source = read_source(name, options, drop_small=True)
    if source.kind != origin.kind:
        raise InputError(f"{name} holds {_KINDS[source.kind]}, and {folder} takes {_KINDS[origin.kind]}: give it such")
    rows = model.encode(source)
    if rows.inputs[:1].shape[1:] != model.shape:
        shape = tuple(rows.inputs[:1].shape[1:])
        raise InputError(f"{name} holds inputs of shape {shape}: {folder} takes {tuple(model.shape)} each")
    if inputs_digest(rows) == origin.digest:
        raise InputError(known_rows)
    return _audited([rows], [features_of(model.network, rows.batch, len(rows))])


def _untrained(data: EnvironmentSet | Splits) -> list[EnvironmentSet]:
    """All of a set; of one that is divided, what is not trained on."""
    return [data.training_domain, data.test] if isinstance(data, Splits) else [data]


def _audited(parts: Sequence[EnvironmentSet], features: Sequence[Tensor]) -> Audited:
    return Audited(_joined(features), _names(parts, "labels"), _names(parts, "environments"))


def _joined(features: Sequence[Tensor]) -> Tensor:
    import torch

    return features[0] if len(features) == 1 else torch.cat(list(features))


def _names(parts: Sequence[EnvironmentSet], what: str) -> list[str]:
    kind = {"labels": "class_names", "environments": "environment_names"}[what]
    return [getattr(part, kind)[i] for part in parts for i in getattr(part, what).tolist()]
